"""An app's id, and what the metadata of its job says. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord

_SESSION = "phalanx/session"
_USER = "phalanx/user"
_NAME = "phalanx/name"
_LIFECYCLE = "phalanx/lifecycle"
_HTTPS = "https"


@dataclass(frozen=True)
class RayApp:
    """Where an app is: an id has all of it, so that any process finds the app."""

    dashboard: str
    """`http://HOST:PORT`."""
    name: str
    """The job's own id: never the same twice."""

    def __str__(self) -> str:
        """As an id: `HOST:PORT:NAME`, without the characters that handles cannot have."""
        parts = urlsplit(self.dashboard)
        scheme = f"{_HTTPS}:" if parts.scheme == _HTTPS else ""
        return f"{scheme}{quote(parts.netloc + parts.path, safe=':[]')}:{self.name}"

    @classmethod
    def parse(cls, app_id: str) -> RayApp | None:
        """From an id; None for what cannot be one."""
        where, _, name = app_id.rpartition(":")
        scheme = "http"
        if where.startswith(f"{_HTTPS}:"):
            scheme, where = _HTTPS, where.removeprefix(f"{_HTTPS}:")
        if not where or not name:
            return None
        return cls(f"{scheme}://{unquote(where)}", name)


@dataclass(frozen=True)
class JobMetadata:
    """What the metadata of a job says of its app: the only record of it."""

    session: str
    user: str
    name: str
    lifecycle: LifecycleRecord

    def to_dict(self) -> dict[str, str]:
        """As a job takes it."""
        return {
            _SESSION: self.session,
            _USER: self.user,
            _NAME: self.name,
            _LIFECYCLE: self.lifecycle.to_text(),
        }

    @classmethod
    def parse(cls, metadata: Mapping[str, Any]) -> JobMetadata | None:
        """From a job's; None for a job that is no app of ours."""
        try:
            record = LifecycleRecord.from_text(metadata[_LIFECYCLE])
            return cls(metadata[_SESSION], metadata[_USER], metadata[_NAME], record)
        except (KeyError, ValueError, TypeError):
            return None
