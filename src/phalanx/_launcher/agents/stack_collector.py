"""The stacks of an app's workers: asked for at any time, or taken before they were stopped.

On the app's loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Round
from phalanx._core.stacks import RankStacks, describe_stopped, parse

if TYPE_CHECKING:
    from phalanx._launcher.agents.agent_handle import AgentHandle
    from phalanx._launcher.planning.plan import Plan

_ON_THE_WAY = 1.0
"""Seconds for a host's answer to come, beyond those that its workers are given."""


class StackCollector:
    """What hosts have said of their workers' stacks."""

    def __init__(self) -> None:
        """No round has begun."""
        self.stopped: dict[int, RankStacks] = {}
        """Where the ranks were that the last round was stopped for, as far as that was asked."""
        self._round: Round | None = None
        self._numbers: dict[int, int] = {}
        self._requests = 0
        self._answers: dict[tuple[int, AgentId, bool], asyncio.Future[tuple[RankStacks, ...]]] = {}
        """By request, agent, and whether those of launches below the workers were asked for."""

    def begin(self, round_: Round, agents: tuple[AgentId, ...] | None) -> None:
        """A round begins, for all of its members or for these."""
        self._round = round_
        members = [member.agent for member in round_.members]
        self._numbers = {a: self._numbers.get(a, round_.number) for a in members}
        self._numbers |= dict.fromkeys(members if agents is None else agents, round_.number)
        self.stopped = {}

    def hear(
        self, agent_id: AgentId, agent: AgentHandle, frame: wire.WorkerStacks, plan: Plan
    ) -> None:
        """A host has answered, or told where its workers were when they were to be stopped."""
        if self._round is None or frame.round != self._numbers.get(agent_id):
            return
        member = self._round.member(agent_id)
        found = tuple(
            RankStacks(
                rank=dump.rank,
                hostname=member.hostname,
                pid=dump.pid,
                threads=parse(agent.translate_text(dump.text, plan.project)),
                problem=dump.problem,
                native=dump.native,
                collectives=dump.collectives,
            )
            for dump in frame.ranks
            if frame.below or dump.rank in member.ranks
        )
        if frame.request == 0 and not frame.below:
            self.stopped |= {one.rank: one for one in found}
            return
        answer = self._answers.get((frame.request, agent_id, frame.below))
        if answer is not None and not answer.done():
            answer.set_result(found)

    async def ask(
        self,
        agents: Mapping[AgentId, AgentHandle],
        seconds: float,
        *,
        below: bool = False,
        native: bool = False,
    ) -> tuple[RankStacks, ...]:
        """The stacks of all ranks that run on these hosts, or why a host gave none of its own.

        With `below` those of the ranks of launches that these have started; with `native` their
        native frames as well, which may take as long again.
        """
        if (round_ := self._round) is None:
            return ()
        self._requests += 1
        frame = wire.DumpStacks(request=self._requests, seconds=seconds, below=below, native=native)
        asking = {
            asyncio.create_task(self._ask_one(agents[m.agent], m.agent, frame)): m
            for m in round_.members
            if m.agent in agents
        }
        if not asking:
            return ()
        limit = seconds * (2 if native else 1) + _ON_THE_WAY
        done, late = await asyncio.wait(asking, timeout=limit)
        found = [one for task in done for one in task.result()]
        for task in late:
            task.cancel()
            problem = f"its host did not answer in {limit:g} s"
            name, ranks = asking[task].hostname, asking[task].ranks
            found += [RankStacks(rank, name, problem=problem) for rank in ranks]
        return tuple(sorted(found, key=lambda one: one.rank))

    async def _ask_one(
        self, agent: AgentHandle, agent_id: AgentId, frame: wire.DumpStacks
    ) -> tuple[RankStacks, ...]:
        answer: asyncio.Future[tuple[RankStacks, ...]] = asyncio.get_running_loop().create_future()
        key = frame.request, agent_id, frame.below
        self._answers[key] = answer
        try:
            await agent.send(dataclasses.replace(frame, round=self._numbers[agent_id]))
            return await answer
        finally:
            del self._answers[key]

    def headlines(self) -> list[str]:
        """Where those were that were stopped, a line each."""
        lines = describe_stopped(self.stopped)
        return [line for line in lines if line and not line.startswith(" ")]
