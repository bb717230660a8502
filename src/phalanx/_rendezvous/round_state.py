"""What is known of one round: whose workers run, how they ended, who is clear of it. Pure."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterable

from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Ended, Member, Outcome
from phalanx._rendezvous.causes import Failure, first_cause, misses_others
from phalanx._rendezvous.membership import Host
from phalanx._rendezvous.protocol import Reason, Verdict

_SEEN_LATE = 0.1
_ENDS_OF_THE_STOPPED = (0, 128 + signal.SIGTERM)


class RoundState:
    """What has become of one round."""

    def __init__(self, members: Iterable[Member], began: float) -> None:
        """Nothing has happened yet."""
        self.members = {member.agent: member for member in members}
        self.began = began
        self.running: set[AgentId] = set()
        self.cleared: set[AgentId] = set()
        self.lost: set[AgentId] = set()
        self._done: set[AgentId] = set()
        """The members that are clear of it or lost."""
        self._workers = sum(member.workers for member in self.members.values())
        self.outcomes: dict[int, Outcome] = {}
        self.failures: list[Failure] = []
        self.halted_at: float | None = None

    @property
    def all_run(self) -> bool:
        """Every member's workers were started."""
        return self.running >= self.members.keys()

    @property
    def all_returned(self) -> bool:
        """Every worker has returned."""
        return len(self.outcomes) == self._workers and not self.failures

    @property
    def all_confirmed(self) -> bool:
        """Nothing is left on any member, as far as they are there."""
        return len(self._done) == len(self.members)

    def awaits(self, agent: AgentId) -> bool:
        """A member has not said that nothing is left."""
        return agent in self.members and agent not in self._done

    @property
    def unconfirmed(self) -> tuple[AgentId, ...]:
        """The members that have not said that nothing is left."""
        return tuple(agent for agent in self.members if agent not in self._done)

    @property
    def cause(self) -> Failure:
        """What the other failures follow from; there must be one."""
        return first_cause(self.failures)

    @property
    def is_stuck(self) -> bool:
        """All that is known is that workers miss others: where those are is worth asking.

        One that gives up waiting closes its connections before it says so: the first to be heard
        of may be a peer that has noticed.
        """
        return all(misses_others(failure.outcome) for failure in self.failures)

    def failures_of(self, agent: AgentId) -> list[Failure]:
        """How workers of one member have failed."""
        return [failure for failure in self.failures if failure.agent == agent]

    def has_returned(self, agent: AgentId) -> bool:
        """Every worker of a member has returned."""
        ranks = self.members[agent].ranks if agent in self.members else range(0)
        outcomes = [self.outcomes.get(rank) for rank in ranks]
        return all(outcome is not None and outcome.succeeded for outcome in outcomes)

    def start(self, agent: AgentId) -> None:
        """A member's workers run."""
        self.running.add(agent)

    def count_from(self, now: float) -> None:
        """What the round lasts is counted from here: its workers run, or it is over."""
        self.began = now

    def halt(self, now: float) -> None:
        """Everybody is told to stop; the first time counts."""
        if self.halted_at is None:
            self.halted_at = now

    def clear(self, agent: AgentId) -> None:
        """Nothing is left of it on a member."""
        self.cleared.add(agent)
        self._confirm(agent)

    def end(self, agent: AgentId, outcome: Outcome, when: Interval) -> bool:
        """A worker has ended; False if that is known, or makes no sense."""
        member = self.members.get(agent)
        if member is None or outcome.rank in self.outcomes or outcome.rank not in member.ranks:
            return False
        self.outcomes[outcome.rank] = outcome
        if not outcome.succeeded:
            self._add_failure(agent, outcome, when)
        return True

    def lose_host(self, agent: AgentId, reason: str, when: Interval) -> bool:
        """A member is gone: it will confirm nothing any more. Otherwise as `lose`."""
        self.lost.add(agent)
        self._confirm(agent)
        return self.lose(agent, reason, when)

    def _confirm(self, agent: AgentId) -> None:
        if agent in self.members:
            self._done.add(agent)

    def lose(self, agent: AgentId, reason: str, when: Interval) -> bool:
        """Take the ranks of which nothing was heard for lost; whether there were any."""
        ranks = self.members[agent].ranks if agent in self.members else range(0)
        unfinished = [rank for rank in ranks if rank not in self.outcomes]
        for rank in unfinished:
            outcome = Outcome(rank, Ended.LOST, when.latest, detail=reason)
            self.outcomes[rank] = outcome
            self._add_failure(agent, outcome, when)
        return bool(unfinished)

    def verdict(self, reason: Reason) -> Verdict:
        """How the app ended with this round; what is known beyond it is to be filled in."""
        cause = self.cause if reason is Reason.FAILED else None
        others = tuple(f for f in self.failures if f is not cause)
        return Verdict(reason, cause, others, members=tuple(self.members.values()))

    def begin_again(self, agent: AgentId) -> None:
        """Forget what a host's workers did: it starts them anew."""
        self.cleared.discard(agent)
        if agent not in self.lost:
            self._done.discard(agent)
        self.failures = [f for f in self.failures if f.agent != agent]
        for rank in self.members[agent].ranks:
            self.outcomes.pop(rank, None)

    def replace(self, lost: AgentId, spare: Host) -> None:
        """Give a lost host's ranks to another, which starts their workers anew."""
        self.begin_again(lost)
        # In place: the members stay in rank order.
        self.members = {
            (spare.agent if agent == lost else agent): (
                dataclasses.replace(member, agent=spare.agent, hostname=spare.hostname)
                if agent == lost
                else member
            )
            for agent, member in self.members.items()
        }
        self.running.discard(lost)
        self.running.add(spare.agent)  # it has a deadline of its own

    def _add_failure(self, agent: AgentId, outcome: Outcome, when: Interval) -> None:
        hostname = self.members[agent].hostname
        consequence = self._is_consequence(outcome, when)
        self.failures.append(Failure(agent, hostname, outcome, when, consequence))

    def _is_consequence(self, outcome: Outcome, when: Interval) -> bool:
        """It ended because everybody was told to stop."""
        if outcome.kind is Ended.KILLED:
            return outcome.stopped
        halted = self.halted_at
        if halted is None:
            return False
        if outcome.kind is Ended.EXITED and outcome.code not in _ENDS_OF_THE_STOPPED:
            # A process is seen to be gone a moment after its peers have noticed.
            halted += _SEEN_LATE
        return when.earliest > halted
