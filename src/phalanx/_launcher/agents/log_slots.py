"""Where a worker's output goes: into the file of its host's slot, whatever rank it has by now."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Member, Round
from phalanx._launcher.planning.plan import Plan
from phalanx._logs.lines import Source, agent_key
from phalanx._logs.writer import LogWriter


class LogSlots:
    """Finds the log of each worker of each round."""

    def __init__(self, logs: LogWriter) -> None:
        """No round has begun."""
        self._logs = logs
        self._rounds: dict[int, Round] = {}
        self._members: dict[int, dict[AgentId, Member]] = {}
        """By their rounds: every frame is looked at, and there may be thousands of hosts."""
        self._begun_at: dict[int, float] = {}

    def begin(self, round_: Round) -> None:
        """Know the ranks of a round; what comes of older ones is still taken."""
        self._rounds[round_.number] = round_
        self._members[round_.number] = {member.agent: member for member in round_.members}
        self._begun_at[round_.number] = time.monotonic()
        self._logs.release()

    def member(self, number: int, agent: AgentId) -> Member | None:
        """An agent's part in a round that has begun; None if it has none."""
        return self._members.get(number, {}).get(agent)

    def members(self, agent: AgentId) -> dict[int, Member]:
        """An agent's part in each round that it was in."""
        return {n: members[agent] for n, members in self._members.items() if agent in members}

    def begun_at(self, number: int) -> float:
        """When a round began here, by the monotonic clock."""
        return self._begun_at.get(number, -math.inf)

    def write_errors(self, agent: AgentId, data: bytes, done: Callable[[], None]) -> None:
        """Something that an agent said outside of its channel; `done` when it is written."""
        self._logs.write(agent_key(agent), "stderr", data, done)

    def write(
        self, plan: Plan, agent: AgentId, frame: wire.LogData, done: Callable[[], None]
    ) -> None:
        """Write what a worker, or the agent, has said; `done` is called when that is done."""
        rank = frame.rank
        member = self.member(frame.round, agent)
        if rank is None:
            self._logs.write(agent_key(agent), frame.stream, frame.data, done)
        elif member is not None:
            restarts = self._rounds[frame.round].restarts
            local = rank - member.first_rank
            key = plan.member(agent).first_rank + local
            name = f"{member.hostname}[{local}]"
            now = Source(rank, name, member.hostname, rank, local, restarts)
            self._logs.write(key, frame.stream, frame.data, done, now)

    def wanted_records(self, plan: Plan, member: Member) -> tuple[int, ...]:
        """The local ranks whose records are to be carried as records."""
        first = plan.member(member.agent).first_rank
        wanted = self._logs.wants_records
        return tuple(local for local in range(member.workers) if first + local in wanted)
