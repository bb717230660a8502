"""The rendezvous over TCP as a handler: what makes the decider of an agent of ours.

Its blocking methods are for agents of others: each host that calls `next_rendezvous` takes part
with one worker's worth of a round, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from phalanx._channel import trust
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.ranks import DEFAULT_ROLE, position
from phalanx._core.rounds import Endpoint, Round
from phalanx._logs import logger
from phalanx._rendezvous.errors import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousTimeoutError,
)
from phalanx._rendezvous.etcd.election import Election
from phalanx._rendezvous.handler_api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from phalanx._rendezvous.protocol import (
    AgentGoneEvent,
    BeginRoundAction,
    CancelEvent,
    CoordinatorAction,
    CoordinatorSettings,
    FinishAction,
    HaltRoundAction,
    JoinedEvent,
    Reason,
    RoundClearedEvent,
    TickEvent,
    WorkersStartedEvent,
)
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp import tokens
from phalanx._rendezvous.tcp.host import TcpHost, is_local
from phalanx._rendezvous.tcp.tcp_decider import TcpDecider
from phalanx._system import network

_TICK = 0.05
_STOPPED = 30.0
"""Seconds for agents of others to stop their workers before they ask for another round."""


class TcpHandler(RendezvousHandler):
    """A rendezvous at an endpoint; one of its hosts decides."""

    def __init__(
        self,
        backend: str,
        endpoint: Endpoint,
        run_id: str,
        min_hosts: int,
        max_hosts: int,
        settings: Settings,
        elect: Callable[[AgentId, Callable[[], float], bytes], Election] | None = None,
    ) -> None:
        """Nothing is opened yet.

        `elect` is an agent's part in an election, where there is one; it is given the run's key.
        """
        self._elect = elect
        self._backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_hosts = min_hosts
        self.max_hosts = max_hosts
        self.settings = settings
        self._closed = False
        self._visit: _HandlerRun | None = None

    def decider(
        self,
        agent: AgentId,
        hostname: str,
        workers: int,
        coordinator_settings: CoordinatorSettings,
        now: Callable[[], float] = time.monotonic,
        role: str = DEFAULT_ROLE,
    ) -> TcpDecider:
        """A decider for an agent that carries out what is decided there."""
        static = self._backend == "static"
        if static and self.settings.node_rank is not None and self.settings.is_host is None:
            # The first host decides, whatever its names are.
            is_host = self.settings.node_rank == 0
            self.settings = dataclasses.replace(self.settings, is_host=is_host)
        host = TcpHost(
            agent,
            hostname,
            workers,
            self.run_id,
            self.endpoint,
            coordinator_settings,
            self.settings,
            role=role,
            shares_port=static and self.endpoint.port != 0,
        )
        if not host.is_alone:
            host = dataclasses.replace(host, key=self._key())
        election = None if self._elect is None else self._elect(agent, now, host.key)
        return TcpDecider(host, now, election=election)

    def _key(self) -> bytes:
        """What hosts of this run prove to each other that they have. Raises `ConfigError`."""
        local = is_local(self.endpoint, self.settings, self.max_hosts)
        token = tokens.find_token(os.environ, self.settings.token_file, local=local)
        if token is None:
            logger.warning(
                "phalanx: no %s or token_file: anyone who reaches %s:%d can join the rendezvous. "
                "Set %s to the same secret on all hosts.",
                tokens.VARIABLE,
                self.endpoint.address,
                self.endpoint.port,
                tokens.VARIABLE,
            )
        return trust.key_of(token or "", "rendezvous")

    def get_backend(self) -> str:
        """`tcp`, `c10d`, `static`, `etcd` or `etcd-v2`."""
        return self._backend

    def get_run_id(self) -> str:
        """What names the app."""
        return self.run_id

    def is_closed(self) -> bool:
        """Nobody meets there any more, as far as this host knows."""
        return self._closed or (self._visit is not None and self._visit.is_closed)

    def set_closed(self) -> None:
        """Have nobody meet there any more: the others are told, as far as they can be."""
        if self._visit is not None and not self._closed:
            self._visit.close_for_all()
        self._closed = True
        self.shutdown()

    def num_nodes_waiting(self) -> int:
        """How many hosts wait for the next rendezvous."""
        return 0 if self._visit is None else self._visit.waiting

    def next_rendezvous(self) -> RendezvousInfo:
        """Block until enough hosts are there. Raises `RendezvousError`."""
        if self._closed:
            raise RendezvousClosedError(f"rendezvous {self.run_id!r} is closed.")
        if self._visit is None:
            self._visit = _HandlerRun(self)
        return self._visit.next()

    def take_store_socket(self) -> socket.socket:
        """What is bound to the port of the last round's store, on the host that is first.

        Whoever takes it carries the store, and closes it.
        """
        assert self._visit is not None, "there was no round"
        return self._visit.take_store_socket()

    def shutdown(self) -> bool:
        """Leave; idempotent."""
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.end()
        return True


class _HandlerRun:
    """A host that takes part without an agent of ours: its rounds, on a thread of their own."""

    def __init__(self, handler: TcpHandler) -> None:
        self._handler = handler
        self._agent = AgentId(secrets.randbits(48))
        self._rounds: list[Future[Round]] = [Future()]
        self._halted: int | None = None
        self._number = 0
        self._bound = self._bind()
        self._loop = asyncio.new_event_loop()
        self._failure: BaseException | None = None
        self._ended = threading.Event()
        self._decider: TcpDecider | None = None
        self._thread = threading.Thread(target=self._run, name="phalanx-rendezvous", daemon=True)
        self._thread.start()

    def _bind(self) -> socket.socket:
        """A port for the next round's store, should it be here."""
        return network.bind(anywhere=self._handler.max_hosts > 1)

    def take_store_socket(self) -> socket.socket:
        taken, self._bound = self._bound, self._bind()
        return taken

    @property
    def is_closed(self) -> bool:
        closed = RendezvousClosedError | RendezvousGracefulExitError
        return isinstance(self._failure, closed)

    @property
    def waiting(self) -> int:
        if self._halted is not None:
            return 1
        return 0 if self._decider is None else self._decider.waiting

    def next(self) -> RendezvousInfo:
        future = self._rounds[-1]
        if future.done() and future.exception() is None:
            future = Future()
            self._rounds.append(future)
            if self._failure is not None:
                raise self._failure
            self._call(functools.partial(self._leave_round, self._number))
        patience = self._handler.settings.join_timeout + 30.0
        try:
            round_ = future.result(patience)
        except TimeoutError:
            raise RendezvousTimeoutError(
                f"too few hosts joined within {patience:g} s (join_timeout)."
            ) from None
        at = position(round_.hosts, rank=round_.member(self._agent).first_rank)
        store_info = RendezvousStoreInfo(round_.store.address, round_.store.port)
        return RendezvousInfo(None, at.host, at.hosts, store_info)

    def close_for_all(self) -> None:
        self._call(self._close_for_all)

    def end(self) -> None:
        self._call(self._cancel)
        self._ended.wait(5.0)

    def _call(self, call: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 whoever waits gets it
            self._fail(error)
        finally:
            self._bound.close()
            self._loop.close()
            self._ended.set()

    async def _serve(self) -> None:
        handler = self._handler
        coordinator_settings = CoordinatorSettings(
            hosts=(),
            start_timeout=handler.settings.join_timeout,
            stop_grace=_STOPPED,
            min_hosts=handler.min_hosts,
            max_hosts=handler.max_hosts,
            open=True,
            last_call=handler.settings.last_call_timeout,
            max_restarts=sys.maxsize,  # whoever asks for another round counts them
            backoff=0.0,
            quorum=True,
        )
        self._decider = handler.decider(self._agent, socket.gethostname(), 1, coordinator_settings)
        self._over = asyncio.Event()
        await self._decider.start(self._act, self._fail)
        self._decider.tell(JoinedEvent(self._agent, Endpoint("", self._bound.getsockname()[1])))
        while not self._over.is_set():
            self._decider.tell(TickEvent())
            await asyncio.sleep(_TICK)
        await self._decider.close()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        future = self._rounds[-1]
        if not future.done():
            future.set_exception(error)
        if self._decider is not None:
            self._over.set()

    def _act(self, action: CoordinatorAction) -> None:
        assert self._decider is not None
        match action:
            case BeginRoundAction(round_):
                self._halted = None
                self._number = round_.number
                if self._rounds[-1].done():
                    self._rounds.append(Future())
                self._decider.tell(WorkersStartedEvent(self._agent, round_.number))
                self._rounds[-1].set_result(round_)
            case HaltRoundAction(number, _):
                self._halted = number
                if not self._rounds[-1].done():
                    self._leave_round(number)
            case FinishAction(verdict):
                reason, name = verdict.reason, self._handler.run_id
                if reason is Reason.START_TIMEOUT:
                    self._fail(RendezvousTimeoutError(f"{verdict.note} (join_timeout)."))
                elif reason is Reason.CANCELLED and self._number:
                    self._fail(RendezvousClosedError(f"rendezvous {name!r} is closed."))
                elif reason is Reason.CANCELLED:
                    said = f"rendezvous {name!r} has ended: this host was not needed."
                    self._fail(RendezvousGracefulExitError(said))
                else:
                    self._fail(RendezvousError(f"the rendezvous ended: {reason.value}."))
                self._over.set()

    def _leave_round(self, number: int) -> None:
        """The caller wants the next round: we are clear of the last, or leave it."""
        decider = self._decider
        if decider is None or decider.round is None or decider.round.number != number:
            return
        endpoint = Endpoint("", self._bound.getsockname()[1])
        if self._halted is not None:
            self._halted = None
            decider.tell(RoundClearedEvent(self._agent, number, endpoint))
        else:
            now = time.monotonic()
            decider.tell(
                AgentGoneEvent(self._agent, "it wants another rendezvous", Interval(now, now))
            )
            decider.tell(JoinedEvent(self._agent, endpoint))

    def _close_for_all(self) -> None:
        if self._decider is not None:
            self._decider.close_for_all()

    def _cancel(self) -> None:
        if self._decider is not None and not self._over.is_set():
            self._decider.tell(CancelEvent(0.0))
            self._over.set()
