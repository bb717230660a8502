"""Which hosts a launch is on, and how many workers each has. Starts nothing.

A number of workers that depends on the host ("gpu", "cpu", "auto") needs the host's facts: whoever
dials it brings them.
"""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx._core.ids import HostIndex
from phalanx._launcher.transport import slurm, targets
from phalanx._launcher.transport.targets import Target
from phalanx._system import daemon_thread, machine
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions

_LOOKUP = 1.0
"""Seconds for the resolver to say whether a name is this machine's."""


@dataclass(frozen=True)
class ListedHost:
    """A host by the user's name for it, and how to get there; None for this machine."""

    name: str
    target: Target | None = None
    tasks: int | None = None
    """What the host's scheduler has for it."""


@dataclass(frozen=True)
class HostFacts:
    """What a number of workers may depend on."""

    processors: int
    gpus: int


def list_hosts(options: LaunchOptions, environ: Mapping[str, str]) -> list[ListedHost]:
    """The hosts that are named. Raises `ConfigError`."""
    if options.scheduler is not None:
        raise ConfigError(f"scheduler={options.scheduler!r}: only launches borrow hosts.")
    wanted = options.hostnames
    allocated = slurm.is_within(environ) and options.start_method != "inline"
    if wanted in ("slurm", ["slurm"]) or (wanted in ("auto", ["auto"]) and allocated):
        found = slurm.allocation(environ)
        return [
            ListedHost(
                name,
                slurm.srun_target(name, targets.pythons(options.python, name), found.gres(i)),
                None if found.tasks is None else found.tasks[i],
            )
            for i, name in enumerate(found.hosts)
        ]
    names = _names(wanted)
    here = _on_this_machine(names)
    return [
        ListedHost(
            name,
            None
            if name in here
            else targets.ssh_target(
                name,
                targets.pythons(options.python, name),
                config_file=options.ssh_config_file,
                host_timeout=options.host_timeout,
            ),
        )
        for name in names
    ]


def _names(wanted: object) -> tuple[str, ...]:
    if wanted in ("auto", ["auto"]):
        return ("localhost",)
    if isinstance(wanted, str):
        raise ConfigError(
            f'hostnames={wanted!r}: must be "auto", "slurm" or a list of hosts. '
            f"Write hostnames={wanted.split(',')}."
        )
    names = tuple(wanted) if isinstance(wanted, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"hostnames={wanted!r}: must be a list of one or more host names. Leave it out to use "
            "this machine."
        )
    for name in names:
        targets.parse(name)
    return names


def _on_this_machine(names: Sequence[str]) -> set[str]:
    """The names that mean this machine. A resolver that does not answer is not waited for."""
    # A name with a user or a port means that ssh is wanted.
    plain = [n for n in dict.fromkeys(names) if targets.parse(n)[::2] == (None, None)]
    asked = {
        name: daemon_thread.start(functools.partial(machine.is_this_machine, name))
        for name in plain
    }
    wait(asked.values(), _LOOKUP)
    return {name for name, answer in asked.items() if answer.done() and answer.result()}


# ── workers ───────────────────────────────────────────────────────────────────


def unknown_hosts(
    options: LaunchOptions, hosts: Sequence[ListedHost], known: Mapping[str, HostFacts]
) -> list[HostIndex]:
    """The hosts whose facts have to be found out before workers can be counted.

    `known` are the facts of hosts that have an agent already. Raises `ConfigError`.
    """
    return [
        HostIndex(i)
        for i, (_, number, host) in enumerate(_wanted(options, hosts))
        if number is None and host.target is not None and host.name not in known
    ]


def count_workers(
    options: LaunchOptions, hosts: Sequence[ListedHost], facts: Mapping[str, HostFacts]
) -> list[int]:
    """How many workers each host has, by what is known of it. Raises `ConfigError`."""
    return [
        number if number is not None else _count(want, host, facts.get(host.name) or _here())
        for want, number, host in _wanted(options, hosts)
    ]


def _wanted(
    options: LaunchOptions, hosts: Sequence[ListedHost]
) -> list[tuple[object, int | None, ListedHost]]:
    """What was asked for on each host, and the number that this is, where it is one."""
    workers = options.workers_per_host
    if isinstance(workers, Sequence) and not isinstance(workers, str):
        wanted: list[object] = list(workers)
    else:
        wanted = [workers] * len(hosts)
    given = [_number(want) for want in wanted]
    if len(wanted) != len(hosts):
        raise ConfigError(
            f"workers_per_host has {len(wanted)} entries for {len(hosts)} hosts. "
            "Give one number for all hosts, or one per host."
        )
    numbers = [
        host.tasks if want == "auto" and host.tasks is not None and host.tasks > 1 else number
        for number, want, host in zip(given, wanted, hosts, strict=True)
    ]
    return list(zip(wanted, numbers, hosts, strict=True))


def _here() -> HostFacts:
    return HostFacts(machine.processors(), machine.gpus())


def _number(want: object) -> int | None:
    """A number that was given; None for one that depends on the host."""
    if not isinstance(want, bool) and hasattr(want, "__index__"):
        return operator.index(want)
    if want not in ("auto", "cpu", "gpu"):
        raise ConfigError(
            f'workers_per_host={want!r}: must be a number, "cpu", "gpu", "auto" or a list with one '
            "number per host."
        )
    return None


def _count(want: object, host: ListedHost, facts: HostFacts) -> int:
    if want == "cpu":
        return facts.processors
    if want == "gpu" and not facts.gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") if host.target is None else None
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        where = "this machine" if host.target is None else host.name
        raise ConfigError(
            f'workers_per_host="gpu": no NVIDIA GPU is visible on {where}{why}. '
            'Give a number, or "cpu".'
        )
    return facts.gpus or host.tasks or 1
