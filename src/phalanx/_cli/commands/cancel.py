"""`phalanx cancel`: have an app end."""

from __future__ import annotations

import sys

from phalanx._cli import parsing
from phalanx._cli.app_argument import find_app
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._registry.recorded_app import RecordedApp, apps
from phalanx._runner.runner import Runner, get_runner
from phalanx._specs import AppState
from phalanx.errors import PhalanxError


def main(arguments: list[str]) -> int:
    """Ask for an app's end, and wait for it."""
    parser = parsing.make(
        "cancel",
        "Have an app end: its workers get SIGTERM, and after the grace SIGKILL. Waits for it.",
    )
    parser.add_argument(
        "app",
        nargs="?",
        help="its handle or id, or enough of the beginning; by default the one that runs",
    )
    parser.add_argument(
        "--grace", type=parsing.duration, metavar="TIME", help="by default the launcher's own"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    try:
        app = _only_one() if options.app is None else find_app(options.app).record
        handle = options.app if app is None else app.handle
        with stdout_to_stderr(), get_runner() as runner:
            before = _state(runner, app, handle)
            if not before.is_final:
                _cancel(runner, app, handle, options.grace)
            after = _state(runner, app, handle)
    except (LookupError, PhalanxError, OSError) as error:
        print(f"phalanx cancel: {error}", file=sys.stderr)
        return 1
    name = handle.rpartition("/")[2]
    if options.json:
        parsing.print_json({"id": name, "state": after.value, "was": before.value})
    elif before.is_final:
        print(f"{name} has ended already: {before.value}")
    elif after.is_final or not _has_owner(app):
        print(f"{name}: {after.value}{'' if after.is_final else ', and asked to end'}")
    if app is not None and _has_owner(app) and not after.is_final:
        print(f"phalanx cancel: {name} {_excuse(app)}", file=sys.stderr)
        return 1
    return 0


def _has_owner(app: RecordedApp | None) -> bool:
    """A process of ours runs it, and has ended it when it says so; other schedulers take their
    time.
    """
    return app is not None and app.facts["owner"] is not None


def _state(runner: Runner, app: RecordedApp | None, handle: str) -> AppState:
    if app is not None and app.is_launch:
        return app.state
    status = runner.status(handle)
    if status is None:
        raise LookupError(f"there is no app {handle}")
    return status.state


def _cancel(runner: Runner, app: RecordedApp | None, handle: str, grace: float | None) -> None:
    if app is not None and app.is_launch:
        app.cancel(grace)
    else:
        runner.cancel(handle, grace)


def _excuse(app: RecordedApp) -> str:
    owner, who = app.facts["owner"], "launcher" if app.is_launch else "supervisor"
    return (
        f"was asked to end, and its {who} (pid {owner['pid']} on {owner['host']}) has not done so "
        "yet. Is it stopped?"
    )


def _only_one() -> RecordedApp:
    running = [app for app in apps() if app.facts["owner"] and not app.state.is_final]
    if len(running) == 1:
        return running[0]
    names = ", ".join(app.id for app in running)
    raise LookupError(f"say which: {names}" if running else "no app is running")
