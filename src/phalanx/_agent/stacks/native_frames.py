"""Native frames of a process, by a debugger that is installed on this host."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable

from phalanx._system.machine import program_path
from phalanx._wire import RankDump

_INTERPRETERS = re.compile(
    r"#\d+\s+(?:0x[0-9a-f]+\s+)?(?:in\s+)?"
    r"(?:_?Py[A-Z_]\w*|\w*vectorcall\w*|slot_tp_\w+|type_call|run_(?:mod|eval_code_obj)"
    r"|builtin_(?:exec|eval)(?:_impl)?|do_call_core|pymain_\w+|thread_run"
    r"|pythread_wrapper|start_thread|clone3?|__libc_start\w*|main|_start)\b"
)

LIMIT = 64 << 10
"""The most that is sent home of one rank."""

_TOOLS = {
    "py-spy": ("dump", "--native", "--pid"),
    "eu-stack": ("-n", "64", "-p"),
    "gdb": ("-nx", "-batch", "-ex", "thread apply all backtrace 64", "-p"),
}
"""Each with what goes before the pid; the quickest and most telling first."""
_FRAMES = {
    "py-spy": re.compile(r"Thread |\s+\S"),
    "eu-stack": re.compile(r"TID |#\d"),
    "gdb": re.compile(r"Thread |#\d"),
}


async def add(
    dumps: Iterable[RankDump], seconds: float, *, say_why: bool = True
) -> tuple[RankDump, ...]:
    """The same, with the frames of those that run, in at most so many seconds.

    Where there are none, why; unless nobody has asked.
    """

    async def add_one(dump: RankDump) -> RankDump:
        frames, problem = await asyncio.to_thread(take, dump.pid, seconds)
        shown = f"not available: {problem}" if problem and say_why else frames
        return dataclasses.replace(dump, native=shown)

    return tuple(await asyncio.gather(*map(add_one, dumps)))


def take(pid: int, seconds: float) -> tuple[str, str]:
    """The frames, or why there are none. Blocks for so many seconds at most.

    The process stands still meanwhile.
    """
    until = time.monotonic() + seconds
    path = program_path(os.environ.get("PATH", os.defpath))
    problem = f"none of {', '.join(_TOOLS)} is installed"
    for tool, arguments in _TOOLS.items():
        program = shutil.which(tool, path=path)
        if program is None:
            continue
        frames, problem = _ask(tool, [program, *arguments, str(pid)], until - time.monotonic())
        if frames:
            return frames, ""
    return "", problem


def without_interpreters(frames: list[str]) -> list[str]:
    """The frames but those of CPython's own that call Python code, which its stack shows better."""
    kept = [line for line in frames if not _INTERPRETERS.match(line)]
    return kept if any(line.startswith("#") for line in kept) else frames


def _ask(tool: str, command: list[str], seconds: float) -> tuple[str, str]:
    environ = {name: value for name, value in os.environ.items() if name != "DEBUGINFOD_URLS"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.1, seconds),
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"{tool} did not end in {max(0.1, seconds):.1f} s"
    except OSError as error:
        return "", f"cannot run {tool}: {error.strerror}"
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    frames = [line for line in lines if _FRAMES[tool].match(line)]
    if any("#" in line or "(" in line for line in frames):
        return "\n".join(without_interpreters(frames))[:LIMIT], ""
    said = done.stderr.decode("utf-8", "replace").split("\n\n")[0].strip().splitlines()
    return "", f"{tool}: {said[-1] if said else f'exit code {done.returncode}'}"
