"""The app that a command line means: a launch, or one on a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import ConfigError
from phalanx.registry import LAUNCH
from phalanx.registry.recorded import RecordedApp, apps, by_handle, find
from phalanx.runner import handles


@dataclass(frozen=True)
class Found:
    """An app: as it was recorded, and its handle; or the handle alone, for one from elsewhere."""

    handle: str
    record: RecordedApp | None

    @property
    def is_launch(self) -> bool:
        """A function's launch."""
        return self.record is not None and self.record.is_launch


def find_app(text: str | None) -> Found:
    """By handle, id, or enough of its beginning; the latest without. Raises `LookupError`."""
    if text is not None and "://" in text:
        try:
            handle = handles.parse(text)
        except ConfigError as error:
            raise LookupError(str(error)) from None
        record = by_handle(handle.scheduler, handle.session, handle.app_id)
        if record is not None:
            return Found(str(handle), record)
        begun = [app for app in apps() if app.handle.startswith(text)]
        if len(begun) == 1:
            return Found(begun[0].handle, begun[0])
        if handle.scheduler != LAUNCH:
            return Found(str(handle), None)
    record = find(text)
    return Found(record.handle, record)
