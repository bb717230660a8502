"""One host of a rendezvous over TCP: it follows the leader, or leads.

To whoever carries an app out on this host it is the `Decider`: events go in, actions come back.
If the leader is lost, the workers here are stopped, and the survivors turn to the first of their
round that is there (`succession`), or to whoever is elected where there is an `Election`. Where the
host stands is in its `TcpState`.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._channel.background import Background
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Outcome, Round
from phalanx._logs import logger
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.coordinator import CONFIRM_TIMEOUT
from phalanx._rendezvous.errors import RendezvousConnectionError
from phalanx._rendezvous.etcd.candidacy import StandForElection
from phalanx._rendezvous.etcd.election import Election
from phalanx._rendezvous.etcd.records import RoundRecord
from phalanx._rendezvous.tcp.connections.connector import Connector
from phalanx._rendezvous.tcp.connections.link import Link
from phalanx._rendezvous.tcp.connections.listener import Listener
from phalanx._rendezvous.tcp.election_search import ElectionSearch
from phalanx._rendezvous.tcp.follower import Follower
from phalanx._rendezvous.tcp.heartbeat import SAID_AFTER, Heartbeat
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.incoming import IncomingPeers
from phalanx._rendezvous.tcp.leader import Leader, Term
from phalanx._rendezvous.tcp.local_actions import LocalActions
from phalanx._rendezvous.tcp.state import TcpState
from phalanx._rendezvous.tcp.succession_search import SuccessionSearch
from phalanx._rendezvous.tcp.verdicts import frames_of
from phalanx._system import machine, network, socket_owner
from phalanx._wire.rendezvous_frames import JoinRequest, RendezvousClosed

_LAST_WORDS = 3.0
"""Seconds for the others to take the end in."""
_NO_AGENT = "its agent was lost, and is not back yet"
Act = Callable[[p.CoordinatorAction], None]
T = TypeVar("T")


class TcpDecider:
    """Follows or leads."""

    def __init__(
        self,
        host: TcpHost,
        now: Callable[[], float] = time.monotonic,
        connector: Connector | None = None,
        election: Election | None = None,
    ) -> None:
        """Nothing is opened before `start`. With an `election`, etcd says who leads, and where."""
        self._host = host
        self._election = election
        self._has_yielded = False
        """This host has let others lead, being of a minority; nobody else has come to."""
        self._now = now
        self._connector = connector or Connector(host.key, host.endpoint)
        self._act: Act = lambda _: None
        self._fail: Callable[[BaseException], None] = lambda _: None
        self._own = ""
        """The address that others reach this host at, once it was looked up."""
        self._key = secrets.token_hex(16)
        self._listener: Listener | None = None
        self._endpoint_listener: Listener | None = None
        """The one at the endpoint, if it was taken after another had left it."""
        self._may_take_endpoint = False
        self._background = Background(self._broken)
        self._do = self._background.do
        self._state = TcpState(host.agent, host.endpoint)
        self._actions = LocalActions(host, self._state, self._have_done, self._share_port)
        follow = self._follow if election is None else None
        self._incoming = IncomingPeers(host, self._state, self._connector, self._do, follow)

    # ── what is known ─────────────────────────────────────────────────────────

    @property
    def phase(self) -> p.Phase:
        """Where the app stands."""
        return self._state.phase

    @property
    def round(self) -> Round | None:
        """The last round that began."""
        return self._state.round

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How workers of this host ended."""
        return self._state.outcomes

    @property
    def running(self) -> frozenset[AgentId]:
        """The host's agent, once its workers were started."""
        return frozenset({self._host.agent} if self._state.is_running else ())

    @property
    def is_over(self) -> bool:
        """No other round will follow."""
        return self._state.is_over

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that another round waits for."""
        leader = self._state.leader
        return () if leader is None else leader.awaited

    @property
    def deadline(self) -> float | None:
        """When a `TickEvent` is due."""
        leader = self._state.leader
        return None if leader is None else leader.deadline

    @property
    def waiting(self) -> int:
        """How many hosts wait for a next round, as far as this one knows."""
        leader = self._state.leader
        if leader is not None and self.round is not None:
            return leader.waiting
        return int(self.phase is p.Phase.STOPPING)

    def round_of(self, agent: AgentId) -> int | None:
        """The number of the round that this host is in, or is not clear of yet."""
        return self._state.own_round if agent == self._host.agent else None

    def take_progress(self) -> list[p.ProgressEvent]:
        """What has come to pass since the last time."""
        return self._state.take_progress()

    # ── start and end ─────────────────────────────────────────────────────────

    async def start(self, act: Act, fail: Callable[[BaseException], None]) -> None:
        """Take a port, and begin to lead or to follow. Raises `RendezvousError`."""
        self._act, self._fail = act, fail
        is_host = False if self._election is not None else self._host.settings.is_host
        if is_host is None:
            is_host = await self._look_up(machine.is_this_machine, self._host.endpoint.address)
        self._own = self._host.known_address or await self._look_up(self._host.own_address)
        if self._state.is_over:
            return  # it was cancelled while the resolver was asked
        leads = self._open(is_host=is_host)
        self._may_take_endpoint = is_host and not leads
        if self._listener is not None:
            take = None if self._host.is_alone else self._incoming.take
            self._listener.serve(take, self._do)
        if (election := self._election) is not None:
            election.attach(self._depose, self._turn_to)
            self._do(election.run())
            self._search(election)
        elif leads:
            self._lead(None)
        else:
            self._follow(self._host.endpoint)
        self._do(Heartbeat(self._host, self._state).run())
        if self._host.settings.node_rank == 0 and leads and not self._host.is_alone:
            self._do(self._warn_of_rank())

    async def _warn_of_rank(self) -> None:
        """Say, if others are missing, that they look for rank 0 on another machine."""
        address = self._host.endpoint.address
        await asyncio.sleep(SAID_AFTER)
        leader = self._state.leader
        if leader is None or not leader.lacks_hosts:
            return
        if await asyncio.to_thread(network.why_unknown, address):
            return  # nobody waits there: that is said with what is waited for
        if not await asyncio.to_thread(machine.is_this_machine, address):
            logger.warning(
                "phalanx: this host has node rank 0, but %s is not an address of this machine: "
                "the other hosts wait there. Give each host its own --node-rank.",
                address,
            )

    async def _look_up(self, ask: Callable[..., T], *arguments: object) -> T:
        """What the resolver says of the endpoint, on a thread; that it is slow is said."""
        task = asyncio.create_task(asyncio.to_thread(ask, *arguments))
        await asyncio.wait([task], timeout=SAID_AFTER)
        if not task.done():
            logger.warning(
                "phalanx: waiting for the resolver: no answer for %s, the endpoint of the "
                "rendezvous",
                self._host.endpoint.address,
            )
        return await task

    def _open(self, *, is_host: bool) -> bool:
        """Take the endpoint's port if it is this host's to take; whether it was.

        Where no other host can come nobody listens, but for the workers on a shared port.
        """
        endpoint, settings = self._host.endpoint, self._host.settings
        if self._host.is_alone and not self._host.shares_port:
            return True
        anywhere = not self._host.is_local
        if is_host:
            try:
                self._listener = self._listen_at_endpoint()
                return True
            except OSError as error:
                if error.errno != errno.EADDRINUSE or settings.is_host or endpoint.port == 0:
                    raise RendezvousConnectionError(_why_not(endpoint, error)) from None
        self._listener = self._connector.listen(0, anywhere=anywhere)
        return False

    def _listen_at_endpoint(self) -> Listener:
        port, anywhere = self._host.endpoint.port, not self._host.is_local
        return self._connector.listen(port, anywhere=anywhere, is_endpoint=True)

    def _take_endpoint(self) -> bool:
        """Take the endpoint's port, which another program had; whether it could be had."""
        if not self._may_take_endpoint:
            return False
        try:
            self._endpoint_listener = self._listen_at_endpoint()
        except OSError:
            return False
        self._may_take_endpoint = False
        self._endpoint_listener.serve(self._incoming.take, self._do)
        return True

    async def close(self) -> None:
        """The app has ended here: let the others have the last word, and go."""
        leader = self._state.leader
        links = [] if leader is None else leader.links
        await asyncio.gather(*(link.flush(_LAST_WORDS) for link in links))
        if (link := self._state.link) is not None:
            await link.flush(_LAST_WORDS)
        self._background.cancel()
        for other in links:
            other.close()
        self._incoming.close()
        if (link := self._state.link) is not None:
            link.close()
        for listener in self._listeners():
            listener.close()
        if self._election is not None:
            verdict = None if leader is None else leader.verdict
            told = [] if verdict is None else frames_of(verdict)
            await self._election.leave(told, is_alone=leader is None or leader.is_alone)

    def close_for_all(self) -> None:
        """Have no other round, for anybody."""
        if (leader := self._state.leader) is not None:
            leader.close_for_all()
        elif (link := self._state.link) is not None:
            self._do(link.send(RendezvousClosed()))

    def _listeners(self) -> list[Listener]:
        both = self._listener, self._endpoint_listener
        return [listener for listener in both if listener is not None]

    def _have_done(self, action: p.CoordinatorAction) -> None:
        """Have it done on this host."""
        self._act(action)

    def _broken(self, error: BaseException) -> None:
        """Something in the background has failed: it is the end, and not passed over."""
        self._fail(error)

    # ── from this host ────────────────────────────────────────────────────────

    def tell(self, event: p.CoordinatorEvent) -> None:
        """Something has happened on this host."""
        match event:
            case p.JoinedEvent():
                self._join(event)
            case p.WorkersStartedEvent():
                self._state.workers_started()
                self._forward(event, wire.WorkersStarted(round=event.round, pids={}))
            case p.WorkerEndedEvent(_, number, outcome, _):
                self._state.worker_ended(number, outcome)
                report = wire.WorkerEnded(round=number, rank=outcome.rank, outcome=outcome)
                self._forward(event, report)
            case p.RoundClearedEvent():
                self._cleared(event)
            case p.AgentGoneEvent(reason=reason):
                self._state.lose_agent()
                if self._state.is_cancelled:
                    self._actions.finish(p.Verdict(p.Reason.CANCELLED))
                self._forward(event, wire.AgentGone(message=reason))
            case p.PreemptedEvent():
                self._forward(event, wire.Preempted())
            case p.CancelEvent(grace):
                self._cancel(self._host.coordinator_settings.stop_grace if grace is None else grace)
            case p.TickEvent() if (leader := self._state.leader) is not None:
                leader.feed(event)

    def _join(self, event: p.JoinedEvent) -> None:
        host = self._host
        request = JoinRequest(
            version=__version__,
            run_id=host.run_id,
            agent=host.agent,
            hostname=host.hostname,
            workers=host.workers,
            node_rank=host.settings.node_rank,
            key=self._key,
            contact=Endpoint(self._own, 0 if self._listener is None else self._listener.port),
            port=event.endpoint.port,
            torch=event.torch or host.carries_store_anyway(),
            bounds=(host.coordinator_settings.least, host.coordinator_settings.most),
            role=host.role,
        )
        self._state.join(request)
        request = self._state.request or request
        if (leader := self._state.leader) is not None:
            leader.join(request)
        elif (link := self._state.link) is not None:
            self._do(link.send(request))

    def _forward(self, event: p.CoordinatorEvent, frame: wire.Frame) -> None:
        """Tell the leader: an event if that is us, else a frame."""
        if (leader := self._state.leader) is not None:
            leader.feed(event)
        elif (link := self._state.link) is not None:
            self._do(link.send(frame))

    def _cleared(self, event: p.RoundClearedEvent) -> None:
        port = None if event.endpoint is None else event.endpoint.port
        self._state.clear(port)
        if self._state.is_cancelled:
            self._actions.finish(p.Verdict(p.Reason.CANCELLED))
            return
        store = None if port is None else Endpoint(self._own, port)
        frame = wire.RoundCleared(round=event.round, port=port or 0)
        self._forward(replace(event, endpoint=store), frame)

    def _cancel(self, grace: float) -> None:
        """Leave: the others go on without us, at once, or end."""
        link, leader = self._state.link, self._state.leader
        if self._state.cancel():
            if link is not None:
                self._do(link.send(wire.ShutDown()))
            for other in [] if leader is None else leader.links:
                other.close()
            if self._listener is not None:
                self._listener.close()
        if self._state.is_clear:
            self._actions.finish(p.Verdict(p.Reason.CANCELLED))
        else:
            self._actions.halt(grace)
            self._do(self._finish_late(grace + CONFIRM_TIMEOUT))

    async def _finish_late(self, seconds: float) -> None:
        """Do not wait longer than this for the agent to confirm."""
        await asyncio.sleep(seconds)
        self._actions.finish(p.Verdict(p.Reason.CANCELLED, unconfirmed=(self._host.agent,)))

    # ── leading and following ─────────────────────────────────────────────────

    def _lead(self, past: p.Handover | None, term: Term | None = None) -> None:
        """Decide, from now on; after another, if there was one."""
        host = self._host
        if term is not None:
            settings = host.coordinator_settings
            quorum = settings.quorum and not self._has_yielded
            host = replace(
                host, coordinator_settings=replace(settings, quorum=quorum, elected=True)
            )
        leader = Leader(
            host,
            self._now,
            self._actions.carry_out,
            self._do,
            self._know,
            self._incoming.is_there,
            self._step_aside,
            past=past,
            contacts=self._state.contacts,
            term=term,
        )
        self._state.lead(leader)
        if past is not None:
            if term is None:
                self._do(self._incoming.watch_the_beginning())
            self._do(self._incoming.look_for(past.round))
        if (request := self._state.request) is not None:
            leader.join(request)
            if not self._state.has_agent:
                now = self._now()
                leader.feed(p.AgentGoneEvent(host.agent, _NO_AGENT, Interval(now, now)))
        self._incoming.answer()

    def _know(self, link: Link) -> None:
        """One that has connected takes part."""
        for listener in self._listeners():
            listener.know(link)

    def _share_port(self, store: Endpoint | None) -> None:
        if store is not None and store.address == self._own:
            store = replace(store, address="127.0.0.1")  # which it knows the name of by itself
        if (listener := self._endpoint_listener or self._listener) is not None:
            listener.share_with(store)

    def _follow(self, contact: Endpoint) -> None:
        """Look for the leader, beginning there."""
        search = SuccessionSearch(
            self._host,
            self._state,
            self._actions,
            self._follower(),
            self._now,
            lead=self._lead,
            take_endpoint=self._take_endpoint,
        )
        self._do(search.run(contact))

    def _follower(self) -> Follower:
        return Follower(
            self._host, self._state, self._actions, self._connector, self._now, self._followed
        )

    def _followed(self, link: Link) -> None:
        """Another decides."""
        request = self._state.request
        if not self._state.has_agent:
            self._do(link.send(wire.AgentGone(message=_NO_AGENT)))
        elif request is not None and request.clear and request.last_round:
            # It may not have been so yet when we said who we are.
            self._do(link.send(wire.RoundCleared(round=request.last_round, port=request.port)))
        self._incoming.answer()

    # ── elections ─────────────────────────────────────────────────────────────

    def _search(self, election: Election, hold_off: float = 0.0) -> None:
        """Look for the one that was elected, or stand; for so many seconds others may first."""

        def lead(elected: StandForElection, last: RoundRecord | None) -> None:
            if elected.past is not None and last is not None:
                self._state.learn_contacts(last.formed.contacts)
            commit = functools.partial(election.commit, election.term)
            self._lead(elected.past, Term(commit, self._step_down, elected.floor))

        search = ElectionSearch(
            self._host,
            self._state,
            self._actions,
            self._follower(),
            self._connector,
            election,
            self._now,
            lead,
        )
        self._do(search.run(hold_off))

    def _turn_to(self, elected: AgentId) -> None:
        """Another host was elected than the one that we follow: that one may not know it."""
        self._has_yielded = False
        link = self._state.link
        if link is not None and self._state.leader_agent != elected:
            link.abort()

    def _depose(self, reason: str) -> None:
        """This host leads no more: the workers are stopped, and the one that does is looked for."""
        election, leader = self._election, self._state.depose()
        if election is None or leader is None or self._state.is_over:
            return
        logger.warning("phalanx: this host no longer leads the rendezvous: %s", reason)
        self._give_up(leader)
        self._search(election)

    def _step_down(self) -> None:
        """Most of the last round is not here: those that are elsewhere may lead, if they can."""
        election, leader = self._election, self._state.depose()
        if election is None or leader is None or self._state.is_over:
            return
        self._has_yielded = True
        self._give_up(leader)
        self._do(election.resign())
        self._search(election, hold_off=self._host.settings.host_timeout)

    def _step_aside(self, contact: Endpoint) -> None:
        """Most of the last round have turned from us, and go on: follow whom they follow."""
        leader = self._state.depose()
        if leader is None or self._state.is_over:
            return
        logger.warning(
            "phalanx: this host no longer leads the rendezvous: others have gone on without it"
        )
        self._give_up(leader)
        self._follow(contact)

    def _give_up(self, leader: Leader) -> None:
        for link in leader.links:
            link.close()
        self._actions.halt(self._host.coordinator_settings.stop_grace)


def _why_not(endpoint: Endpoint, error: OSError) -> str:
    """The port cannot be had; who has it, where that can be seen."""
    why = error.strerror
    if error.errno == errno.EADDRINUSE and (holder := socket_owner.port_holder(endpoint.port)):
        why = f"port {endpoint.port} is in use by process {holder.pid} ({holder.command})"
    return f"cannot listen at {endpoint.address}:{endpoint.port}: {why}. Choose another port."
