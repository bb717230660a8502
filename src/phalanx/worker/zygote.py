"""The process that loads packages once and forks the workers, waits for them and ends them.

Single-threaded, the subreaper of everything below it. It hears from the agent over a socket: when
that ends, it kills all that is below it and leaves. It knows processes and their ranks, nothing of
what they do.

Descriptors that travel beside a `Fork`: the socket that workers report to, then, on the host that
carries the store, the listening socket for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import importlib.util
import os
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field

from phalanx import wire
from phalanx.hosts import python_command
from phalanx.worker import bootstrap, jax_cluster, leaving, leftovers, outcome, preload, processes

TITLE_ROOM = " " * 120
"""An argument that pads the command line, so that workers can show a title of this length."""

_POLL_LIMIT = 3600_000.0
"""Milliseconds; what `poll` takes is an int."""


@dataclass
class _Brood:
    """The processes of the round that runs."""

    fork: wire.Fork
    pids: dict[int, int] = field(default_factory=dict)
    store: int | None = None
    kill_at: float | None = None
    signalled: dict[int, int] = field(default_factory=dict)
    """What each rank was last sent to stop it."""


class Zygote:
    """The state of the zygote's loop."""

    def __init__(self, control: socket.socket, prepare: wire.Prepare, spool: str) -> None:
        """Take the socket to the agent; nothing is started."""
        self._control = control
        self._prepare = prepare
        self._spool = spool
        self._initial = dict(os.environ)
        self._decoder = wire.Decoder()
        self._descriptors: list[int] = []
        self._brood: _Brood | None = None
        self._spawn = prepare.spawn
        self._loaded = preload.Loaded()
        self.preloaded: frozenset[str] = frozenset()
        self._wakeup, self._waker = socket.socketpair()

    # ── start ─────────────────────────────────────────────────────────────────

    def warm(self) -> None:
        """Load the packages, and say what came of it."""
        imports = self._prepare.preload
        processes.set_title(f"phalanx: {self._prepare.title} zygote")
        bootstrap.adopt(self._prepare)
        jax_cluster.announce()
        if not self._spawn:
            if self._loaded.missing(imports) or not self.preloaded:
                with _killed_by_end_of(self._control):
                    preload.preload(self._prepare, self._loaded, self._announce)
                self._announce("")
                self._settle()
            self._loaded.unsafe = self._loaded.unsafe or preload.unsafe_to_fork()
        unsafe = self._loaded.unsafe
        self._send(
            wire.Ready(
                app=self._prepare.app,
                torch=self._loaded.bring_torch(imports),
                spawn=self._spawn or unsafe is not None,
                left_out=tuple(self._loaded.tainted),
                failed=self._loaded.failures(imports),
                notes=(f"{unsafe}: the workers are spawned instead of forked",) if unsafe else (),
            )
        )

    def _settle(self) -> None:
        """Make what was loaded ready to be forked from."""
        if "torch" in sys.modules:
            importlib.import_module("phalanx.torch.group").let_users_replace_it()
        leaving.disown_finalizers()
        self.preloaded = frozenset(sys.modules)
        preload.flush_streams()
        gc.collect()
        gc.freeze()

    def _warm_again(self, prepare: wire.Prepare) -> None:
        """Prepare for another app, unless what is loaded is not what is on disk any more."""
        self._prepare = prepare
        bootstrap.adopt(prepare)
        if not self._loaded.fits(prepare):
            self._send(wire.Ready(app=prepare.app, torch=False, spawn=False, stale=True))
        else:
            self.warm()

    def _announce(self, module: str) -> None:
        # On a disk that is full nobody will know which one ended the process.
        with (
            contextlib.suppress(OSError),
            open(os.path.join(self._spool, leftovers.PRELOADING), "w") as file,
        ):
            file.write(module)

    def serve(self) -> bootstrap.Assignment | None:
        """Obey the agent until it is gone (None), or return in a worker with its assignment."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        while True:
            for number, _ in poll.poll(self._poll_timeout()):
                if number == self._wakeup.fileno():
                    self._wakeup.recv(4096)
                    continue
                for frame in self._receive():
                    assignment = self._obey(frame)
                    if assignment is not None:
                        return assignment
                if self._control.fileno() < 0:
                    processes.kill_descendants(self._reap)
                    return None
            self._reap()
            self._kill_when_due()

    # ── the agent's words ─────────────────────────────────────────────────────

    def _receive(self) -> list[wire.Frame]:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1 << 16, 8)
        except ConnectionError:
            data, descriptors = b"", []
        self._descriptors += descriptors
        if not data:
            self._control.close()
        return self._decoder.feed(data)

    def _send(self, frame: wire.Frame) -> None:
        with contextlib.suppress(OSError):  # end of file follows, and is acted on in the loop
            self._control.sendall(wire.encode(frame))

    def _obey(self, frame: wire.Frame) -> bootstrap.Assignment | None:
        match frame:
            case wire.Fork():
                return self._fork(frame)
            case wire.Prepare():
                self._warm_again(frame)
            case wire.Rest():
                os.chdir("/")  # where we have been need not stay mounted for us
            case wire.Stop() if self._is_current(frame):
                self._stop(frame)
            case wire.Signal():
                for pid in self._live().values():
                    if processes.catches(pid, frame.number):
                        processes.send(pid, frame.number)
        return None

    def _is_current(self, frame: wire.Frame) -> bool:
        brood = self._brood
        return brood is not None and (brood.fork.app, brood.fork.round) == (frame.app, frame.round)

    def _live(self) -> dict[int, int]:
        return self._brood.pids if self._brood is not None else {}

    # ── workers ───────────────────────────────────────────────────────────────

    def _fork(self, fork: wire.Fork) -> bootstrap.Assignment | None:
        report, *listening = (socket.socket(fileno=number) for number in self._descriptors)
        self._descriptors = []
        brood = self._brood = _Brood(fork)
        parent = os.getpid()
        # Where there is no torch, workers say so better than a store that cannot be carried.
        if listening and importlib.util.find_spec("torch") is not None:
            brood.store = self._fork_store(listening[0], parent)
        pids: dict[int, int] = {}
        printed = self._loaded.printed(self._prepare.preload)
        for variables in fork.workers:
            assignment = bootstrap.Assignment(
                self._prepare, fork, variables, report, parent, printed
            )
            try:
                pid = os.fork()
            except OSError as error:
                self._send(wire.Broken(message=f"cannot start rank {assignment.rank}: {error}"))
                break
            if pid == 0:
                return self._become_worker(assignment, listening)
            pids[assignment.rank] = pid
        brood.pids.update(pids)
        report.close()
        for held in listening:
            held.close()
        self._send(wire.Started(app=fork.app, round=fork.round, pids=pids))
        return None

    def _become_worker(
        self, assignment: bootstrap.Assignment, listening: list[socket.socket]
    ) -> bootstrap.Assignment:
        signal.set_wakeup_fd(-1)
        for held in (self._control, self._wakeup, self._waker, *listening):
            held.close()
        try:
            bootstrap.begin(assignment)
            if self._spawn or self._loaded.unsafe is not None:
                _exec_worker(assignment, self._initial)
        except OSError as error:
            bootstrap.report(assignment, outcome.raised(assignment.rank, error, None))
            os._exit(1)
        return assignment

    def _fork_store(self, listening: socket.socket, parent: int) -> int:
        pid = os.fork()
        if pid != 0:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            processes.die_with_parent(parent)
            processes.reset_signals()
            self._control.close()
            processes.set_title(f"phalanx: {self._prepare.title} store")
            importlib.import_module("phalanx.torch.store").serve(listening.detach())
            code = 0
        except BaseException:  # noqa: BLE001 this process is all there is to tell
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    # ── ends ──────────────────────────────────────────────────────────────────

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._buried(pid, status)

    def _buried(self, pid: int, status: int) -> None:
        brood = self._brood
        if brood is None:
            return
        if pid == brood.store:
            how = os.waitstatus_to_exitcode(status)
            self._send(wire.Broken(message=f"the process that carries the store ended ({how})"))
        rank = next((rank for rank, p in brood.pids.items() if p == pid), None)
        if rank is None:
            return
        clock = time.monotonic()
        del brood.pids[rank]
        fork = brood.fork
        self._send(
            wire.Exit(
                app=fork.app,
                round=fork.round,
                rank=rank,
                status=status,
                clock=clock,
                signalled=brood.signalled.get(rank),
            )
        )
        if brood.pids:
            self._kill_orphans(pid, brood)
            return
        self._brood = None
        processes.kill_descendants(self._reap)
        self._send(wire.Stopped(app=fork.app, round=fork.round))

    def _kill_orphans(self, worker: int, brood: _Brood) -> None:
        """End what a worker left behind while others go on: its session's processes."""
        known = {brood.store, *brood.pids.values()}
        for pid in processes.descendants(os.getpid()):
            if pid not in known and processes.session_of(pid) == worker:
                processes.send(pid, signal.SIGKILL)

    def _stop(self, stop: wire.Stop) -> None:
        brood = self._brood
        if brood is None:
            return
        for rank, pid in brood.pids.items():
            if rank not in stop.spared:
                processes.send(pid, stop.number)
                processes.send(pid, signal.SIGCONT)
                brood.signalled[rank] = stop.number
        due = time.monotonic() + stop.grace
        brood.kill_at = due if brood.kill_at is None else min(brood.kill_at, due)

    def _kill_when_due(self) -> None:
        brood = self._brood
        if brood is not None and brood.kill_at is not None and time.monotonic() >= brood.kill_at:
            brood.kill_at = None
            for rank, pid in brood.pids.items():
                processes.send(pid, signal.SIGKILL)
                brood.signalled[rank] = signal.SIGKILL

    def _poll_timeout(self) -> float | None:
        if self._brood is None or self._brood.kill_at is None:
            return None
        left = (self._brood.kill_at - time.monotonic()) * 1000 + 1
        return min(max(0.0, left), _POLL_LIMIT)


class _killed_by_end_of:  # noqa: N801 reads as a phrase where it is used
    """While imports run, let the kernel end this process as soon as the agent's end closes.

    An import may block for ever in code that is not ours, and no Python code of ours runs
    meanwhile. The agent says nothing before it has heard `Ready`, so the only thing that can
    happen to the socket is its end.
    """

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._flags = 0

    def __enter__(self) -> None:
        number = self._control.fileno()
        self._flags = fcntl.fcntl(number, fcntl.F_GETFL)
        fcntl.fcntl(number, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(number, fcntl.F_SETFL, self._flags | os.O_ASYNC)
        readable, _, _ = select.select([self._control], [], [], 0)
        if readable:
            os._exit(0)

    def __exit__(self, *_: object) -> None:
        fcntl.fcntl(self._control.fileno(), fcntl.F_SETFL, self._flags)


def _exec_worker(assignment: bootstrap.Assignment, environ: dict[str, str]) -> None:
    """Replace this forked process by a new interpreter that reads its part from a descriptor.

    Its initial environment is the zygote's own, and the rest is set inside, as it is in a fork.
    """
    part = os.memfd_create("phalanx-worker", 0)
    with open(part, "wb", closefd=False) as file:
        file.write(wire.encode(assignment.prepare) + wire.encode(assignment.fork))
    os.lseek(part, 0, os.SEEK_SET)
    assignment.report.set_inheritable(True)
    numbers = [str(part), str(assignment.report.fileno()), str(assignment.rank)]
    command = python_command("phalanx.worker.spawned", *numbers, TITLE_ROOM)
    os.execve(sys.executable, command, environ)


def _keep_output(spool: str) -> None:
    """Have what is printed while packages load kept for the workers: it is theirs."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        file = os.open(os.path.join(spool, name), flags, 0o600)
        os.dup2(file, number)
        os.close(file)


def main() -> None:
    """Run as the zygote. Arguments: descriptors of the socket and the first frame; the spool."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    with open(int(sys.argv[2]), "rb") as file:
        (prepare,) = wire.Decoder().feed(file.read())
    spool = sys.argv[3]
    if not isinstance(prepare, wire.Prepare):
        raise TypeError(f"the zygote was started with {type(prepare).__name__}, not Prepare")
    processes.reset_signals()
    # The agent decides when workers end: Slurm, for one, signals all processes of a step alike.
    # Held back, not ignored: what a worker is sent before it is one must still reach it.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    processes.become_subreaper()
    _keep_output(spool)
    zygote = Zygote(control, prepare, spool)
    zygote.warm()
    assignment = zygote.serve()
    if assignment is None:
        # The agent removes its spool itself, unless it was killed.
        leftovers.remove(spool)
        os._exit(0)
    bootstrap.run(assignment, preloaded=zygote.preloaded)
