"""What a process beside the launcher needs to reach the API server without the official client.

The lease keeps it in memory of its own process, where commands of ours read it: it is in no file
and in nobody's arguments, and gone with the launcher.
"""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from phalanx._schedulers.kubernetes.api.connection import Access


@dataclass(frozen=True)
class Credentials:
    """An address, and what proves who we are."""

    server: str
    headers: dict[str, str]
    verify: bool = True
    authority: str | None = None
    """Who signs the server's certificate, as text; None for the system's own."""
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    proxy: str | None = None
    no_proxy: str | None = None

    def websocket_options(self) -> dict[str, Any]:
        """As a WebSocket takes them."""
        options: dict[str, Any] = {}
        if self.server.startswith("https"):
            options["sslopt"] = {"context": self._context()}
            if self.server_name:
                options["sslopt"]["server_hostname"] = self.server_name
        # Whether there is a proxy was decided by who made this; otherwise the environment is asked.
        options["http_no_proxy"] = (self.no_proxy or "").split(",") if self.proxy else ["*"]
        if self.proxy:
            found = urlsplit(self.proxy)
            options |= {"http_proxy_host": found.hostname, "http_proxy_port": found.port}
            options["proxy_type"] = "http"
            if found.username:
                options["http_proxy_auth"] = (found.username, found.password or "")
        return options

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority)
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            # OpenSSL reads them from files alone: from one that has no name.
            with open(os.memfd_create("phalanx-credentials"), "w") as file:
                file.write(f"{self.certificate}\n{self.key or ''}\n")
                file.flush()
                context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context


class SharedCredentials:
    """Keeps them for other processes of this user, for as long as this process lives."""

    def __init__(self, credentials: Credentials) -> None:
        """They can be read from now on."""
        self._file = open(os.memfd_create("phalanx-credentials"), "w")  # noqa: SIM115 see `close`
        json.dump(asdict(credentials), self._file)
        self._file.flush()
        self.path = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"
        """Where they are read."""

    def close(self) -> None:
        """Nobody can read them any more. Idempotent."""
        self._file.close()


def read_credentials(path: str) -> Credentials | None:
    """What another process keeps; None where it does not, or they may not be read."""
    try:
        with open(path) as file:
            return Credentials(**json.load(file))
    except (OSError, ValueError, TypeError):
        return None


def credentials_of(access: Access) -> Credentials:
    """What the official client uses."""
    known = access.client.configuration
    return Credentials(
        access.server,
        access.headers(),
        bool(known.verify_ssl),
        _text(known.ssl_ca_cert),
        _text(known.cert_file),
        _text(known.key_file),
        known.tls_server_name,
        known.proxy,
        known.no_proxy,
    )


def _text(path: str | None) -> str | None:
    if not path:
        return None
    with open(path) as file:
        return file.read()
