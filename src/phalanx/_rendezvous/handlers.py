"""How hosts meet, as something to choose or to write oneself: `RendezvousHandler`.

`get_handler` gives the one of a name: `static` and `tcp` (also known as `c10d`) are ours, others
come from packages that register them under the entry point `phalanx.rendezvous`. A handler of one's
own blocks in `next_rendezvous`; the agent calls it on a thread.
"""

from __future__ import annotations

import difflib
import inspect
import ipaddress
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx import _plugins as plugins
from phalanx._core.rounds import Endpoint
from phalanx._rendezvous import settings as settings_
from phalanx._rendezvous.settings import Settings
from phalanx.errors import ConfigError, PluginError

GROUP = "phalanx.rendezvous"
"""Where packages register rendezvous of their own: a function of `RendezvousParameters`."""

STATIC_PORT = 29500


@dataclass(frozen=True)
class RendezvousStoreInfo:
    """Where workers find the store."""

    master_addr: str
    """Its address."""
    master_port: int
    """Its port."""


@dataclass(frozen=True)
class RendezvousInfo:
    """What hosts that met have agreed on: this host's rank among them, and how many they are."""

    store: Any
    """Where hosts exchange keys and values."""
    rank: int
    """This host's rank."""
    world_size: int
    """How many hosts there are."""
    bootstrap_store_info: RendezvousStoreInfo | None = None
    """Where workers find the store, if the handler knows."""


@dataclass(frozen=True)
class RendezvousParameters:
    """What a rendezvous is made from."""

    backend: str
    """The name of the kind."""
    endpoint: str
    """Where hosts meet, as it was given."""
    run_id: str
    """What names the app."""
    min_nodes: int
    """The fewest hosts in a round."""
    max_nodes: int
    """The most hosts in a round."""
    config: Mapping[str, Any]
    """The settings."""

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, or the default.

        Args:
            key: The setting's name.
            default: What to return where it is not set.
        """
        return self.config.get(key, default)


class RendezvousHandler(ABC):
    """Where the hosts of an app meet. Subclass it for a rendezvous of your own.

    Hosts that are in the same rendezvous must get different ranks, contiguous from 0, and the same
    `world_size`; a host that calls `next_rendezvous` again leaves the last one.
    """

    @abstractmethod
    def get_backend(self) -> str:
        """The name of the kind of rendezvous."""

    @property
    def use_agent_store(self) -> bool:
        """Workers may use the store that the handler carries, instead of one for each round."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> Any:
        """Block until enough hosts are there.

        Returns:
            A `RendezvousInfo`, or a tuple `(store, rank, world_size)`.

        Raises:
            RendezvousClosedError: Nobody meets there any more.
            RendezvousTimeoutError: Not enough hosts came in time.
            RendezvousConnectionError: The place where they meet could not be reached.
            RendezvousStateError: What was found there makes no sense.
            RendezvousGracefulExitError: This host is not needed, and may end.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Nobody meets there any more."""

    @abstractmethod
    def set_closed(self) -> None:
        """Have nobody meet there any more."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many hosts wait for the next rendezvous; with some, the workers are restarted."""

    @abstractmethod
    def get_run_id(self) -> str:
        """What names the app."""

    def shutdown(self) -> bool:
        """Let go of everything; whether that went well."""
        return True


Factory = Callable[[RendezvousParameters], Any]


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
        hint = f" Did you mean {near[0]!r}?" if near else f" There are: {', '.join(known)}."
        raise ConfigError(f"there is no rendezvous {parameters.backend!r}.{hint}")
    plugin = found[parameters.backend]
    factory: Factory = plugin.load()
    try:
        handler = factory(parameters)
    except Exception as error:
        raise PluginError(plugin, f"{type(error).__name__}: {error}") from error
    if problem := problem_of(handler):
        raise PluginError(plugin, problem)
    return handler


def problem_of(handler: Any) -> str:
    """Why something is no rendezvous handler; empty if it is one. Torch's own are as good."""
    needed = ("next_rendezvous", "is_closed", "set_closed", "num_nodes_waiting", "get_run_id")
    missing = [name for name in needed if not callable(getattr(handler, name, None))]
    if inspect.isclass(handler):
        return f"{handler.__name__} is a class, not an instance. Write {handler.__name__}(...)"
    return f"{handler!r} has no {', '.join(missing)}" if missing else ""


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


def read_info(value: Any) -> RendezvousInfo:
    """What `next_rendezvous` gave, whichever way it is written."""
    if isinstance(value, tuple) and len(value) == 3:
        return RendezvousInfo(*value)
    boot = getattr(value, "bootstrap_store_info", None)
    place = None
    if boot is not None:
        place = RendezvousStoreInfo(str(boot.master_addr), int(boot.master_port))
    return RendezvousInfo(value.store, int(value.rank), int(value.world_size), place)


__all__ = [
    "RendezvousHandler",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousStoreInfo",
    "Settings",
    "get_handler",
]
