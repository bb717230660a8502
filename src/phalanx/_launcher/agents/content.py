"""What agents ask for: the function, and the project's files."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from concurrent.futures import Future

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._launcher.agents.agent_handle import AgentHandle
from phalanx._launcher.payload import Function
from phalanx._launcher.planning.plan import Plan
from phalanx._launcher.project.sender import ProjectSender
from phalanx.errors import WireError


class AgentContent:
    """Gives out what an app is made of."""

    def __init__(self, plan: Plan, function: Future[Function]) -> None:
        """The function may follow later."""
        self._function = function
        self._sender = None if plan.project is None else ProjectSender(plan.project)

    async def function(self) -> Function:
        """The function, once it is there."""
        # Shielded: whoever provides it must not find it cancelled.
        return await asyncio.shield(asyncio.wrap_future(self._function))

    @property
    def has_function(self) -> bool:
        """It is there."""
        return self._function.done()

    async def uses_torch(self, plan: Plan, ready: Iterable[wire.Ready]) -> bool:
        """Whether workers want a store and a group: one decision for all that meet."""
        function, backend = await self.function(), plan.options.backend
        uses = function.uses_torch or backend not in (None, "auto") or any(r.torch for r in ready)
        return uses or (plan.remote_setup is not None and function.names_torch)

    async def ship(self, agent: AgentHandle) -> None:
        """Tell an agent that does not have the project what there is."""
        assert self._sender is not None
        manifest = await self._sender.manifest()
        await agent.send(wire.ShipProject(manifest=manifest.digest))

    async def send(self, agent_id: AgentId, agent: AgentHandle, digests: tuple[str, ...]) -> None:
        """Send what was asked for. Raises `WireError` for what is unknown."""
        function = await self.function()
        if function.digest in digests:
            for piece in function.pieces():
                await agent.send(piece)
        elif self._sender is None or not agent.is_shipped:
            raise WireError("a request for what is not sent to it")
        else:
            await self._sender.send(agent_id, digests, agent.send)

    def hold(self, paths: Collection[str]) -> None:
        """Files of the project's are about to be replaced: they may still be asked for."""
        if self._sender is not None:
            self._sender.hold(paths)

    def close(self) -> None:
        """Nobody will ask any more."""
        if self._sender is not None:
            self._sender.close()

    def arrived(self, agent_id: AgentId, frame: wire.ProjectArrived) -> None:
        """An agent has said how much is there."""
        if self._sender is not None:
            self._sender.arrived(agent_id, frame)

    def describe(self, plan: Plan) -> str:
        """How far it is, in a few words; empty when nothing is on its way."""
        return (
            ""
            if self._sender is None
            else self._sender.describe(lambda agent: plan.member(agent).hostname)
        )
