"""What would be submitted."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from phalanx._specs import AppDef, serialization


class AppDryRunInfo:
    """What would be submitted; `print` shows the app and the scheduler's own request.

    `_app`, `_cfg`, `_scheduler` and `_fmt` are TorchX's names, and may be set: what is set is what
    is submitted.
    """

    def __init__(
        self,
        request: Any,
        fmt: Callable[[Any], str] | None = None,
        *,
        app: AppDef | None = None,
        scheduler: str | None = None,
        cfg: Any = None,
    ) -> None:
        """Keep all of it.

        Args:
            request: What the scheduler itself makes of the app.
            fmt: Makes a text of the request; by default JSON.
            app: The app, as the scheduler gets it.
            scheduler: The scheduler's name.
            cfg: The scheduler's options.
        """
        self.request = request
        self._fmt = fmt
        self._app = app
        self._scheduler = scheduler
        self._cfg = {} if cfg is None else cfg

    def __class_getitem__(cls, request: Any) -> type[AppDryRunInfo]:
        """`AppDryRunInfo[REQUEST]`, as TorchX's plugins write its type."""
        return cls

    @property
    def app(self) -> AppDef:
        """The app, as the scheduler gets it.

        Raises:
            LookupError: It is not known yet: a scheduler has made this by itself.
        """
        if self._app is None:
            raise LookupError("this dry run has no app: make it with runner.dryrun")
        return self._app

    @property
    def scheduler(self) -> str:
        """The scheduler's name; empty while it is not known."""
        return self._scheduler or ""

    @property
    def cfg(self) -> Any:
        """The scheduler's options."""
        return self._cfg

    def format_request(self) -> str:
        """The request as text."""
        if self._fmt is not None:
            return self._fmt(self.request)
        return shown(self.request)

    def __str__(self) -> str:
        """What `describe` says; with a `fmt`, what that says, as in TorchX."""
        return self.describe() if self._fmt is None else self.format_request()

    def describe(self) -> str:
        """The app and the exact request."""
        if self._app is None:
            return self.format_request()
        app = json.dumps(serialization.to_dict(self._app), indent=2)
        return f"=== APPLICATION ===\n{app}\n\n=== SCHEDULER REQUEST ===\n{self.format_request()}"

    def __repr__(self) -> str:
        """The request."""
        return self.format_request()


def shown(request: Any) -> str:
    """A request as it is printed: as its own text, such as a script's, where its class has one."""
    if dataclasses.is_dataclass(request) and type(request).__str__ is not object.__str__:
        return str(request).rstrip("\n")
    return json.dumps(plain(request), indent=2, default=str)


def plain(value: Any) -> Any:
    """A request or options, as far as JSON can show them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    return value
