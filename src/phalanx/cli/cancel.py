"""`phalanx cancel`: have an app end."""

from __future__ import annotations

import sys
import time
from typing import Any

from phalanx.cli import parsing
from phalanx.cli.finding import Found, find_app
from phalanx.errors import PhalanxError
from phalanx.registry.recorded import RecordedApp, apps
from phalanx.runner import get_runner

_ANSWER = 15.0
"""Seconds past the grace for an app to end."""


def main(arguments: list[str]) -> int:
    """Ask for an app's end, and wait for it."""
    parser = parsing.make(
        "cancel",
        "Have an app end: its workers get SIGTERM, and after the grace SIGKILL. Waits for it.",
    )
    parser.add_argument(
        "app", nargs="?", help="its id, or enough of the beginning; by default the one that runs"
    )
    parser.add_argument(
        "--grace", type=parsing.duration, metavar="TIME", help="by default the launcher's own"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    try:
        app = _only_one() if options.app is None else None
        found = find_app(options.app) if app is None else None
        if found is not None and (found.record is None or found.record.facts["owner"] is None):
            return _on_scheduler(found, options)
    except (LookupError, PhalanxError) as error:
        print(f"phalanx cancel: {error}", file=sys.stderr)
        return 1
    if found is not None:
        app = found.record
    assert app is not None
    before = app.state
    if not before.is_final:
        try:
            app.ask_cancel(options.grace)
        except OSError as error:
            print(f"phalanx cancel: {app.id} cannot be asked: {error}", file=sys.stderr)
            return 1
        _wait(app, options.grace)
    after = app.state
    if options.json:
        parsing.print_json({"id": app.id, "state": after.value, "was": before.value})
    elif before.is_final:
        print(f"{app.id} has ended already: {before.value}")
    elif after.is_final:
        print(f"{app.id}: {after.value}")
    if not after.is_final:
        owner, who = app.facts["owner"], "launcher" if app.is_launch else "supervisor"
        print(
            f"phalanx cancel: {app.id} was asked to end, and its {who} (pid {owner['pid']} on "
            f"{owner['host']}) has not done so yet. Is it stopped?",
            file=sys.stderr,
        )
        return 1
    return 0


def _on_scheduler(found: Found, options: Any) -> int:
    """An app that no process of ours runs."""
    with get_runner() as runner:
        before = runner.status(found.handle)
        if before is None:
            raise LookupError(f"there is no app {found.handle}")
        if not before.state.is_final:
            runner.cancel(found.handle)
        after = runner.status(found.handle) or before
    if options.json:
        was, state = before.state.value, after.state.value
        parsing.print_json({"id": after.app, "state": state, "was": was})
    elif before.state.is_final:
        print(f"{after.app} has ended already: {before.state.value}")
    else:
        print(f"{after.app}: {after.state.value}")
    return 0


def _only_one() -> RecordedApp:
    running = [app for app in apps() if app.facts["owner"] and not app.state.is_final]
    if len(running) == 1:
        return running[0]
    names = ", ".join(app.id for app in running)
    raise LookupError(f"say which: {names}" if running else "no app is running")


def _wait(app: RecordedApp, grace: float | None) -> None:
    own = app.facts.get("stop_grace", 5.0)
    limit = time.monotonic() + (own if grace is None else grace) + _ANSWER
    while time.monotonic() < limit and not app.state.is_final:
        time.sleep(0.05)
