"""What is kept in etcd for a run, under its prefix. Pure.

| key         | value                                          | lives                             |
|-------------|------------------------------------------------|-----------------------------------|
| leader      | who leads, and where it is reached             | as long as its lease              |
| round       | the last round; once it has ended, the verdict | for good; after an end as long as |
|             |                                                | a host that missed it may wait    |
| hosts/AGENT | nothing: the host is there                     | as long as its lease              |

Values are frames, as they go over connections: what is read is checked in the same way. Before them
is a proof of the token (`proofs`). What has none says nothing of the run, but where hosts with
another token may be (`Claim`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx import _wire as wire
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._rendezvous.errors import RendezvousStateError
from phalanx._rendezvous.etcd.keys import KeyValue
from phalanx._rendezvous.etcd.proofs import without_proof
from phalanx._wire.rendezvous_frames import AppEnded, FailureTold, LeaderElected, RoundFormed
from phalanx.errors import WireError

LEADER, ROUND, HOSTS = "leader", "round", "hosts/"
_MOST_ASKED = 64
"""So many of those that a claim names are asked."""
_MOST_OF_AN_END = 1 << 19
"""Bytes of a verdict: etcd takes requests up to three times that."""


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads, and where it is reached."""

    agent: AgentId
    contact: Endpoint
    revision: int


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """The last round, where its members are reached, and how the app ended, if it has."""

    formed: RoundFormed
    revision: int
    failures: tuple[FailureTold, ...] = ()
    ended: AppEnded | None = None

    @property
    def round(self) -> Round:
        """The round."""
        return self.formed.membership

    @property
    def members(self) -> frozenset[AgentId]:
        """The agents that are in it."""
        return frozenset(AgentId(agent) for agent in self.formed.agents)


@dataclass(frozen=True, slots=True)
class Claim:
    """What was written without the token: it counts while a host that has another is there."""

    revision: int
    contacts: tuple[Endpoint, ...]
    has_round: bool
    """They run already; otherwise they gather."""


def encode(frames: Sequence[wire.Frame]) -> bytes:
    """The value for some frames."""
    return b"".join(wire.encode(frame) for frame in frames)


def encode_end(formed: RoundFormed, told: Sequence[wire.Frame]) -> bytes:
    """The value for an app that has ended; `told` is its verdict, shortened if it is too long."""
    value = encode([formed, *told])
    return value if len(value) <= _MOST_OF_AN_END else encode([formed, told[-1]])


def leader_of(entry: KeyValue | None) -> LeaderRecord | None:
    """Who leads. Raises `RendezvousStateError`."""
    if entry is None:
        return None
    match _frames(LEADER, entry):
        case [LeaderElected() as elected]:
            return LeaderRecord(AgentId(elected.leader), elected.contact, entry.revision)
        case frames:
            raise _unknown(LEADER, f"{len(frames)} other frames")


def round_of(entry: KeyValue | None) -> RoundRecord | None:
    """The last round. Raises `RendezvousStateError`."""
    if entry is None:
        return None
    match _frames(ROUND, entry):
        case [RoundFormed() as formed]:
            return RoundRecord(formed, entry.revision)
        case [RoundFormed() as formed, *told, AppEnded() as ended]:
            failures = tuple(frame for frame in told if isinstance(frame, FailureTold))
            return RoundRecord(formed, entry.revision, failures, ended)
        case frames:
            raise _unknown(ROUND, f"{len(frames)} other frames")


def claim_of(key: str, entry: KeyValue) -> Claim | None:
    """What a value without a proof claims; None: nothing that could be asked about."""
    bare = KeyValue(without_proof(entry.value), entry.revision)
    try:
        if key == LEADER:
            leader = leader_of(bare)
            return None if leader is None else Claim(entry.revision, (leader.contact,), False)
        last = round_of(bare)
    except RendezvousStateError:
        return None
    if last is None or last.ended is not None:
        return None
    contacts = tuple(last.formed.contacts.values())[:_MOST_ASKED]
    return Claim(entry.revision, contacts, has_round=True)


def agents_of(names: frozenset[str]) -> frozenset[AgentId]:
    """The hosts that are there, by their keys."""
    return frozenset(AgentId(int(name)) for name in names if name.isdecimal())


def _frames(key: str, entry: KeyValue) -> list[wire.Frame]:
    try:
        return list(wire.Decoder().feed(entry.value))
    except WireError as error:
        raise _unknown(key, str(error)) from None


def _unknown(key: str, what: str) -> RendezvousStateError:
    return RendezvousStateError(
        f"the key {key!r} of the run in etcd has something that this version does not know: "
        f"{what}. Use another --rdzv-id, or delete the key."
    )
