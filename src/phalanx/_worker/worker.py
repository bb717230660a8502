"""From a bare process to the user's function, and out again.

The process becomes what a fresh interpreter would be for this rank: streams into the rank's files,
environment, working directory, `sys.path`, `sys.argv`, `__main__`. Then it joins the process group,
loads the function, runs it and reports. Everything it needs comes in two frames.
"""

from __future__ import annotations

import builtins
import contextlib
import dataclasses
import functools
import importlib
import io
import os
import signal
import socket
import sys
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from phalanx import _aliases
from phalanx import _wire as wire
from phalanx._core import launch_guard
from phalanx._core.environment import PASSING
from phalanx._core.ranks import RANK_VARIABLES, SPOOL
from phalanx._core.rounds import Outcome
from phalanx._system import processes
from phalanx._worker import (
    error_file,
    heartbeat,  # noqa: F401 before the user's code: what that forks must not beat for its rank
    missing_package,
    outcome,
    preload,
)
from phalanx._worker.hooks import debugger, stack_signal
from phalanx._worker.shutdown import exit_worker
from phalanx.errors import NoTerminal


@dataclass(frozen=True)
class Assignment:
    """One worker's part: the frames it was started by, its variables, where it reports to."""

    prepare: wire.Prepare
    fork: wire.ForkWorkers
    variables: dict[str, str]
    report: socket.socket
    parent: int
    printed: tuple[bytes, bytes] = (b"", b"")
    """What was printed to stdout and stderr while packages were loaded for all ranks."""
    given: Mapping[str, str] = field(default_factory=dict)
    """What the environment has of the variables already."""

    @property
    def rank(self) -> int:
        """The global rank."""
        return int(self.variables["RANK"])

    @property
    def directory(self) -> str:
        """Where this rank's files are."""
        return os.path.join(self.fork.directory, str(self.rank))


def adopt(prepare: wire.Prepare) -> None:
    """Take on what is the same for all workers of a zygote."""
    for name in (*RANK_VARIABLES, *(PASSING if prepare.passing else ())):
        os.environ.pop(name, None)
    os.environ.update(prepare.environment)
    sys.path[:] = prepare.python_path
    sys.argv = list(prepare.argv)
    _aliases.install_from(os.environ)
    if prepare.cwd is not None:
        os.chdir(prepare.cwd)
    # What was, or was not, found under a relative name was so in another directory.
    sys.path_importer_cache.clear()
    time.tzset()


def begin(assignment: Assignment) -> None:
    """Make this forked process the worker's: parent, session, signals, streams, variables."""
    processes.die_with_parent(assignment.parent)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # all others are as they should be
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    first = assignment.variables["LOCAL_RANK"] == "0"
    terminal = assignment.prepare.terminal if first else ""
    _redirect(assignment.directory, assignment.printed, terminal)
    given = assignment.given
    for name in given.keys() - assignment.variables.keys():
        os.environ.pop(name, None)
    for name, value in assignment.variables.items():
        if given.get(name) != value:
            os.environ[name] = value


def run(assignment: Assignment, *, preloaded: Sequence[str]) -> NoReturn:
    """Become the rank to the user, run the function, report how it ended, and leave."""
    began = time.monotonic()
    stack_signal.listen(assignment.directory)
    if SPOOL in os.environ:
        del os.environ[SPOOL]  # it has been seen by whom it is for
    processes.set_title(f"phalanx: {assignment.prepare.title} rank {assignment.rank}")
    preload.reseed()
    open_streams()
    debugger.install(assignment.rank, assignment.prepare.terminal, assignment.directory)
    if assignment.prepare.remote is not None:
        importlib.invalidate_caches()  # the project has come since packages were loaded
    if assignment.rank in assignment.fork.records:
        from phalanx._worker.hooks import log_records

        log_records.begin(assignment.directory)
    _make_main(assignment.prepare)
    payload = b""
    try:
        sink = outcome.Sink(assignment.directory)
    except OSError as error:
        ended = outcome.raised(assignment.rank, error, None)
    else:
        ended = _call(assignment, sink)
        payload = sink.small
    unwritten = _flush()
    if unwritten is not None and ended.succeeded:
        # As an interpreter's exit has it: what was printed and is lost is no success.
        ended, payload = outcome.raised(assignment.rank, unwritten, None), b""
    seconds = ended.clock - began
    ended = dataclasses.replace(ended, seconds=seconds, joined=_Group.joined)
    report(assignment, ended, payload)
    with contextlib.suppress(OSError):
        assignment.report.close()
    if preloaded:
        exit_worker(ended.code or 0, preloaded=preloaded)
    sys.exit(ended.code or 0)


def _call(assignment: Assignment, sink: outcome.Sink) -> Outcome:
    rank, own = assignment.rank, os.getpid()
    group = _Group(assignment)
    try:
        # Where torch was not loaded before the fork, the user's own files load it: what they set
        # in the environment before they do must count.
        if "torch" in sys.modules:
            group.join()
        function, args, kwargs = _load_function(assignment.fork.function)
        group.join(_namespace(function))
        enter(assignment)
        value = function(*args, **kwargs)
        _end_if_forked(own, 0)
        del function, args, kwargs
        group.leave()
    except SystemExit as stop:
        code = _exit_code(stop)
        _end_if_forked(own, code)
        return outcome.exited(rank, code) if code else outcome.returned(rank, None, sink)
    except BaseException as error:  # noqa: BLE001 whatever it is, the caller gets it
        debugger.cut_frames(error)
        if assignment.prepare.remote is not None:
            package = missing_package.explain(error)
            if package == "torch" and group.is_wanted:
                error.__traceback__ = None  # we want it ourselves: nothing to look for in the code
        trace = outcome.users_part(error.__traceback__)
        ended = outcome.raised(rank, error, sink) if os.getpid() == own else None
        if ended is not None and ended.exception is not None:
            exception = ended.exception
            error_file.write(
                f"{exception.type_name}: {exception.message}", exception.traceback, again=False
            )
        if isinstance(error, NoTerminal):
            error.args = (error.short,)  # what to do is said once, where the launch is
        _show(error.with_traceback(trace), assignment.directory)
        _end_if_forked(own, 1)
        return ended  # type: ignore[return-value]  # only a fork has none, and has ended
    return outcome.returned(rank, value, sink)


def _end_if_forked(own: int, code: int) -> None:
    """End here if the function has forked and this is its child: the rank is the parent."""
    if os.getpid() != own:
        _flush()
        os._exit(code)


def _show(error: BaseException, directory: str) -> None:
    """Print an exception as the interpreter would; a hook of the user's may itself be broken.

    Apart from stderr: who raises it where the app was launched shows it there, and once.
    """
    with _stderr_into(os.path.join(directory, outcome.RAISED)):
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except Exception:  # noqa: BLE001 then by Python's own, into the stream it began with
            sys.stderr = sys.__stderr__
            sys.__excepthook__(type(error), error, error.__traceback__)


@contextlib.contextmanager
def _stderr_into(path: str) -> Iterator[None]:
    """Have stderr go into a file, where that can be."""
    _flush()
    try:
        before = os.dup(2)
    except OSError:
        yield
        return
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 2)
        os.close(file)
    try:
        yield
    finally:
        _flush()
        os.dup2(before, 2)
        os.close(before)


def _flush() -> OSError | None:
    """Have what was printed written; gives why it cannot be."""
    problem = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass  # the function has given it to a reader that has left
        except OSError as error:
            problem = error
        except Exception:  # noqa: BLE001 a stream of the user's own raises anything
            pass
    return problem


def _load_function(path: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    with open(path, "rb") as file, launch_guard.loading("the module of the function"):
        function, args, kwargs = outcome.load(file)
    names = _namespace(function)
    if names.get("__name__") == "__main__":
        # Functions and classes of the launcher's __main__ are found there by pickle as well.
        vars(sys.modules["__main__"]).update(
            (name, value) for name, value in names.items() if not name.startswith("__")
        )
    return function, args, kwargs


def _namespace(function: Any) -> dict[str, Any]:
    """The globals of the code behind something that can be called; empty for a built-in."""
    while isinstance(function, functools.partial | types.MethodType):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    if not isinstance(function, types.FunctionType):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__globals__", {})


def enter(assignment: Assignment) -> None:
    """Tell the agent that what comes now is the user's."""
    fork = assignment.fork
    if fork.is_call:
        return  # nobody shows how far one of many is
    clock = time.monotonic()
    frame = wire.WorkerEntered(app=fork.app, round=fork.round, rank=assignment.rank, clock=clock)
    with contextlib.suppress(OSError):
        assignment.report.sendall(wire.encode(frame))


def report(assignment: Assignment, ended: Outcome, payload: bytes = b"") -> None:
    """Tell the agent how the worker ended, and what came of it if that is not in a file: over the
    socket, or, if the function has closed it, in a file that the agent looks for when the process
    is gone.
    """
    fork = assignment.fork
    frame = wire.WorkerEnded(app=fork.app, round=fork.round, rank=ended.rank, outcome=ended)
    data = wire.encode(frame)
    if payload:
        size = len(payload)
        piece = wire.Piece(key=outcome.PAYLOAD, offset=0, total=size, data=payload, rank=ended.rank)
        data = wire.encode(piece) + data
    try:
        assignment.report.sendall(data)
    except OSError:
        with (
            contextlib.suppress(OSError),
            open(os.path.join(assignment.directory, outcome.REPORT), "wb") as file,
        ):
            file.write(data)


def _redirect(directory: str, printed: tuple[bytes, bytes], terminal: str) -> None:
    """Into the rank's files, behind what was printed while packages were loaded for all ranks."""
    if terminal:
        with contextlib.suppress(OSError):  # of another user, before su
            stdin = debugger.open_terminal(terminal)
            os.dup2(stdin, 0)
            os.close(stdin)
    for number, name, head in ((1, "stdout", printed[0]), (2, "stderr", printed[1])):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        file = os.open(os.path.join(directory, name), flags, 0o600)
        rest = memoryview(head)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.dup2(file, number)
        os.close(file)


def open_streams() -> None:
    """Streams as Python opens them, but for line buffering: what was printed is never held back.

    A fork takes over those of its zygote: to make others would cost it more than all that it says.
    """
    stdin = sys.stdin
    if stdin is None or stdin.closed or stdin is not sys.__stdin__:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 it lives as long as the process
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if stream is None:
            stream = open(number, "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        if isinstance(stream, io.TextIOWrapper) and not stream.line_buffering:
            stream.reconfigure(line_buffering=True)


def _make_main(prepare: wire.Prepare) -> None:
    """Give the user a `__main__` of its own; whatever ran as ours keeps running under its name."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if prepare.main_file is not None:
        main.__file__ = prepare.main_file
    sys.modules["__main__"] = main


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


class _Group:
    """The process group that we make, if the app uses torch and wants one."""

    joined: float | None = None
    """When it had formed; one per process."""

    def __init__(self, assignment: Assignment) -> None:
        self.fork = assignment.fork
        self._module: Any = None

    @property
    def is_wanted(self) -> bool:
        """The function finds one."""
        return self.fork.backend is not None and self.fork.uses_torch

    def join(self, *namespaces: dict[str, Any]) -> None:
        """Join, once; blocks until all ranks are there. Nothing without torch.

        `namespaces` are those of functions that were unpickled, and belong to no module.
        """
        if not self.is_wanted or self._module is not None:
            return
        self._module = importlib.import_module("phalanx._torch.group")
        self._module.let_users_replace_it(*namespaces)
        self._module.join(self.fork.backend, self.fork.process_group_timeout)
        _Group.joined = time.monotonic()

    def leave(self) -> None:
        """Take down what is left of the group."""
        if self._module is not None:
            self._module.leave()
