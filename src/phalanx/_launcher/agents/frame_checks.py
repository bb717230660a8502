"""Whether what an agent says can be true: its own ranks, once, in order, in measure. Pure.

An agent is on a host that may not be ours, and may be anything. What it says of itself is taken;
what concerns other ranks, what was not asked for, and more than an agent ever sends, is a lie. It
is told by `WireError`, and whoever listens does without the agent from then on.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
from collections import Counter
from collections.abc import Callable, Collection

from phalanx import _wire as wire
from phalanx._core.collectives import LastCollective
from phalanx._core.rounds import Ended, ExceptionInfo, Member, Outcome
from phalanx._core.sanitize import sanitize, sanitize_line
from phalanx._logs.writer import STREAMS
from phalanx._worker.outcome import PAYLOAD
from phalanx.errors import WireError

_IN_FLIGHT = wire.LOG_WINDOW + wire.LOG_CHUNK + wire.LOG_COST
"""The most that an agent which keeps the window has on its way for a round."""
_OWN_IN_FLIGHT = 4 << 20
"""The same for what it says itself, of which it is not told when it is written."""
_STREAM, _OWN = 4 * wire.LOG_CAP, 64 << 20
"""Bytes of one stream of one rank, where agents stop at `LOG_CAP` unless the file was emptied
meanwhile, and of what an agent says itself, a few lines for each round."""
_CHATTER, _CHATTER_A_SECOND = 20_000, 200
"""Frames that carry little. Heartbeats, arrivals, a few for each worker and round are expected."""
_LITTLE = 64 << 10
_ASKED = 4
"""How often one thing may be asked for: a file that was damaged on its way is asked for again."""
_BELOW = 4096
"""Workers of launches that workers have started, on one host."""
_GROUPS = 64
"""Process groups of one worker."""
_NOTES, _NOTE = 64, 4 << 10
_LONG = 256 << 10
_SAID = (
    wire.Hello,
    wire.WantContent,
    wire.ProjectArrived,
    wire.Reached,
    wire.HostChecked,
    wire.UserNote,
    wire.Ready,
    wire.WorkersStarted,
    wire.WorkerEntered,
    wire.WorkerEnded,
    wire.LogData,
    wire.RoundCleared,
    wire.Preempted,
    wire.StayingWarm,
    wire.AgentGone,
    wire.Pong,
    wire.Piece,
    wire.PayloadFile,
    wire.WorkerStacks,
    wire.WorkerSteps,
    wire.WrittenList,
    wire.FileStored,
    wire.FetchFile,
    wire.FilePart,
    wire.FetchSmall,
    wire.SmallFiles,
)
"""What agents say."""

MemberOf = Callable[[int], Member | None]
"""The part of the agent's host in a round that has begun, by its number."""


class FrameChecker:
    """What one agent has said to one app so far."""

    def __init__(
        self, *, shipped: bool, began: float, greeted: bool = False, local: bool = False
    ) -> None:
        """`shipped`: the project may have to be sent to it. `greeted`: it has said hello before.
        `local`: it is on this machine.
        """
        self._local = local
        self._shipped = shipped
        self._began = began
        self._frames = 0
        self._greeted = greeted
        self._asked: Counter[str] = Counter()
        self._notes = 0
        self._started: set[int] = set()
        self._entered: set[tuple[int, int]] = set()
        self._ended: set[tuple[int, int]] = set()
        self._streams: Counter[tuple[int, int | None, str]] = Counter()
        self._unwritten: Counter[int | None] = Counter()
        """By round, and None for what it says itself."""

    def check(self, frame: wire.Frame, member_of: MemberOf, now: float) -> wire.Frame:
        """The frame, its texts made plain. Raises `WireError` for what cannot be true."""
        self._count(frame, now)
        if type(frame) not in _SAID:
            raise WireError(f"a {type(frame).__name__}, which agents do not send")
        if not self._greeted and not isinstance(frame, wire.Hello | wire.AgentGone | wire.LogData):
            raise WireError(f"a {type(frame).__name__} before it said hello")
        if frame.rank is not None:
            self._check_rank(frame, member_of)
        match frame:
            case wire.Hello():
                return self._hello(frame)
            case wire.AgentGone():
                return dataclasses.replace(frame, message=sanitize(frame.message, _LONG))
            case wire.UserNote():
                return dataclasses.replace(frame, message=sanitize(frame.message, _NOTE))
            case wire.Reached():
                return dataclasses.replace(frame, problem=sanitize(frame.problem))
            case wire.HostChecked():
                problems = {sanitize_line(n): sanitize(p) for n, p in frame.problems.items()}
                return dataclasses.replace(frame, problems=problems)
            case wire.Ready():
                return _plain_ready(frame)
            case wire.WorkerEntered():
                self._once(frame, self._entered)
            case wire.WantContent():
                self._ask(frame)
            case wire.LogData():
                self._log(frame)
            case wire.Piece():
                self._piece(frame)
            case wire.PayloadFile():
                self._payload_file(frame)
            case wire.WorkersStarted():
                self._start(frame, member_of)
            case wire.WorkerStacks():
                return _plain_stacks(frame, member_of)
            case wire.WorkerSteps():
                _check_own(frame, member_of)
            case wire.WorkerEnded():
                self._once(frame, self._ended)
                return dataclasses.replace(frame, outcome=_outcome(frame))
        return frame

    def expect(self, frames: int) -> None:
        """It was asked for something that takes so many frames to answer."""
        self._frames -= frames

    def skip(self, frame: wire.Frame, now: float) -> None:
        """Count one that is of another app. Raises `WireError` when there are too many."""
        self._count(frame, now)

    def written(self, frame: wire.LogData) -> None:
        """What it said is written, and it knows: as much may come again."""
        self._unwritten[_window_of(frame)] -= wire.cost_of(frame)

    @property
    def unwritten(self) -> int:
        """How much of its logs is on its way to where it is written."""
        return sum(self._unwritten.values())

    @property
    def output(self) -> int:
        """How much of its workers' logs has come."""
        return sum(self._streams.values())

    def received(self, number: int, rank: int, stream: str) -> int:
        """How much of a stream has come, by its round, rank and name."""
        return self._streams[number, rank, stream]

    def fit_notes(self, notes: Collection[str]) -> list[str]:
        """As many of these as one agent may have the user read, made plain."""
        room = _NOTES - self._notes
        chosen = [sanitize(note, _NOTE) for note in list(notes)[: max(0, room)]]
        self._notes += len(chosen)
        if chosen and self._notes == _NOTES:
            chosen.append("more notes of that host are left out")
        return chosen

    # ── each of them ──────────────────────────────────────────────────────────

    def _count(self, frame: wire.Frame, now: float) -> None:
        """Bound what costs only the time to hear it; logs and pieces are bounded by their size."""
        if isinstance(frame, wire.LogData) or len(getattr(frame, "data", b"")) >= _LITTLE:
            return
        self._frames += 1
        if self._frames > _CHATTER + _CHATTER_A_SECOND * (now - self._began):
            raise WireError(f"{self._frames} frames, the last of them a {type(frame).__name__}")

    def _check_rank(self, frame: wire.Frame, member_of: MemberOf) -> None:
        member = member_of(frame.round)
        if member is None:
            if isinstance(frame, wire.LogData):
                raise WireError(f"output of round {frame.round}, in which it is not")
            return  # of a round that is over, or was given up: nobody heeds it
        if frame.rank not in member.ranks:
            kind = type(frame).__name__
            raise WireError(f"a {kind} of rank {frame.rank}, which is not one of its own")

    def _once(self, frame: wire.Frame, seen: set[tuple[int, int]]) -> None:
        if frame.rank is None:
            raise WireError(f"a {type(frame).__name__} without a rank")
        if (frame.round, frame.rank) in seen:
            raise WireError(f"a second {type(frame).__name__} of rank {frame.rank}")
        seen.add((frame.round, frame.rank))

    def _hello(self, hello: wire.Hello) -> wire.Hello:
        if self._greeted:
            raise WireError("a second hello")
        self._greeted = True
        if hello.tree and not self._shipped:
            raise WireError("that it wants the project, which is not sent to it")
        if hello.address and not _is_address(hello.address):
            raise WireError(f"{sanitize_line(repr(hello.address))} as its address")
        # It is removed, with what runs in it, when the agent is lost.
        name = os.path.basename(hello.spool)
        if os.path.normpath(hello.spool) != hello.spool or not name.startswith("phalanx-"):
            raise WireError(f"{sanitize_line(repr(hello.spool))} as its spool directory")
        if not os.path.isabs(hello.spool) or hello.pid <= 1:
            raise WireError(
                f"process {hello.pid} and {sanitize_line(repr(hello.spool))} as its own"
            )
        version, python = sanitize_line(hello.version), sanitize_line(hello.python)
        return dataclasses.replace(hello, version=version, python=python)

    def _ask(self, want: wire.WantContent) -> None:
        self._asked.update(want.digests)
        for digest in want.digests:
            if self._asked[digest] > _ASKED:
                raise WireError(f"a request for the same file, {self._asked[digest]} times")

    def _log(self, log: wire.LogData) -> None:
        if log.stream not in STREAMS or not log.data:
            raise WireError(f"{len(log.data)} bytes of the stream {sanitize_line(log.stream)!r}")
        window = _window_of(log)
        self._unwritten[window] += wire.cost_of(log)
        if self._unwritten[window] > (_OWN_IN_FLIGHT if window is None else _IN_FLIGHT):
            raise WireError("more output than it was told to send at once")
        stream = window or 0, log.rank, log.stream
        self._streams[stream] += len(log.data)
        limit = _OWN if window is None else _STREAM
        if self._streams[stream] > limit:
            raise WireError(f"more than {limit >> 20} MiB as the output of one process")

    def _piece(self, piece: wire.Piece) -> None:
        if piece.rank is None or piece.key != PAYLOAD:
            raise WireError(f"a piece of {sanitize_line(repr(piece.key))}, which nobody wants")
        if not piece.data:
            raise WireError(f"an empty piece of a value of rank {piece.rank}")
        if (piece.round, piece.rank) in self._ended:
            raise WireError(f"a piece of a value of rank {piece.rank} after its end")

    def _payload_file(self, file: wire.PayloadFile) -> None:
        if not self._local:
            raise WireError("a PayloadFile, though it is on another host")
        if (
            file.rank is None
            or os.path.basename(file.name) != file.name
            or not file.name.strip(".")
        ):
            raise WireError(f"{sanitize_line(repr(file.name))} as a file of its spool")

    def _start(self, started: wire.WorkersStarted, member_of: MemberOf) -> None:
        if started.round in self._started:
            raise WireError(f"a second time that round {started.round} has started")
        self._started.add(started.round)
        member = member_of(started.round)
        if member is not None and not started.pids.keys() <= set(member.ranks):
            others = sorted(started.pids.keys() - set(member.ranks))
            raise WireError(f"that it has started rank {others[0]}, which is not one of its own")


def _window_of(log: wire.LogData) -> int | None:
    return None if log.rank is None else log.round


def _outcome(report: wire.WorkerEnded) -> Outcome:
    """How a worker ended, as far as it can be true. Raises `WireError`."""
    outcome = report.outcome
    if outcome.rank != report.rank:
        raise WireError(f"a WorkerEnded of rank {report.rank} on rank {outcome.rank}")
    if outcome.kind is Ended.LOST:
        raise WireError(f"that rank {outcome.rank} is lost, which is not for it to say")
    if not 0 <= (outcome.code or 0) < 256 or not 0 <= (outcome.signal or 0) <= 64:
        raise WireError(f"exit code {outcome.code} and signal {outcome.signal} of a worker")
    exception = outcome.exception
    return dataclasses.replace(
        outcome,
        exception=None if exception is None else _plain_exception(exception),
        stderr=sanitize(outcome.stderr, _LONG),
        detail=sanitize(outcome.detail),
    )


def _plain_exception(exception: ExceptionInfo) -> ExceptionInfo:
    return dataclasses.replace(
        exception,
        type_name=sanitize_line(exception.type_name),
        message=sanitize(exception.message, _LONG),
        traceback=sanitize(exception.traceback, _LONG),
    )


def _plain_ready(ready: wire.Ready) -> wire.Ready:
    return dataclasses.replace(
        ready, failed=ready.failed[:_NOTES], notes=ready.notes[:_NOTES], left_out=()
    )


def _check_own(steps: wire.WorkerSteps, member_of: MemberOf) -> None:
    """Raise `WireError` for steps of others' workers."""
    ranks = [told.rank for told in steps.ranks]
    if len(set(ranks)) < len(ranks):
        raise WireError("the steps of a rank twice")
    if (member := member_of(steps.round)) is not None and (others := {*ranks} - {*member.ranks}):
        raise WireError(f"the steps of rank {min(others)}, which is not one of its own")


def _plain_stacks(stacks: wire.WorkerStacks, member_of: MemberOf) -> wire.WorkerStacks:
    """The stacks of its own workers. Raises `WireError` for those of others."""
    member = member_of(stacks.round)
    own = range(0) if member is None else member.ranks
    if stacks.below:  # what its workers have launched has ranks of its own, and may be anything
        own = range(1 << 31)
        if len(stacks.ranks) > _BELOW:
            raise WireError(f"the stacks of {len(stacks.ranks)} workers of launches on one host")
    elif len({dump.rank for dump in stacks.ranks}) < len(stacks.ranks):
        raise WireError("the stacks of a rank twice")
    for dump in stacks.ranks:
        if dump.rank not in own:
            raise WireError(f"the stacks of rank {dump.rank}, which is not one of its own")
    plained = (
        dataclasses.replace(
            d,
            text=sanitize(d.text, _LONG),
            problem=sanitize(d.problem, _NOTE),
            native=sanitize(d.native, _LONG),
            collectives=tuple(map(_plain_collective, d.collectives[:_GROUPS])),
        )
        for d in stacks.ranks
    )
    return dataclasses.replace(stacks, ranks=tuple(plained))


def _plain_collective(last: LastCollective) -> LastCollective:
    group, name = sanitize_line(last.group), sanitize_line(last.name)
    return dataclasses.replace(last, group=group, name=name)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return len(text) < 80 and text.isprintable()
