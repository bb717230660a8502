"""Runs a program until a time has passed or a file appears: what `metrics.tensorboard` runs.

Its text travels: it stands alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

_POLL = 1.0


def is_there(location: str) -> bool:
    """There is a file of this path, or a URL that fsspec knows."""
    if "://" not in location:
        return os.path.exists(location)
    try:
        import fsspec
    except ImportError:
        sys.exit("URLs need fsspec: pip install fsspec")
    system, path = fsspec.core.url_to_fs(location)
    return bool(system.exists(path))


def main() -> int:
    """The program's exit code; 0 when it was ended as asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--start_on_file", default="")
    parser.add_argument("--exit_on_file", default="")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    limit = time.monotonic() + options.timeout
    while options.start_on_file and not is_there(options.start_on_file):
        if time.monotonic() > limit:
            print(f"{options.start_on_file} did not appear", file=sys.stderr)
            return 1
        time.sleep(_POLL)
    command = options.program
    if command[0] == "python":
        command = [sys.executable, *command[1:]]
    process = subprocess.Popen(command)
    while process.poll() is None:
        asked = options.exit_on_file and is_there(options.exit_on_file)
        if asked or time.monotonic() > limit:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return 0
        time.sleep(_POLL)
    code = process.returncode
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main())
