"""`lines.py phalanx|torchrunx LINES WIDTH`: one rank prints; seconds from its first line until all is
home, and how many lines that were.
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


def main() -> None:
    system, lines, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if system == "phalanx":
        import phalanx

        spec = phalanx.DefaultLogSpec.files_only("bench-logs")
        began = phalanx.launch(flood, args=(lines, width), workers_per_host=1, log_spec=spec).rank(
            0
        )
        seconds = time.monotonic() - began
        (path,) = glob.glob("bench-logs/*[[]0].log")
        with open(path) as file:
            numbers = [int(line[:8]) for line in file]
        home = len(numbers) if numbers == sorted(set(numbers)) else -1
    else:
        import contextlib
        import io

        import torchrunx

        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            result = torchrunx.Launcher(
                hostnames=["localhost"], workers_per_host=1, backend=None
            ).run(flood, lines, width)
            seconds = time.monotonic() - result.rank(0)
        home = sum("xxx" in line for line in shown.getvalue().splitlines())
    print(json.dumps({"seconds": seconds, "lines": home}))


if __name__ == "__main__":
    main()
