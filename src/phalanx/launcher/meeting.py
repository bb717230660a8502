"""Where workers meet: an address of the first host that the others can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from phalanx import network, wire
from phalanx.errors import StartFailed
from phalanx.launcher.agents import Agent
from phalanx.launcher.plan import Plan

LOOPBACK = "127.0.0.1"


class Meeting:
    """All agents are there, and are to have their workers meet."""

    def __init__(self, plan: Plan, agents: Mapping[int, Agent]) -> None:
        """Choose the address. Raises `StartFailed` if there is none."""
        self._plan = plan
        self._agents = agents
        self._hellos = {i: a.hello for i, a in sorted(agents.items()) if a.hello is not None}
        here = [index for index, agent in agents.items() if not agent.placed.is_abroad]
        settings = plan.settings
        self.address = settings.address or choose(self._hellos, here, settings.interface)
        if not self.address:
            first = plan.members[0].hostname
            raise StartFailed(
                f"{first}, where the workers are to meet, has no address that others could reach. "
                "Give one with address=..., or an interface with interface=....",
                hostname=first,
            )

    async def try_to_reach(self) -> None:
        """Have the others try whether they reach it."""
        first = self._hellos[0]
        frame = wire.Reach(address=self.address, port=first.door)
        for index, agent in self._agents.items():
            if self._hellos[index].space == first.space:
                agent.reached.set_result("")
            else:
                await agent.send(frame)

    async def check(self) -> None:
        """Wait for what came of it. Raises `StartFailed` if one of them does not reach it."""
        members = self._plan.members
        results = await asyncio.gather(*(agent.reached for agent in self._agents.values()))
        problems = {
            members[index].hostname: problem
            for index, problem in zip(self._agents, results, strict=True)
            if problem
        }
        if not problems:
            return
        place = f"{members[0].hostname} at {self.address}"
        lines = [f"{host} cannot reach {place}: {problem}" for host, problem in problems.items()]
        raise StartFailed(
            "\n".join(lines) + "\nWorkers meet there. Is there a firewall, or another network? "
            "Give another address of that host with address=..., or an interface with "
            "interface=....",
            hostname=next(iter(problems)),
        )


def choose(hellos: Mapping[int, wire.Hello], here: Collection[int], interface: str | None) -> str:
    """The address of the first host; empty if there is none. `here` are those on this machine."""
    if interface is None:
        if len({hello.space for hello in hellos.values()}) == 1:
            return LOOPBACK
        if 0 in here:
            for index, hello in hellos.items():
                own = None if index in here else network.address_towards(hello.address)
                if own is not None and not network.is_loopback(own):
                    return own
    return hellos[0].address
