"""`peer.py N`: the same work with torchrunx."""

import sys

import torchrunx
from _work import work

if __name__ == "__main__":
    torchrunx.Launcher(
        hostnames=["localhost"], workers_per_host=int(sys.argv[1]), backend="gloo"
    ).run(work)
