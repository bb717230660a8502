"""Where hosts meet, as it is written: `host`, `host:port`, `[::1]:port`; and the usual ports. Pure.

As torch has it, the last colon is the port's, also behind an address of version 6 without brackets.
"""

from __future__ import annotations

import ipaddress
import re

from phalanx.errors import ConfigError

STATIC_PORT = 29500
DEFAULT_PORTS = {
    "static": STATIC_PORT,
    "c10d": 29400,
    "tcp": 29400,
    "etcd": 2379,
    "etcd-v2": 2379,
}
"""The port of an endpoint that has none, by backend."""


def parse_endpoint(text: str, backend: str = "c10d") -> tuple[str, int | None]:
    """Host and port, None where it has none; this host if it is empty. Raises `ConfigError`."""
    text = text.strip()
    if not text:
        return "localhost", None
    host, colon, digits = text.rpartition(":")
    if not colon or (text.startswith("[") and text.endswith("]")):
        host, colon, digits = text, "", ""
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not re.fullmatch(r"[\w.-]+", host) and not is_address(host):
        raise ConfigError(f'rendezvous endpoint "{text}": invalid host {host!r}. Write HOST:PORT.')
    if not colon:
        return host, None
    if not re.fullmatch("[0-9]{1,5}", digits) or int(digits) >= 1 << 16:
        usual = DEFAULT_PORTS.get(backend, STATIC_PORT)
        raise ConfigError(
            f'rendezvous endpoint "{text}": invalid port {digits!r}. Write {host}:{usual}.'
        )
    return host, int(digits)


def is_address(text: str) -> bool:
    """It is an address of version 4 or 6, not a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
