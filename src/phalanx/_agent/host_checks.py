"""Has the host checked by a process of its own, for a bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping

from phalanx import _wire as wire
from phalanx._core.ranks import SPOOL
from phalanx._system.machine import python_command


def run_checks(
    asked: wire.CheckHost, prepare: wire.Prepare, environment: Mapping[str, str], spool: str
) -> dict[str, str]:
    """Why each check that failed did; one that does not end in time has failed. Blocks."""
    part = os.memfd_create("phalanx-checks")
    try:
        os.write(part, wire.encode(prepare) + wire.encode(asked))
        os.lseek(part, 0, os.SEEK_SET)
        child = subprocess.Popen(
            python_command("phalanx._worker.host_checks", str(part), str(os.getpid())),
            env={**environment, SPOOL: spool},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(part,),
            start_new_session=True,
        )
    except OSError as error:
        return {"host_checks": f"cannot start: {error}"}
    finally:
        os.close(part)
    hangs = False
    try:
        output, errors = child.communicate(timeout=asked.seconds)
    except subprocess.TimeoutExpired:
        hangs = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        output, errors = child.communicate()
    begun, problems = _read(output)
    if begun or child.returncode:
        said = errors.decode("utf-8", "replace").strip().splitlines()
        why = f"it did not end within {asked.seconds:g} s"
        if not hangs:
            why = said[-1] if said else f"its process ended with code {child.returncode}"
        problems[begun or "host_checks"] = why
    return problems


def _read(output: bytes) -> tuple[str, dict[str, str]]:
    """The check that has begun and not ended, and why others have failed."""
    begun, problems = "", {}
    for line in output.splitlines():
        message = json.loads(line)
        begun = message.get("begin", "")
        if message.get("problem"):
            problems[message["end"]] = message["problem"]
    return begun, problems
