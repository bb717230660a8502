"""The command line as a subprocess, and what it prints held against what it printed before."""

import os
import re
import subprocess
import sys
from pathlib import Path

SNAPSHOTS = Path(__file__).parent / "snapshots"


def phalanx(*args, python=sys.executable, cwd=None, timeout=200, **kwargs):
    """Run a command to its end."""
    return subprocess.run(
        [python, "-m", "phalanx", *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=timeout,
        **kwargs,
    )


def check_snapshot(name, text):
    """The text is what the file says; with UPDATE_SNAPSHOTS=1 the file is written anew."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()


def without_ids(text):
    """Ids differ from run to run."""
    return re.sub(r"-[0-9a-f]{8}\b", "-ID", text)
