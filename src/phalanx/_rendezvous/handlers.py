"""Rendezvous handlers by name.

`static` and `tcp` (also known as `c10d`) are ours, others
come from packages that register them under the entry point `phalanx.rendezvous`, or under torch's,
`torchrun.handlers`. A handler of one's
own blocks in `next_rendezvous`; the agent calls it on a thread.
"""

from __future__ import annotations

from typing import Any

from phalanx import _plugins as plugins
from phalanx._core.host_bounds import check_bounds, host_bounds
from phalanx._core.rounds import Endpoint
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._rendezvous import settings as settings_
from phalanx._rendezvous.endpoints import DEFAULT_PORTS, is_address, parse_endpoint
from phalanx._rendezvous.handler_api import Factory, RendezvousParameters, problem_of
from phalanx.errors import ConfigError, PluginError

GROUP, TORCH_GROUP = "phalanx.rendezvous", "torchrun.handlers"
"""Where packages register rendezvous of their own: a function of `RendezvousParameters`; under
torch's name, a function that gives such a function."""


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
    check_bounds(min_hosts, max_hosts)
    least, most = host_bounds(min_hosts, min_hosts, max_hosts)
    if backend in ("tcp", "c10d", "static"):
        from phalanx._rendezvous.tcp.handler import TcpHandler

        static = backend == "static"
        chosen = settings_.make(settings, backend)
        parsed = _endpoint(endpoint, backend)
        return TcpHandler(
            backend, parsed, run_id or "none", most if static else least, most, chosen
        )
    return _from_plugin(RendezvousParameters(backend, endpoint, run_id, least, most, settings))


def _from_plugin(parameters: RendezvousParameters) -> Any:
    found = {plugin.name: plugin for plugin in (*plugins.of(TORCH_GROUP), *plugins.of(GROUP))}
    if parameters.backend not in found:
        known = ["static", "tcp", "c10d", *found]
        choices = f"Choose one of {', '.join(known)}."
        hint = did_you_mean(closest(parameters.backend, known), choices)
        raise ConfigError(f"unknown rendezvous backend {parameters.backend!r}.{hint}")
    plugin = found[parameters.backend]
    factory: Factory = plugin.load()
    try:
        if plugin.group == TORCH_GROUP:
            factory = plugin.load()()
        handler = factory(parameters)
    except Exception as error:
        raise PluginError(plugin, f"{type(error).__name__}: {error}") from error
    if problem := problem_of(handler):
        raise PluginError(plugin, problem)
    return handler


def _endpoint(text: str, backend: str) -> Endpoint:
    """Where hosts meet; a free port here if nothing is said. An address alone has the usual port.

    Raises `ConfigError`.
    """
    if not text:
        return Endpoint("localhost", 0)
    host, port = parse_endpoint(f"[{text}]" if is_address(text) else text, backend)
    return Endpoint(host, DEFAULT_PORTS[backend] if port is None else port)
