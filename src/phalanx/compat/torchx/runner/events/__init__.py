"""TorchX's events of its runner: programs may record them, and nothing is done with them."""

from __future__ import annotations

from typing import Self

__all__ = ["log_event"]


class log_event:  # noqa: N801 TorchX's name
    """A context in which a call of a runner's happens."""

    def __init__(
        self,
        api: str,
        scheduler: str | None = None,
        app_id: str | None = None,
        app_image: str | None = None,
        runcfg: str | None = None,
        workspace: str | None = None,
    ) -> None:
        """Keep what is told.

        Args:
            api: The call.
            scheduler: The scheduler's name.
            app_id: The app's id.
            app_image: The app's image.
            runcfg: The scheduler's options.
            workspace: The directory whose files the app runs with.
        """
        self.api, self.scheduler, self.app_id = api, scheduler, app_id
        self.app_image, self.runcfg, self.workspace = app_image, runcfg, workspace

    def __enter__(self) -> Self:
        """Nothing is recorded."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is recorded."""
