"""How a launch stands in every round: its hosts, its workers, and why each round began.

Fed on the app's loop by whoever carries the app out; read from any thread. Knows no process and no
file: the record of the app is made from what this gives.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Member, Outcome, RankSteps, Round
from phalanx._rendezvous.protocol import ProgressEvent, Reason, Verdict
from phalanx._specs import HostState, HostStatus, RankState, RoundStatus, StepStatus, WorkerStatus

_ROUNDS_KEPT = 100
_ORDER = (
    *(HostState.ACTIVE, HostState.STARTING, HostState.SPARE),
    *(HostState.SET_ASIDE, HostState.LOST, HostState.EXCLUDED),
)


class StatusSnapshot(NamedTuple):
    """What is known at one moment; see `AppStatus`."""

    round: int = 0
    num_restarts: int = 0
    hosts: tuple[HostStatus, ...] = ()
    workers: tuple[WorkerStatus, ...] = ()
    rounds: tuple[RoundStatus, ...] = ()
    steps: StepStatus | None = None


class _Host:
    def __init__(self, hostname: str) -> None:
        self.hostname = hostname
        self.state = HostState.STARTING
        self.reason = ""
        self.pid: int | None = None
        self.member: Member | None = None
        """Its part in the round."""
        self.restarts = 0
        self.slot: int | None = None
        """The rank in the plan, by which log files are named; None: others run its workers."""


class _Worker:
    def __init__(self, *, own: bool) -> None:
        self.state = RankState.STARTING if own else RankState.RUNNING
        self.pid: int | None = None
        self.outcome: Outcome | None = None
        self.steps = 0
        self.step_seconds: float | None = None

    def end(self, outcome: Outcome) -> None:
        self.outcome, self.state = outcome, RankState(outcome.kind.value)
        self.pid = self.pid if outcome.pid is None else outcome.pid


class StatusTracker:
    """The hosts, workers and rounds of one launch."""

    def __init__(self, members: Iterable[Member]) -> None:
        """Its hosts are being started."""
        self.changes = 0
        """Grows with everything that happens: whoever keeps a copy knows when it is old."""
        self._lock = threading.Lock()
        self._hosts: dict[AgentId, _Host] = {}
        self._workers: dict[int, _Worker] = {}
        self._rounds: deque[RoundStatus] = deque(maxlen=_ROUNDS_KEPT)
        self.round = 0
        """The number of the last one."""
        self._is_whole = True
        """All hosts are in one round; otherwise restarts are each host's own."""
        self._losses: dict[str, str] = {}
        self._failure = ""
        self._failed_here = ""
        self._seen = (0, 0)
        self.expect(members)

    # ── what happens ──────────────────────────────────────────────────────────

    def expect(self, members: Iterable[Member]) -> None:
        """Hosts are being started; those that are known stay as they are."""
        with self._lock:
            for member in members:
                host = self._hosts.setdefault(member.agent, _Host(member.hostname))
                host.slot = member.first_rank
            self.changes += 1

    def greeted(self, agent: AgentId, pid: int) -> None:
        """A host's agent is there."""
        with self._lock:
            host = self._hosts[agent]
            host.pid, host.reason = pid, ""
            host.state = HostState.SPARE if self.round else HostState.STARTING
            self.changes += 1

    def lost(self, agent: AgentId, reason: str) -> None:
        """A host is not there any more, or could not be used."""
        with self._lock:
            if (host := self._hosts.get(agent)) is not None:
                host.state, host.reason, host.pid = HostState.LOST, reason, None
                self.changes += 1

    def set_aside(self, agent: AgentId, reason: str) -> None:
        """A host is there, and is not used until it passes its checks."""
        with self._lock:
            host = self._hosts[agent]
            host.state, host.reason = HostState.SET_ASIDE, reason
            self.changes += 1

    def excluded(self, agent: AgentId, reason: str) -> None:
        """A host is not used any more."""
        with self._lock:
            host = self._hosts[agent]
            host.state, host.reason, host.pid = HostState.EXCLUDED, reason, None
            self.changes += 1

    def begin(self, round_: Round, agents: Collection[AgentId] | None = None) -> None:
        """A round begins, for all of its members or for these."""
        with self._lock:
            self.round, self._is_whole = round_.number, agents is None
            self._failed_here = self._first_failure()
            begun = {m.agent: m for m in round_.members if agents is None or m.agent in agents}
            if agents is None:
                self._workers.clear()
            taken = {rank for member in begun.values() for rank in member.ranks}
            for agent, host in self._hosts.items():
                if host.member is None or agent in begun:
                    continue
                if agents is None or host.member.first_rank in taken:
                    host.member = None
                    if host.state is HostState.ACTIVE:
                        host.state = HostState.LOST if host.slot is None else HostState.SPARE
            for agent, member in begun.items():
                host = self._hosts.setdefault(agent, _Host(member.hostname))
                host.member, host.restarts = member, round_.restarts
                host.state, host.reason = HostState.ACTIVE, ""
                own = host.slot is not None
                self._workers.update((rank, _Worker(own=own)) for rank in member.ranks)
            self.changes += 1

    def started(self, pids: Mapping[int, int]) -> None:
        """Workers run."""
        with self._lock:
            for rank, pid in pids.items():
                if (worker := self._workers.get(rank)) is not None:
                    worker.pid = pid
                    if worker.state is RankState.STARTING:
                        worker.state = RankState.RUNNING
            self.changes += 1

    def stepped(self, told: Iterable[RankSteps]) -> None:
        """Workers are further than before."""
        with self._lock:
            for one in told:
                if (worker := self._workers.get(one.rank)) is not None:
                    worker.steps, worker.step_seconds = one.steps, one.seconds
            self.changes += 1

    def halted(self, agents: Collection[AgentId] | None = None) -> None:
        """The workers of all hosts, or of these, are told to stop."""
        with self._lock:
            for agent, host in self._hosts.items():
                if host.member is None or not (agents is None or agent in agents):
                    continue
                for rank in host.member.ranks:
                    worker = self._workers.get(rank)
                    if worker is not None and worker.outcome is None:
                        worker.state = RankState.STOPPING
            self.changes += 1

    def ended(self, outcomes: Mapping[int, Outcome]) -> bool:
        """What is known by now of how workers of the round ended; whether something may be new."""
        with self._lock:
            if self._seen == (self.changes, len(outcomes)):
                return False
            for rank, outcome in outcomes.items():
                worker = self._workers.get(rank)
                if worker is not None and worker.outcome is not outcome:
                    worker.end(outcome)
                    self.changes += 1
            self._seen = self.changes, len(outcomes)
            return True

    def note(self, event: ProgressEvent) -> None:
        """Something has come to pass for the app as a whole; in the order in which it did."""
        facts = event.facts
        with self._lock:
            match event.name:
                case "loss":
                    self._lose_other(facts["hostname"], facts["reason"])
                case "restart" if "round" in facts:  # of these hosts alone
                    self._add_round(facts, facts["cause"])
                case "restart":
                    self._failure = facts.get("cause") or "a worker failed"
                case "round":
                    self._add_round(facts, self._cause(facts))
                    self._losses.clear()
                    self._failure = ""
                    self._wait_as_spare(facts["round"])
            self.changes += 1

    def finish(self, verdict: Verdict | None) -> None:
        """It has ended: nothing runs any more."""
        failures = () if verdict is None else (verdict.cause, *verdict.others)
        succeeded = verdict is not None and verdict.reason is Reason.SUCCEEDED
        with self._lock:
            for failure in failures:
                worker = None if failure is None else self._workers.get(failure.outcome.rank)
                if worker is not None and failure is not None and worker.outcome is None:
                    worker.end(failure.outcome)
            for worker in self._workers.values():
                if worker.outcome is None:
                    worker.state = RankState.RETURNED if succeeded else RankState.UNKNOWN
            self.changes += 1

    # ── why ───────────────────────────────────────────────────────────────────

    def _lose_other(self, hostname: str, reason: str) -> None:
        """Note a loss; of a host that is not ours to run nobody else tells."""
        self._losses[hostname] = reason
        for host in self._hosts.values():
            if (host.slot, host.hostname, host.state) == (None, hostname, HostState.ACTIVE):
                host.state, host.reason = HostState.LOST, reason

    def _wait_as_spare(self, number: int) -> None:
        """A round has begun, perhaps without the hosts of ours that are there."""
        self.round = max(self.round, number)
        for host in self._hosts.values():
            if host.state is HostState.STARTING and host.pid is not None:
                host.state = HostState.SPARE

    def _add_round(self, facts: Mapping[str, Any], cause: str) -> None:
        size = facts.get("world_size", len(self._workers))
        hosts, restarts = tuple(facts["hosts"]), facts["restarts"]
        self._rounds.append(
            RoundStatus(facts["round"], time.time(), hosts, size, restarts, _line(cause))
        )

    def _cause(self, facts: Mapping[str, Any]) -> str:
        """What ended the round before. One that follows another compares hosts."""
        if not self._rounds:
            return ""
        before = self._rounds[-1]
        if known := self._failure or facts.get("cause"):
            return str(known)
        if facts["restarts"] > before.restarts:
            return self._failed_here or "a worker failed on another host"
        gone = list((Counter(before.hosts) - Counter(facts["hosts"])).elements())
        if gone:
            return "; ".join(_loss(name, self._losses.get(name, "")) for name in gone)
        if again := [name for name in self._losses if name in before.hosts]:
            return "; ".join(_loss(name, self._losses[name]) for name in again)
        new = list((Counter(facts["hosts"]) - Counter(before.hosts)).elements())
        return f"{', '.join(new)} joined" if new else ""

    def _first_failure(self) -> str:
        """How the first of our own workers failed by itself in the round that is over."""
        for rank, worker in self._workers.items():
            outcome = worker.outcome
            if outcome is not None and not outcome.succeeded and not outcome.stopped:
                return f"rank {rank} on {self._host_of(rank).hostname} {outcome.describe()}"
        return ""

    def _host_of(self, rank: int) -> _Host:
        hosts = self._hosts.values()
        return next(h for h in hosts if h.member is not None and rank in h.member.ranks)

    # ── how it stands ─────────────────────────────────────────────────────────

    def steps(self) -> StepStatus | None:
        """How ranks get on, where they tell it."""
        return self.snapshot({}).steps

    def snapshot(self, logs: Mapping[int, Path]) -> StatusSnapshot:
        """How things stand now; `logs` are the files of each rank of the plan."""
        with self._lock:
            restarts = [host.restarts for host in self._hosts.values()]
            total = max(restarts, default=0) if self._is_whole else sum(restarts)
            hosts = sorted(self._hosts.values(), key=_order)
            workers = [
                self._worker(host, local, rank, logs)
                for host in hosts
                if host.member is not None
                for local, rank in enumerate(host.member.ranks)
            ]
            workers.sort(key=lambda worker: worker.rank)
            shown, rounds = tuple(map(_host_status, hosts)), tuple(self._rounds)
            steps = StepStatus.of(workers)
            return StatusSnapshot(self.round, total, shown, tuple(workers), rounds, steps)

    def _worker(self, host: _Host, local: int, rank: int, logs: Mapping[int, Path]) -> WorkerStatus:
        worker = self._workers[rank]
        log = None if host.slot is None else logs.get(host.slot + local)
        return WorkerStatus(
            rank=rank,
            hostname=host.hostname,
            local_rank=local,
            state=worker.state,
            pid=worker.pid,
            log=None if log is None else str(log),
            steps=worker.steps,
            step_seconds=worker.step_seconds,
            outcome=worker.outcome,
        )


def _host_status(host: _Host) -> HostStatus:
    is_active = host.state is HostState.ACTIVE and host.member is not None
    ranks = tuple(host.member.ranks) if is_active and host.member is not None else ()
    return HostStatus(host.hostname, host.state, ranks, _line(host.reason), host.pid)


def _order(host: _Host) -> tuple[int, int]:
    return _ORDER.index(host.state), 0 if host.member is None else host.member.first_rank


def _loss(hostname: str, reason: str) -> str:
    return f"{hostname} was lost: {reason}" if reason else f"{hostname} was lost"


def _line(text: str) -> str:
    """One line of it."""
    return " ".join(text.split())
