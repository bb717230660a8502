"""A host that a scheduler has lent, by the command that leads there."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx._launcher.transport.targets import Target
from phalanx._schedulers.leases import LentHost


def lent_target(host: LentHost, pythons: Sequence[str]) -> Target:
    """The way to a lent host."""
    return Target(
        host.name,
        tuple(pythons),
        tuple(host.command),
        through_shell=host.through_shell,
        without=host.without,
        reconnect_timeout=host.reconnect_timeout,
        gone_code=host.gone_code,
        group=host.group,
    )
