"""Where workers meet: an address of the first host that the others can reach."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Round
from phalanx._launcher.agents.agent_handle import AgentHandle
from phalanx._launcher.planning.plan import Plan
from phalanx._system import network
from phalanx.errors import StartFailed

LOOPBACK = "127.0.0.1"


class StoreAddress:
    """All agents of a round are there, and are to have their workers meet."""

    def __init__(self, plan: Plan, round_: Round, agents: Mapping[AgentId, AgentHandle]) -> None:
        """Choose the address. Raises `StartFailed` if there is none."""
        self._members = round_.members
        self._first = first = round_.members[0]
        self._agents = {m.agent: agents[m.agent] for m in round_.members if m.agent in agents}
        self._hellos = {i: a.hello for i, a in self._agents.items() if a.hello is not None}
        here = {index for index, agent in self._agents.items() if not agent.placed.is_remote}
        options = plan.options
        given = options.address if first.agent == plan.members[0].agent else None
        self.address = given or choose(self._hellos, first.agent, here, options.interface)
        if not self.address:
            raise StartFailed(
                f"{first.hostname}, which workers connect to, has no address that other hosts can "
                "reach. Set one with address=..., or an interface with interface=....",
                hostname=first.hostname,
            )

    async def try_to_reach(self) -> None:
        """Have the others try whether they reach it, if they have not tried already."""
        first = self._hellos.get(self._first.agent)
        if first is None:
            return
        frame = wire.Reach(address=self.address, port=first.probe_port)
        asked: list[AgentHandle] = []
        for index, agent in self._agents.items():
            tried = (self.address, first.probe_port)
            if agent.tried == tried or index not in self._hellos:
                continue
            agent.tried = tried
            agent.reached = asyncio.get_running_loop().create_future()
            if self._hellos[index].space == first.space:
                agent.reached.set_result("")
            else:
                asked.append(agent)
        # At once: one that does not read must not keep others from being asked.
        await asyncio.gather(*(agent.send(frame) for agent in asked))

    async def problems(self) -> dict[AgentId, str]:
        """Wait for what came of it: the agents that do not reach it, and why."""
        waited = {m.agent: self._agents.get(m.agent) for m in self._members}
        return {
            index: problem
            for index, agent in waited.items()
            if agent is not None and (problem := await agent.wait_until_reached())
        }

    def failure(self, found: Mapping[AgentId, str]) -> StartFailed:
        """The error for those that do not reach it."""
        problems = {m.hostname: found[m.agent] for m in self._members if m.agent in found}
        where = f"{self._first.hostname} at {self.address}"
        lines = [f"{host} cannot reach {where}: {problem}" for host, problem in problems.items()]
        return StartFailed(
            "\n".join(lines) + "\nWorkers connect to that address. Check firewalls and networks, "
            "or set another address of that host with address=..., or an interface with "
            "interface=....",
            hostname=next(iter(problems)),
        )


def choose(
    hellos: Mapping[AgentId, wire.Hello],
    first: AgentId,
    here: Collection[AgentId],
    interface: str | None,
) -> str:
    """The address of the first host; empty if there is none. `here` are those on this machine."""
    if first not in hellos:
        return LOOPBACK  # it has gone meanwhile: there will be another round
    if interface is None:
        if set(here) == hellos.keys() or len({hello.space for hello in hellos.values()}) == 1:
            return LOOPBACK
        if first in here:
            for index, hello in hellos.items():
                own = None if index in here else network.address_towards(hello.address)
                if own is not None and not network.is_loopback(own):
                    return own
    return hellos[first].address
