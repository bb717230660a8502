"""How many hosts a round may have: `min_hosts`, `max_hosts`, and their defaults. Pure."""

from __future__ import annotations

from phalanx.errors import ConfigError


def check_bounds(fewest: object, most: object) -> None:
    """Refuse what is no number of hosts; None is the default. Raises `ConfigError`."""
    for name, value in (("min_hosts", fewest), ("max_hosts", most)):
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name}={value!r}: give a number of hosts, at least 1.")
    if isinstance(fewest, int) and isinstance(most, int) and fewest > most:
        raise ConfigError(f"min_hosts={fewest} is more than max_hosts={most}.")


def host_bounds(count: int, fewest: int | None, most: int | None) -> tuple[int, int]:
    """The fewest and the most of so many hosts; all that there is room for, unless it is said."""
    most = most or count
    return fewest or min(count, most), most
