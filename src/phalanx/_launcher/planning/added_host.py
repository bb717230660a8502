"""A host that is added to an app that runs: the plan with one more."""

from __future__ import annotations

import dataclasses
import os

from phalanx._core.rounds import Member
from phalanx._launcher.planning.hosts import counts as count_workers
from phalanx._launcher.planning.hosts import find as find_places
from phalanx._launcher.planning.plan import Plan
from phalanx.errors import ConfigError


def with_host(plan: Plan, hostname: str, workers: int | None = None) -> Plan:
    """The plan with a host in addition, as its last. Raises `ConfigError`, and `StartFailed` if it
    has to be asked how many workers it takes, and cannot be.
    """
    settings = plan.settings
    if workers is None and not isinstance(settings.workers_per_host, int | str):
        raise ConfigError(
            f"workers_per_host is a list: say how many {hostname} has, as in "
            f"add_host({hostname!r}, workers=4)."
        )
    launcher = dataclasses.replace(
        settings,
        hostnames=[hostname],
        workers_per_host=settings.workers_per_host if workers is None else workers,
    )
    (place,) = find_places(launcher, os.environ)
    if place.target is not None and plan.remote_setup is None:
        raise ConfigError(
            f"{hostname} cannot be added: the app was started for this machine alone. Start it "
            f"with room for more hosts: max_hosts={len(plan.members) + 1} or more."
        )
    (count,), dials = count_workers(launcher, [place], plan.remote_setup, {})
    total = sum(member.workers for member in plan.members)
    member = Member(len(plan.members), place.name, total, count)
    if dials.by_index:
        plan.dials.by_index[member.agent] = dials.by_index[0]
    return dataclasses.replace(
        plan,
        members=(*plan.members, member),
        prepare=(*plan.prepare, plan.make_frame(place, member)),
        places=(*plan.places, place),
    )
