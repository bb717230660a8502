"""Debuggers in workers: at the user's terminal where there is one, else a word on what to do.

Whatever a debugger of `pdb`'s kind was called by (`breakpoint()`, `pdb.set_trace()`,
`torch.distributed.breakpoint()`), it reads its commands in `cmd.Cmd.cmdloop`. A worker's stdin has
none: there it would quit, with an exception that says nothing, and that notebooks do not show.
"""

from __future__ import annotations

import cmd
import contextlib
import fcntl
import linecache
import os
import re
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from phalanx.errors import NoTerminal

PROMPTING = "prompting"
"""The file that is in a rank's directory while its debugger waits for a command: what it prints is
shown at once then, though no line has ended."""

is_script = False
"""Whether this worker runs a script, and not a function of a launch: set by whoever runs it."""

_FOR_A_SCRIPT = "Run it with 'phalanx torchrun' on a terminal, in the foreground"
_FOR_A_FUNCTION = (
    f"Debug one rank in this process: {NoTerminal.python}; or run a script with 'phalanx torchrun' "
    "on a terminal"
)

_TURN = "debugger"
"""The file in a round's directory that is locked by whoever has the terminal."""


def install(rank: int, terminal: str, directory: str) -> None:
    """Have debuggers in this process use a terminal, by its path, or say that there is none.

    `directory` is the rank's own, in the one of its round.
    """
    plain = cmd.Cmd.cmdloop

    def cmdloop(self: Any, intro: Any = None) -> None:
        if not _is_debugger(self):
            plain(self, intro)
            return
        in_place = getattr(self, "use_rawinput", True)  # it asks for sys.stdin when it reads
        stream = sys.stdin if in_place else self.stdin
        if not _is_empty(stream) and not (terminal and _is_terminal(stream)):
            plain(self, intro)
        elif terminal and in_place:
            self.nosigint = True  # Ctrl-C ends the app: pdb must not take it for a prompt
            try:
                with _at(terminal, directory, f"rank {rank} has the terminal"):
                    plain(self, intro)
            except KeyboardInterrupt:
                sys.exit(128 + signal.SIGINT)
        else:
            short = f"rank {rank} stopped at a breakpoint{_location(self)} without a terminal"
            what = _FOR_A_SCRIPT if is_script else _FOR_A_FUNCTION
            raise NoTerminal(
                f"{short}. {what}; or attach to the worker: "
                f"debugpy.listen({5678 + rank}), then debugpy.wait_for_client().",
                short=short,
            )

    cmd.Cmd.cmdloop = cmdloop  # type: ignore[method-assign]


@contextlib.contextmanager
def _at(terminal: str, directory: str, at_last: str) -> Iterator[None]:
    """Read from the terminal for a while: one rank at a time. `at_last` is said after a wait."""
    mark = os.path.join(directory, PROMPTING)
    before = sys.stdin
    with (
        open(os.path.join(os.path.dirname(directory), _TURN), "w") as turn,
        open(open_terminal(terminal)) as stdin,
    ):
        try:
            sys.stdin = stdin
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(turn, fcntl.LOCK_EX)
                print(at_last)
            with open(mark, "w"):
                pass
            yield
        finally:
            sys.stdin = before
            with contextlib.suppress(OSError):
                os.unlink(mark)


def open_terminal(path: str) -> int:
    """A descriptor to read it by; it does not become the one whose signals we get."""
    return os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)


def cut_frames(error: BaseException) -> None:
    """Have the traceback of one that a debugger has raised end at the line that was come to."""
    step = error.__traceback__ if isinstance(error, NoTerminal) else None
    last = step
    while step is not None and (after := step.tb_next) is not None:
        if _module(after.tb_frame) == "bdb":
            assert last is not None
            last.tb_next = None
            return
        last = last if _is_torchs(after.tb_frame) else after
        step = after


def _location(debugger: Any) -> str:
    """Where it was called by the user; it stops at the line that follows, perhaps within torch."""
    try:
        frame, line = debugger.stack[debugger.curindex]  # after a failure, not where it is now
    except (AttributeError, IndexError, TypeError, ValueError):
        return ""
    code = frame.f_code
    while _is_torchs(frame) and frame.f_back is not None:
        frame = frame.f_back
        code, line = frame.f_code, frame.f_lineno
    if not _CALL.search(linecache.getline(code.co_filename, line)):
        before = max((n for _, _, n in code.co_lines() if n and n < line), default=line)
        if _CALL.search(linecache.getline(code.co_filename, before)):
            line = before
    return f" ({code.co_filename}, line {line})"


_CALL = re.compile(r"\b(breakpoint|set_trace)\(")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_torchs(frame: FrameType) -> bool:
    """Of `torch.distributed.breakpoint()`."""
    return _module(frame).startswith("torch.distributed")


def _is_debugger(loop: object) -> bool:
    bdb: Any = sys.modules.get("bdb")
    return bdb is not None and isinstance(loop, bdb.Bdb)


def _is_empty(stream: Any) -> bool:
    """It is what workers have for stdin, or nothing."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), os.stat(os.devnull))
    except (OSError, ValueError):
        return False
    except AttributeError:
        return stream is None


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (OSError, ValueError, AttributeError):
        return False
