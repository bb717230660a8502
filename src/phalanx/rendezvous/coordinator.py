"""The one that decides: members, rounds, restarts, first cause, when to stop and when to give up.

`Coordinator.handle(event, now) -> [action]` is pure: no clock, socket or process inside. Whoever
hosts it turns frames into events, carries the actions out, and calls again with `Tick` no later
than `deadline`. Events of another round are dropped. After `Finish` every event yields nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from phalanx.clock import Interval
from phalanx.rendezvous.causes import Failure
from phalanx.rendezvous.membership import lay_out
from phalanx.rendezvous.protocol import (
    Action,
    BeginRound,
    Cancel,
    Cleared,
    Event,
    Expel,
    Finish,
    Gone,
    HaltRound,
    Happening,
    Joined,
    Leaving,
    Past,
    Phase,
    Policy,
    Reason,
    Running,
    Tick,
    Verdict,
    WorkerEnded,
)
from phalanx.rendezvous.restarts import Budget
from phalanx.rendezvous.roster import Roster
from phalanx.rendezvous.tally import Tally
from phalanx.rounds import Ended, Endpoint, Outcome, Round

CONFIRM_TIMEOUT = 10.0
"""How long past the grace an agent may take to confirm that nothing of its round is left."""


class Coordinator:
    """Decides for one app."""

    def __init__(self, policy: Policy, now: float, past: Past | None = None) -> None:
        """Begin to wait for agents; or, with a `past`, for those of its round to be clear of it."""
        self.policy = policy
        self.phase = Phase.GATHERING
        self.round: Round | None = None
        self.happened: list[Happening] = []
        """What has come to pass; whoever hosts this takes them away."""
        self._roster = Roster(policy)
        self._tally = Tally(lay_out(policy.hosts), now)
        self._budget = Budget(policy.max_restarts, policy.backoff, policy.same_failures)
        self._attempts: list[Failure] = []
        self._number = self._floor = 0
        self._growing = False
        self._round_of: dict[int, int] = {}
        self._give_up_at = now + policy.start_timeout
        self.deadline: float | None = self._give_up_at
        self._last_call_at: float | None = None
        self._not_before = now
        self._over: Reason | None = None
        """Set once no other round may follow."""
        self._missing: tuple[str, ...] = ()
        self._note = ""
        if past is not None:
            self._resume(past, now)

    def _resume(self, past: Past, now: float) -> None:
        """Take over: the last round is to be stopped by all that are left of it."""
        self.round = past.round
        self._number = past.round.number
        self._budget.count = past.round.restarts
        self._roster.expect(past.round.members)
        self._tally = Tally(past.round.members, now)
        self._round_of = dict.fromkeys(self._tally.members, self._number)
        for agent in (past.closed | past.silent) & self._tally.members.keys():
            certain = agent in past.closed
            reason = "it has ended" if certain else "nothing is heard of it"
            self._roster.lose(agent, certain=certain)
            self._tally.lost.add(agent)
            self._tally.lose(agent, reason, Interval(now, now))
        self.phase = Phase.STOPPING
        self._tally.halted_at = now
        self.deadline = now + self.policy.stop_grace + CONFIRM_TIMEOUT

    # ── what is known ─────────────────────────────────────────────────────────

    @property
    def running(self) -> frozenset[int]:
        """The agents whose workers have been started."""
        return frozenset(self._tally.running)

    @property
    def outcomes(self) -> Mapping[int, Outcome]:
        """How the round's workers that have ended did, by global rank."""
        return self._tally.outcomes

    @property
    def is_over(self) -> bool:
        """No other round will follow."""
        return self.phase is Phase.DONE or self._over is not None

    @property
    def awaited(self) -> tuple[str, ...]:
        """The hosts that another round waits for, where too few are left."""
        if self.phase is not Phase.GATHERING or self._roster.is_enough:
            return ()
        return self._roster.names(self._roster.gone)

    def round_of(self, agent: int) -> int | None:
        """The number of the round that an agent is in."""
        return self._round_of.get(agent)

    def catch_up(self, number: int, restarts: int) -> None:
        """A host that comes was in a round before: what follows is a later one."""
        self._floor = max(self._floor, number)
        if self.round is None:
            self._budget.count = max(self._budget.count, restarts)

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; give what is to be done now, in order."""
        if self.phase is Phase.DONE or self._is_stale(event):
            return []
        match event:
            case Joined():
                return self._join(event, now)
            case Running(agent):
                return self._run(agent, now)
            case Leaving(agent):
                self._roster.leaving.add(agent)
                return []
            case WorkerEnded(agent, _, outcome, when):
                if agent in self._roster.leaving and self._roster.can_spare_leavers:
                    return self._lose(Gone(agent, "its host was taken away", when), now)
                if not self._tally.end(agent, outcome, when):
                    return []
                if outcome.succeeded:
                    return self._conclude(now)
                return self._fail(agent, now) + self._conclude(now)
            case Cleared(agent, _, endpoint):
                return self._clear(agent, endpoint, now)
            case Gone():
                return self._lose(event, now)
            case Cancel(grace):
                return self._cancel(self.policy.stop_grace if grace is None else grace, now)
            case Tick():
                return [] if self.deadline is None or now < self.deadline else self._due(now)

    def _is_stale(self, event: Event) -> bool:
        if isinstance(event, Running | WorkerEnded | Cleared):
            return self._round_of.get(event.agent) != event.round
        return False

    def _happen(self, name: str, now: float, **facts: object) -> None:
        self.happened.append(Happening(name, now, facts))

    # ── gathering ─────────────────────────────────────────────────────────────

    def _join(self, event: Joined, now: float) -> list[Action]:
        if not self._roster.join(event):
            return []
        self._happen("join", now, hostname=self._roster.hosts[event.agent].hostname)
        if self.phase is Phase.GATHERING:
            return self._gather(now)
        return self._grow(now) if self._tally.all_run else []

    def _grow(self, now: float) -> list[Action]:
        """Those that wait take part from a new round on, if there is room: that is no failure."""
        members = self._tally.members
        waiting = [agent for agent in self._roster.joined if agent not in members]
        room = len(members) < self.policy.most
        if self.phase is Phase.RUNNING and waiting and room and self.policy.restart == "all":
            self._growing = True
            return self._halt(self.policy.stop_grace, now)
        return []

    def _gather(self, now: float) -> list[Action]:
        """Begin the round if those that are there are enough, and nobody else is worth a wait."""
        first = self._number == 0
        if first and not self._roster.may_suffice:
            if self._roster.all_heard_of:
                return self._halt(self.policy.stop_grace, now) + self._conclude(now)
            assert self.deadline is not None
            self.deadline = min(self.deadline, now + self.policy.start_settle)
            return []
        if not self._roster.is_enough:
            self.deadline = self._give_up_at
            return []
        wait_until = self._not_before
        if first and not self._roster.is_complete:
            if self._last_call_at is None:
                self._last_call_at = now + self.policy.last_call
            wait_until = max(wait_until, self._last_call_at)
        if now < wait_until:
            self.deadline = wait_until
            return []
        return self._begin(now)

    def _begin(self, now: float) -> list[Action]:
        members = lay_out(self._roster.choose(self._tally.members if self._number else ()))
        self._number = max(self._number, self._floor) + 1
        store = self._roster.joined[members[0].agent]
        torch = self._roster.wants_store(member.agent for member in members)
        self.round = Round(self._number, members, store, self._budget.count, torch)
        waited = now - self._tally.began
        self._tally = Tally(members, now)
        self._round_of = dict.fromkeys(self._tally.members, self._number)
        self._growing = False
        self.phase = Phase.RUNNING
        self.deadline = self._give_up_at
        self._happen(
            "round",
            now,
            round=self._number,
            hosts=[member.hostname for member in members],
            world_size=self.round.world_size,
            restarts=self._budget.count,
            rendezvous_seconds=waited,
        )
        return [BeginRound(self.round)]

    # ── a round ───────────────────────────────────────────────────────────────

    def _run(self, agent: int, now: float) -> list[Action]:
        self._tally.running.add(agent)
        if not self._tally.all_run or self.phase is not Phase.RUNNING:
            return []
        self.deadline = None
        self._tally.began = now
        return self._grow(now)

    def _clear(self, agent: int, endpoint: Endpoint | None, now: float) -> list[Action]:
        self._tally.cleared.add(agent)
        if endpoint is not None and agent in self._roster.joined:
            self._roster.joined[agent] = endpoint
        if self.phase is Phase.STOPPING:
            return self._conclude(now)
        # Nothing of it runs any more: what it has not told us by now will never come.
        reason = "its host has nothing left of it, and did not say how it ended"
        lost = self._tally.lose(agent, reason, Interval(now, now))
        return (self._fail(agent, now) if lost else []) + self._conclude(now)

    def _lose(self, event: Gone, now: float) -> list[Action]:
        agent = event.agent
        if agent in self._roster.gone or agent not in self._roster.hosts:
            return []
        self._roster.lose(agent, certain=event.closed)
        name = self._roster.hosts[agent].hostname
        self._happen("loss", now, hostname=name, reason=event.reason, certain=event.closed)
        if self._number and (agent not in self._tally.members or self.phase is Phase.GATHERING):
            return []  # it was waiting
        self._tally.lost.add(agent)
        lost = self._tally.lose(agent, event.reason, event.when)
        if self.phase is Phase.GATHERING:
            return self._gather(now)
        return (self._fail(agent, now) if lost else []) + self._conclude(now)

    def _fail(self, agent: int, now: float) -> list[Action]:
        """The round has failed, on this host."""
        if self.phase is not Phase.RUNNING:
            return []
        if self.policy.settle > 0:
            self.phase = Phase.SETTLING
            self.deadline = now + self.policy.settle
            return []
        return self._halt(self.policy.stop_grace, now)

    def _cancel(self, grace: float, now: float) -> list[Action]:
        if self._over is None:
            failed = bool(self._tally.failures) and self.phase is not Phase.GATHERING
            self._over = Reason.FAILED if failed else Reason.CANCELLED
        if self.phase is Phase.GATHERING and self._number:
            return self._finish(now)
        if self.phase is Phase.STOPPING:
            # Asked again: the one who asks may shorten the grace.
            self.deadline = min(self.deadline or now, now + grace + CONFIRM_TIMEOUT)
            return [HaltRound(self._number, grace)]
        return self._halt(grace, now) + self._conclude(now)

    def _due(self, now: float) -> list[Action]:
        match self.phase:
            case Phase.GATHERING if self._number == 0 and not self._roster.may_suffice:
                return self._halt(self.policy.stop_grace, now) + self._conclude(now)
            case Phase.GATHERING if self._roster.is_enough:
                return self._gather(now)
            case Phase.GATHERING:
                return self._time_out(self._roster.hosts, self._roster.joined, now)
            case Phase.RUNNING:
                return self._time_out(self._tally.members, self._tally.running, now)
            case Phase.SETTLING:
                return self._halt(self.policy.stop_grace, now) + self._conclude(now)
            case _:
                return self._conclude(now, late=True)

    def _time_out(
        self, awaited: Collection[int], there: Collection[int], now: float
    ) -> list[Action]:
        self._over = Reason.START_TIMEOUT
        self._missing = self._roster.names(agent for agent in awaited if agent not in there)
        if self.phase is Phase.GATHERING:
            came = ", ".join(self._roster.names(there))
            seconds = f"{self.policy.start_timeout:g} s"
            self._note = (
                f"{len(there)} of at least {self.policy.least} hosts came within {seconds}: {came}"
            )
        if self.phase is Phase.GATHERING and self._number:
            return self._finish(now)
        return self._halt(0.0, now) + self._conclude(now)

    def _halt(self, grace: float, now: float) -> list[Action]:
        self.phase = Phase.STOPPING
        self._tally.halted_at = now
        self.deadline = now + grace + CONFIRM_TIMEOUT
        return [HaltRound(self._number, grace)]

    # ── the end of a round ────────────────────────────────────────────────────

    def _conclude(self, now: float, *, late: bool = False) -> list[Action]:
        """If nothing is left of the round (or what is left is `late`): what comes after it."""
        if self._number == 0:
            return self._finish(now) if self.phase is Phase.STOPPING else []
        returned = self._tally.all_returned
        if self.phase is not Phase.STOPPING and not returned:
            return []
        unconfirmed = self._tally.unconfirmed
        if unconfirmed and not late:
            return []
        if returned or self._over is not None:
            return self._finish(now)
        for agent in unconfirmed:
            reason = "it did not confirm that its workers have ended"
            self._tally.lose(agent, reason, Interval(now, now))
        return self._go_on(unconfirmed, now)

    def _go_on(self, unconfirmed: tuple[int, ...], now: float) -> list[Action]:
        """After a failure or a loss: another round if that is allowed, else the end."""
        alive = [agent for agent in self._roster.joined if agent not in unconfirmed]
        if not self._roster.may_decide(self._tally.members, alive):
            self._over = Reason.NO_QUORUM
            missing = [agent for agent in self._tally.members if agent not in alive]
            self._missing = self._roster.names(missing)
            return self._finish(now)
        if not self._is_change(alive):
            wait = self._budget.spend(self._tally.cause, now - self._tally.began)
            if wait is None:
                return self._finish(now)
            self._attempts.append(self._tally.cause)
            self._not_before = now + wait
            self._happen("restart", now, restarts=self._budget.count, wait=wait)
        for agent in unconfirmed:
            self._roster.lose(agent, certain=False)
        expelled = [Expel(agent, "it did not stop its workers in time") for agent in unconfirmed]
        return [*expelled, *self._regroup(now)]

    def _is_change(self, alive: Collection[int]) -> bool:
        """It is only that hosts have come, or that some are lost and the rest is enough.

        That costs no restart. Having to wait for a host to come back does.
        """
        if len(alive) < self.policy.least:
            return False
        if self._growing or not self._tally.failures:
            return True  # what ended then was stopped for it
        cause = self._tally.cause
        lost = cause.agent in self._tally.lost or cause.agent not in alive
        return lost and cause.outcome.kind is Ended.LOST

    def _regroup(self, now: float) -> list[Action]:
        self.phase = Phase.GATHERING
        self._tally.began = now
        self._give_up_at = now + self.policy.start_timeout
        self._roster.let_go()
        return self._gather(now)

    def _finish(self, now: float) -> list[Action]:
        self.phase = Phase.DONE
        self.deadline = None
        tally = self._tally
        reason = self._over or Reason.FAILED
        if tally.all_returned and self._number:
            reason = Reason.SUCCEEDED
        cause = tally.cause if reason is Reason.FAILED else None
        verdict = Verdict(
            reason=reason,
            cause=cause,
            others=tuple(f for f in tally.failures if f is not cause),
            missing=self._missing,
            unconfirmed=tally.unconfirmed if self._number else (),
            members=tuple(tally.members.values()),
            attempts=tuple(self._attempts),
            note=self._note or self._budget.note,
        )
        self._happen("end", now, state=reason.value, restarts=self._budget.count)
        return [Finish(verdict)]
