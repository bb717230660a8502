"""One host's part where hosts meet over TCP: it follows the one that decides, or is that one.

To whoever carries an app out on this host it is the one that decides: events go in, actions come
back. If the host that decides is lost, the workers here are stopped, and the survivors turn to the
first of their round that is there (`succession`).
"""

from __future__ import annotations

import asyncio
import errno
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._channel.background import Background
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Outcome, Round
from phalanx._logs import logger
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.coordinator import CONFIRM_TIMEOUT
from phalanx._rendezvous.errors import RendezvousConnectionError
from phalanx._rendezvous.tcp.connector import Connector
from phalanx._rendezvous.tcp.follower import SAID_AFTER, Follower
from phalanx._rendezvous.tcp.host import TcpHost
from phalanx._rendezvous.tcp.incoming import IncomingPeers
from phalanx._rendezvous.tcp.leader import Leader
from phalanx._rendezvous.tcp.link import Link
from phalanx._rendezvous.tcp.listener import Listener
from phalanx._rendezvous.tcp.verdicts import verdict_of
from phalanx._system import machine
from phalanx._wire import rendezvous_frames

_TICK = 0.1
_LAST_WORDS = 3.0
"""Seconds for the others to take the end in."""
Act = Callable[[p.CoordinatorAction], None]
T = TypeVar("T")


class TcpDecider:
    """Follows or leads."""

    def __init__(
        self,
        part: TcpHost,
        now: Callable[[], float] = time.monotonic,
        connector: Connector | None = None,
    ) -> None:
        """Nothing is opened before `start`."""
        self.connector = connector or Connector(part.key)
        self.phase = p.Phase.GATHERING
        self.round: Round | None = None
        self.outcomes: dict[int, Outcome] = {}
        self.part = part
        self.now = now
        self._act: Act = lambda _: None
        self._fail: Callable[[BaseException], None] = lambda _: None
        self._own = ""
        """The address that others reach this host at, once it was looked up."""
        self._listener: Listener | None = None
        self.leader: Leader | None = None
        self._link: Link | None = None
        self.leader_agent: AgentId | None = None
        self.leader_contact: Endpoint | None = None
        self.contacts: dict[AgentId, Endpoint] = {}
        self.meet: rendezvous_frames.JoinRequest | None = None
        self._key = secrets.token_hex(16)
        self._has_joined = asyncio.Event()
        self._incoming = IncomingPeers(self)
        self._runs = False
        self._clear = True
        self._over = False
        self._blamed: list[rendezvous_frames.FailureTold] = []
        self._happened: list[p.Happening] = []
        self._background = Background(self._broken)
        self.do = self._background.do

    # ── what is known ─────────────────────────────────────────────────────────

    @property
    def running(self) -> frozenset[AgentId]:
        """The host's agent, once its workers were started."""
        return frozenset({self.part.agent} if self._runs else ())

    @property
    def is_over(self) -> bool:
        """No other round will follow."""
        return self._over or self.phase is p.Phase.DONE

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that another round waits for."""
        return () if self.leader is None else self.leader.coordinator.awaited

    @property
    def deadline(self) -> float | None:
        """When a `Tick` is due."""
        return None if self.leader is None else self.leader.coordinator.deadline

    @property
    def waiting(self) -> int:
        """How many hosts wait for a next round, as far as this one knows."""
        if self.leader is not None and self.round is not None:
            members = {member.agent for member in self.round.members}
            return len([link for link in self.leader.links if link.agent not in members])
        return int(self.phase is p.Phase.STOPPING)

    def round_of(self, agent: AgentId) -> int | None:
        """The number of the round that this host is in."""
        if self.round is None or all(m.agent != agent for m in self.round.members):
            return None
        return self.round.number

    def take_happened(self) -> list[p.Happening]:
        """What has come to pass since the last time."""
        if self.leader is not None:
            self._happened += self.leader.coordinator.happened
            self.leader.coordinator.happened = []
        happened, self._happened = self._happened, []
        return happened

    # ── start and end ─────────────────────────────────────────────────────────

    async def start(self, act: Act, fail: Callable[[BaseException], None]) -> None:
        """Take a port, and begin to lead or to follow. Raises `RendezvousError`."""
        self._act, self._fail = act, fail
        is_host = self.part.settings.is_host
        if is_host is None:
            is_host = await self._look_up(machine.is_this_machine, self.part.endpoint.address)
        self._own = self.part.known_address or await self._look_up(self.part.own_address)
        leads = self._open(is_host=is_host)
        if self._listener is not None:
            take = None if self.part.is_alone else self._incoming.take
            self._listener.serve(take, self.do)
        if leads:
            self.lead(None)
        else:
            self.do(Follower(self).run(self.part.endpoint))
        self.do(self._watch())

    async def _look_up(self, ask: Callable[..., T], *arguments: object) -> T:
        """What the resolver says of the endpoint, on a thread; that it is slow is said."""
        task = asyncio.create_task(asyncio.to_thread(ask, *arguments))
        await asyncio.wait([task], timeout=SAID_AFTER)
        if not task.done():
            logger.warning(
                "phalanx: waiting for the resolver: no answer for %s, the endpoint of the "
                "rendezvous",
                self.part.endpoint.address,
            )
        return await task

    def _open(self, *, is_host: bool) -> bool:
        """Take the endpoint's port if it is this host's to take; whether it was.

        Where no other host can come nobody listens, but for the workers on a shared port.
        """
        place, settings = self.part.endpoint, self.part.settings
        if self.part.is_alone and not self.part.shares_port:
            return True
        anywhere = not self.part.is_local
        if is_host:
            try:
                self._listener = self.connector.listen(place.port, anywhere=anywhere)
                return True
            except OSError as error:
                if error.errno != errno.EADDRINUSE or settings.is_host or place.port == 0:
                    raise RendezvousConnectionError(
                        f"cannot listen at {place.address}:{place.port}: {error.strerror}. "
                        "Choose another port."
                    ) from None
        self._listener = self.connector.listen(0, anywhere=anywhere)
        return False

    async def close(self) -> None:
        """The app has ended here: let the others have the last word, and go."""
        links = [] if self.leader is None else self.leader.links
        await asyncio.gather(*(link.flush(_LAST_WORDS) for link in links))
        if self._link is not None:
            await self._link.flush(_LAST_WORDS)
        self._background.cancel()
        for link in links:
            link.close()
        self._incoming.close()
        if self._link is not None:
            self._link.close()
        if self._listener is not None:
            self._listener.close()

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
                self._runs = True
                self._forward(event, wire.WorkersStarted(round=event.round, pids={}))
            case p.WorkerEndedEvent(_, number, outcome, _):
                self.outcomes[outcome.rank] = outcome
                report = wire.WorkerEnded(round=number, rank=outcome.rank, outcome=outcome)
                self._forward(event, report)
            case p.RoundClearedEvent():
                self._cleared(event)
            case p.AgentGoneEvent(reason=reason):
                self._clear = True
                if self._over:
                    self._finish(p.Verdict(p.Reason.CANCELLED))
                self._forward(event, wire.AgentGone(message=reason))
            case p.PreemptedEvent():
                self._forward(event, wire.Preempted())
            case p.CancelEvent(grace):
                self._cancel(self.part.policy.stop_grace if grace is None else grace)
            case p.TickEvent() if self.leader is not None:
                self.leader.feed(event)

    def _join(self, event: p.JoinedEvent) -> None:
        part = self.part
        self.meet = rendezvous_frames.JoinRequest(
            version=__version__,
            run_id=part.run_id,
            agent=part.agent,
            hostname=part.hostname,
            workers=part.workers,
            node_rank=part.settings.node_rank,
            key=self._key,
            contact=Endpoint(self._own, 0 if self._listener is None else self._listener.port),
            port=event.endpoint.port,
            torch=event.torch or self.part.carries_store_anyway(),
            bounds=(part.policy.least, part.policy.most),
        )
        self._has_joined.set()
        if self.leader is not None:
            self.leader.join(self.meet)
        elif self._link is not None:
            self.do(self._link.send(self.meet))

    def _forward(self, event: p.CoordinatorEvent, frame: wire.Frame) -> None:
        if self.leader is not None:
            self.leader.feed(event)
        elif self._link is not None:
            self.do(self._link.send(frame))

    def _cleared(self, event: p.RoundClearedEvent) -> None:
        self._clear = True
        self._runs = False
        if self.meet is not None and event.endpoint is not None:
            self.meet = replace(self.meet, port=event.endpoint.port)
        if self._over:
            self._finish(p.Verdict(p.Reason.CANCELLED))
            return
        if self.leader is not None:
            place = event.endpoint
            store = None if place is None else Endpoint(self._own, place.port)
            self.leader.feed(replace(event, endpoint=store))
        elif self._link is not None:
            port = 0 if event.endpoint is None else event.endpoint.port
            self.do(self._link.send(wire.RoundCleared(round=event.round, port=port)))

    def _cancel(self, grace: float) -> None:
        """Leave: the others go on without us, at once, or end."""
        again, self._over = self._over, True
        if not again:
            if self._link is not None:
                self.do(self._link.send(wire.ShutDown()))
            if self.leader is not None:
                for link in self.leader.links:
                    link.close()
                self.leader = None
            if self._listener is not None:
                self._listener.close()
        if self._clear:
            self._finish(p.Verdict(p.Reason.CANCELLED))
        else:
            self.halt(grace)
            self.do(self._finish_late(grace + CONFIRM_TIMEOUT))

    async def _finish_late(self, seconds: float) -> None:
        """Do not wait longer than this for the agent to confirm."""
        await asyncio.sleep(seconds)
        self._finish(p.Verdict(p.Reason.CANCELLED, unconfirmed=(self.part.agent,)))

    def halt(self, grace: float) -> None:
        """Have the workers here stopped."""
        if self.round is not None and not self._clear:
            self.phase = p.Phase.STOPPING
            self._act(p.HaltRoundAction(self.round.number, grace))

    def _finish(self, verdict: p.Verdict) -> None:
        if self.phase is not p.Phase.DONE:
            self.phase = p.Phase.DONE
            self._act(p.FinishAction(verdict))

    # ── what was decided ──────────────────────────────────────────────────────

    def _carry_out(self, action: p.CoordinatorAction) -> None:
        """Carry out here what was decided, by us or by another."""
        match action:
            case p.BeginRoundAction(round_):
                self._begin(round_)
            case p.HaltRoundAction():
                if self.is_member(self.round) and not self._clear:
                    self.phase = p.Phase.STOPPING
                    self._act(action)
            case p.FinishAction(verdict):
                self._finish(verdict)
            case _:
                self._act(action)

    def is_member(self, round_: Round | None) -> bool:
        """We take part in it."""
        return round_ is not None and any(m.agent == self.part.agent for m in round_.members)

    def _begin(self, round_: Round) -> None:
        self.round = round_
        self.outcomes = {}
        if self.part.shares_port and self._listener is not None:
            self._listener.store = round_.store if self.leader is not None else None
            shared = Endpoint(self.part.endpoint.address, self.part.endpoint.port)
            if round_.torch:
                round_ = replace(round_, store=shared, bound=round_.store.port)
        if self.is_member(round_):
            self.phase = p.Phase.RUNNING
            self._clear = False
            self._act(p.BeginRoundAction(round_))

    # ── leading ───────────────────────────────────────────────────────────────

    def lead(self, past: p.Inheritance | None) -> None:
        """Decide, from now on; after another, if there was one."""
        part = self.part
        self._link = None
        self.leader_agent = part.agent
        self.leader = Leader(
            *(part.agent, part.policy, part.run_id, self.now, self._carry_out, self.do),
            know=self._know,
            past=past,
        )
        if past is not None:
            self.leader.contacts.update(self.contacts)
            self.do(self._incoming.watch_the_beginning())
            self.do(self._incoming.look_for(past.round))
        if self.meet is not None:
            number = 0 if self.round is None else self.round.number
            self.leader.join(replace(self.meet, last_round=number, clear=self._clear))
        self._incoming.answer()

    def _know(self, link: Link) -> None:
        """One that has connected takes part."""
        if self._listener is not None:
            self._listener.know(link)

    # ── following ─────────────────────────────────────────────────────────────

    async def meet_again(self) -> rendezvous_frames.JoinRequest:
        """What to say to the one that decides, once there is something to say."""
        await self._has_joined.wait()
        assert self.meet is not None
        if self.round is None:
            return self.meet
        number, restarts = self.round.number, self.round.restarts
        return replace(self.meet, last_round=number, restarts=restarts, clear=self._clear)

    def follow(self, link: Link, leader: AgentId) -> None:
        """Another decides."""
        self._link, self.leader_agent = link, leader
        self.leader_contact = self.contacts.get(leader, self.part.endpoint)
        if self._clear and self.round is not None and self.meet is not None:
            # It may not have been so yet when we said who we are.
            self.do(link.send(wire.RoundCleared(round=self.round.number, port=self.meet.port)))
        self._incoming.answer()

    def unfollow(self, link: Link) -> None:
        """The one that decided is lost."""
        if self._link is link:
            self._link = self.leader_contact = None

    def obey(self, frame: wire.Frame) -> None:
        """Do what another has decided."""
        match frame:
            case rendezvous_frames.RoundFormed():
                self.contacts = frame.contacts
                self.leader_contact = self.contacts.get(frame.leader, self.leader_contact)
                round_ = frame.membership
                names = [member.hostname for member in round_.members]
                facts = {"round": round_.number, "hosts": names, "restarts": round_.restarts}
                facts["world_size"] = round_.world_size
                self._happened.append(p.Happening("round", self.now(), facts))
                self._carry_out(p.BeginRoundAction(round_))
            case wire.HaltRound():
                self._carry_out(p.HaltRoundAction(frame.round, frame.grace, stacks=frame.stacks))
            case rendezvous_frames.FailureTold():
                self._blamed.append(frame)
            case rendezvous_frames.AppEnded():
                self._finish(verdict_of(frame, self._blamed))

    # ── time ──────────────────────────────────────────────────────────────────

    async def _watch(self) -> None:
        """Signs of life, and their absence. Time in which we were stopped does not count."""
        limit, beat = self.part.settings.host_timeout, self.part.settings.heartbeat
        since, waited = beat, 0.0
        while True:
            await asyncio.sleep(_TICK)
            since += _TICK
            waited = self._say_who_is_missing(waited)
            links = [self._link] if self._link is not None else []
            links += [] if self.leader is None else self.leader.links
            for link in links:
                if since >= beat:
                    await link.ping()
                link.pass_time(_TICK)
                if link.silent < limit:
                    continue
                if link is self._link:
                    link.abort()
                elif self.leader is not None:
                    self.leader.lose(link, f"no heartbeat for {limit:g} s", closed=False)
            since = 0.0 if since >= beat else since

    def _say_who_is_missing(self, waited: float) -> float:
        """Say once, after a moment, that more hosts are waited for; gives how long it has been."""
        gathered = ""
        if self.leader is not None and self.meet is not None and not self.part.is_alone:
            gathered = self.leader.coordinator.gathered
        if gathered and waited < SAID_AFTER <= waited + _TICK:
            place, limit = self.part.endpoint, self.part.settings.join_timeout
            logger.warning(
                "phalanx: waiting for hosts at %s:%d, up to %g s (join_timeout): %s",
                *(place.address, place.port, limit, gathered),
            )
        return waited + _TICK if gathered else 0.0
