"""Rendezvous handlers by name.

`static` and `tcp` (also known as `c10d`) are ours, others
come from packages that register them under the entry point `phalanx.rendezvous`. A handler of one's
own blocks in `next_rendezvous`; the agent calls it on a thread.
"""

from __future__ import annotations

import difflib
import ipaddress
from typing import Any

from phalanx import _plugins as plugins
from phalanx._core.rounds import Endpoint
from phalanx._rendezvous import settings as settings_
from phalanx._rendezvous.handler_api import Factory, RendezvousParameters, problem_of
from phalanx.errors import ConfigError, PluginError

GROUP = "phalanx.rendezvous"
"""Where packages register rendezvous of their own: a function of `RendezvousParameters`."""

STATIC_PORT = 29500


def get_handler(
    backend: str,
    endpoint: str = "",
    run_id: str = "",
    min_hosts: int = 1,
    max_hosts: int | None = None,
    **settings: Any,
) -> Any:
    """A rendezvous handler by the name of its kind.

    Args:
        backend: `static`, `tcp` (also known as `c10d`), or the name of a plugin's.
        endpoint: Where hosts meet, as `HOST:PORT`; by default a free port of this host.
        run_id: What names the app; the same on every host.
        min_hosts: The fewest hosts that a round begins with.
        max_hosts: The most hosts in a round; by default `min_hosts`.
        **settings: Those of `phalanx.rendezvous.Settings` for our own; others have theirs.

    Returns:
        A `RendezvousHandler`, for `WorkerSpec.rdzv_handler`.

    Raises:
        ConfigError: An unknown kind or setting, or a value that cannot be.
        PluginError: The plugin that has the kind is broken.
    """
    most = min_hosts if max_hosts is None else max_hosts
    if not 1 <= min_hosts <= most:
        raise ConfigError(
            f"min_hosts={min_hosts}, max_hosts={most}: at least 1, and the fewest not above the "
            "most."
        )
    if backend in ("tcp", "c10d", "static"):
        from phalanx._rendezvous.tcp.handler import TcpHandler

        static = backend == "static"
        chosen = settings_.make(settings)
        place = parse_endpoint(endpoint, STATIC_PORT if static else settings_.PORT)
        return TcpHandler(
            backend, place, run_id or "none", most if static else min_hosts, most, chosen
        )
    return _from_plugin(RendezvousParameters(backend, endpoint, run_id, min_hosts, most, settings))


def _from_plugin(parameters: RendezvousParameters) -> Any:
    found = {plugin.name: plugin for plugin in plugins.of(GROUP)}
    if parameters.backend not in found:
        known = ["static", "tcp", "c10d", *found]
        near = difflib.get_close_matches(parameters.backend, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else f" Choose one of {', '.join(known)}."
        raise ConfigError(f"unknown rendezvous backend {parameters.backend!r}.{hint}")
    plugin = found[parameters.backend]
    factory: Factory = plugin.load()
    try:
        handler = factory(parameters)
    except Exception as error:
        raise PluginError(plugin, f"{type(error).__name__}: {error}") from error
    if problem := problem_of(handler):
        raise PluginError(plugin, problem)
    return handler


def parse_endpoint(text: str, port: int) -> Endpoint:
    """`host`, `host:port`, `[::1]:port`; an empty one is any free port here. `ConfigError`."""
    if not text:
        return Endpoint("localhost", 0)
    host, colon, number = text.rpartition(":")
    if not colon or _is_address(text):
        host, number = text, str(port)
    plain = ":" not in host or _is_address(host.strip("[]"))
    if not number.isdigit() or int(number) > 65535 or not host or not plain:
        raise ConfigError(f"rendezvous endpoint {text!r}: write HOST:PORT, such as node0:{port}.")
    return Endpoint(host.strip("[]"), int(number))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
