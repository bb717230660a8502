"""`again.py N RUNS`: a warm launcher; prints the seconds of each run but the first, and phases."""

import json
import sys
import time

from _work import work

import phalanx

workers, runs = int(sys.argv[1]), int(sys.argv[2])
seconds, phases = [], []
with phalanx.Launcher(workers_per_host=workers) as launcher:
    cold = launcher.start(work)
    cold.result()
    for _ in range(runs):
        began = time.perf_counter()
        app = launcher.start(work)
        app.result()
        seconds.append(time.perf_counter() - began)
        phases.append(app.status().phases)
print(json.dumps({"runs": seconds, "phases": phases, "cold": cold.status().phases}))
