"""The one that decides: members, rounds, restarts, first cause, when to stop and when to give up.

`Coordinator.handle(event, now) -> [action]` is pure: no clock, socket or process inside. Whoever
hosts it turns frames into events, carries the actions out, and calls again with `TickEvent` no
later than `deadline`. Events of another round are dropped. After `FinishAction` events yield
nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Ended, Endpoint, Member, Outcome, Round
from phalanx._rendezvous import protocol as p
from phalanx._rendezvous.causes import first_cause
from phalanx._rendezvous.exclusion import Exclusion, FailureCounts
from phalanx._rendezvous.membership import Host, lay_out
from phalanx._rendezvous.restart_policy import HaltAll, HaltHost, RestartPolicy
from phalanx._rendezvous.roster import Roster
from phalanx._rendezvous.round_state import RoundState

CONFIRM_TIMEOUT = 10.0
"""How long past the grace an agent may take to confirm that nothing of its round is left."""


class Coordinator:
    """Decides for one app."""

    def __init__(
        self,
        settings: p.CoordinatorSettings,
        restarts: RestartPolicy,
        now: float,
        past: p.Handover | None = None,
    ) -> None:
        """Begin to wait for agents; or, with a `past`, for those of its round to be clear of it.

        `restarts` decides whose workers are started anew after a failure.
        """
        self.settings = settings
        self.phase = p.Phase.GATHERING
        self.round: Round | None = None
        self._restarts = restarts
        self._progress: list[p.ProgressEvent] = []
        self._roster = Roster(settings)
        self._failure_counts = FailureCounts(settings.host_failures)
        self._excluded: list[Exclusion] = []
        self._round_state = RoundState(lay_out(settings.hosts), now)
        self._number = self._floor = 0
        self._growing = self._has_begun = False
        self._round_of: dict[AgentId, int] = {}
        self._give_up_at = now + settings.start_timeout
        self.deadline: float | None = self._give_up_at
        self._last_call_at: float | None = None
        self._not_before = now
        self._over: p.Reason | None = None
        """Set once no other round may follow."""
        self.restart_cause = ""
        """The failure that the last restart was spent on, in one line."""
        self._missing: tuple[str, ...] = ()
        self._note = ""
        if past is not None:
            self._resume(past, now)

    def _resume(self, past: p.Handover, now: float) -> None:
        """Take over: the last round is to be stopped by all that are left of it."""
        self.round = past.round
        self._number = past.round.number
        self._floor = past.round.number + 1  # the one that is lost may have begun another
        self._restarts.catch_up(past.round.restarts)
        self._roster.expect(past.round.members)
        self._round_state = RoundState(past.round.members, now)
        self._round_of = dict.fromkeys(self._round_state.members, self._number)
        for agent in (past.closed | past.silent) & self._round_state.members.keys():
            certain = agent in past.closed
            reason = "it has ended" if certain else "no contact"
            self._roster.lose(agent, certain=certain)
            self._round_state.lose_host(agent, reason, Interval(now, now))
        self.phase = p.Phase.STOPPING
        self._round_state.halt(now)
        self.deadline = now + self.settings.stop_grace + CONFIRM_TIMEOUT

    # ── what is known ─────────────────────────────────────────────────────────

    @property
    def running(self) -> frozenset[AgentId]:
        """The agents whose workers have been started."""
        return frozenset(self._round_state.running)

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How the round's workers that have ended did, by global rank."""
        return self._round_state.outcomes

    @property
    def is_over(self) -> bool:
        """No other round will follow."""
        return self.phase is p.Phase.DONE or self._over is not None

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that another round waits for, where too few are left."""
        if self.phase is not p.Phase.GATHERING or self._roster.is_enough:
            return ()
        return self._roster.names(a for a in self._roster.gone if a not in self._roster.excluded)

    @property
    def lacks_hosts(self) -> bool:
        """Too few have come for a round."""
        return self.phase is p.Phase.GATHERING and not self._roster.is_enough

    @property
    def gathered(self) -> str:
        """Who has come, in words."""
        return self._roster.describe()

    @property
    def restarts(self) -> int:
        """How many restarts were spent."""
        return self._restarts.restarts

    def round_of(self, agent: AgentId) -> int | None:
        """The number of the round that an agent is in."""
        return self._round_of.get(agent)

    def take_progress(self) -> list[p.ProgressEvent]:
        """What has come to pass since the last time."""
        events, self._progress = self._progress, []
        return events

    def awaits(self, agent: AgentId) -> bool:
        """That an agent is clear of the round is waited for."""
        return self.phase is p.Phase.STOPPING and self._round_state.awaits(agent)

    def member(self, agent: AgentId) -> Member | None:
        """An agent's part in the last round that began."""
        return None if self.round is None else self._round_state.members.get(agent)

    def catch_up(self, number: int, restarts: int) -> None:
        """A host that comes was in a round before: what follows is a later one.

        Until a round of our own has begun it may know of a restart that we do not.
        """
        self._floor = max(self._floor, number)
        if not self._has_begun:
            self._restarts.catch_up(restarts)

    def handle(self, event: p.CoordinatorEvent, now: float) -> list[p.CoordinatorAction]:
        """Take one event; give what is to be done now, in order."""
        if self.phase is p.Phase.DONE or self._is_stale(event):
            return []
        match event:
            case p.JoinedEvent():
                return self._join(event, now)
            case p.WorkersStartedEvent(agent):
                return self._run(agent, now)
            case p.PreemptedEvent(agent):
                self._roster.preempt(agent)
                return []
            case p.WorkerEndedEvent(agent, _, outcome, when):
                if agent in self._roster.leaving and self._roster.can_spare_leavers:
                    return self._lose(p.AgentGoneEvent(agent, "its host was preempted", when), now)
                if not self._round_state.end(agent, outcome, when):
                    return []
                if outcome.succeeded:
                    return self._conclude(now)
                return self._fail(agent, now) + self._conclude(now)
            case p.RoundClearedEvent(agent, _, endpoint):
                return self._clear(agent, endpoint, now)
            case p.AgentGoneEvent():
                return self._lose(event, now)
            case p.DelayedEvent(number):
                if number == self._number and self.phase is p.Phase.RUNNING and self.deadline:
                    self._give_up_at = self.deadline = now + self.settings.start_timeout
                return []
            case p.CancelEvent(grace):
                return self._cancel(self.settings.stop_grace if grace is None else grace, now)
            case p.TickEvent():
                return [] if self.deadline is None or now < self.deadline else self._due(now)

    def _is_stale(self, event: p.CoordinatorEvent) -> bool:
        if isinstance(event, p.WorkersStartedEvent | p.WorkerEndedEvent | p.RoundClearedEvent):
            return self._round_of.get(event.agent) != event.round
        return False

    def _happen(self, name: str, now: float, **facts: object) -> None:
        self._progress.append(p.ProgressEvent(name, now, facts))

    # ── gathering ─────────────────────────────────────────────────────────────

    def _join(self, event: p.JoinedEvent, now: float) -> list[p.CoordinatorAction]:
        if not self._roster.join(event):
            return []
        self._happen("join", now, hostname=self._roster.hosts[event.agent].hostname)
        if self.phase is p.Phase.GATHERING:
            return self._gather(now)
        return self._grow(now) if self._round_state.all_run else []

    def _grow(self, now: float) -> list[p.CoordinatorAction]:
        """Those that wait take part from a new round on, if there is room: that is no failure."""
        members = self._round_state.members
        waiting = [agent for agent in self._roster.joined if agent not in members]
        room = len(members) < self.settings.most
        undisturbed = self.phase is p.Phase.RUNNING and not self._round_state.outcomes
        if undisturbed and waiting and room and self._restarts.takes_newcomers:
            self._growing = True
            return self._halt(self.settings.stop_grace, now)
        return []

    def _gather(self, now: float) -> list[p.CoordinatorAction]:
        """Begin the round if those that are there are enough, and nobody else is worth a wait."""
        first = self._number == 0
        if first and not self._roster.may_suffice:
            if self._roster.all_heard_of:
                return self._halt(self.settings.stop_grace, now) + self._conclude(now)
            assert self.deadline is not None
            self.deadline = min(self.deadline, now + self.settings.start_window)
            return []
        if not self._roster.is_enough:
            self.deadline = self._give_up_at
            return []
        wait_until = self._not_before
        if first and not self._roster.is_complete:
            if self._last_call_at is None:
                self._last_call_at = now + self.settings.last_call
            wait_until = max(wait_until, self._last_call_at)
        if now < wait_until:
            self.deadline = wait_until
            return []
        if not first and self._lacks_quorum(self._roster.joined.keys()):
            return self._finish(now)  # others were lost meanwhile
        return self._begin(now)

    def _begin(self, now: float) -> list[p.CoordinatorAction]:
        members = lay_out(self._roster.choose(self._round_state.members if self._number else ()))
        self._number = max(self._number, self._floor) + 1
        store = self._roster.joined[members[0].agent]
        torch = self._roster.wants_store(member.agent for member in members)
        self.round = Round(self._number, members, store, self._restarts.restarts, torch)
        waited = now - self._round_state.began
        self._round_state = RoundState(members, now)
        self._round_of = dict.fromkeys(self._round_state.members, self._number)
        self._growing, self._has_begun = False, True
        self.phase = p.Phase.RUNNING
        if self._number > 1:  # the first round's start is part of the app's
            self._give_up_at = now + self.settings.start_timeout
        self.deadline = self._give_up_at
        self._happen(
            "round",
            now,
            round=self._number,
            hosts=[member.hostname for member in members],
            world_size=self.round.world_size,
            restarts=self._restarts.restarts,
            rendezvous_seconds=waited,
        )
        return [p.BeginRoundAction(self.round)]

    # ── a round ───────────────────────────────────────────────────────────────

    def _run(self, agent: AgentId, now: float) -> list[p.CoordinatorAction]:
        ran = self._round_state.all_run
        self._round_state.start(agent)
        self._restarts.workers_started(agent, now)
        if not self._round_state.all_run or self.phase is not p.Phase.RUNNING:
            return []
        self._set_deadline()
        if ran:
            return []  # a host that was started anew, alone
        self._round_state.count_from(now)
        return self._grow(now)

    def _set_deadline(self) -> None:
        """While a round runs: for hosts that start alone, and until all have started."""
        own = None if self._round_state.all_run else self._give_up_at
        due = [at for at in (own, self._restarts.deadline) if at is not None]
        self.deadline = min(due, default=None)

    def _clear(
        self, agent: AgentId, endpoint: Endpoint | None, now: float
    ) -> list[p.CoordinatorAction]:
        self._round_state.clear(agent)
        if self.phase is p.Phase.RUNNING and self._restarts.host_cleared(agent, now):
            return self._restart_hosts(now)
        if endpoint is not None:
            self._roster.move(agent, endpoint)
        if self.phase is p.Phase.STOPPING:
            return self._conclude(now)
        # Nothing of it runs any more: what it has not told us by now will never come.
        reason = "it is no longer running, and its host did not report how it ended"
        lost = self._round_state.lose(agent, reason, Interval(now, now))
        return (self._fail(agent, now) if lost else []) + self._conclude(now)

    def _lose(self, event: p.AgentGoneEvent, now: float) -> list[p.CoordinatorAction]:
        agent = event.agent
        if agent in self._roster.gone and event.left:
            # It was waited for, and will not come back after all.
            self._roster.left.add(agent)
            waits = self._number and self.phase is p.Phase.GATHERING
            if not waits or self._roster.may_recover:
                return []
            if agent in self._roster.excluded:
                self._note = f"Fewer than {self.settings.least} hosts are left."
            return self._finish(now)
        if agent in self._roster.gone:
            # Its agent had been lost, and now the host is.
            self._roster.gone[agent] &= event.closed
            return []
        if agent not in self._roster.hosts:
            return []
        self._roster.lose(agent, certain=event.closed, left=event.left)
        name = self._roster.hosts[agent].hostname
        self._happen("loss", now, hostname=name, reason=event.reason, certain=event.closed)
        if self._number and self.phase is p.Phase.GATHERING:
            return self._gather(now)
        if self._number and agent not in self._round_state.members:
            return []  # it was waiting
        finished = self._round_state.has_returned(agent)
        if self.phase is p.Phase.RUNNING and not finished:
            member = self._round_state.members[agent]
            spare = self._restarts.host_lost(member, self._round_state, self._roster)
            if spare is not None:
                return self._replace(agent, spare, f"{name} was lost: {event.reason}", now)
        self._round_state.lose_host(agent, event.reason, event.when)
        if self.phase is p.Phase.GATHERING:
            return self._gather(now)
        return ([] if finished else self._fail(agent, now)) + self._conclude(now)

    def _fail(self, agent: AgentId, now: float) -> list[p.CoordinatorAction]:
        """The round has failed, on this host."""
        if self.phase is not p.Phase.RUNNING:
            return []
        match self._restarts.worker_failed(agent, self._round_state, self._roster, now):
            case HaltHost():
                if (others := self._exclude_alone(agent, now)) is not None:
                    return others
                number = self._round_of[agent]
                return [p.HaltRoundAction(number, self.settings.stop_grace, (agent,))]
            case HaltAll(final=final):
                if final:
                    self._over = p.Reason.FAILED
                return self._stop_failed(now)
            case _:
                return []

    def _stop_failed(self, now: float) -> list[p.CoordinatorAction]:
        """Stop a round in which a worker has failed, once others had time to say that they did."""
        if self.settings.failure_window > 0:
            self.phase = p.Phase.COLLECTING
            self.deadline = now + self.settings.failure_window
            return []
        return self._halt_failed(now)

    def _halt_failed(self, now: float) -> list[p.CoordinatorAction]:
        """Stop it now."""
        stacks = self._round_state.is_stuck
        return [
            dataclasses.replace(action, stacks=stacks)
            if isinstance(action, p.HaltRoundAction)
            else action
            for action in self._halt(self.settings.stop_grace, now)
        ]

    def _cancel(self, grace: float, now: float) -> list[p.CoordinatorAction]:
        if self._over is None:
            failed = bool(self._round_state.failures) and self.phase is not p.Phase.GATHERING
            self._over = p.Reason.FAILED if failed else p.Reason.CANCELLED
        if self.phase is p.Phase.GATHERING and self._number:
            return self._finish(now)
        if self.phase is p.Phase.STOPPING:
            # Asked again: the one who asks may shorten the grace.
            self.deadline = min(self.deadline or now, now + grace + CONFIRM_TIMEOUT)
            return self._halts(grace)
        return self._halt(grace, now) + self._conclude(now)

    def _due(self, now: float) -> list[p.CoordinatorAction]:
        match self.phase:
            case p.Phase.GATHERING if self._number == 0 and not self._roster.may_suffice:
                return self._halt(self.settings.stop_grace, now) + self._conclude(now)
            case p.Phase.GATHERING if self._roster.is_enough or now < self._give_up_at:
                return self._gather(now)
            case p.Phase.GATHERING:
                return self._time_out(self._roster.hosts, self._roster.joined, now)
            case p.Phase.RUNNING:
                return self._due_in_round(now)
            case p.Phase.COLLECTING:
                return self._halt_failed(now) + self._conclude(now)
            case _:
                return self._conclude(now, late=True)

    def _due_in_round(self, now: float) -> list[p.CoordinatorAction]:
        late, state = self._restarts.late(now), self._round_state
        if late or (now >= self._give_up_at and not state.all_run):
            return self._time_out(late or state.members, state.running - set(late), now)
        return self._restart_hosts(now)

    def _time_out(
        self, awaited: Collection[AgentId], there: Collection[AgentId], now: float
    ) -> list[p.CoordinatorAction]:
        self._over = p.Reason.START_TIMEOUT
        absent = [a for a in awaited if a not in there and a not in self._roster.excluded]
        self._missing = self._roster.names(absent)
        if self.phase is p.Phase.GATHERING:
            self._note = self._roster.describe(f" within {self.settings.start_timeout:g} s")
        if self.phase is p.Phase.GATHERING and self._number:
            return self._finish(now)
        return self._halt(0.0, now) + self._conclude(now)

    def _halt(self, grace: float, now: float) -> list[p.CoordinatorAction]:
        self.phase = p.Phase.STOPPING
        self._round_state.halt(now)
        self.deadline = now + grace + CONFIRM_TIMEOUT
        return self._halts(grace)

    def _halts(self, grace: float) -> list[p.CoordinatorAction]:
        return [*self._restarts.halts(self._number, grace, self._round_of)]

    # ── a host that fails again and again ─────────────────────────────────────

    def _exclude(self, exclusion: Exclusion, now: float) -> p.CoordinatorAction:
        """Do without a host for good."""
        self._excluded.append(exclusion)
        self._roster.exclude(exclusion.agent)
        facts = {"hostname": exclusion.hostname, "failures": exclusion.failures}
        self._happen("exclude", now, **facts, cause=exclusion.last)
        return p.ExcludeAction(exclusion)

    def _exclude_failed(self, now: float) -> list[p.CoordinatorAction]:
        """Count the failure of the round that is over for the host where it began."""
        if self._growing or not self._round_state.failures:
            return []
        exclusion = self._failure_counts.add(self._round_state.cause)
        return [] if exclusion is None else [self._exclude(exclusion, now)]

    def _exclude_alone(self, agent: AgentId, now: float) -> list[p.CoordinatorAction] | None:
        """Give the ranks of a host that has failed too often to a spare, if there is one."""
        state, member = self._round_state, self._round_state.members[agent]
        exclusion = self._failure_counts.add(first_cause(state.failures_of(agent)))
        if exclusion is None or self._roster.spare(state.members, member.workers) is None:
            return None
        spare = self._restarts.host_lost(member, state, self._roster)
        assert spare is not None
        return [
            self._exclude(exclusion, now),
            *self._replace(agent, spare, exclusion.describe(), now),
        ]

    # ── a host alone ──────────────────────────────────────────────────────────

    def _restart_hosts(self, now: float) -> list[p.CoordinatorAction]:
        """Start the workers anew on those hosts whose time has come; the others run on."""
        actions: list[p.CoordinatorAction] = []
        for cause in self._restarts.take_due(now):
            self._round_state.begin_again(cause.agent)
            actions.append(self._begin_host(cause.agent, cause.describe(), now))
        self._set_deadline()
        return actions

    def _replace(
        self, lost: AgentId, spare: Host, cause: str, now: float
    ) -> list[p.CoordinatorAction]:
        """Give a lost host's ranks to another."""
        self._round_state.replace(lost, spare)
        self._round_of.pop(lost, None)
        action = self._begin_host(spare.agent, cause, now)
        self._set_deadline()
        return [action]

    def _begin_host(self, agent: AgentId, cause: str, now: float) -> p.CoordinatorAction:
        assert self.round is not None
        self._number += 1
        self._round_of[agent] = self._number
        count = self._restarts.host_begins(agent, now + self.settings.start_timeout)
        members = tuple(self._round_state.members.values())
        round_ = Round(self._number, members, self.round.store, count, self.round.torch)
        name = self._round_state.members[agent].hostname
        self._happen("restart", now, hosts=[name], restarts=count, round=self._number, cause=cause)
        return p.BeginRoundAction(round_, (agent,))

    # ── the end of a round ────────────────────────────────────────────────────

    def _conclude(self, now: float, *, late: bool = False) -> list[p.CoordinatorAction]:
        """If nothing is left of the round (or what is left is `late`): what comes after it."""
        if self._number == 0:
            return self._finish(now) if self.phase is p.Phase.STOPPING else []
        # What returns when it is stopped for others to come in has not ended.
        returned = self._round_state.all_returned and not self._growing
        if self.phase is not p.Phase.STOPPING and not returned:
            return []
        if not late and not self._round_state.all_confirmed:
            return []
        unconfirmed = self._round_state.unconfirmed
        if returned or self._over is not None:
            return self._finish(now)
        for agent in unconfirmed:
            reason = "it did not confirm that its workers have stopped"
            self._round_state.lose(agent, reason, Interval(now, now))
        return self._go_on(unconfirmed, now)

    def _go_on(self, unconfirmed: tuple[AgentId, ...], now: float) -> list[p.CoordinatorAction]:
        """After a failure or a loss: another round if that is allowed, else the end."""
        alive = self._roster.joined.keys() - unconfirmed
        if self._lacks_quorum(alive):
            return self._finish(now)
        if not self._is_change(alive):
            if not self._roster.may_recover:
                return self._finish(now)
            cause = self._round_state.cause
            wait = self._restarts.round_failed(cause, now - self._round_state.began)
            if wait is None:
                return self._finish(now)
            self._not_before = now + wait
            count = self._restarts.restarts
            self.restart_cause = cause.describe()
            self._happen("restart", now, restarts=count, wait=wait, cause=self.restart_cause)
        for agent in unconfirmed:
            self._roster.lose(agent, certain=False)
        expelled = [
            p.ExpelAction(agent, "it did not stop its workers in time") for agent in unconfirmed
        ]
        return [*expelled, *self._exclude_failed(now), *self._regroup(now)]

    def _lacks_quorum(self, alive: Collection[AgentId]) -> bool:
        """Others may go on without these: no round may begin with them. Then it is over."""
        if self._roster.may_decide(self._round_state.members, alive):
            return False
        self._over = p.Reason.NO_QUORUM
        missing = [agent for agent in self._round_state.members if agent not in alive]
        self._missing = self._roster.names(missing)
        return True

    def _is_change(self, alive: Collection[AgentId]) -> bool:
        """It is only that hosts have come, or that some are lost and the rest is enough.

        That costs no restart. Having to wait for a host to come back does.
        """
        if len(alive) < self.settings.least:
            return False
        if self._growing or not self._round_state.failures:
            return True  # what ended then was stopped for it
        cause = self._round_state.cause
        lost = cause.agent in self._round_state.lost or cause.agent not in alive
        return lost and cause.outcome.kind is Ended.LOST

    def _regroup(self, now: float) -> list[p.CoordinatorAction]:
        self.phase = p.Phase.GATHERING
        self._round_state.count_from(now)
        self._give_up_at = max(now, self._not_before) + self.settings.start_timeout
        self._roster.let_go()
        return self._gather(now)

    def _finish(self, now: float) -> list[p.CoordinatorAction]:
        self.phase = p.Phase.DONE
        self.deadline = None
        reason = self._over or p.Reason.FAILED
        if self._round_state.all_returned and self._number and not self._growing:
            reason = p.Reason.SUCCEEDED
        verdict = dataclasses.replace(
            self._round_state.verdict(reason),
            missing=self._missing,
            unconfirmed=self._round_state.unconfirmed if self._number else (),
            restart_causes=tuple(self._restarts.restart_causes),
            note=self._note or self._restarts.note,
            excluded=tuple(self._excluded),
        )
        self._happen("end", now, state=reason.value, restarts=self._restarts.restarts)
        return [p.FinishAction(verdict)]
