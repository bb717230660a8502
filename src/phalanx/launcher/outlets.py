"""Where a worker's output goes: into the file of its host's slot, whatever rank it has by now."""

from __future__ import annotations

from collections.abc import Callable

from phalanx import wire
from phalanx.launcher.plan import Plan
from phalanx.logs.lines import Source, agent_key
from phalanx.logs.writer import LogWriter
from phalanx.rounds import Member, Round


class Outlets:
    """Finds the log of each worker of each round."""

    def __init__(self, logs: LogWriter) -> None:
        """No round has begun."""
        self._logs = logs
        self._rounds: dict[int, Round] = {}

    def begin(self, round_: Round) -> None:
        """Know the ranks of a round; what comes of older ones is still taken."""
        self._rounds[round_.number] = round_

    def write_errors(self, agent: int, data: bytes) -> None:
        """Something that an agent said outside of its channel."""
        self._logs.write(agent_key(agent), "stderr", data)

    def write(self, plan: Plan, agent: int, frame: wire.Log, done: Callable[[], None]) -> None:
        """Write what a worker, or the agent, has said; `done` is called when that is done."""
        rank = frame.rank
        if rank is None:
            self._logs.write(agent_key(agent), frame.stream, frame.data)
        elif (round_ := self._rounds.get(frame.round)) is not None:
            member = round_.member(agent)
            local = rank - member.first_rank
            key = plan.member(agent).first_rank + local
            name = f"{member.hostname}[{local}]"
            now = Source(rank, name, member.hostname, rank, local, round_.restarts)
            self._logs.write(key, frame.stream, frame.data, done, now)

    def wanted_records(self, plan: Plan, member: Member) -> tuple[int, ...]:
        """The local ranks whose records are to be carried as records."""
        first = plan.member(member.agent).first_rank
        wanted = self._logs.wants_records
        return tuple(local for local in range(member.workers) if first + local in wanted)
