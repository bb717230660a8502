"""All requests to a cluster's API server, and what its complaints mean.

Objects are the API's own JSON, as dicts.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self
from urllib.parse import quote, urlencode

from phalanx._core.json_text import parse_json
from phalanx._core.sanitize import sanitize_line
from phalanx._schedulers.kubernetes.api.connection import Access, find_access
from phalanx.errors import SchedulerError, SchedulerUnreachable

_CONNECT = 10.0
_READ = 60.0
_LONGEST = 500
_PAGE = 500
_GROUPS = {"jobs": "apis/batch/v1"}
"""The API groups of resources; others are of the core."""
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "DELETE": "delete"}
_MERGE = "application/merge-patch+json"
_AGAIN = (429, 502, 503, 504)
"""Answers that say nothing but to come again."""


class NotInCluster(SchedulerError):
    """The cluster has no such object."""


class ObjectExists(SchedulerError):
    """There is an object of that name, or it was changed meanwhile."""


class Forbidden(SchedulerError):
    """A right is missing, or a quota is used up."""


class Cluster:
    """A namespace of a cluster; a context manager. All methods may be called from any thread.

    Everything raises `SchedulerError`: `SchedulerUnreachable` where the API server does not answer.
    """

    def __init__(
        self,
        *,
        context: str | None = None,
        namespace: str | None = None,
        access: Access | None = None,
    ) -> None:
        """Read the kubeconfig. Raises `ConfigError`."""
        self.access = access or find_access(context)
        self.namespace = namespace or self.access.namespace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        pools = self.access.client.rest_client.pool_manager.pools
        for key in pools.keys():  # noqa: SIM118 it cannot be iterated
            with contextlib.suppress(KeyError):
                pools[key].close()  # an error that somebody keeps would keep them open
        pools.clear()

    # ── objects ───────────────────────────────────────────────────────────────

    def get(self, resource: str, name: str) -> dict[str, Any] | None:
        """One object; None if it is not there."""
        try:
            return self._json("GET", resource, name)
        except NotInCluster:
            return None

    def list(self, resource: str, selector: str = "", *, fields: str = "") -> list[dict[str, Any]]:
        """The objects of a kind that have these labels, `a=b,c=d`, and fields."""
        found: list[dict[str, Any]] = []
        query = {"limit": str(_PAGE), "labelSelector": selector, "fieldSelector": fields}
        query = {name: value for name, value in query.items() if value}
        while True:
            answer = self._json("GET", resource, query=query, verb="list")
            found += answer.get("items") or ()
            more = (answer.get("metadata") or {}).get("continue")
            if not more:
                return found
            query["continue"] = more

    def create(self, resource: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """An object. Raises `ObjectExists`."""
        return self._json("POST", resource, body=body)

    def patch(self, resource: str, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of an object; None as a value removes one. Raises `NotInCluster`."""
        return self._json("PATCH", resource, name, body=body)

    def delete(self, resource: str, name: str, *, grace: int | None = None) -> None:
        """An object, and what it owns. One that is not there is no error."""
        body: dict[str, Any] = {"propagationPolicy": "Background"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        with contextlib.suppress(NotInCluster):
            self._json("DELETE", resource, name, body=body)

    def version(self) -> tuple[int, int]:
        """The server's, such as (1, 29)."""
        known = self._answer("GET", f"{self.access.server}/version", "get", "version")
        return parse_version(f"{known.get('major')}.{known.get('minor')}")

    # ── streams ───────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def stream(
        self,
        resource: str,
        name: str = "",
        *,
        subresource: str = "",
        query: Mapping[str, str] | None = None,
        silence: float | None = None,
    ) -> Iterator[Any]:
        """An answer that is read while it comes; `silence` is how long it may say nothing."""
        verb = "watch" if query and "watch" in query else "get"
        what = f"{resource}/{subresource}" if subresource else resource
        url = self._url(resource, name, subresource, query)
        with self._errors(verb, what):
            response = self._send("GET", url, None, silence)
            try:
                self._check(response, verb, what)
                yield response
            finally:
                response.close()
                response.release_conn()

    # ── requests ──────────────────────────────────────────────────────────────

    def _url(
        self, resource: str, name: str, subresource: str, query: Mapping[str, str] | None
    ) -> str:
        group = _GROUPS.get(resource, "api/v1")
        parts = [self.access.server, group, "namespaces", quote(self.namespace, safe=""), resource]
        parts += [quote(name, safe="")] if name else []
        parts += [subresource] if subresource else []
        return "/".join(parts) + (f"?{urlencode(query)}" if query else "")

    def _json(
        self,
        method: str,
        resource: str,
        name: str = "",
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        verb: str = "",
    ) -> dict[str, Any]:
        url = self._url(resource, name, "", query)
        return self._answer(method, url, verb or _VERBS[method], resource, body)

    def _answer(
        self,
        method: str,
        url: str,
        verb: str,
        resource: str,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        with self._errors(verb, resource):
            for is_last in (False, False, True):
                response = self._send(method, url, body, _READ)
                data = response.read()
                response.release_conn()
                if response.status not in _AGAIN or is_last:
                    break
                time.sleep(0.5)
            self._check(response, verb, resource, data)
            known = parse_json(data)
        if not isinstance(known, dict):
            raise SchedulerUnreachable(f"{self.access.server} is no Kubernetes API server.")
        return known

    def _send(
        self, method: str, url: str, body: Mapping[str, Any] | None, silence: float | None
    ) -> Any:
        from urllib3 import Timeout

        headers = {"Accept": "application/json, */*", **self.access.headers()}
        if body is not None:
            headers["Content-Type"] = _MERGE if method == "PATCH" else "application/json"
        return self.access.client.rest_client.pool_manager.request(
            method,
            url,
            headers=headers,
            body=None if body is None else json.dumps(body).encode(),
            timeout=Timeout(connect=_CONNECT, read=silence),
            preload_content=False,
            retries=False,
            redirect=False,
        )

    def _check(self, response: Any, verb: str, resource: str, data: bytes | None = None) -> None:
        if response.status < 400:
            return
        text = (response.read() if data is None else data).decode("utf-8", "replace")
        where = f"in the namespace {self.namespace}"
        raise refusal(response.status, text, verb, resource, where)

    @contextlib.contextmanager
    def _errors(self, verb: str, resource: str) -> Iterator[None]:
        """What happens on the way there, as errors of ours."""
        from urllib3.exceptions import HTTPError

        try:
            yield
        except (HTTPError, OSError, json.JSONDecodeError) as error:
            said = sanitize_line(_innermost(error), _LONGEST)
            raise SchedulerUnreachable(
                f"cannot {verb} {resource}: the API server {self.access.server} does not answer "
                f"({said}). Look at it: kubectl cluster-info"
            ) from error


def _innermost(error: BaseException) -> str:
    """The sentence in an error of urllib3's, without its objects."""
    while True:
        inner = (getattr(error, "reason", None), *reversed(error.args))
        found = next((one for one in inner if isinstance(one, BaseException)), None)
        if found is None:
            break
        error = found
    return re.sub(r"^(\w+\([^)]*\)|<[^>]*>):\s*", "", str(error)) or type(error).__name__


def refusal(status: int, text: str, verb: str, resource: str, where: str) -> SchedulerError:
    """What an answer of the API server means, as an error. Pure."""
    said = text
    with contextlib.suppress(ValueError, AttributeError):
        said = str(parse_json(text).get("message") or text)
    said = sanitize_line(said.strip().rstrip("."), _LONGEST)
    if status == 401:
        return SchedulerError(
            f"cannot {verb} {resource}: the API server does not know you ({said}). Log in again, "
            "and try: kubectl auth can-i --list"
        )
    if status == 403 and "exceeded quota" in said:
        return Forbidden(f"cannot {verb} {resource} {where}: {_quota(said)}")
    if status == 403 and not re.search(r'User "[^"]*" cannot', said):
        return Forbidden(f"cannot {verb} {resource} {where}: {said}")  # not RBAC: an admission
    if status == 403:
        return Forbidden(
            f"missing right: {verb} {resource} {where} ({said}). Ask for the Role "
            "that this prints: phalanx runopts kubernetes --rights"
        )
    kind = {404: NotInCluster, 409: ObjectExists}.get(status, SchedulerError)
    if status in _AGAIN or status >= 500:
        kind = SchedulerUnreachable
    return kind(f"cannot {verb} {resource} {where}: {said}")


def _quota(said: str) -> str:
    return said[said.index("exceeded quota") :]


def parse_version(text: str) -> tuple[int, int]:
    """`1.29`, `v1.29.3`, `1.27+` as numbers. Raises `ValueError`. Pure."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    if found is None:
        raise ValueError(f"{text!r} is no version of Kubernetes")
    return int(found[1]), int(found[2])
