"""What a rendezvous is to whoever writes one: `RendezvousHandler`, and what it gives."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._core.host_bounds import check_bounds
from phalanx.errors import ConfigError


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
    local_addr: str | None = None
    """The address that others reach this host at, where it was given."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if not self.backend:
            raise ConfigError("backend is empty: name the kind of rendezvous, such as c10d.")
        check_bounds(self.min_nodes, self.max_nodes)

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, or the default.

        Args:
            key: The setting's name.
            default: What to return where it is not set.
        """
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:  # noqa: FBT001
        """A setting that is on or off, or the default.

        Args:
            key: The setting's name.
            default: What to return where it is not set.

        Raises:
            ConfigError: It is neither.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        text = str(value).lower()
        if text in ("1", "true", "t", "yes", "y"):
            return True
        if text in ("0", "false", "f", "no", "n"):
            return False
        raise ConfigError(f"{key}={value!r}: must be 1 or 0.")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """A setting that is a whole number, or the default.

        Args:
            key: The setting's name.
            default: What to return where it is not set.

        Raises:
            ConfigError: It is no whole number.
        """
        value = self.get(key, default)
        try:
            return None if value is None else int(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{key}={value!r}: must be a whole number.") from None


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
            RendezvousConnectionError: The endpoint could not be reached.
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


def problem_of(handler: Any) -> str:
    """Why something is no rendezvous handler; empty if it is one. Torch's own are as good."""
    needed = ("next_rendezvous", "is_closed", "set_closed", "num_nodes_waiting", "get_run_id")
    missing = [name for name in needed if not callable(getattr(handler, name, None))]
    if inspect.isclass(handler):
        return f"{handler.__name__} is a class, not an instance. Write {handler.__name__}(...)"
    return f"{handler!r} has no {', '.join(missing)}" if missing else ""


def read_info(value: Any) -> RendezvousInfo:
    """What `next_rendezvous` gave, whichever way it is written."""
    if isinstance(value, tuple) and len(value) == 3:
        return RendezvousInfo(*value)
    boot = getattr(value, "bootstrap_store_info", None)
    store_info = None
    if boot is not None:
        store_info = RendezvousStoreInfo(str(boot.master_addr), int(boot.master_port))
    return RendezvousInfo(value.store, int(value.rank), int(value.world_size), store_info)
