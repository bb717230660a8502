"""How many apps stand at once, and what schedulers keep of those that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx._logs import logger
from phalanx._registry.recorded_app import RecordedApp
from phalanx._specs import AppState, AppSummary
from phalanx.errors import PhalanxError

if TYPE_CHECKING:
    from phalanx._runner.runner import Runner


def overview(
    runner: Runner, apps: Sequence[RecordedApp]
) -> list[tuple[RecordedApp, dict[str, Any]]]:
    """Recorded apps with how they stand. What has an owner says so itself; of the rest each
    scheduler is asked once, and one that cannot be asked is named.
    """
    asked: dict[tuple[str, str], dict[str, AppSummary]] = {}
    found = []
    for app in apps:
        if app.facts["owner"] is None:
            key = app.scheduler, str(app.facts["session"])
            if key not in asked:
                asked[key] = _ask(runner, *key)
        status = app.status()  # what a scheduler of ours was asked it has recorded by now
        if app.facts["owner"] is None:
            known = asked[key].get(app.id, AppSummary(app.id, AppState.UNKNOWN))
            if known.seconds is not None or status["state"] != known.state.value:
                status |= {"state": known.state.value, "seconds": known.seconds}
        found.append((app, status))
    return found


def _ask(runner: Runner, scheduler: str, session: str) -> dict[str, AppSummary]:
    try:
        return {app.app_id: app for app in runner.known_by(scheduler, session)}
    except PhalanxError as error:
        logger.warning("phalanx: %s", error)
        return {}


def is_kept(runner: Runner, app: RecordedApp) -> bool:
    """Its scheduler keeps something of an app, beside our record."""
    return app.facts["owner"] is None and runner.capabilities(app.scheduler).keeps_apps


def has_ended(runner: Runner, app: RecordedApp) -> bool:
    """Its scheduler says so, or does not know it. Raises `PhalanxError`."""
    status = runner.status(app.handle)
    return status is None or status.state.is_final
