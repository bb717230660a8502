"""`keep.py N`: a command that leaves its agent to the next one."""

import sys

from _work import work

import phalanx

phalanx.launch(work, workers_per_host=int(sys.argv[1]), keep_warm=120)
