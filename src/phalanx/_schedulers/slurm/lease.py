"""Hosts of Slurm for launches: allocations that end with this process, and steps that lead there.

Each allocation is an `salloc`, held by a pipe: what it runs, and a process beside it, read the
pipe, whose other end only this process has. However this process ends, a job that waits is
withdrawn and one that runs is ended at once, with nobody to clean up. A lost host is replaced by an
allocation of one more.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
import weakref
from collections.abc import Iterator, Sequence

from phalanx._core.sanitize import sanitize
from phalanx._launcher.transport.slurm import group_command, step_command
from phalanx._logs import logger
from phalanx._schedulers.leases import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx._schedulers.slurm.controller import (
    DOWN,
    INTERVAL,
    UNREACHABLE_FOR,
    ControllerUnreachable,
    JobState,
    controller,
    environment,
    unconfigured,
)
from phalanx._schedulers.slurm.options import SlurmOptions
from phalanx.errors import ConfigError, PhalanxError

_GIVING_BACK = 5.0
"""Seconds for an allocation to end when its pipe is closed, if the controller answers."""
_ENDING = 90.0
"""Seconds for a job that ends to say how."""
_SAID = 16 << 10
_ALLOCATED = re.compile(rb"^phalanx-allocation (\d+) (.+)$", re.MULTILINE)
_NUMBER = re.compile(r"job allocation (\d+)")

_NEVER = {
    *("BadConstraints", "DependencyNeverSatisfied", "InvalidAccount", "InvalidQOS"),
    *("AccountNotAllowed", "QOSNotAllowed", "PartitionNodeLimit", "PartitionTimeLimit"),
}
"""Reasons for which a job waits until somebody changes it, or the cluster."""

_ELSEWHERE = {
    "job_dir": "the launcher sends the project itself",
    "python": "use the launcher's own python=…",
    "requeue": "use max_restarts=…",
}
"""Options that are for apps, and what a launch has instead."""

# Descriptor 3 is the pipe. salloc gets it as the stdin of what it runs, which ends when the pipe
# does, and not before the controller answers: salloc asks it to end the job once only. While salloc
# waits it reads nothing; the one that reads beside it tells it to end. That one goes when the hosts
# are there: a signal at the wrong moment can have salloc hang. $turns is a file that is one for all
# that are held: who asks whether the controller is there has it locked, and keeps it a while where
# it is not, so that it is one question for all of them then.
_HOLDER = """
exec 3<&0 0</dev/null
turns=/proc/$$/fd/$1
shift
trap "" PIPE
trap 'granted=1; kill $beside 2>/dev/null' USR1
salloc "$@" sh -c '
    kill -USR1 $1
    echo "phalanx-allocation $SLURM_JOB_ID" $(scontrol show hostnames "$SLURM_JOB_NODELIST")
    cat >/dev/null
    ask="scontrol ping | grep -q is.UP || { sleep 5; exit 1; }"
    flock $2 true 2>/dev/null && in_turn="flock $2"
    end=$(($(date +%s) + 3600))
    until $in_turn sh -c "$ask" || [ $(date +%s) -gt $end ]; do :; done
' sh $$ $turns <&3 &
job=$!
{ cat <&3; while kill -TERM $job; do sleep 2; done; } >/dev/null 2>&1 &
beside=$!
exec 3<&-
[ -z "$granted" ] || kill $beside
while wait $job; code=$?; kill -0 $job; do :; done 2>/dev/null
kill $beside 2>/dev/null
exit $code
"""


class SlurmLease(Lease):
    """Hosts of one allocation, and of others for those of them that were lost."""

    def __init__(self, request: LeaseRequest) -> None:
        """Ask for them. Raises `ConfigError`."""
        options = request.options
        assert isinstance(options, SlurmOptions)
        for name, instead in _ELSEWHERE.items():
            if getattr(options, name):
                raise ConfigError(f"slurm: {name} has no effect on lent hosts: {instead}.")
        if shutil.which("salloc") is None:
            raise ConfigError(
                "salloc is not installed here: run this on a login node of the cluster."
            )
        self._request = request
        self._options = options
        self._lock = threading.Lock()
        self._given_back = False
        self._lost: set[str] = set()
        self._unheard_until = time.monotonic() + UNREACHABLE_FOR
        self._unheard = ""
        """Why nobody has heard the request so far."""
        self._allocations = [_Allocation(request.name, request.num_hosts, options)]

    @property
    def id(self) -> str:  # type: ignore[override]
        """The job's number, once it has one."""
        number = self._allocations[0].number
        return f"job {number}" if number else ""

    def status(self) -> LeaseStatus:
        """How the first allocation stands, and the hosts of all."""
        first = self._allocations[0]
        if self._given_back:
            return LeaseStatus(LeasePhase.ENDED, reason="given back")
        first.look()
        if first.is_unheard and time.monotonic() < self._unheard_until:
            return self._ask_again(first)
        if first.end is not None:
            with self._lock:
                others = self._allocations[1:]
            for other in others:
                other.look()
            if all(other.end is not None for other in others):
                return LeaseStatus(LeasePhase.ENDED, reason=first.end)
            # All of its hosts were taken away, and others were asked for.
            return LeaseStatus(LeasePhase.READY, tuple(self._hosts()), "RUNNING")
        if not first.hosts:
            state, reason = first.queue()
            reason = reason or ("" if first.number else self._unheard)
            phase = LeasePhase.ENDED if reason in _NEVER else LeasePhase.WAITING
            return LeaseStatus(phase, state=state, reason=reason)
        return LeaseStatus(LeasePhase.READY, tuple(self._hosts()), "RUNNING")

    def _ask_again(self, unheard: _Allocation) -> LeaseStatus:
        """The controller was not there to hear the request; salloc waits for it some seconds."""
        self._unheard = f"no answer from Slurm: {unheard.end}"
        with self._lock:
            if not self._given_back and self._allocations == [unheard]:
                request = self._request
                self._allocations = [_Allocation(request.name, request.num_hosts, self._options)]
        return LeaseStatus(LeasePhase.WAITING, reason=self._unheard)

    def _hosts(self) -> Iterator[LentHost]:
        with self._lock:
            allocations, lost = list(self._allocations), set(self._lost)
        ours = frozenset(os.environ.keys() - environment(os.environ).keys())
        for allocation in allocations:
            allocation.look()
            for name in allocation.hosts:
                if name not in lost and allocation.end is None:
                    more = self._step_options(allocation.number)
                    command, group = step_command(name, *more), group_command(*more)
                    yield LentHost(name, command, without=ours, group=group)

    def _step_options(self, number: str) -> list[str]:
        own = [f"--jobid={number}"]
        if self._options.gpus_per_node is not None:
            own.append(f"--gpus-per-node={self._options.gpus_per_node}")
        if self._options.gres is not None:
            own.append(f"--gres={self._options.gres}")
        return own

    def replace(self, name: str) -> bool:
        """Ask for an allocation of one more host, which is none that there was.

        Not in place of one whose job somebody has cancelled.
        """
        if self._is_cancelled(name):
            return False
        with self._lock:
            if self._given_back:
                return False
            self._lost.add(name)
            known = {host for allocation in self._allocations for host in allocation.hosts}
            one = _Allocation(self._request.name, 1, self._options, sorted(known | self._lost))
            idle = [a for a in self._allocations[1:] if a.hosts and {*a.hosts} <= self._lost]
            self._allocations = [a for a in self._allocations if a not in idle] + [one]
        for allocation in idle:
            allocation.give_back()
        return True

    def _is_cancelled(self, name: str) -> bool:
        """The job that had the host was cancelled, not preempted or out of time."""
        with self._lock:
            numbers = [a.number for a in self._allocations if name in a.hosts]
        limit = time.monotonic() + _ENDING
        while numbers and time.monotonic() < limit:
            try:
                job = controller().jobs(numbers[-1:])[numbers[-1]]
            except ControllerUnreachable:
                return False
            if job is None or job.state != "COMPLETING":
                return job is not None and job.state == "CANCELLED"
            time.sleep(INTERVAL)
        return False

    def give_back(self) -> None:
        """End all allocations, or withdraw the requests."""
        with self._lock:
            self._given_back = True
            allocations = list(self._allocations)
        for allocation in allocations:  # all are told first, then waited for
            allocation.close()
        for allocation in allocations:
            allocation.give_back()


class _Allocation:
    """One salloc, from the request to the end."""

    def __init__(
        self, name: str, count: int, options: SlurmOptions, exclude: Sequence[str] = ()
    ) -> None:
        self.number = ""
        self.hosts: tuple[str, ...] = ()
        self.end: str | None = None
        """Why it has ended, once it has."""
        self._said = bytearray()
        self._errors = bytearray()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._state = JobState("PENDING")
        words = [*_words(name, count, options, exclude)]
        read, self._write = os.pipe()
        self._turns = -1
        try:
            self._share_turns()
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _HOLDER, "phalanx", str(self._turns), *words],
                pass_fds=[self._turns],
                stdin=read,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(os.environ),
                start_new_session=True,
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(read)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self._asking: threading.Thread | None = None

    def _share_turns(self) -> None:
        """Have the file that others have, if there are any."""
        with _TURNS:
            others = [other._turns for other in _OPEN if other._turns >= 0]
            self._turns = os.dup(others[0]) if others else os.memfd_create("phalanx-slurm-turns")
            _OPEN.add(self)

    @property
    def is_unheard(self) -> bool:
        """It has ended because nobody heard it."""
        return self.end is not None and not self.number and bool(DOWN.search(self.end))

    def look(self) -> None:
        """Take what it has said since the last time."""
        with self._lock:
            if self.end is not None:
                return
            code = self._process.poll()  # before what it said: nothing follows then
            _drain(self._process.stdout, self._said)
            _drain(self._process.stderr, self._errors)
            text = self._errors.decode("utf-8", "replace")
            if found := _NUMBER.search(text):
                self.number = found[1]
            if not self.hosts and (ready := _ALLOCATED.search(self._said)):
                self.number = ready[1].decode()
                self.hosts = tuple(ready[2].decode().split())
                self._over.set()
            if code is not None:
                said = _reason(text)
                self.end = unconfigured(said) or said or f"salloc exited with code {code}"
                self._over.set()
        if code is not None:
            self._let_go()

    def queue(self) -> tuple[str, str]:
        """Why it waits, by Slurm's words: asked for on a thread, so that nobody waits for that."""
        if self.number and self._asking is None and not self._over.is_set():
            self._asking = threading.Thread(target=self._ask, name="slurm-queue", daemon=True)
            self._asking.start()
        return self._state.state, self._state.reason

    def _ask(self) -> None:
        while not self._over.is_set():
            try:
                found = controller().jobs([self.number])[self.number]
                self._state = found or self._state
            except ControllerUnreachable as error:
                self._state = JobState(self._state.state, f"no answer from Slurm: {error}")
            except PhalanxError as error:
                self._state = JobState(self._state.state, str(error))
            self._over.wait(INTERVAL)

    def close(self) -> None:
        """Let go of the pipe: salloc ends, and the job with it. Idempotent."""
        self._over.set()
        with self._lock:
            self._close_files()

    def _close_files(self) -> None:
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
        with _TURNS:
            _OPEN.discard(self)
            if self._turns >= 0:
                os.close(self._turns)
                self._turns = -1

    def give_back(self) -> None:
        """The same, and wait until it is done."""
        self.close()
        try:
            self._process.wait(_GIVING_BACK)
        except subprocess.TimeoutExpired:
            # What holds it outlives this process, and goes on trying.
            job = f"job {self.number}" if self.number else "the request"
            logger.warning("phalanx: Slurm does not answer; %s ends when it does", job)
            self.end = "given back"
            self._let_go()
        self.look()

    def _let_go(self) -> None:
        self.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def forget(self) -> None:
        """In a process that was forked: its end of the pipe would keep the hosts."""
        self._close_files()


_OPEN: weakref.WeakSet[_Allocation] = weakref.WeakSet()
_TURNS = threading.Lock()
"""Held while one of them comes to share the file of turns, or leaves it."""


def _forget_in_fork() -> None:
    global _TURNS  # noqa: PLW0603 a lock of this process
    _TURNS = threading.Lock()  # somebody else may have had it
    for allocation in list(_OPEN):
        allocation.forget()


os.register_at_fork(after_in_child=_forget_in_fork)


def _words(name: str, count: int, options: SlurmOptions, exclude: Sequence[str]) -> Iterator[str]:
    """What salloc is asked for."""
    # It goes on without a host that is lost, and what holds it is ended when the job has.
    yield from (f"--job-name={name}", f"--nodes={count}", "--ntasks-per-node=1")
    yield from ("--no-kill", "--kill-command=TERM", "--no-bell")
    if options.cpus is not None:
        yield f"--cpus-per-task={options.cpus}"
    if options.mem is not None:
        yield f"--mem={options.mem}"
    if options.gpus_per_node is not None:
        yield f"--gpus-per-node={options.gpus_per_node}"
    for key, value in options.directives():
        if exclude and key in ("nodelist", "exclude"):
            continue  # the hosts that had to be among them are
        yield f"--{key}" + ("" if value is None else f"={value}")
    if exclude:
        yield f"--exclude={','.join(filter(None, [options.exclude, *exclude]))}"


def _drain(stream: object, into: bytearray) -> None:
    with contextlib.suppress(OSError, ValueError):
        while data := stream.read(1 << 16):  # type: ignore[attr-defined]
            into += data
    del into[:-_SAID]


def _reason(text: str) -> str:
    """Slurm's own words on why it ended, in one line."""
    said = [line.removeprefix("salloc: ") for line in text.splitlines() if line.strip()]
    said = [line for line in said if not line.startswith("Try ")]  # salloc --help
    errors = [line.removeprefix("error: ") for line in said if line.startswith("error: ")]
    ends = [line for line in said if "revoked" in line or "time limit" in line]
    chosen = dict.fromkeys(
        re.sub(r"^Job submit/allocate failed: ", "", line) for line in errors or ends
    )
    return sanitize("; ".join(chosen) or (said[-1] if said else ""))
