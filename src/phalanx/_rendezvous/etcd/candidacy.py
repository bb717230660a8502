"""What a host that follows nobody does, by what it finds in etcd. Pure.

Whoever etcd names is followed. If nobody leads, or the one that does has certainly ended, a member
of the last round may stand: it goes on where that was. A host that was not in it may stand only
when none of its members is left: what it then begins is another app under the same name, or goes on
where a host that waited alone is left. So a crashed app's run id can be used again, and its members
are not run twice. A host that comes from an earlier round, and finds that the app has ended, ends.

What has no proof of the token is stood over. But a token may be wrong by mistake, and nobody can
tell whose: a host that has been in no round first asks whether others are really there.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from phalanx._core.ids import AgentId
from phalanx._rendezvous.etcd.records import Claim, LeaderRecord, RoundRecord
from phalanx._rendezvous.protocol import Handover


@dataclass(frozen=True, slots=True)
class View:
    """What there is in etcd, and has a proof of the token."""

    leader: LeaderRecord | None
    last: RoundRecord | None
    present: frozenset[AgentId]
    """The hosts whose leases have not ended."""
    at: tuple[int, int]
    """The revisions of the keys `leader` and `round`, whoever wrote them."""
    claims: tuple[Claim, ...] = ()
    """What has no proof."""


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """Another leads."""

    leader: LeaderRecord


@dataclass(frozen=True, slots=True)
class StandForElection:
    """Stand for election: `leader` and `last` are the revisions that nobody may have changed."""

    leader: int
    last: int
    past: Handover | None = None
    """What is taken over; None: nothing is left of what there was."""
    floor: int = 0
    """Rounds are counted from there."""


@dataclass(frozen=True, slots=True)
class LookFor:
    """Find out whether members of the last round have ended; they come first."""

    agents: frozenset[AgentId]


@dataclass(frozen=True, slots=True)
class Examine:
    """Find out whether hosts with another token are there."""

    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class HearEnd:
    """The app has ended while this host heard nothing."""

    last: RoundRecord


Step = FollowLeader | StandForElection | LookFor | Examine | HearEnd


def choose_step(
    view: View,
    own: AgentId,
    own_round: int,
    ended: Collection[AgentId] = (),
    silent: Collection[AgentId] = (),
    refuted: Collection[int] = (),
) -> Step:
    """What to do now.

    `own_round` is the last round that this host has heard of; of the `ended` it is certain that
    they have, of the `silent` nothing is heard; `refuted` are revisions of claims.
    """
    leader, last = view.leader, view.last
    if leader is not None and leader.agent != own and leader.agent not in ended:
        return FollowLeader(leader)
    revisions = view.at
    number = 0 if last is None else last.formed.round
    if last is not None and last.ended is not None and 0 < own_round <= number:
        # Also one that the others went on without: it must not begin again what has ended.
        return HearEnd(last)
    if last is None or last.ended is not None:
        claims = tuple(claim for claim in view.claims if claim.revision not in refuted)
        if claims and not own_round:
            return Examine(claims)
        return StandForElection(*revisions, floor=number)
    if own in last.members:
        closed = last.members & frozenset(ended)
        gone = (last.members - view.present) | (last.members & frozenset(silent))
        past = Handover(last.round, closed, gone - closed - {own})
        return StandForElection(*revisions, past=past, floor=number)
    left = (last.members & view.present).difference(ended)
    return LookFor(left) if left else StandForElection(*revisions, floor=number)
