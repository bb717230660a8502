"""`top.py N`: a script that imports torch itself before it launches N workers."""

import sys

import torch  # noqa: F401
from _work import work

import phalanx

phalanx.launch(work, workers_per_host=int(sys.argv[1]))
