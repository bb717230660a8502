"""etcd over its JSON gateway, by the client `etcd3gw`: calls on threads, one member after another.

A member that does not answer, or has no majority behind it, is passed over for the next one. Needs
the extra `phalanx[etcd]`: nobody imports this module before etcd is to be asked.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import math
import os
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import requests
from etcd3gw.client import Etcd3Client
from etcd3gw.exceptions import ConnectionFailedError, ConnectionTimeoutError, Etcd3Exception
from requests.adapters import HTTPAdapter

from phalanx._core.json_text import parse_json
from phalanx._core.rounds import Endpoint
from phalanx._core.sanitize import sanitize_line
from phalanx._rendezvous.errors import RendezvousConnectionError
from phalanx._rendezvous.etcd.keys import EtcdUnreachable, KeyValue
from phalanx._rendezvous.etcd.settings import EtcdSettings
from phalanx._system import daemon_thread

_NOT_FOUND, _DENIED, _UNAUTHENTICATED = 5, 7, 16
"""Codes of gRPC, which the gateway passes on."""
_LOGIN_AGAIN = ("invalid auth token", "revision of auth store is old")
_COMMON_NAME = "CommonName of client"
_REFUSED = (
    *("user name is empty", "user name not found", "authentication failed", "permission denied"),
    *("authentication is not enabled", _COMMON_NAME),
)
T = TypeVar("T")


class EtcdClient:
    """The keys of one run in etcd; as `ElectionKeys` has it."""

    def __init__(self, members: Sequence[Endpoint], settings: EtcdSettings, run_id: str) -> None:
        """Nothing is asked yet. Raises `ConfigError`."""
        self._members = list(members)
        self._settings = settings
        quoted = urllib.parse.quote(run_id, safe="")
        self._prefix = f"{settings.prefix.rstrip('/')}/{quoted}/"
        self._login = settings.find_login(os.environ)
        self._client: Etcd3Client | None = None
        self._calling = asyncio.Lock()
        self._under_way: Future[Any] | None = None
        """The last call, which goes on though nobody waits for it any more."""
        self._read_at: dict[str, int] = {}

    async def read(self, key: str) -> KeyValue | None:
        """The latest value of a key, as a majority has it."""
        found = await self._post("kv/range", {"key": self._key(key)})
        self._read_at[key] = int(found["header"]["revision"])
        for item in found.get("kvs", ()):
            return KeyValue(base64.b64decode(item.get("value", "")), int(item["mod_revision"]))
        return None

    async def names(self, prefix: str) -> frozenset[str]:
        """The keys that there are, without the prefix."""
        first = f"{self._prefix}{prefix}".encode()
        end = first[:-1] + bytes([first[-1] + 1])
        ask = {"key": _text(first), "range_end": _text(end), "keys_only": True}
        found = await self._post("kv/range", ask)
        keys = (base64.b64decode(item["key"]) for item in found.get("kvs", ()))
        return frozenset(key[len(first) :].decode(errors="replace") for key in keys)

    async def write(
        self, values: Mapping[str, bytes | None], at: Mapping[str, int], lease: int = 0
    ) -> int:
        """Write all values if these keys are at these revisions; the new revision, or 0."""
        compare = [
            {"key": self._key(key), "result": "EQUAL", "target": "MOD", "mod_revision": revision}
            for key, revision in at.items()
        ]
        change: list[dict[str, Any]] = []
        for key, value in values.items():
            if value is None:
                change.append({"request_delete_range": {"key": self._key(key)}})
            else:
                put = {"key": self._key(key), "value": _text(value), "lease": lease}
                change.append({"request_put": put})
        try:
            done = await self._post("kv/txn", {"compare": compare, "success": change})
        except _Refused as refusal:
            if refusal.code == _NOT_FOUND:
                return 0  # the lease has ended
            raise
        return int(done["header"]["revision"]) if done.get("succeeded") else 0

    async def grant(self, seconds: float) -> int:
        """A lease that ends so long after it was last kept alive."""
        return int((await self._post("lease/grant", {"TTL": math.ceil(seconds), "ID": 0}))["ID"])

    async def keep_alive(self, lease: int) -> bool:
        """Have a lease go on; False if it has ended."""
        answer = await self._post("lease/keepalive", {"ID": lease})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def revoke(self, lease: int) -> None:
        """End a lease, and what lives as long as it."""
        try:
            await self._post("lease/revoke", {"ID": lease})
        except _Refused as refusal:
            if refusal.code != _NOT_FOUND:
                raise

    async def wait_change(self, key: str, seconds: float) -> None:
        """Wait until a key has changed since it was last read, so many seconds at most."""
        client = self._client
        if client is None:
            return
        watch = {"key": self._key(key), "start_revision": self._read_at.get(key, 0) + 1}
        limit = (self._settings.read_timeout, seconds)
        url = client.get_url("watch")
        headers = dict(client.session.headers)

        def wait() -> None:
            session = self._session()
            try:
                session.headers.update(headers)
                ask: dict[str, Any] = {"create_request": watch}
                with session.post(url, json=ask, stream=True, timeout=limit) as stream:
                    for line in stream.iter_lines():
                        result = parse_json(line or b"{}").get("result", {})
                        if not result.get("created") or result.get("canceled"):
                            return
            except (OSError, ValueError):
                return  # it has ended, or nothing has happened: who reads the key finds out
            finally:
                _close(session)

        began = asyncio.get_running_loop().time()
        await daemon_thread.in_daemon_thread(wait)
        # A member that breaks watches off at once is not asked all the time.
        if asyncio.get_running_loop().time() - began < 0.05:
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Let go of every connection, once what is under way has ended; idempotent."""
        client, self._client = self._client, None

        def let_go(call: Future[Any]) -> None:
            made = None if call.exception() is not None else call.result()
            for one in (client, made):
                if isinstance(one, Etcd3Client):
                    _close(one.session)

        if self._under_way is not None:
            self._under_way.add_done_callback(let_go)
        elif client is not None:
            _close(client.session)

    # ── calls ─────────────────────────────────────────────────────────────────

    def _key(self, key: str) -> str:
        return _text(f"{self._prefix}{key}".encode())

    async def _post(self, path: str, ask: Mapping[str, Any]) -> Any:
        """Ask until a member answers. Raises `EtcdUnreachable`, `RendezvousError`."""
        problem = ""
        async with self._calling:
            for _ in self._members:
                try:
                    return await self._call(
                        lambda client: client.post(client.get_url(path), json=ask)
                    )
                except _NoAnswer as error:
                    problem = f"{self._where()}: {error}"
                    await self.close()
                    self._members.append(self._members.pop(0))
        raise EtcdUnreachable(problem)

    def _where(self) -> str:
        member = self._members[0]
        return f"{member.address}:{member.port}"

    async def _call(self, ask: Callable[[Etcd3Client], T]) -> T:
        """Ask the member that comes first, logged in; a login that has ended is made anew."""
        refusal = None
        for _ in range(2):
            try:
                if self._client is None:
                    self._client = await self._asked(self._connect)
                return await self._asked(functools.partial(ask, self._client))
            except _Refused as error:
                if error.code == _NOT_FOUND:
                    raise
                refusal = error
            if not refusal.is_login_over or self._login is None:
                break
            await self.close()
        assert refusal is not None
        raise RendezvousConnectionError(
            f"etcd at {self._where()} refuses: {refusal}. {refusal.advice}"
        )

    async def _asked(self, ask: Callable[[], T]) -> T:
        """Call it on a thread. Raises `_NoAnswer`, `_Refused`."""
        if self._under_way is not None:  # of one who was cancelled: nothing goes on after `close`
            await asyncio.gather(asyncio.wrap_future(self._under_way), return_exceptions=True)
        self._under_way = daemon_thread.start(ask)
        try:
            return await asyncio.wrap_future(self._under_way)
        except ConnectionFailedError as error:
            problem: Exception = _NoAnswer(_said(error))
        except ConnectionTimeoutError:
            problem = _NoAnswer(f"no answer within {self._settings.read_timeout:g} s")
        except Etcd3Exception as error:
            problem = _Refused(error.detail_text or str(error))
            final = (_DENIED, _NOT_FOUND, _UNAUTHENTICATED)
            if problem.code not in final and not problem.is_final:
                problem = _NoAnswer(str(problem))
        except (requests.RequestException, ValueError) as error:
            problem = _NoAnswer(_said(error))
        # Not from within: what the client raises holds on to its connection.
        self._under_way = None
        raise problem

    def _session(self) -> requests.Session:
        settings = self._settings
        session = requests.Session()
        session.trust_env = False  # neither proxies nor passwords of the user's other services
        if settings.ca_cert:
            session.verify = os.path.expanduser(settings.ca_cert)
        if settings.ssl_cert:
            key = settings.ssl_cert_key or settings.ssl_cert
            session.cert = (os.path.expanduser(settings.ssl_cert), os.path.expanduser(key))
        return session

    def _connect(self) -> Etcd3Client:
        """A client of the member that comes first, logged in. Blocks."""
        member, settings, session = self._members[0], self._settings, self._session()
        client = Etcd3Client(
            host=member.address,
            port=member.port,
            protocol=settings.scheme,
            timeout=settings.read_timeout,
            session=session,
        )
        try:
            if self._login is not None:
                user, password = self._login
                ask = {"name": user, "password": password}
                answer = client.post(client.get_url("auth/authenticate"), json=ask)
                session.headers["Authorization"] = answer["token"]
            client.get_url("")  # which asks for its version
        except BaseException:
            _close(session)
            raise
        return client


class _NoAnswer(Exception):
    """A member cannot do it now."""


class _Refused(Exception):
    """A member will not do it."""

    def __init__(self, text: str) -> None:
        try:
            said = parse_json(text)
            message, code = str(said.get("message") or said.get("error")), int(said.get("code", 0))
        except (ValueError, AttributeError):
            message, code = text, 0
        super().__init__(sanitize_line(message.removeprefix("etcdserver: "), 300))
        self.code = code

    @property
    def is_login_over(self) -> bool:
        return any(words in str(self) for words in _LOGIN_AGAIN)

    @property
    def is_final(self) -> bool:
        return any(words in str(self) for words in (*_REFUSED, *_LOGIN_AGAIN))

    @property
    def advice(self) -> str:
        if "not enabled" in str(self):
            return "It has no users: remove the user."
        if _COMMON_NAME in str(self):
            return "Use a client certificate without a common name (CN): etcd has users of its own."
        return "Check PHALANX_ETCD_USER, PHALANX_ETCD_PASSWORD and the user's rights."


def _said(error: BaseException) -> str:
    """The reason at the bottom of what the client's libraries say."""
    told = error.detail_text if isinstance(error, Etcd3Exception) else None
    text = told or str(error)  # which is empty in some versions of the client
    _, found, reason = text.partition("certificate verify failed: ")
    if found:
        reason = sanitize_line(reason.partition(" (_ssl")[0])
        return f"its certificate is not trusted: {reason}. Set ca_cert to the CA that signed it"
    for start in ("Caused by ", "[Errno ", "[SSL"):
        if start in text:
            text = text[text.index(start) :]
    return sanitize_line(text, 300).rstrip(")'\"")


def _close(session: requests.Session) -> None:
    """Close its connections now: by itself it leaves that to the garbage collector."""
    for adapter in session.adapters.values():
        if isinstance(adapter, HTTPAdapter):
            pools = adapter.poolmanager.pools
            for key in list(pools.keys()):
                pools[key].close()
    session.close()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
