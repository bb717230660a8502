"""The checks of hosts: their agents are asked to make them, before workers start there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._launcher.agents.agent_handle import AgentHandle
from phalanx._launcher.payload import pack_check
from phalanx._launcher.planning.check_list import read_checks
from phalanx._launcher.planning.plan import Plan

SECONDS = 30.0
"""How long all checks of a host may take; one that takes longer has failed."""


class HostChecks:
    """The checks of one app."""

    def __init__(self, plan: Plan) -> None:
        """Nothing is asked yet. Raises `ConfigError` for one that cannot be sent."""
        self._checks = read_checks(plan.options.host_checks)
        functions = self._checks.functions
        self._functions = {name: pack_check(name, check) for name, check in functions.items()}

    def __bool__(self) -> bool:
        """There is something to check."""
        return bool(self._checks)

    async def problems(self, agents: Mapping[AgentId, AgentHandle]) -> dict[AgentId, str]:
        """Which checks hosts fail; those that pass, or are lost meanwhile, are left out."""
        if not self._checks:
            return {}
        found = await asyncio.gather(*map(self.problem, agents.values()))
        return {agent: problem for agent, problem in zip(agents, found, strict=True) if problem}

    async def problem(self, agent: AgentHandle) -> str:
        """Which checks a host fails, and why; empty if none."""
        if not self._checks:
            return ""
        ask = wire.CheckHost(
            number=0,
            clock=time.time(),
            checks=self._checks.values,
            functions=self._functions,
            seconds=SECONDS,
        )
        problems = await agent.check_host(ask) or {}
        return "; ".join(f"host check {name} failed: {why}" for name, why in problems.items())
