"""`lines.py phalanx|torchrunx LINES WIDTH`: one rank prints.

Prints the seconds from its first line until all is home, and how many lines came.
"""

import glob
import json
import sys
import time


def flood(lines: int, width: int) -> float:
    began = time.monotonic()
    text = "x" * (width - 9)
    for i in range(lines):
        print(f"{i:08d}{text}")
    return began


def with_phalanx(lines: int, width: int) -> dict[str, float]:
    import phalanx

    spec = phalanx.DefaultLogSpec.files_only("bench-logs")
    began = phalanx.launch(flood, args=(lines, width), workers_per_host=1, log_spec=spec).rank(0)
    seconds = time.monotonic() - began
    (path,) = glob.glob("bench-logs/*[[]0].log")
    with open(path) as file:
        numbers = [int(line[:8]) for line in file]
    whole = numbers == sorted(set(numbers))
    return {"seconds": seconds, "lines": len(numbers) if whole else -1}


def with_torchrunx(lines: int, width: int) -> dict[str, float]:
    import torchrunx

    launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=1, backend=None)
    began = launcher.run(flood, lines, width).rank(0)
    seconds = time.monotonic() - began
    (path,) = glob.glob("torchrunx_logs/*/localhost[[]0].log")
    with open(path) as file:
        return {"seconds": seconds, "lines": sum("xxxxxx" in line for line in file)}


def main() -> None:
    system, lines, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    measure = with_phalanx if system == "phalanx" else with_torchrunx
    print(json.dumps(measure(lines, width)))


if __name__ == "__main__":
    main()
