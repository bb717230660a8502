"""Who decides once the host that did is lost: the first of its round, by rank, that is there. Pure.

Every survivor goes through the round's `successors` in rank order and asks each that is before
itself; one of them that is before nobody who answers decides. After the members come hosts that
waited when the round began: they decide if all before them have certainly ended. What a survivor
may decide is another matter: a new round needs a majority of the last, or certainty that the rest
has ended (`membership.may_decide`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from phalanx._core.ids import AgentId

MOST_SUCCESSORS = 64
"""So many members of a round know all the others, and may decide next.

Whoever may has to be told of everybody; were that all, it would grow with the square of them.
"""


def successors(members: Sequence[AgentId], waiting: Sequence[AgentId] = ()) -> tuple[AgentId, ...]:
    """Those that may decide next, in rank order: spread, since neighbours may fail together.

    Where there is room, also those that wait.
    """
    count, most = len(members), MOST_SUCCESSORS
    if count <= most:
        return (*members, *waiting)[:most]
    return tuple(members[number * count // most] for number in range(most))


@dataclass(frozen=True, slots=True)
class AskMember:
    """Ask a member whether it decides."""

    agent: AgentId


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """Decide yourself; some have certainly ended, of others nothing is heard."""

    closed: frozenset[AgentId]
    silent: frozenset[AgentId]


class Succession:
    """One survivor's way through the successors of its last round."""

    def __init__(
        self,
        candidates: Collection[AgentId],
        own: AgentId,
        leader: AgentId,
        *,
        closed: bool,
        given_up: bool = False,
    ) -> None:
        """`candidates` are in rank order; `closed`: the connection to the one that decided has
        ended, rather than that nothing was heard. `given_up`: that one may have gone on without
        this host before it ended, with others that are not known here.
        """
        self._own = own
        self._uncertain = {leader} if given_up else set()
        self._closed: set[AgentId] = set()
        self._failed: set[AgentId] = set()
        # One whose connection broke may still be there: then it still decides.
        self._order = [leader] if closed else []
        self._order += [agent for agent in candidates if agent != leader]
        if not closed:
            self._failed.add(leader)

    def next(self) -> AskMember | BecomeLeader:
        """What to do now."""
        for agent in self._order:
            if agent == self._own:
                break
            if agent not in self._failed:
                return AskMember(agent)
        return BecomeLeader(frozenset(self._closed), frozenset(self._failed - self._closed))

    def fail(self, agent: AgentId, *, closed: bool) -> None:
        """One does not answer; `closed`: nobody is there to do so, for certain."""
        self._failed.add(agent)
        if closed and agent not in self._uncertain:
            self._closed.add(agent)
