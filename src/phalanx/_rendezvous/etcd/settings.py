"""How etcd is reached: its members, TLS, who we are there. From names and texts, also torch's.

A password is never among the settings: it comes from the environment or a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from phalanx._core.rounds import Endpoint
from phalanx._rendezvous.endpoints import DEFAULT_PORTS, is_address, parse_endpoint
from phalanx.errors import ConfigError

USER, PASSWORD = "PHALANX_ETCD_USER", "PHALANX_ETCD_PASSWORD"
_ALIASES = {"cert": "ssl_cert", "key": "ssl_cert_key", "cacert": "ca_cert", "etcd_prefix": "prefix"}
"""Other names that torch's own have."""


@dataclass(frozen=True)
class EtcdSettings:
    """How etcd is reached, and how long an app does without it."""

    protocol: str = ""
    """`http` or `https`; by default `https` where a certificate is given."""
    ca_cert: str | None = None
    """A file with the certificates that etcd's is signed with; by default those of the system."""
    ssl_cert: str | None = None
    """A file with this host's certificate."""
    ssl_cert_key: str | None = None
    """A file with its key; by default the certificate's file."""
    user: str | None = None
    """Who this host is to etcd; by default $PHALANX_ETCD_USER."""
    password_file: str | None = None
    """A file with the user's password; by default it is $PHALANX_ETCD_PASSWORD."""
    read_timeout: float = 5.0
    """Seconds for an answer of one member; after that another one is asked."""
    prefix: str = "/phalanx"
    """The keys of all runs are below it."""
    etcd_timeout: float = 120.0
    """Seconds that workers run on while etcd cannot be reached."""

    @property
    def scheme(self) -> str:
        """The protocol."""
        secured = self.ca_cert or self.ssl_cert
        return self.protocol or ("https" if secured else "http")

    def find_login(self, environ: Mapping[str, str]) -> tuple[str, str] | None:
        """User and password, where one is needed. Raises `ConfigError`."""
        user = self.user or environ.get(USER)
        if not user:
            return None
        if self.password_file is None:
            if PASSWORD not in environ:
                raise ConfigError(
                    f"etcd user {user!r} has no password. Set {PASSWORD} or password_file."
                )
            return user, environ[PASSWORD]
        try:
            with open(os.path.expanduser(self.password_file), encoding="utf-8") as file:
                return user, file.read().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read password_file {self.password_file}: {error}") from None


def take(given: Mapping[str, Any]) -> tuple[EtcdSettings, dict[str, Any]]:
    """Those of etcd out of all settings, and the others. Raises `ConfigError`."""
    known = {field.name for field in fields(EtcdSettings)}
    chosen: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for name, value in given.items():
        own = _ALIASES.get(name, name)
        if own not in known:
            others[name] = value
        elif value is not None:
            chosen[own] = _typed(own, value)
    if "password" in others:
        raise ConfigError(
            "password: do not write it on a command line, where others can read it. "
            f"Set {PASSWORD} or password_file."
        )
    settings = EtcdSettings(**chosen)
    _check(settings)
    return settings, others


def _typed(name: str, value: Any) -> Any:
    if name not in ("read_timeout", "etcd_timeout"):
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 1e6:
        raise ConfigError(f"{name}={value!r}: must be a number of seconds.")
    return number


def _check(settings: EtcdSettings) -> None:
    if settings.protocol not in ("", "http", "https"):
        raise ConfigError(f"protocol={settings.protocol!r}: choose http or https.")
    if settings.ssl_cert_key and not settings.ssl_cert:
        raise ConfigError("ssl_cert_key needs ssl_cert: the certificate that the key belongs to.")
    for name in ("ca_cert", "ssl_cert", "ssl_cert_key"):
        path = getattr(settings, name)
        if path is not None and settings.protocol == "http":
            raise ConfigError(f"{name} cannot be used with protocol=http. Remove one of them.")
        if path is not None and not os.path.isfile(os.path.expanduser(path)):
            raise ConfigError(f"{name}={path}: no such file.")


def parse_endpoints(text: str) -> list[Endpoint]:
    """The members of etcd, as they are written: `HOST:PORT,HOST2:PORT`. Raises `ConfigError`."""
    parsed = []
    for part in text.split(","):
        word = part.strip()
        host, port = parse_endpoint(f"[{word}]" if is_address(word) else word, "etcd")
        parsed.append(Endpoint(host, DEFAULT_PORTS["etcd"] if port is None else port))
    return parsed
