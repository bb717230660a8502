"""Rendezvous handlers by name.

`static`, `tcp` (also known as `c10d`) and `etcd` are ours, others come from
packages that register them under the entry point `phalanx.rendezvous`, or under torch's,
`torchrun.handlers`. A handler of one's
own blocks in `next_rendezvous`; the agent calls it on a thread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from phalanx import _plugins as plugins
from phalanx._core.host_bounds import check_bounds, host_bounds
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._rendezvous import settings as settings_
from phalanx._rendezvous.endpoints import DEFAULT_PORTS, is_address, parse_endpoint
from phalanx._rendezvous.etcd import settings as etcd_settings
from phalanx._rendezvous.etcd.election import Election
from phalanx._rendezvous.etcd.proofs import ValueProof
from phalanx._rendezvous.etcd.settings import EtcdSettings
from phalanx._rendezvous.handler_api import Factory, RendezvousParameters, problem_of
from phalanx._rendezvous.tcp.handler import TcpHandler
from phalanx.errors import ConfigError, PluginError

_ETCD = ("etcd", "etcd-v2")
OWN = ("static", "tcp", "c10d", *_ETCD)
"""The rendezvous that are ours."""

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
        backend: `static`, `tcp` (also known as `c10d`), `etcd`, or the name of a plugin's.
        endpoint: Where hosts meet, as `HOST:PORT`; by default a free port of this host. For
            `etcd` its members, as `HOST:PORT,HOST2:PORT`; by default this host's.
        run_id: What names the app; the same on every host.
        min_hosts: The fewest hosts that a round begins with.
        max_hosts: The most hosts in a round; by default `min_hosts`.
        **settings: Those of `phalanx.rendezvous.Settings` for our own, and for `etcd` those of
            `EtcdSettings`; others have theirs.

    Returns:
        A `RendezvousHandler`, for `WorkerSpec.rdzv_handler`.

    Raises:
        ConfigError: An unknown kind or setting, or a value that cannot be.
        PluginError: The plugin that has the kind is broken.
    """
    check_bounds(min_hosts, max_hosts)
    least, most = host_bounds(min_hosts, min_hosts, max_hosts)
    if backend in OWN:
        return own_handler(backend, endpoint, run_id, least, most, settings)
    return _from_plugin(RendezvousParameters(backend, endpoint, run_id, least, most, settings))


def own_handler(
    backend: str,
    endpoint: str,
    run_id: str,
    least: int,
    most: int,
    given: Mapping[str, Any],
    *,
    lenient: bool = False,
) -> TcpHandler:
    """One of our own; `lenient`: unknown settings are a warning. Raises `ConfigError`."""
    run_id = run_id or "none"
    if backend in _ETCD:
        etcd, others = etcd_settings.take(given)
        members = etcd_settings.parse_endpoints(endpoint)
        chosen = settings_.make(others, backend, lenient=lenient)
        elect = functools.partial(_elect, members, etcd, run_id, chosen)
        return TcpHandler(backend, members[0], run_id, least, most, chosen, elect)
    chosen = settings_.make(given, backend, lenient=lenient)
    if backend == "static":
        least = most
    return TcpHandler(backend, _endpoint(endpoint, backend), run_id, least, most, chosen)


def _elect(
    members: list[Endpoint],
    etcd: EtcdSettings,
    run_id: str,
    settings: settings_.Settings,
    agent: AgentId,
    now: Callable[[], float],
    key: bytes,
) -> Election:
    try:
        from phalanx._rendezvous.etcd.client import EtcdClient
    except ImportError as error:
        package = error.name or "etcd3gw"
        raise ConfigError(
            f"the etcd rendezvous needs {package}: pip install 'phalanx[etcd]'"
        ) from None
    keys = EtcdClient(members, etcd, run_id)
    limits = settings.host_timeout, etcd.etcd_timeout, settings.join_timeout
    return Election(keys, ValueProof(key, run_id), agent, *limits, now)


def _from_plugin(parameters: RendezvousParameters) -> Any:
    found = {plugin.name: plugin for plugin in (*plugins.of(TORCH_GROUP), *plugins.of(GROUP))}
    if parameters.backend not in found:
        known = [*OWN, *found]
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
