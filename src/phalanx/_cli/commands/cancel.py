"""`phalanx cancel`: cancel apps."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass

from phalanx._cli import parsing
from phalanx._cli.app_argument import find_app
from phalanx._cli.long_waits import say_if_long
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._registry.recorded_app import RecordedApp, apps
from phalanx._runner.runner import Runner, get_runner
from phalanx._specs import AppState
from phalanx._system import daemon_thread
from phalanx.errors import PhalanxError, SchedulerError


@dataclass(frozen=True)
class _Answer:
    """What came of one."""

    name: str
    before: AppState
    after: AppState
    excuse: str = ""
    """Why it has not ended, where it should have."""

    def __str__(self) -> str:
        if self.before.is_final:
            return f"{self.name} has already ended: {self.before.value}"
        return f"{self.name}: {self.after.value}{'' if self.after.is_final else ', cancelling'}"


def main(arguments: list[str]) -> int:
    """Cancel one or more apps, and wait for their ends."""
    parser = parsing.make(
        "cancel",
        "Cancel apps and wait until they end: SIGTERM, then SIGKILL after the grace period.",
    )
    parser.add_argument(
        "apps",
        nargs="*",
        metavar="APP",
        help="handle or id, or a unique prefix of it (default: the running app)",
    )
    parser.add_argument(
        "--grace",
        type=parsing.duration,
        metavar="TIME",
        help="time between SIGTERM and SIGKILL (default: stop_grace of the app)",
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    names = list(dict.fromkeys(options.apps)) or [None]
    ends: list[Callable[[], _Answer]] = [
        functools.partial(_end, name, options.grace) for name in names
    ]
    if len(ends) > 1:  # at once: each may take all of its grace
        ends = [daemon_thread.start(end).result for end in ends]
    answers: list[_Answer] = []
    problems: list[str] = []
    with stdout_to_stderr():
        for end in ends:
            try:
                answers.append(end())
            except (LookupError, PhalanxError, OSError) as error:
                problems.append(str(error))
    if options.json and answers:
        told = [{"id": a.name, "state": a.after.value, "was": a.before.value} for a in answers]
        parsing.print_json(told if len(names) > 1 else told[0])
    for answer in answers:
        if answer.excuse:
            problems.append(f"{answer.name} {answer.excuse}")
        elif not options.json:
            print(answer)
    for problem in problems:
        print(f"phalanx cancel: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _end(text: str | None, grace: float | None) -> _Answer:
    """Cancel one, and wait. Raises `LookupError`, `PhalanxError` and `OSError`."""
    with get_runner() as runner:
        app = _only_one(runner) if text is None else find_app(text).record
        handle = app.handle if app is not None else str(text)
        before = _state(runner, app, handle)
        if not before.is_final:
            with say_if_long("cancel", _awaited(app, handle, grace)):
                _cancel(runner, app, handle, grace)
        after = _state(runner, app, handle)
    stays = app is not None and _has_owner(app) and not after.is_final
    excuse = _excuse(app) if app is not None and stays else ""
    return _Answer(handle.rpartition("/")[2], before, after, excuse)


def _has_owner(app: RecordedApp | None) -> bool:
    """A process of ours runs it, and has ended it when it says so; other schedulers take their
    time.
    """
    return app is not None and app.facts["owner"] is not None


def _runs(runner: Runner, app: RecordedApp) -> bool:
    """It has not ended, as far as its owner or its scheduler knows."""
    if app.is_launch or _has_owner(app):
        return _has_owner(app)
    try:
        status = runner.status(app.handle)
    except SchedulerError:
        return True  # whoever knows cannot be asked: it may
    return status is not None and not status.state.is_final


def _state(runner: Runner, app: RecordedApp | None, handle: str) -> AppState:
    if app is not None and app.is_launch:
        return app.state
    status = runner.status(handle)
    if status is None:
        raise LookupError(f"no such app: {handle}")
    return status.state


def _cancel(runner: Runner, app: RecordedApp | None, handle: str, grace: float | None) -> None:
    if app is not None and app.is_launch:
        app.cancel(grace)
    else:
        runner.cancel(handle, grace)


def _awaited(app: RecordedApp | None, handle: str, grace: float | None) -> str:
    """What a long wait is for."""
    name = handle.rpartition("/")[2]
    if not _has_owner(app):
        return f"{handle.partition('://')[0]} to cancel {name}"
    if grace is None and app is not None and app.is_launch:
        grace = float(app.facts.get("stop_grace", 5.0))
    killed = "" if grace is None else f"; what still runs after {grace:g} s is killed"
    return f"{name} to end{killed}"


def _excuse(app: RecordedApp) -> str:
    owner, who = app.facts["owner"], "launcher" if app.is_launch else "supervisor"
    return (
        f"is still running: its {who} (pid {owner['pid']} on {owner['host']}) did not react to the "
        "request. Is it stopped?"
    )


def _only_one(runner: Runner) -> RecordedApp:
    running = [app for app in apps() if not app.state.is_final and _runs(runner, app)]
    if len(running) == 1:
        return running[0]
    names = ", ".join(app.id for app in running)
    raise LookupError(
        f"several apps are running; name those to cancel: {names}"
        if running
        else "no app is running"
    )
