"""A host that is added to an app that runs: the plan with one more."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from phalanx._core.ids import HostIndex
from phalanx._launcher.planning.listed_hosts import (
    HostFacts,
    ListedHost,
    count_workers,
    list_hosts,
    unknown_hosts,
)
from phalanx._launcher.planning.plan import Plan, with_host
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._launcher.transport.dial import Dial


def add_lent_host(plan: Plan, host: ListedHost, lost: str) -> Plan:
    """The plan with a host as its last, in place of a lost one: it has as many workers."""
    workers = next(m.workers for m in reversed(plan.members) if m.hostname == lost)
    return with_host(plan, host, workers)


def add_host(plan: Plan, hostname: str, workers: int | None) -> tuple[Plan, Dial | None]:
    """The plan with a host as its last, and the dial to it where it had to be asked.

    Raises `ConfigError`, and `StartFailed` if it has to be asked how many workers it takes, and
    cannot be.
    """
    options = plan.options
    if options.scheduler is not None:
        raise ConfigError(f"cannot add {hostname}: {options.scheduler} chooses the hosts.")
    if workers is None and not isinstance(options.workers_per_host, int | str):
        raise ConfigError(
            f"workers_per_host is a list: give the number of workers of {hostname}, as in "
            f"add_host({hostname!r}, workers=4)."
        )
    own = dataclasses.replace(
        options,
        hostnames=[hostname],
        workers_per_host=options.workers_per_host if workers is None else workers,
    )
    (host,) = hosts = list_hosts(own, os.environ)
    if host.target is not None and plan.remote_setup is None:
        raise ConfigError(
            f"cannot add {hostname}: the app was started for this machine only. Start it with "
            f"max_hosts={len(plan.hosts) + 1} or more."
        )
    if not unknown_hosts(own, hosts, {}) or host.target is None or plan.remote_setup is None:
        (count,) = count_workers(own, hosts, {})
        return with_host(plan, host, count), None
    from phalanx._launcher.transport.dial import Dials

    dials = Dials()
    only = HostIndex(0)
    dials.start({only: host.target}, plan.remote_setup, 1)
    try:
        facts = {n: HostFacts(info.processors, info.gpus) for n, info in dials.wait().items()}
        (count,) = count_workers(own, hosts, facts)
    except BaseException:
        dials.give_up()
        raise
    return with_host(plan, host, count), dials.pop(only)
