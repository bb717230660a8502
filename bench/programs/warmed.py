"""`warmed.py N`: the same, after it has had the zygote warmed."""

import sys

import phalanx

phalanx.warm("torch")

import torch  # noqa: E402, F401
from _work import work  # noqa: E402

phalanx.launch(work, workers_per_host=int(sys.argv[1]))
