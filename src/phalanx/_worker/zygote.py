"""The process that loads packages once and forks the workers, waits for them and ends them.

Single-threaded, the subreaper of everything below it. It hears from the agent over a socket: when
that ends, it kills all that is below it and leaves. It knows processes and their ranks, nothing of
what they do.

Descriptors that travel beside a `ForkWorkers`: the socket that workers report to, then, on the host
that carries the store, the listening socket for it.
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
from collections.abc import Iterator
from dataclasses import dataclass, field

from phalanx import _wire as wire
from phalanx._core.ranks import HEARTBEAT_FILE, SPOOL
from phalanx._system import processes, shortage
from phalanx._system.machine import python_command
from phalanx._worker import leftovers, outcome, preload, shutdown, worker
from phalanx._worker.hooks import jax_cluster

TITLE_ROOM = " " * 120
"""An argument that pads the command line, so that workers can show a title of this length."""

_POLL_LIMIT = 3600_000.0
"""Milliseconds; what `poll` takes is an int."""


@dataclass
class _WorkerSet:
    """The processes of the round that runs."""

    fork: wire.ForkWorkers
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
        os.environ.pop(SPOOL, None)  # it has been seen by whom it is for
        self._given: dict[str, str] = {}
        """Variables of the app's first worker: most are those of all others, and of all rounds."""
        self._replaced: dict[str, str] = {}
        self._decoder = wire.Decoder()
        self._descriptors: list[int] = []
        self._worker_set: _WorkerSet | None = None
        self._spawn = prepare.spawn
        self._loaded = preload.LoadedPackages()
        self.preloaded: tuple[str, ...] = ()
        self._wakeup, self._waker = socket.socketpair()

    # ── start ─────────────────────────────────────────────────────────────────

    def warm(self) -> None:
        """Load the packages, and say what came of it."""
        imports = self._prepare.preload
        processes.set_title(f"phalanx: {self._prepare.title} zygote")
        worker.adopt(self._prepare)
        jax_cluster.announce()
        if not self._spawn:
            if self._loaded.missing(imports) or not self.preloaded:
                with _killed_by_end_of(self._control), _rare_collections():
                    preload.preload(self._prepare, self._loaded, self._announce)
                self._announce("")
                self._prepare_to_fork()
            self._loaded.unsafe = self._loaded.unsafe or preload.unsafe_to_fork()
        unsafe = self._loaded.unsafe
        self._send(
            wire.Ready(
                app=self._prepare.app,
                torch=self._loaded.bring_torch(imports),
                spawn=self._spawn or unsafe is not None,
                left_out=tuple(self._loaded.tainted),
                failed=self._loaded.failures(imports),
                notes=(f"{unsafe}: workers are spawned instead of forked",) if unsafe else (),
            )
        )

    def _prepare_to_fork(self) -> None:
        """Make what was loaded ready to be forked from."""
        if "torch" in sys.modules:
            importlib.import_module("phalanx._torch.group").let_users_replace_it()
        if "cloudpickle" in sys.modules:
            outcome.pickler_class()
        shutdown.disown_finalizers()
        processes.reset_actions()  # whatever packages have set: it would be theirs, not the user's
        signal.signal(signal.SIGCHLD, _wake)
        self.preloaded = tuple(sys.modules)
        preload.flush_streams()
        gc.collect()
        gc.freeze()

    def _warm_again(self, prepare: wire.Prepare) -> None:
        """Prepare for another app, unless what is loaded is not what is on disk any more."""
        self._prepare = prepare
        for name in self._given:
            os.environ.pop(name, None)
        os.environ.update(self._replaced)
        self._given, self._replaced = {}, {}
        worker.adopt(prepare)
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

    def serve(self) -> worker.Assignment | None:
        """Obey the agent until it is gone (None), or return in a worker with its assignment."""
        signal.signal(signal.SIGCHLD, _wake)
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

    def _send(self, *frames: wire.Frame) -> None:
        with contextlib.suppress(OSError):  # end of file follows, and is acted on in the loop
            self._control.sendall(b"".join(map(wire.encode, frames)))

    def _obey(self, frame: wire.Frame) -> worker.Assignment | None:
        match frame:
            case wire.ForkWorkers():
                return self._fork(frame)
            case wire.Prepare():
                self._warm_again(frame)
            case wire.StayWarm():
                os.chdir("/")  # where we have been need not stay mounted for us
            case wire.HaltRound() if self._is_current(frame):
                self._stop(frame)
            case wire.SignalWorkers():
                for pid in self._live().values():
                    if processes.catches(pid, frame.number):
                        processes.send(pid, frame.number)
        return None

    def _is_current(self, frame: wire.Frame) -> bool:
        worker_set = self._worker_set
        return worker_set is not None and (worker_set.fork.app, worker_set.fork.round) == (
            frame.app,
            frame.round,
        )

    def _live(self) -> dict[int, int]:
        return self._worker_set.pids if self._worker_set is not None else {}

    # ── workers ───────────────────────────────────────────────────────────────

    def _fork(self, fork: wire.ForkWorkers) -> worker.Assignment | None:
        number, *listening = self._descriptors
        self._descriptors = []
        report = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, number)
        self._give(fork.workers[0])
        worker_set = self._worker_set = _WorkerSet(fork)
        parent = os.getpid()
        pids: dict[int, int] = {}
        printed = self._loaded.printed(self._prepare.preload)
        what = "torch's store"
        try:
            # Where there is no torch, workers say so better than a store that cannot be carried.
            if listening and importlib.util.find_spec("torch") is not None:
                worker_set.store = self._fork_store(listening[0], parent)
            for variables in fork.workers:
                what = f"rank {variables['RANK']}"
                if (pid := os.fork()) == 0:
                    begun = worker.Assignment(
                        self._prepare, fork, variables, report, parent, printed, self._given
                    )
                    return self._become_worker(begun, listening)
                pids[int(variables["RANK"])] = pid
        except OSError as error:
            reason = shortage.describe(error)
            self._send(wire.AgentGone(message=f"cannot start {what}: {reason}"))
        worker_set.pids.update(pids)
        report.close()
        for held in listening:
            os.close(held)
        self._send(wire.WorkersStarted(app=fork.app, round=fork.round, pids=pids))
        if not pids:
            self._clear(fork)
        return None

    def _give(self, variables: dict[str, str]) -> None:
        """Set variables before the fork; once an app, since libc keeps each value that was set."""
        if not self._given:
            self._given = {k: v for k, v in variables.items() if k != HEARTBEAT_FILE}
            self._replaced = {k: os.environ[k] for k in self._given if k in os.environ}
            os.environ.update(self._given)

    def _become_worker(
        self, assignment: worker.Assignment, listening: list[int]
    ) -> worker.Assignment:
        signal.set_wakeup_fd(-1)
        for held in (self._control, self._wakeup, self._waker):
            held.close()
        for number in listening:
            os.close(number)
        try:
            worker.begin(assignment)
            if self._spawn or self._loaded.unsafe is not None:
                _exec_worker(assignment, self._initial)
        except OSError as error:
            worker.report(assignment, outcome.raised(assignment.rank, error, None))
            os._exit(1)
        return assignment

    def _fork_store(self, listening: int, parent: int) -> int:
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
            importlib.import_module("phalanx._torch.store").serve(listening)
            code = 0
        except BaseException:  # noqa: BLE001 this process is all there is to tell
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    # ── ends ──────────────────────────────────────────────────────────────────

    def _reap(self) -> bool:
        """Bury who has died; whether nothing is left below this process."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid == 0:
                return False
            self._buried(pid, status)

    def _buried(self, pid: int, status: int) -> None:
        worker_set = self._worker_set
        if worker_set is None:
            return
        if pid == worker_set.store:
            how = os.waitstatus_to_exitcode(status)
            self._send(wire.AgentGone(message=f"the process that hosts the store ended ({how})"))
        rank = next((rank for rank, p in worker_set.pids.items() if p == pid), None)
        if rank is None:
            return
        clock = time.monotonic()
        del worker_set.pids[rank]
        fork = worker_set.fork
        exited = wire.WorkerExited(
            app=fork.app,
            round=fork.round,
            rank=rank,
            status=status,
            clock=clock,
            signalled=worker_set.signalled.get(rank),
        )
        if worker_set.pids:
            self._send(exited)
            self._kill_orphans(pid, worker_set)
            return
        self._clear(fork, exited)

    def _clear(self, fork: wire.ForkWorkers, *unsaid: wire.Frame) -> None:
        """No worker is left."""
        self._worker_set = None
        if not self._reap():
            self._send(*unsaid)
            unsaid = ()
            processes.kill_descendants(self._reap)
        self._send(*unsaid, wire.RoundCleared(app=fork.app, round=fork.round))

    def _kill_orphans(self, worker: int, worker_set: _WorkerSet) -> None:
        """End what a worker left behind while others go on: its session's processes."""
        known = {worker_set.store, *worker_set.pids.values()}
        if known.issuperset(processes.children(os.getpid())):
            return  # what a worker leaves behind becomes a child of ours
        for pid in processes.descendants(os.getpid()):
            if pid not in known and processes.session_of(pid) == worker:
                processes.send(pid, signal.SIGKILL)

    def _stop(self, stop: wire.HaltRound) -> None:
        worker_set = self._worker_set
        if worker_set is None:
            return
        for rank, pid in worker_set.pids.items():
            if rank not in stop.spared:
                processes.send(pid, stop.number)
                processes.send(pid, signal.SIGCONT)
                worker_set.signalled[rank] = stop.number
        due = time.monotonic() + stop.grace
        worker_set.kill_at = due if worker_set.kill_at is None else min(worker_set.kill_at, due)

    def _kill_when_due(self) -> None:
        worker_set = self._worker_set
        if (
            worker_set is not None
            and worker_set.kill_at is not None
            and time.monotonic() >= worker_set.kill_at
        ):
            worker_set.kill_at = None
            for rank, pid in worker_set.pids.items():
                processes.send(pid, signal.SIGKILL)
                worker_set.signalled[rank] = signal.SIGKILL

    def _poll_timeout(self) -> float | None:
        if self._worker_set is None or self._worker_set.kill_at is None:
            return None
        left = (self._worker_set.kill_at - time.monotonic()) * 1000 + 1
        return min(max(0.0, left), _POLL_LIMIT)


def _wake(*_: object) -> None:
    """There is a handler, so that the signal is told of."""


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Look for garbage seldom: what imports make stays, and torch alone makes 170,000 objects.

    A threshold that a package sets for itself is left alone.
    """
    before, seldom = gc.get_threshold(), (100_000, 50, 100)
    if gc.isenabled() and before[0] < seldom[0]:
        gc.set_threshold(*seldom)
    try:
        yield
    finally:
        if gc.get_threshold() == seldom:
            gc.set_threshold(*before)


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


def _exec_worker(assignment: worker.Assignment, environ: dict[str, str]) -> None:
    """Replace this forked process by a new interpreter that reads its part from a descriptor.

    Its initial environment is the zygote's own, and the rest is set inside, as it is in a fork.
    """
    part = os.memfd_create("phalanx-worker", 0)
    with open(part, "wb", closefd=False) as file:
        file.write(wire.encode(assignment.prepare) + wire.encode(assignment.fork))
    os.lseek(part, 0, os.SEEK_SET)
    assignment.report.set_inheritable(True)
    numbers = [str(part), str(assignment.report.fileno()), str(assignment.rank)]
    command = python_command("phalanx._worker.spawned", *numbers, TITLE_ROOM, wakes=False)
    os.execve(sys.executable, command, environ)


def _take_streams(spool: str) -> None:
    """Have streams as the workers': what is printed while packages load is theirs."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number, name in ((1, "stdout"), (2, "stderr")):
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        file = os.open(os.path.join(spool, name), flags, 0o600)
        os.dup2(file, number)
        os.close(file)
    worker.open_streams()


def main() -> None:
    """Run as the zygote. Arguments: descriptors of the socket and the first frame; the spool; the
    launcher's process, if it is on this machine.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    with open(int(sys.argv[2]), "rb") as file:
        (prepare,) = wire.Decoder().feed(file.read())
    spool, launcher = sys.argv[3], int(sys.argv[4])
    if not isinstance(prepare, wire.Prepare):
        raise TypeError(f"the zygote was started with {type(prepare).__name__}, not Prepare")
    processes.reset_signals()
    # The agent decides when workers end: Slurm, for one, signals all processes of a step alike.
    # Held back, not ignored: what a worker is sent before it is one must still reach it.
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, held | ({prepare.preempt} - {0}))
    processes.become_subreaper()
    _take_streams(spool)
    zygote = Zygote(control, prepare, spool)
    zygote.warm()
    assignment = zygote.serve()
    if assignment is None:
        # The agent removes its spool itself, unless it was killed: then the launcher does, which
        # reads first what workers have printed.
        if not launcher or processes.start_time(launcher) is None:
            leftovers.remove(spool)
        os._exit(0)
    worker.run(assignment, preloaded=zygote.preloaded)
