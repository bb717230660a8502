"""One host's part in the election: its leases, its office while it leads, who leads otherwise.

Who leads holds the key `leader`, which lives as long as its lease. It tells nobody of a round
before that is written down, and it is written only while the key is still its own: so there is no
second round of a number, and of several that believe they lead one goes on. A round that has begun
needs etcd no more: it runs on while etcd is unreachable, for `etcd_timeout`. After that whoever
leads lets go: its host's own lease may have ended, and others may have begun without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint
from phalanx._logs import logger
from phalanx._rendezvous.errors import RendezvousError
from phalanx._rendezvous.etcd import records
from phalanx._rendezvous.etcd.candidacy import StandForElection, View
from phalanx._rendezvous.etcd.keys import ElectionKeys, EtcdUnreachable, KeyValue
from phalanx._rendezvous.etcd.proofs import ValueProof
from phalanx._rendezvous.etcd.records import (
    HOSTS,
    LEADER,
    ROUND,
    LeaderRecord,
    RoundRecord,
    claim_of,
)
from phalanx._wire.rendezvous_frames import LeaderElected, RoundFormed

_RETRY = 0.5
"""Seconds until etcd is asked again when it could not be reached."""
_LAST_WORDS = 3.0
"""Seconds for the end to be written down, where no other host has to read it."""
_END_KEPT = 60.0
"""Seconds that the end of an app can be read, beyond those that a host that is cut off lives."""


@dataclass(frozen=True, slots=True)
class _Office:
    """A time for which this host leads."""

    lease: int
    revision: int
    """That of the key `leader`."""
    contact: Endpoint
    last: int
    """The revision of the round that was there when it began."""


class Election:
    """Stands, leads, and hears who else does."""

    def __init__(
        self,
        keys: ElectionKeys,
        proof: ValueProof,
        agent: AgentId,
        host_timeout: float,
        etcd_timeout: float,
        join_timeout: float,
        now: Callable[[], float],
    ) -> None:
        """Nothing is asked before `run`, or another method."""
        self._keys = keys
        self._proof = proof
        self._agent = agent
        self._host_timeout = host_timeout
        self._etcd_timeout = max(host_timeout, etcd_timeout)
        self._end_kept = self._etcd_timeout + join_timeout + _END_KEPT
        self._now = now
        self._beat = min(5.0, host_timeout / 4)
        self._depose: Callable[[str], None] = lambda _: None
        self._moved: Callable[[AgentId], None] = lambda _: None
        self._presence = 0
        """The lease of this host's own key."""
        self._office: _Office | None = None
        self._last: RoundFormed | None = None
        """The last round, as far as whoever leads here knows; also one that is being written."""
        self.term = 0
        """How often this host was elected."""
        self._changing = asyncio.Lock()
        """Held while the office is asked for, won back or given up."""
        self._unheard = 0.0
        """Seconds in which etcd was asked in vain."""

    def attach(self, depose: Callable[[str], None], moved: Callable[[AgentId], None]) -> None:
        """`depose` is told, with a reason, that this host leads no more; `moved`, who leads."""
        self._depose, self._moved = depose, moved

    @property
    def unreachable_for(self) -> float:
        """For how many seconds etcd could not be reached."""
        return self._unheard

    async def run(self) -> None:
        """Keep the leases, and hear who leads, until cancelled. Raises `RendezvousError`."""
        while True:
            began = self._now()
            try:
                await self._keep_leases()
                await self._look()
                self._heard()
                await self._keys.wait_change(LEADER, self._beat)
            except EtcdUnreachable as error:
                await asyncio.sleep(_RETRY)
                # A process that was stopped meanwhile has not asked for so long.
                self._missed(min(self._now() - began, self._beat + _RETRY), str(error))

    def _heard(self) -> None:
        if self._unheard >= self._host_timeout:
            logger.warning("phalanx: etcd is there again")
        self._unheard = 0.0

    def _missed(self, seconds: float, reason: str) -> None:
        before, self._unheard = self._unheard, self._unheard + seconds
        limit = self._etcd_timeout
        if before < self._host_timeout <= self._unheard:
            logger.warning(
                "phalanx: cannot reach etcd: %s. Running workers go on for %g s (etcd_timeout)",
                reason,
                limit,
            )
        if self._unheard >= limit and self._office is not None:
            self._lose(f"etcd could not be reached for {limit:g} s (etcd_timeout)")

    async def _keep_leases(self) -> None:
        async with self._changing:
            if not self._presence or not await self._keys.keep_alive(self._presence):
                await self._announce()
        office = self._office
        if office is not None and not await self._keys.keep_alive(office.lease):
            await self._win_back(office)

    async def _announce(self) -> None:
        """Have it seen that this host is there."""
        lease = await self._keys.grant(self._etcd_timeout)
        if await self._keys.write({f"{HOSTS}{self._agent}": b""}, {}, lease):
            self._presence = lease  # not before: without the key it would be kept for nothing

    async def _look(self) -> None:
        """See who leads."""
        office = self._office
        leader, there = await self._leader()
        if self._office is not office:
            return  # it was another one that was read
        if office is not None and _revision(there) != office.revision:
            await self._win_back(office)
        elif office is None and leader is not None and leader.agent != self._agent:
            self._moved(leader.agent)

    async def _win_back(self, office: _Office) -> None:
        """Our key is not there: take the office again if nobody has used it since, or lose it.

        One without the token may have written in its place: that is undone for a round of ours.
        """
        async with self._changing:
            if self._office is not office:
                return
            leader, there = await self._leader()
            last, round_there = await self._round()
            is_ours = last is not None and last.formed.leader == self._agent
            unused = is_ours or _revision(round_there) == office.last
            # It may be written already, though the answer never came.
            is_written = leader is not None and leader.agent == self._agent
            free = is_written or there is None or (leader is None and is_ours)
            at = _revision(there), _revision(round_there)
            if unused and free and await self._take(office.contact, *at):
                return
        if self._office is office:
            self._lose("another host leads")

    def _lose(self, reason: str) -> None:
        self._office = None
        self._depose(reason)

    # ── standing and leading ──────────────────────────────────────────────────

    async def view(self) -> View:
        """What there is. Raises `EtcdUnreachable`, `RendezvousError`."""
        leader, leader_there = await self._leader()
        last, round_there = await self._round()
        present = records.agents_of(await self._keys.names(HOSTS))
        found = []
        if leader is None and leader_there is not None:
            found.append(claim_of(LEADER, leader_there))
        if last is None and round_there is not None:
            found.append(claim_of(ROUND, round_there))
        claims = tuple(claim for claim in found if claim is not None)
        return View(
            leader, last, present, (_revision(leader_there), _revision(round_there)), claims
        )

    async def _leader(self) -> tuple[LeaderRecord | None, KeyValue | None]:
        """Who leads, if it has a proof, and what is there."""
        there = await self._keys.read(LEADER)
        return records.leader_of(self._proof.open(LEADER, there)), there

    async def _round(self) -> tuple[RoundRecord | None, KeyValue | None]:
        """Likewise the last round."""
        there = await self._keys.read(ROUND)
        return records.round_of(self._proof.open(ROUND, there)), there

    async def stand(
        self, step: StandForElection, contact: Endpoint, last: RoundRecord | None
    ) -> bool:
        """Become the one that leads, unless another was faster. Raises `EtcdUnreachable`.

        `last` is what the step was chosen by.
        """
        async with self._changing:
            if not self._presence:
                await self._announce()
            won = await self._take(contact, step.leader, step.last)
            if won and last is not None:
                # What is not taken over is another app's: our end is not its.
                self._last = None if step.past is None else last.formed
            self.term += won
            return won

    async def _take(self, contact: Endpoint, leader: int, last: int) -> bool:
        lease = await self._keys.grant(self._host_timeout)
        elected = LeaderElected(leader=self._agent, contact=contact)
        at = {LEADER: leader, ROUND: last}
        value = self._proof.seal(LEADER, records.encode([elected]))
        revision = await self._keys.write({LEADER: value}, at, lease)
        if not revision:
            await self._keys.revoke(lease)
            return False
        self._office = _Office(lease, revision, contact, last)
        return True

    async def commit(self, term: int, formed: RoundFormed) -> bool:
        """Write a round of a term down, before anybody is told of it; False: the term is over."""
        while (office := self._office) is not None and self.term == term:
            self._last = formed
            try:
                value = {ROUND: self._proof.seal(ROUND, records.encode([formed]))}
                if await self._keys.write(value, {LEADER: office.revision}):
                    return True
                await self._win_back(office)
            except EtcdUnreachable:
                await asyncio.sleep(_RETRY)
        return False

    async def resign(self) -> None:
        """Lead no more, and let others stand."""
        async with self._changing:
            office, self._office = self._office, None
            if office is not None:
                with contextlib.suppress(EtcdUnreachable):
                    await self._keys.revoke(office.lease)

    async def leave(self, told: Sequence[wire.Frame], *, is_alone: bool) -> None:
        """This host goes. `told` is the app's verdict, if this host has given it.

        Unless it `is_alone`, etcd is waited for as long as workers do without it: another host may
        have been cut off a moment ago, and would begin again.
        """
        patience = _LAST_WORDS
        if told and not is_alone:
            patience = max(patience, self._etcd_timeout - self._unheard)
        with contextlib.suppress(EtcdUnreachable, RendezvousError, TimeoutError):
            async with asyncio.timeout(patience):
                if told and self._last is not None:
                    await self._write_end(self._last, told, patience)
                for lease in [self._presence, *([self._office.lease] if self._office else [])]:
                    if lease:
                        await self._keys.revoke(lease)
        await self._keys.close()

    async def _write_end(
        self, last: RoundFormed, told: Sequence[wire.Frame], patience: float
    ) -> None:
        """Until it is there, or another leads: our lease may have ended meanwhile."""
        end = self._proof.seal(ROUND, records.encode_end(last, told))
        value = {ROUND: end, LEADER: None}
        began, is_said = self._now(), False
        while (office := self._office) is not None:
            try:
                lease = await self._keys.grant(self._end_kept)
                if await self._keys.write(value, {LEADER: office.revision}, lease):
                    return
                await self._win_back(office)
            except EtcdUnreachable as error:
                await asyncio.sleep(_RETRY)
                if not is_said and self._now() - began > _LAST_WORDS:
                    is_said = True
                    logger.warning(
                        "phalanx: the app has ended. Waiting up to %g s (etcd_timeout) to write "
                        "that to etcd, for hosts that were cut off: %s",
                        patience,
                        error,
                    )


def _revision(entry: KeyValue | None) -> int:
    return 0 if entry is None else entry.revision
