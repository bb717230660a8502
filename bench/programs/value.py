"""`value.py MEGABYTES`: a large value comes home; seconds, and the launcher's peak by its size."""

import json
import resource
import sys
import time

import phalanx

size = int(sys.argv[1]) * 1_000_000


def make(size: int) -> bytes:
    return bytes(size)


began = time.perf_counter()
value = phalanx.launch(make, {"size": size}, workers_per_host=1).rank(0)
seconds = time.perf_counter() - began
assert len(value) == size
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "peak": peak / size}))
