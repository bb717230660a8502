"""A worker whose function is a program: a script, a module, or a binary, as if it were typed.

`__main__` is the module that stays: what the program defines there pickles, also from threads that
outlive it. Knows the rank's variables, nothing of who started it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import os
import pkgutil
import runpy
import shutil
import string
import sys
import zipfile
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from phalanx._worker.hooks import debugger

Kind = Literal["script", "module", "binary", "path"]


def run(
    kind: Kind,
    program: str,
    arguments: Sequence[str],
    virtual_local_rank: bool = False,  # noqa: FBT001, FBT002 pickled by position
    processors: Sequence[Sequence[int]] = (),
) -> None:
    """Run it to its end. A binary replaces this process, and never returns.

    `processors` are those that each local rank is bound to; none where they are not bound.
    """
    debugger.is_script = True
    local_rank = os.environ["LOCAL_RANK"]
    if processors:
        _bind(processors[int(local_rank)])
    words = [string.Template(word).safe_substitute(local_rank=local_rank) for word in arguments]
    if virtual_local_rank:
        _take_one_device(int(local_rank))
    if kind == "binary":
        _become(program, words)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(write_through=True)  # as with python -u
    run_here(kind, string.Template(program).safe_substitute(local_rank=local_rank), words)


def run_here(kind: Kind, program: str, arguments: Sequence[str]) -> None:
    """Run a script or a module in this process, as `__main__`, to its end."""
    sys.argv = [program, *arguments]
    if kind == "module":
        run_module: Any = vars(runpy)["_run_module_as_main"]  # what `python -m` itself calls
        run_module(program)
    else:
        _run_file(program)


def _run_file(path: str) -> None:
    main = sys.modules["__main__"]
    names = vars(main)
    path = os.path.abspath(path)  # as python has it, unlike sys.argv
    if os.path.isdir(path) or zipfile.is_zipfile(path):  # with a __main__ in it
        sys.path.insert(0, path)
        vars(runpy)["_run_module_as_main"]("__main__", alter_argv=False)
        return
    with open(path, "rb") as file:
        code = pkgutil.read_code(file)  # of a .pyc
    if code is None:
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    names.update(__file__=path, __loader__=loader, __cached__=None, __package__=None)
    names.setdefault("__annotations__", {})
    exec(code, names)  # noqa: S102 this is what running a script is


def _become(program: str, words: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    if shutil.which(program) is None:
        sys.exit(f"no such program: {program}")
    os.execvpe(program, [program, *words], os.environ)


def _bind(processors: Sequence[int]) -> None:
    """Have this process, with the threads that it has, run on these processors alone."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), processors)


def _take_one_device(local_rank: int) -> None:
    """Let the program see its own GPU alone, as the first."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    device = str(local_rank)
    if visible is not None:
        devices = visible.split(",")
        if local_rank >= len(devices):
            raise ValueError(
                f"CUDA_VISIBLE_DEVICES={visible!r} has no device for local rank {local_rank}"
            )
        device = devices[local_rank]
    os.environ |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": device}
