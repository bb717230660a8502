"""`raising.py phalanx|torchrunx N RUNS`: a worker raises, the others sleep for 20 s.

Prints the seconds until the caller has the exception.
"""

import json
import sys
import time


def fail(rank_to_fail: int) -> None:
    import os

    import torch.distributed as dist

    dist.barrier()
    if int(os.environ["RANK"]) == rank_to_fail:
        raise RuntimeError(str(time.monotonic()))
    time.sleep(20)


def main() -> None:
    system, workers, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    seconds = []
    for _ in range(runs):
        try:
            if system == "phalanx":
                import phalanx

                phalanx.launch(fail, {"rank_to_fail": 1}, workers_per_host=workers)
            else:
                import torchrunx

                torchrunx.Launcher(
                    hostnames=["localhost"], workers_per_host=workers, backend="gloo"
                ).run(fail, 1)
        except RuntimeError as error:
            seconds.append(time.monotonic() - float(str(error)))
    print(json.dumps({"runs": seconds}))


if __name__ == "__main__":
    main()
