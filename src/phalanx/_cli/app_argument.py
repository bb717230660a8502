"""The app that a command line means: a launch, or one on a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx._registry import LAUNCH
from phalanx._registry.recorded_app import RecordedApp, apps, by_handle, find
from phalanx._runner import handles
from phalanx._system.processes import descendants
from phalanx.errors import ConfigError


@dataclass(frozen=True)
class FoundApp:
    """An app: as it was recorded, and its handle; or the handle alone, for one from elsewhere."""

    handle: str
    record: RecordedApp | None

    @property
    def is_launch(self) -> bool:
        """A function's launch."""
        return self.record is not None and self.record.is_launch

    @property
    def scheduler(self) -> str:
        """Where it runs, by name."""
        return self.handle.partition("://")[0]


def only_running() -> RecordedApp:
    """The app that runs, if it is the only one. Raises `LookupError`."""
    running = [app for app in apps() if app.facts["owner"] and not app.state.is_final]
    if len(running) == 1:
        return running[0]
    names = ", ".join(app.id for app in running)
    raise LookupError(
        f"several apps are running; name one of: {names}" if running else "no app is running"
    )


def find_app(text: str | None) -> FoundApp:
    """By handle, id, or enough of its beginning; the latest without. Raises `LookupError`."""
    if text is not None and "://" in text:
        try:
            handle = handles.parse(text)
        except ConfigError as error:
            raise LookupError(str(error)) from None
        record = by_handle(handle.scheduler, handle.session, handle.app_id)
        if record is not None:
            return FoundApp(str(handle), record)
        begun = [app for app in apps() if app.handle.startswith(text)]
        if len(begun) == 1:
            return FoundApp(begun[0].handle, begun[0])
        if handle.scheduler != LAUNCH:
            return FoundApp(str(handle), None)
    record = find(text)
    return FoundApp(record.handle, record)


def launches_below(app: RecordedApp) -> list[RecordedApp]:
    """The launches that run in the replicas of an app of `local_cwd` on this machine."""
    below = set(descendants(app.facts["owner"]["pid"])) if app.is_local else set()
    launches = [one for one in apps(parts=True) if one.is_launch and not one.state.is_final]
    return [one for one in launches if one.is_local and one.facts["owner"]["pid"] in below]
