"""How far an app is: what was reached when, how long each part of a restart took, what was useful.

Fed by whoever carries the app out, on its loop. What happens becomes events and metrics, which go
nowhere unless the program has configured handlers for them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx import events, metrics
from phalanx._core.clock import Interval
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Outcome, RankSteps, Round
from phalanx._launcher.reporting.tracker import StatusTracker
from phalanx._rendezvous.protocol import Phase, ProgressEvent

if TYPE_CHECKING:
    from phalanx._launcher.planning.plan import Plan
    from phalanx._launcher.session.decider import Decider


_STEPS_EVERY = 10.0
"""Seconds between metrics of steps."""


class Progress:
    """The times of one app, by the monotonic clock."""

    def __init__(self, plan: Plan, began: float) -> None:
        """It began then."""
        self.phases: dict[str, float] = {}
        """What was reached when, in seconds since it began."""
        self.tracker = StatusTracker(plan.members)
        self._began = began
        self._app = plan.app
        self._role = plan.role
        self._max_restarts = plan.options.max_restarts
        kinds = events.EventSource
        self._source = kinds.AGENT if plan.meets_others else kinds.LAUNCHER
        self._times = _RoundTimes()
        self._useful = 0.0
        self._restarts = 0
        self._steps_due = 0.0
        self._tell("start", began, workers=sum(m.workers for m in plan.members))

    def reach(self, phase: str, ago: float = 0.0) -> None:
        """Something was reached, so long ago."""
        self.phases[phase] = time.monotonic() - ago - self._began

    # ── what happens ──────────────────────────────────────────────────────────

    def note(self, event: ProgressEvent, asleep: float) -> None:
        """Something has come to pass for the app as a whole."""
        moment = event.at + asleep
        self.tracker.note(event)
        if event.name == "end":
            self._end(moment, event.facts)
            return
        self._tell(event.name, moment, **event.facts)
        if event.name == "round":
            waited = float(event.facts.get("rendezvous_seconds", 0.0))
            metrics.put_metric("rendezvous.duration.ms", waited * 1000)
            self._times.waited = waited

    def begin(self, round_: Round, agents: Collection[AgentId] | None) -> None:
        """A round begins here, for all of its members or for these."""
        self.tracker.begin(round_, agents)
        self._times = _RoundTimes(
            failed=self._times.failed or self._times.halted,
            told=self._times.told,
            halted=self._times.halted,
            waited=self._times.waited,
            begun=time.monotonic(),
            number=round_.number,
        )
        self._restarts = round_.restarts
        left = self._max_restarts - round_.restarts
        metrics.put_metric(f"workers.{self._role}.remaining_restarts", left)

    def forked(self, pids: Mapping[int, int]) -> None:
        """Workers were started."""
        self.reach("workers forked")
        self.tracker.started(pids)
        workers = len(pids)
        self._times.workers += workers
        self._times.forked = time.monotonic()
        self._tell("workers started", self._times.forked, workers=workers)

    def entered(self, moment: float) -> None:
        """A worker has come to the user's code."""
        times = self._times
        times.inside += 1
        if times.inside != times.workers:
            return
        times.entered = max(moment, times.entered)
        self._tell("running", times.entered, round=times.number, workers=times.workers)
        phases = times.phases()
        if times.again:
            self._tell("restarted", time.monotonic(), **phases)
            for name, seconds in phases.items():
                metrics.put_metric(f"restart.{name.removesuffix('_seconds')}.ms", seconds * 1000)

    def stepped(self, told: Sequence[RankSteps]) -> None:
        """Workers have done steps."""
        self.tracker.stepped(told)
        now = time.monotonic()
        if now >= self._steps_due and (steps := self.tracker.steps()) is not None:
            self._steps_due = now + _STEPS_EVERY
            prefix = f"workers.{self._role}.steps"
            metrics.put_metric(f"{prefix}.done", steps.done)
            metrics.put_metric(f"{prefix}.duration.ms", steps.seconds * 1000)
            metrics.put_metric(f"{prefix}.slowest.duration.ms", steps.slowest_seconds * 1000)
            metrics.put_metric(f"{prefix}.slowest.rank", steps.slowest_rank)

    def ended(self, rank: int, hostname: str, outcome: Outcome, when: Interval) -> None:
        """A worker's function has ended."""
        now = time.monotonic()
        if outcome.joined is not None:
            ago = outcome.clock - outcome.joined
            self.reach("group formed", ago + now - when.latest)
        self.reach("functions ended")
        if outcome.succeeded:
            self._tell("worker ended", when.latest, rank=rank, hostname=hostname)
            return
        self._fail(min(when.earliest, now), now)
        facts: dict[str, Any] = {"rank": rank, "hostname": hostname, "pid": outcome.pid}
        facts |= {"kind": outcome.kind.value, "message": outcome.describe()}
        facts |= {"code": outcome.code, "signal": outcome.signal}
        name = "worker stopped" if outcome.stopped else "failure"
        self._tell(name, when.latest, **facts, detect_seconds=max(0.0, now - when.latest))

    def lost(self, agent: AgentId, reason: str, since: float) -> None:
        """A host is lost, of which nothing was heard since."""
        self.tracker.lost(agent, reason)
        self._fail(since, time.monotonic())

    def set_aside(self, agent: AgentId, reason: str, now: float) -> None:
        """A host is not used until it passes its checks."""
        self.tracker.set_aside(agent, reason)
        self._fail(now, now)

    def replace(self, hostname: str) -> None:
        """Another host is asked for in place of one."""
        self._tell("replace", time.monotonic(), hostname=hostname)

    def _fail(self, moment: float, told: float) -> None:
        times = self._times
        if not times.failed:
            times.failed, times.told = moment, told
            self._count_useful(moment)

    def halted(self, now: float, agents: Collection[AgentId] | None) -> None:
        """The workers of all hosts, or of these, are told to stop."""
        self.tracker.halted(agents)
        if not self._times.halted:
            self._times.halted = now
            self._count_useful(now)

    def _count_useful(self, until: float) -> None:
        times = self._times
        if times.entered:
            self._useful += max(0.0, until - times.entered)
            times.entered = 0.0

    def _end(self, moment: float, facts: dict[str, Any]) -> None:
        self._count_useful(moment)
        total = max(moment - self._began, 1e-9)
        goodput = min(1.0, self._useful / total)
        self._tell("end", moment, **facts, seconds=total, goodput=goodput)
        prefix = f"workers.{self._role}"
        succeeded = facts.get("state") == "succeeded"
        again = "with_retries" if self._restarts else "no_retries"
        metrics.put_metric(f"{prefix}.run_total", 1)
        for name in ("success_no", "success_with", "failed_no", "failed_with"):
            mine = f"{'success' if succeeded else 'failed'}_{again.partition('_')[0]}" == name
            metrics.put_metric(f"{prefix}.run_{name}_retries", int(mine))
        metrics.put_metric(f"{prefix}.goodput", goodput)

    def _tell(self, name: str, moment: float, **facts: Any) -> None:
        """Record an event at a moment by our monotonic clock."""
        wall = time.time() - (time.monotonic() - moment)
        facts = {"app": self._app, "role": self._role, **facts}
        events.record(events.Event(name, self._source, wall, facts))

    # ── in words ──────────────────────────────────────────────────────────────

    def describe(
        self, plan: Plan, decider: Decider, there: Collection[AgentId], sending: str, *, ready: bool
    ) -> str:
        """Where things stand, in a few words. `there` are the agents that have come."""
        round_ = decider.round
        members = plan.members if round_ is None else round_.members
        total = sum(member.workers for member in members)
        workers = "1 worker" if total == 1 else f"{total} workers"
        again = f" (restart {round_.restarts})" if round_ is not None and round_.restarts else ""
        if decider.phase is Phase.STOPPING:
            return f"stopping {workers}: 'phalanx stacks {self._app}' shows where they are"
        if round_ is not None and (awaited := decider.awaited):
            return f"waiting for {some(awaited)}"
        if "workers forked" in self.phases:
            ended = len(decider.outcomes)
            return f"running {workers}{again}" + (f", {ended} returned" if ended else "")
        if absent := [m.hostname for m in plan.members if m.agent not in there]:
            return f"starting on {some(absent)}"
        if sending:
            return sending
        if not ready:
            tops = [item.module.partition(".")[0] for item in plan.hosts[0].prepare.preload]
            return f"loading {some(tops) or 'Python'}"
        if plan.meets_others and round_ is None:
            return "waiting for the other hosts"
        return f"starting {workers}"


class _RoundTimes:
    """The moments of one round, and of the end of the one before."""

    def __init__(
        self,
        failed: float = 0.0,
        told: float = 0.0,
        halted: float = 0.0,
        waited: float = 0.0,
        begun: float = 0.0,
        number: int = 0,
    ) -> None:
        self.before = (failed, told, halted)
        self.begun = begun
        self.waited = waited
        self.number = number
        self.again = number > 1
        self.workers = 0
        self.forked = self.entered = 0.0
        self.failed = self.told = self.halted = 0.0
        self.inside = 0

    def phases(self) -> dict[str, float]:
        """How long each part took, from the failure to the user's first line."""
        failed, told, halted = self.before
        stopped = max(halted, self.begun - self.waited)
        steps = {
            "detect_seconds": (told or halted) - failed if failed else 0.0,
            "stop_seconds": stopped - (told or halted),
            "rendezvous_seconds": self.begun - stopped,
            "fork_seconds": self.forked - self.begun,
            "first_line_seconds": self.entered - self.forked,
            "total_seconds": self.entered - (failed or halted),
        }
        return {name: max(0.0, seconds) for name, seconds in steps.items()}


def in_words(event: ProgressEvent, plan: Plan) -> str:
    """What the user should see of an app that goes on; empty for what is as usual."""
    facts = event.facts
    match event.name:
        case "restart":
            wait = f", after {facts['wait']:g} s" if facts.get("wait") else ""
            count = f"{facts['restarts']} of {plan.options.max_restarts}"
            return f"{facts.get('cause') or 'a worker failed'}: restart {count}{wait}"
        case "loss":
            return f"{facts['hostname']} is lost: {facts['reason']}"
        case "exclude":
            times = "1 failure" if facts["failures"] == 1 else f"{facts['failures']} failures"
            return f"{facts['hostname']} is excluded after {times} there"
        case "round" if facts["round"] > 1:
            count = facts["world_size"]
            workers = "1 worker" if count == 1 else f"{count} workers"
            why = f", after {facts['cause']}" if facts.get("cause") else ""
            return f"round {facts['round']}: {workers} on {some(facts['hosts'])}{why}"
    return ""


def some(names: Iterable[str]) -> str:
    """The first few of them."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - 4} more" if len(known) > 4 else ""
    return ", ".join(known[:4]) + more
