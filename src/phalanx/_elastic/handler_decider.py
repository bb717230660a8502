"""Deciding by a rendezvous of somebody else's making: a handler that blocks, on threads.

The handler's calls run on threads. What it does not decide (who restarts whom, when it is over) is
as TorchElastic has it: a host whose workers failed comes again, the others see it waiting and come
too; that alone costs them no restart.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

from phalanx._channel.background import Background
from phalanx._core import ranks
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Outcome, Round
from phalanx._elastic.shared_store import SharedStore
from phalanx._launcher.planning.plan import Plan
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.handler_api import RendezvousInfo, read_info
from phalanx._rendezvous.restart_budget import Budget
from phalanx._rendezvous.round_state import RoundState
from phalanx._system import network
from phalanx._system.daemon_thread import in_daemon_thread

_BARRIER_STEP = 0.02


class HandlerDecider:
    """Decides for this host, by what the handler says of the others."""

    def __init__(
        self,
        plan: Plan,
        handler: Any,
        monitor_interval: float,
        now: Callable[[], float] = time.monotonic,
        exit_barrier_timeout: float = 300.0,
        local_addr: str | None = None,
    ) -> None:
        """Nothing is asked of the handler before this host's agent is there."""
        self.phase = p.Phase.GATHERING
        self.round: Round | None = None
        self._plan = plan
        self._handler = handler
        self._interval = max(0.01, monitor_interval)
        self._barrier = exit_barrier_timeout
        self._local_addr = local_addr
        self.now = now
        options = plan.options
        self._budget = Budget(options.max_restarts, options.restart_backoff, options.same_failures)
        self._shared: SharedStore | None = None
        """The store that this host shares with others, if it does."""
        self._round_state = RoundState(plan.members, now())
        self._restart_causes: list[Any] = []
        self._endpoint = Endpoint("", 0)
        self._torch: bool | None = None
        self._cancelled = self._changing = self._is_joining = False
        self._wait = 0.0
        self._present = asyncio.Event()
        """This host's agent is there."""
        self._progress: list[p.ProgressEvent] = []
        self._act: Callable[[p.CoordinatorAction], None] = lambda _: None
        self._fail: Callable[[BaseException], None] = lambda _: None
        self._background = Background(self._broken)
        self._do = self._background.do

    # ── what is known ─────────────────────────────────────────────────────────

    @property
    def _own(self) -> AgentId:
        return self._plan.members[0].agent

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """How this host's workers ended."""
        return self._round_state.outcomes

    @property
    def running(self) -> frozenset[AgentId]:
        """The host's agent, once its workers were started."""
        return frozenset(self._round_state.running)

    @property
    def is_over(self) -> bool:
        """No other round will follow."""
        return self._cancelled or self.phase is p.Phase.DONE

    @property
    def awaited(self) -> tuple[str, ...]:
        """Only the handler knows."""
        return ()

    @property
    def deadline(self) -> float | None:
        """Nothing is due by itself."""
        return None

    def round_of(self, agent: AgentId) -> int | None:
        """The number of the round that this host is in."""
        return self.round.number if self.round is not None and agent == self._own else None

    def take_progress(self) -> list[p.ProgressEvent]:
        """What has come to pass since the last time."""
        events, self._progress = self._progress, []
        return events

    # ── start and end ─────────────────────────────────────────────────────────

    async def start(
        self, act: Callable[[p.CoordinatorAction], None], fail: Callable[[BaseException], None]
    ) -> None:
        """Begin; the handler is asked once this host's agent is there."""
        self._act, self._fail = act, fail

    async def close(self) -> None:
        """Let go of the handler."""
        self._background.cancel()
        shutdown = getattr(self._handler, "shutdown", None)
        if callable(shutdown):
            try:
                await in_daemon_thread(shutdown, 5.0)
            except Exception as error:  # noqa: BLE001 the handler's own; the app has ended
                self._happen("shutdown failed", error=f"{type(error).__name__}: {error}")

    def _broken(self, error: BaseException) -> None:
        """The handler has raised, or we have: it is the end."""
        self._fail(error)

    def _happen(self, name: str, **facts: object) -> None:
        self._progress.append(p.ProgressEvent(name, self.now(), facts))

    # ── from this host ────────────────────────────────────────────────────────

    def tell(self, event: p.CoordinatorEvent) -> None:
        """Something has happened on this host."""
        if self.phase is p.Phase.DONE:
            return
        match event:
            case p.JoinedEvent():
                self._endpoint, self._torch = event.endpoint, event.torch
                self._present.set()
                self._join_next(self._wait)
            case p.WorkersStartedEvent():
                self._round_state.start(self._own)
                self._round_state.count_from(self.now())
            case p.WorkerEndedEvent(agent, _, outcome, when):
                if self._round_state.end(agent, outcome, when) and not outcome.succeeded:
                    self._halt(self._plan.options.stop_grace)
            case p.RoundClearedEvent():
                self._round_state.clear(self._own)
                if event.endpoint is not None:
                    self._endpoint = event.endpoint
                self._conclude()
            case p.AgentGoneEvent(agent, reason, when):
                self._present.clear()
                if self._cancelled:
                    self._finish(p.Reason.CANCELLED)
                elif self.phase is not p.Phase.GATHERING:
                    self._round_state.lose(agent, reason, when)
                    self._round_state.clear(agent)
                    self._conclude()
            case p.CancelEvent(grace):
                self._cancelled = True
                self._halt(self._plan.options.stop_grace if grace is None else grace)
                if self.round is None or self._round_state.cleared:
                    self._finish(p.Reason.CANCELLED)

    def _halt(self, grace: float) -> None:
        if self.round is None or self._round_state.cleared:
            return
        if self.phase is p.Phase.RUNNING or self._cancelled:
            self.phase = p.Phase.STOPPING
            self._round_state.halt(self.now())
            failed = bool(self._round_state.failures) and not self._cancelled
            stacks = failed and self._round_state.is_stuck
            self._act(p.HaltRoundAction(self.round.number, grace, stacks=stacks))

    def _join_next(self, wait: float) -> None:
        """Ask the handler for another round, unless that is being done."""
        if not self._is_joining:
            self._is_joining = True
            self._do(self._next_round(wait))

    def _conclude(self) -> None:
        """Nothing is left of the round here: what comes after it."""
        if self._cancelled:
            self._finish(p.Reason.CANCELLED)
            return
        if self._round_state.all_returned:
            self._do(self._wait_for_others())
            return
        if not self._round_state.failures and self.phase is not p.Phase.STOPPING:
            now = self.now()
            reason = "it is no longer running, and its host did not report how it ended"
            self._round_state.lose(self._own, reason, Interval(now, now))
        wait = 0.0
        if self._round_state.failures and not self._changing:
            cause = self._round_state.cause
            spent = self._budget.spend(cause, self.now() - self._round_state.began)
            if spent is None:
                self._finish(p.Reason.FAILED)
                return
            wait = spent
            self._restart_causes.append(cause)
            said = cause.describe()
            self._happen("restart", restarts=self._budget.count, wait=wait, cause=said)
        self.phase = p.Phase.GATHERING
        self._wait = wait
        if self._present.is_set():  # else this host's agent comes anew first
            self._join_next(wait)

    def _finish(self, reason: p.Reason) -> None:
        if self.phase is p.Phase.DONE:
            return
        self.phase = p.Phase.DONE
        members = self.round.members if self.round is not None else ()
        verdict = dataclasses.replace(
            self._round_state.verdict(reason),
            members=members,
            restart_causes=tuple(self._restart_causes),
            note=self._budget.note,
        )
        self._happen("end", state=reason.value, restarts=self._budget.count)
        self._act(p.FinishAction(verdict))

    # ── the handler ───────────────────────────────────────────────────────────

    async def _next_round(self, wait: float) -> None:
        await asyncio.sleep(wait)
        began = self.now()
        try:
            value = await in_daemon_thread(self._handler.next_rendezvous)
        except Exception as error:
            if type(error).__name__ == "RendezvousGracefulExitError":
                self._round_state = RoundState((), self.now())
                self._finish(p.Reason.SUCCEEDED)
                return
            raise
        if self.is_over:
            return
        await self._present.wait()
        info = read_info(value)
        round_ = await in_daemon_thread(lambda: self._agree(info))
        if round_ is None or self.is_over:
            return
        self.round = round_
        self._changing = self._is_joining = False
        self._wait = 0.0
        self._round_state = RoundState([round_.member(self._own)], self.now())
        self.phase = p.Phase.RUNNING
        names = [member.hostname for member in round_.members]
        self._happen(
            "round",
            round=round_.number,
            hosts=names,
            world_size=round_.world_size,
            restarts=round_.restarts,
            rendezvous_seconds=self.now() - began,
        )
        self._act(p.BeginRoundAction(round_))
        self._do(self._monitor(round_.number))

    def _agree(self, info: RendezvousInfo) -> Round | None:
        """Tell the others of this host, through the rendezvous's store, and hear of them."""
        own = self._plan.members[0]
        alone = info.world_size == 1
        reached = self._local_addr or network.own_address() or own.hostname
        address = "127.0.0.1" if alone else reached
        number = 1 if self.round is None else self.round.number + 1
        facts: list[Any] = [
            own.hostname,
            own.workers,
            address,
            self._endpoint.port,
            bool(self._torch),
            own.role,
        ]
        told = [facts] * info.world_size
        torch = bool(self._torch)
        self._shared = None
        if not alone and info.store is not None:
            shared = SharedStore(
                info.store, info.rank, info.world_size, is_kept=_keeps_store(self._handler)
            )
            heard = shared.exchange(facts, lambda: self.is_over)
            if heard is None:
                return None
            self._shared, told = shared, heard
            torch = any(item[4] for item in told)
        store = Endpoint(told[0][2], told[0][3])
        if not alone and info.store is None and info.bootstrap_store_info is not None:
            boot = info.bootstrap_store_info
            store, torch = Endpoint(boot.master_addr, boot.master_port), False
        members = ranks.lay_out(
            (self._own if rank == info.rank else AgentId(-1 - rank), hostname, workers, role)
            for rank, (hostname, workers, _, _, _, role) in enumerate(told)
        )
        return Round(number, members, store, self._budget.count, torch)

    async def _monitor(self, number: int) -> None:
        """Look whether others wait to come in."""
        while self.round is not None and self.round.number == number:
            await asyncio.sleep(self._interval)
            if self.phase is not p.Phase.RUNNING or self._round_state.all_returned:
                return
            if await in_daemon_thread(self._others_wait):
                self._happen("join", round=number)
                self._changing = True
                self._halt(self._plan.options.stop_grace)
                return

    def _others_wait(self) -> bool:
        if self._handler.num_nodes_waiting() > 0:
            return True
        return self._shared is not None and self._shared.is_behind()

    async def _wait_for_others(self) -> None:
        """All is done here: the others may still need this host, for a while."""
        try:
            is_over = self._shared is None or await self._stay(self._shared)
        except Exception as error:  # noqa: BLE001 the store's or the handler's own
            # It may have been on a host that has seen that all are done, and is gone.
            self._happen("barrier failed", error=f"{type(error).__name__}: {error}")
            is_over = True
        if is_over:
            self._finish(p.Reason.SUCCEEDED)
            return
        self.phase = p.Phase.GATHERING
        self._join_next(0.0)

    async def _stay(self, shared: SharedStore) -> bool:
        """Until all are done, or for so long; false if another round is to come."""
        await in_daemon_thread(shared.tell_done)
        limit = self.now() + self._barrier
        while not await in_daemon_thread(shared.all_done) and self.now() < limit:
            if await in_daemon_thread(self._others_wait):
                return False
            await asyncio.sleep(_BARRIER_STEP)
        return True


def _keeps_store(handler: Any) -> bool:
    """It gives the same store for every round, and knows nobody who waits: torch's static one."""
    backend = getattr(handler, "get_backend", None)
    return callable(backend) and backend() == "static"
