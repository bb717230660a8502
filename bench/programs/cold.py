"""`cold.py N`: a script that launches N workers, and imports nothing heavy itself."""

import sys

from _work import work

import phalanx

phalanx.launch(work, workers_per_host=int(sys.argv[1]))
