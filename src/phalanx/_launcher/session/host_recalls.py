"""Hosts without an agent: tried again for as long as it is of use, or replaced by others."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from phalanx._core.ids import AgentId, HostIndex
from phalanx._launcher.placement import NotPlaced, PlacedAgent, Placement
from phalanx._launcher.planning.plan import Plan
from phalanx._system.daemon_thread import in_daemon_thread
from phalanx.errors import PhalanxError

if TYPE_CHECKING:
    from phalanx._launcher.transport.dial import Dial

_FIRST, _LONGEST = 1.0, 30.0
"""Seconds after which a lost host is tried again, and the longest that this grows to."""

ReplaceLost = Callable[[str, Callable[[], bool]], bool]
Do = Callable[[Coroutine[None, None, None]], "asyncio.Task[None]"]


class HostRecalls:
    """Has agents on hosts that have none, or have lost theirs."""

    def __init__(
        self,
        placement: Placement,
        do: Do,
        wait_for_end: Callable[[float], Coroutine[None, None, None]],
        is_ending: Callable[[], bool],
        welcome: Callable[[PlacedAgent], None],
        replace_lost: ReplaceLost | None,
        tell_replaced: Callable[[str], None],
    ) -> None:
        """`do` has something done beside; `welcome` takes the agents that have come.

        `wait_for_end` waits for the app's verdict, so long at most. `replace_lost` has another host
        added in place of one that cannot be used, if there is one; it blocks, and is told what
        says that the app ends; `tell_replaced` hears for which host, before.
        """
        self.missing: dict[AgentId, str] = {}
        """Why hosts that were lost have not come back so far, by their numbers."""
        self._placement = placement
        self._do = do
        self._wait_for_end = wait_for_end
        self._is_ending = is_ending
        self._welcome = welcome
        self._replace_lost = replace_lost
        self._tell_replaced = tell_replaced
        self._replaced: dict[HostIndex, asyncio.Future[bool]] = {}
        """The hosts for which another was asked, and whether there is one."""
        self._excluded: set[HostIndex] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, coroutine: Coroutine[None, None, None]) -> None:
        """Have something done that may end with an agent: the app's end waits for it."""
        task = self._do(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Until none is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def exclude(self, index: HostIndex) -> None:
        """Do not try to have an agent on a host any more."""
        self._excluded.add(index)

    def extend(self, plan: Plan, dial: Dial | None) -> None:
        """Start the agent of a host that the plan has got in addition, the last one."""
        self._placement.extend(plan, dial)
        self.begin(self.recall(plan, HostIndex(len(plan.hosts) - 1), 0.0))

    async def recall(self, plan: Plan, index: HostIndex, pause: float = _FIRST) -> None:
        """Try to have an agent on a host again, for as long as it is of use."""
        member = plan.members[index]
        while not self._is_ending():
            await self._wait_for_end(pause)
            pause = min(2 * pause, _LONGEST) or _FIRST
            if self._is_ending() or self._has_replaced(index) or index in self._excluded:
                return
            try:
                placed = await self._placement.again(index)
            except Exception as error:  # noqa: BLE001 one host's misfortune must not end the app
                placed = NotPlaced(index, f"{type(error).__name__}: {error}")
            if isinstance(placed, PlacedAgent):
                self._welcome(placed)
                return
            if self._is_ending():
                return  # it was given up because of that
            self.missing[member.agent] = f"{member.hostname}: {placed.reason}"
            if self.can_replace and index not in self._replaced:
                self.begin(self.replace_beside(plan, index))

    async def replace_beside(self, plan: Plan, index: HostIndex) -> None:
        """As `replace`, for those who do not wait for it."""
        await self.replace(plan, index)

    @property
    def can_replace(self) -> bool:
        """Somebody can be asked for another host."""
        return self._replace_lost is not None

    async def replace(self, plan: Plan, index: HostIndex) -> bool:
        """Have another host added in place of one; whether there is one. The former may be
        tried again meanwhile.
        """
        if self._replace_lost is None:
            return False
        if index in self._replaced:
            return await asyncio.shield(self._replaced[index])
        answer = self._replaced[index] = asyncio.get_running_loop().create_future()
        member = plan.members[index]
        ask = functools.partial(self._replace_lost, member.hostname, self._is_ending)
        self._tell_replaced(member.hostname)
        found = False
        try:
            found = await in_daemon_thread(ask)
        except PhalanxError as error:
            self.missing[member.agent] = f"{member.hostname} is not replaced: {error}"
        finally:
            answer.set_result(found)
        return found

    def _has_replaced(self, index: HostIndex) -> bool:
        answer = self._replaced.get(index)
        return answer is not None and answer.done() and answer.result()
