"""All requests to a Ray cluster: the job API of its dashboard, over HTTP.

Ray's own client for it would import Ray, which takes a second and wants the cluster's version; the
API itself is the same for all versions since 2.0.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from phalanx._core.json_text import parse_json
from phalanx._core.sanitize import sanitize_line
from phalanx._schedulers.ray.api import auth_token
from phalanx.errors import SchedulerError, SchedulerUnreachable

_TIMEOUT = 30.0
_TRIES = 4
_PAUSE = 0.5
_LONGEST = 500
_NO_AGENT = "No available agent"
"""What Ray says, after ten seconds of its own, while the head node's agent is not up."""


class ClusterStarting(SchedulerUnreachable):
    """The dashboard answers, and nobody is there yet to start a job."""


class NoSuchJob(SchedulerError):
    """The cluster has no such job, package or file."""


class Dashboard:
    """The dashboard of one cluster. Everything raises `SchedulerError`."""

    def __init__(self, address: str) -> None:
        """`http://HOST:PORT`; asks nothing."""
        self.address = address.rstrip("/")

    @property
    def host(self) -> str:
        """The machine that it is on."""
        return urlsplit(self.address).hostname or "localhost"

    def version(self) -> str:
        """Of Ray, on the cluster."""
        return str(self._json("GET", "/api/version").get("ray_version", ""))

    def submit(self, job: Mapping[str, Any]) -> None:
        """Submit a job; `submission_id` names it."""
        self._json("POST", "/api/jobs/", json.dumps(job).encode())

    def job(self, name: str) -> dict[str, Any] | None:
        """What is known of a job; None if there is none of that name."""
        try:
            return dict(self._json("GET", f"/api/jobs/{quote(name, safe='')}"))
        except NoSuchJob:
            return None

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs."""
        return list(self._json("GET", "/api/jobs/"))

    def log(self, name: str) -> str:
        """All that a job's driver has printed so far."""
        try:
            return str(self._json("GET", f"/api/jobs/{quote(name, safe='')}/logs").get("logs", ""))
        except NoSuchJob:
            return ""

    def stop(self, name: str) -> None:
        """Have a job end; one that has ended, or is not there, is left as it is."""
        try:
            self._json("POST", f"/api/jobs/{quote(name, safe='')}/stop", b"{}")
        except NoSuchJob:
            return

    def delete(self, name: str) -> None:
        """Forget a job that has ended."""
        try:
            self._json("DELETE", f"/api/jobs/{quote(name, safe='')}")
        except NoSuchJob:
            return

    def has_package(self, name: str) -> bool:
        """The cluster has a package of that name."""
        try:
            self._send("GET", f"/api/packages/gcs/{quote(name, safe='')}")
        except NoSuchJob:
            return False
        return True

    def put_package(self, name: str, data: bytes) -> None:
        """Have the cluster keep a package."""
        self._send("PUT", f"/api/packages/gcs/{quote(name, safe='')}", data)

    def file(self, node: str, name: str) -> str | None:
        """A file among the logs of a node; None where it cannot be had."""
        asked = urlencode({"node_id": node, "filename": name, "lines": -1, "format": "text"})
        try:
            return self._send("GET", f"/api/v0/logs/file?{asked}", tries=1).decode(
                "utf-8", "replace"
            )
        except SchedulerError:
            return None

    # ── requests ──────────────────────────────────────────────────────────────

    def _json(self, method: str, path: str, data: bytes | None = None) -> Any:
        answer = self._send(method, path, data)
        try:
            return parse_json(answer)
        except ValueError:
            raise SchedulerError(
                f"{self.address} is not a Ray dashboard: it answered {_short(answer)!r}"
            ) from None

    def _send(
        self, method: str, path: str, data: bytes | None = None, tries: int = _TRIES
    ) -> bytes:
        """One request; what did not reach the dashboard, or came too early, is sent again."""
        headers = {"Content-Type": "application/json" if data else "text/plain"}
        if token := auth_token.find_token(os.environ):
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(  # noqa: S310 the address is the user's own
            self.address + path, data, headers, method=method
        )
        return _again(lambda: self._ask(request), tries)

    def _ask(self, request: urllib.request.Request) -> bytes:
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise self._complaint(error) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, socket.gaierror):
                reason = reason.strerror
            raise SchedulerUnreachable(
                f"no answer from the Ray dashboard at {self.address}: {reason}. Is the cluster up? "
                "Name it with -cfg dashboard_address=http://HOST:8265"
            ) from None

    def _complaint(self, error: urllib.error.HTTPError) -> SchedulerError:
        with error:
            said = _short(error.read(1 << 16))
        if error.code == http.client.NOT_FOUND:
            return NoSuchJob(f"{self.address}: {said or 'not found'}")
        if error.code in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            return SchedulerError(
                f"the Ray dashboard at {self.address} refuses us: {said}. "
                f"Set {auth_token.VARIABLE} to the cluster's token, or write it to "
                f"{auth_token.DEFAULT_FILE}."
            )
        kind = ClusterStarting if _NO_AGENT in said else SchedulerError
        return kind(f"the Ray dashboard at {self.address} answered {error.code}: {said}")


def _again(ask: Callable[[], bytes], tries: int) -> bytes:
    for left in range(tries - 1, -1, -1):
        try:
            return ask()
        except SchedulerUnreachable:
            if not left:
                raise
            time.sleep(_PAUSE)
    raise AssertionError


def _short(text: bytes) -> str:
    """The last line of a complaint: before it are Ray's own frames."""
    lines = [line for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    return sanitize_line(lines[-1], _LONGEST) if lines else ""
