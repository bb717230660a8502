"""`phalanx cancel`: cancel an app."""

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
    """Cancel an app, and wait for its end."""
    parser = parsing.make(
        "cancel",
        "Cancel an app and wait until it ends: SIGTERM, then SIGKILL after the grace period.",
    )
    parser.add_argument(
        "app",
        nargs="?",
        help="handle or id, or a unique prefix of it; default: the running app",
    )
    parser.add_argument(
        "--grace",
        type=parsing.duration,
        metavar="TIME",
        help="time between SIGTERM and SIGKILL; default: stop_grace of the app",
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    try:
        with stdout_to_stderr(), get_runner() as runner:
            app = _only_one(runner) if options.app is None else find_app(options.app).record
            handle = options.app if app is None else app.handle
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
        print(f"{name} has already ended: {before.value}")
    elif after.is_final or not _has_owner(app):
        print(f"{name}: {after.value}{'' if after.is_final else ', cancelling'}")
    if app is not None and _has_owner(app) and not after.is_final:
        print(f"phalanx cancel: {name} {_excuse(app)}", file=sys.stderr)
        return 1
    return 0


def _has_owner(app: RecordedApp | None) -> bool:
    """A process of ours runs it, and has ended it when it says so; other schedulers take their
    time.
    """
    return app is not None and app.facts["owner"] is not None


def _runs(runner: Runner, app: RecordedApp) -> bool:
    """It has not ended, as far as its owner or its scheduler knows."""
    if app.is_launch or _has_owner(app):
        return _has_owner(app)
    status = runner.status(app.handle)
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
        f"several apps are running; name one of: {names}" if running else "no app is running"
    )
