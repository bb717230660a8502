"""The settings of a rendezvous: what is waited for, and how long. One story for all of them.

come ──join_timeout──► enough hosts ──last_call_timeout──► the first round begins
while it runs: a host that says nothing for host_timeout is lost
after a loss or a failure: enough hosts must be there within join_timeout again
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs import logger
from phalanx.errors import ConfigError

_OF_TORCH = {"read_timeout", "close_timeout", "heartbeat_timeout"}
"""Settings of how torch's rendezvous works within: there is nothing here that they could change."""

_STATIC_TIMEOUT = 900.0
"""Torch's, where hosts are listed."""


@dataclass(frozen=True)
class Settings:
    """How hosts meet."""

    join_timeout: float = 600.0
    """Seconds for enough hosts to come; also after some were lost."""
    last_call_timeout: float = 5.0
    """Seconds that a first round is held for more hosts, once there are enough."""
    host_timeout: float = 15.0
    """Seconds without a word after which a host is given up."""
    is_host: bool | None = None
    """Whether this host decides first; by default the one that has the endpoint's address."""
    node_rank: int | None = None
    """This host's position in the order of ranks; by default hosts are ordered by their names."""
    local_addr: str | None = None
    """The address that others reach this host at; by default the one that leads to the endpoint."""
    token_file: str | None = None
    """A file with the token that hosts of this run prove to each other that they have."""

    @property
    def heartbeat(self) -> float:
        """Seconds between two signs of life."""
        return min(5.0, self.host_timeout / 4)


def make(given: Mapping[str, Any], backend: str = "tcp", *, lenient: bool = False) -> Settings:
    """Settings from names and values, texts among them. Raises `ConfigError`.

    The names that torch's rendezvous has mean the same: `keep_alive_interval` times
    `keep_alive_max_attempt` is `host_timeout`, `rank` is `node_rank`. Its `timeout` is
    `join_timeout`, but for `c10d`, where it has no effect. `lenient`: unknown names are a warning.
    """
    known = {field.name: field.type for field in dataclasses.fields(Settings)}
    values = {name: value for name, value in given.items() if value is not None}
    if values.get("store_type", "tcp") != "tcp":
        raise ConfigError(
            f"store_type={values['store_type']!r}: only tcp is supported. Leave it out."
        )
    interval = values.pop("keep_alive_interval", None)
    attempts = values.pop("keep_alive_max_attempt", None)
    if interval is not None or attempts is not None:
        product = _number("keep_alive_interval", interval or 5) * _number(
            "keep_alive_max_attempt", attempts or 3
        )
        values.setdefault("host_timeout", product)
    if (timeout := values.pop("timeout", None)) is not None:
        if backend == "c10d":
            _ignore("timeout", "it has no effect with c10d. Use join_timeout")
        else:
            values.setdefault("join_timeout", timeout)
    elif backend == "static":
        values.setdefault("join_timeout", _STATIC_TIMEOUT)
    if (rank := values.pop("rank", None)) is not None:
        if _number("rank", rank) != _number("node_rank", values.setdefault("node_rank", rank)):
            raise ConfigError(
                f"rank={rank} and node_rank={values['node_rank']} differ. Remove one of them."
            )
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        if name == "store_type":
            continue
        if name in _OF_TORCH:
            _ignore(name, "it is a setting of torch's own rendezvous")
            continue
        if name not in known:
            hint = did_you_mean(closest(name, known), f"Choose one of {', '.join(known)}.")
            if lenient:
                _ignore(name, f"unknown rendezvous setting.{hint}")
                continue
            raise ConfigError(f"unknown rendezvous setting {name!r}.{hint}")
        chosen[name] = _typed(name, value)
    return Settings(**chosen)


def _ignore(name: str, why: str) -> None:
    logger.warning("phalanx: ignoring %s: %s", name, why)


def _typed(name: str, value: Any) -> Any:
    if name == "is_host":
        return _truth(name, value)
    if name == "node_rank":
        return int(_number(name, value))
    if name in ("local_addr", "token_file"):
        return str(value)
    number = _number(name, value)
    if number < 0 or (number == 0 and name in ("join_timeout", "host_timeout")):
        raise ConfigError(f"{name}={value!r}: must be a number of seconds.")
    return number


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"{name}={value!r}: must be a number.")
    return number


def _truth(name: str, value: Any) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    found = words.get(str(value).lower())
    if found is None:
        raise ConfigError(f"{name}={value!r}: must be 1 or 0.")
    return found
