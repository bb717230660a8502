"""Deciding for hosts that do not communicate: a failure concerns nobody but its own host. Pure."""

from __future__ import annotations

import dataclasses

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Round
from phalanx._rendezvous.causes import first_cause
from phalanx._rendezvous.coordinator import Coordinator
from phalanx._rendezvous.membership import Host
from phalanx._rendezvous.protocol import (
    AgentGoneEvent,
    BeginRoundAction,
    CoordinatorAction,
    HaltRoundAction,
    Phase,
    Policy,
    Reason,
)
from phalanx._rendezvous.restarts import Budget


class HostwiseCoordinator(Coordinator):
    """Restarts the workers of the host where one failed; every host has its own restarts.

    A lost host's place is taken by a spare with as many workers; without one the app has failed.
    """

    def __init__(self, policy: Policy, now: float) -> None:
        """As a `Coordinator`."""
        super().__init__(policy, now)
        self._budgets: dict[AgentId, Budget] = {}
        self._halted: dict[AgentId, float] = {}
        """The hosts whose workers are being stopped, and the wait before they start anew."""
        self._due_at: dict[AgentId, float] = {}
        self._start_by: dict[AgentId, float] = {}
        """The hosts whose workers are being started anew, and until when they must run."""
        self._began_at: dict[AgentId, float] = {}

    def _fail(self, agent: AgentId, now: float) -> list[CoordinatorAction]:
        if self.phase is not Phase.RUNNING or agent in self._halted:
            return []
        policy = self.policy
        budget = self._budgets.setdefault(
            agent, Budget(policy.max_restarts, policy.backoff, policy.same_failures)
        )
        cause = first_cause(f for f in self._round_state.failures if f.agent == agent)
        wait = None
        if agent in self._roster.joined:
            lived = now - self._began_at.get(agent, self._round_state.began)
            wait = budget.spend(cause, lived)
        if wait is None:
            # Nothing is left to try on this host: its failure is the app's.
            self._over = Reason.FAILED
            self._note = budget.note
            return super()._fail(agent, now)
        self._attempts.append(cause)
        self._halted[agent] = wait
        return [HaltRoundAction(self._round_of[agent], policy.stop_grace, (agent,))]

    def _halts(self, grace: float) -> list[CoordinatorAction]:
        """Every host is stopped in the round that it is in."""
        numbers = sorted(set(self._round_of.values())) or [self._number]
        return [
            HaltRoundAction(
                number, grace, tuple(a for a, n in self._round_of.items() if n == number)
            )
            for number in numbers
        ]

    def _run(self, agent: AgentId, now: float) -> list[CoordinatorAction]:
        self._began_at[agent] = now
        self._start_by.pop(agent, None)
        first = not self._round_state.all_run
        actions = super()._run(agent, now) if first else []
        if self.phase is Phase.RUNNING and self._round_state.all_run:
            self._set_deadline()
        return actions

    def _clear(
        self, agent: AgentId, endpoint: Endpoint | None, now: float
    ) -> list[CoordinatorAction]:
        if self.phase is not Phase.RUNNING or agent not in self._halted:
            return super()._clear(agent, endpoint, now)
        self._round_state.cleared.add(agent)
        self._due_at[agent] = now + self._halted[agent]
        return self._restart_hosts(now)

    def _due(self, now: float) -> list[CoordinatorAction]:
        if self.phase is not Phase.RUNNING:
            return super()._due(now)
        late = [agent for agent, limit in self._start_by.items() if limit <= now]
        if late or not self._round_state.all_run:
            return self._time_out(
                late or self._round_state.members, self._round_state.running - set(late), now
            )
        return self._restart_hosts(now)

    def _restart_hosts(self, now: float) -> list[CoordinatorAction]:
        actions: list[CoordinatorAction] = []
        for agent in [a for a, due in self._due_at.items() if due <= now]:
            del self._due_at[agent], self._halted[agent]
            self._round_state.begin_again(agent)
            cause = next(f for f in reversed(self._attempts) if f.agent == agent).describe()
            actions.append(self._begin_host(agent, cause, now))
        self._set_deadline()
        return actions

    def _set_deadline(self) -> None:
        due = [*self._due_at.values(), *self._start_by.values()]
        if not self._round_state.all_run:
            due.append(self._give_up_at)
        self.deadline = min(due, default=None)

    def _begin_host(self, agent: AgentId, cause: str, now: float) -> CoordinatorAction:
        assert self.round is not None
        self._number += 1
        self._round_of[agent] = self._number
        self._start_by[agent] = now + self.policy.start_timeout
        count = self._budgets[agent].count if agent in self._budgets else 0
        members = tuple(self._round_state.members.values())
        round_ = Round(self._number, members, self.round.store, count, self.round.torch)
        name = self._round_state.members[agent].hostname
        facts = {"hosts": [name], "restarts": count, "round": self._number, "cause": cause}
        self._happen("restart", now, **facts)
        return BeginRoundAction(round_, (agent,))

    def _lose(self, event: AgentGoneEvent, now: float) -> list[CoordinatorAction]:
        member = self._round_state.members.get(event.agent)
        if member is None or self.phase is not Phase.RUNNING or not self._number:
            return super()._lose(event, now)
        if all(rank in self._round_state.outcomes for rank in member.ranks):
            return super()._lose(event, now)
        spare = self._roster.spare(self._round_state.members, member.workers)
        self._halted.pop(event.agent, None)
        self._due_at.pop(event.agent, None)
        self._start_by.pop(event.agent, None)
        if spare is None:
            self._over = Reason.FAILED
            return super()._lose(event, now)
        self._roster.lose(event.agent, certain=event.closed)
        self._happen("loss", now, hostname=member.hostname, reason=event.reason)
        cause = f"{member.hostname} was lost: {event.reason}"
        action = self._replace(event.agent, spare, cause, now)
        self._set_deadline()
        return [action]

    def _replace(self, lost: AgentId, spare: Host, cause: str, now: float) -> CoordinatorAction:
        """Give a lost host's ranks to another."""
        self._round_state.begin_again(lost)
        self._round_of.pop(lost, None)
        # In place: the members stay in rank order.
        self._round_state.members = {
            (spare.agent if agent == lost else agent): (
                dataclasses.replace(member, agent=spare.agent, hostname=spare.hostname)
                if agent == lost
                else member
            )
            for agent, member in self._round_state.members.items()
        }
        self._round_state.running.discard(lost)
        self._round_state.running.add(spare.agent)  # it has a deadline of its own
        return self._begin_host(spare.agent, cause, now)
