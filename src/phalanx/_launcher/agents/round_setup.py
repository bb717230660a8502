"""What each host is told when a round begins."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Round
from phalanx._launcher.agents.agent_handle import AgentHandle
from phalanx._launcher.agents.content import AgentContent
from phalanx._launcher.agents.log_slots import LogSlots
from phalanx._launcher.planning.plan import Plan


class RoundSetup:
    """A round that begins, on these agents."""

    def __init__(
        self,
        plan: Plan,
        content: AgentContent,
        log_slots: LogSlots,
        agents: Mapping[AgentId, AgentHandle],
    ) -> None:
        """Nothing is sent yet."""
        self._plan = plan
        self._content = content
        self._log_slots = log_slots
        self._agents = agents

    async def uses_torch(self) -> bool:
        """Whether workers want a store and a group, once all packages are loaded.

        One decision for all hosts, or they would wait for each other in a group.
        """
        waited = [await agent.wait_until_ready() for agent in self._agents.values()]
        ready = [found for found in waited if found is not None]
        return await self._content.uses_torch(self._plan, ready)

    async def frame(self, agent: AgentId, round_: Round) -> wire.BeginRound:
        """What an agent is told: its part of the round."""
        options, part = self._plan.options, self._plan.part
        function = await self._content.function()
        return wire.BeginRound(
            round=round_.number,
            membership=round_,
            agent=agent,
            function=function.digest,
            backend=None if options.restart == "host" else options.backend,
            uses_torch=bool(round_.torch),
            process_group_timeout=options.process_group_timeout,
            records=self._log_slots.wanted_records(self._plan, round_.member(agent)),
            run_id=part.run_id if part is not None else "",
            max_restarts=options.max_restarts,
            heartbeat_timeout=options.heartbeat_timeout or 0.0,
            exits=self._plan.exits,
        )
