"""Which hosts a launch is on, and how many workers each has.

A number of workers that depends on the host ("gpu", "cpu", "auto") is not known before the host was
dialled; the agent that is there then is the one that the launch uses.
"""

from __future__ import annotations

import operator
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx._launcher.transport import slurm, targets
from phalanx._launcher.transport.targets import Target
from phalanx._logs.console import STATUS
from phalanx._system import machine
from phalanx.errors import ConfigError, StartFailed

if TYPE_CHECKING:
    from phalanx._launcher.launcher import Launcher
    from phalanx._launcher.transport.dial import Dial, RemoteSetup

_MOMENT, _TOLD_EVERY = 0.9, 0.5
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


@dataclass
class Dials:
    """The hosts that are being dialled, by their position in the list."""

    by_index: dict[int, Dial] = field(default_factory=dict)

    def give_up(self) -> None:
        """End all of it, agents that were reached too. Idempotent."""
        for dial in list(self.by_index.values()):  # a host may be added meanwhile
            dial.give_up()


def find(launcher: Launcher, environ: Mapping[str, str]) -> list[ListedHost]:
    """The hosts. Raises `ConfigError`."""
    wanted = launcher.hostnames
    allocated = slurm.is_within(environ) and launcher.start_method != "inline"
    if wanted in ("slurm", ["slurm"]) or (wanted in ("auto", ["auto"]) and allocated):
        found = slurm.allocation(environ)
        return [
            ListedHost(
                name,
                slurm.srun_target(name, targets.pythons(launcher.python, name), found.gres(i)),
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
                targets.pythons(launcher.python, name),
                config_file=launcher.ssh_config_file,
                host_timeout=launcher.host_timeout,
            ),
        )
        for name in names
    ]


def _names(wanted: object) -> tuple[str, ...]:
    if wanted in ("auto", ["auto"]):
        return ("localhost",)
    if isinstance(wanted, str):
        raise ConfigError(
            f'hostnames={wanted!r} is neither "auto", "slurm" nor a list. '
            f"Write hostnames={wanted.split(',')}."
        )
    names = tuple(wanted) if isinstance(wanted, Sequence) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"hostnames={wanted!r}: give a list of at least one host name, or leave it out for "
            "this machine."
        )
    for name in names:
        targets.parse(name)
    return names


def _on_this_machine(names: Sequence[str]) -> set[str]:
    """The names that mean this machine. A resolver that does not answer is not waited for."""
    found: set[str] = set()

    def look(name: str) -> None:
        if machine.is_this_machine(name):
            found.add(name)

    # A name with a user or a port means that ssh is wanted.
    plain = [n for n in dict.fromkeys(names) if targets.parse(n)[::2] == (None, None)]
    looking = [threading.Thread(target=look, args=(name,), daemon=True) for name in plain]
    for thread in looking:
        thread.start()
    limit = time.monotonic() + _LOOKUP
    for thread in looking:
        thread.join(max(0.0, limit - time.monotonic()))
    return set(found)


# ── workers ───────────────────────────────────────────────────────────────────


def counts(
    launcher: Launcher,
    places: Sequence[ListedHost],
    remote_setup: RemoteSetup | None,
    known: Mapping[str, HostFacts],
) -> tuple[list[int], Dials]:
    """How many workers each host has; hosts that have to be asked are dialled.

    `known` are the facts of hosts with an agent already. Raises `ConfigError`, and `StartFailed`
    for hosts that could not be asked.
    """
    workers = launcher.workers_per_host
    if isinstance(workers, Sequence) and not isinstance(workers, str):
        wanted: list[object] = list(workers)
    else:
        wanted = [workers] * len(places)
    given = [_number(want) for want in wanted]
    if len(wanted) != len(places):
        raise ConfigError(
            f"workers_per_host has {len(wanted)} entries for {len(places)} hosts. "
            "Give one number for all, or one for each host."
        )
    numbers = [
        place.tasks if want == "auto" and place.tasks is not None and place.tasks > 1 else number
        for number, want, place in zip(given, wanted, places, strict=True)
    ]
    dials = Dials()
    asked = [
        i
        for i, (number, place) in enumerate(zip(numbers, places, strict=True))
        if number is None and place.target is not None and place.name not in known
    ]
    if asked and remote_setup is not None:
        from phalanx._launcher.transport.dial import dial_all

        chosen = [target for i in asked if (target := places[i].target) is not None]
        started = dial_all(chosen, remote_setup, launcher.parallel_logins)
        dials.by_index.update(zip(asked, started, strict=True))
    try:
        facts = _ask(places, dials, known)
        result = [
            number if number is not None else _count(want, place, facts.get(place.name) or _here())
            for number, want, place in zip(numbers, wanted, places, strict=True)
        ]
    except BaseException:
        dials.give_up()
        raise
    return result, dials


def _ask(
    places: Sequence[ListedHost], dials: Dials, known: Mapping[str, HostFacts]
) -> dict[str, HostFacts]:
    """What is known of other hosts; waits for those that were dialled, all of them."""
    failures: dict[str, str] = {}
    facts = dict(known)
    _wait(places, dials)
    for index, dial in dials.by_index.items():
        name = places[index].name
        try:
            remote_info = dial.future.result().remote_info
            assert remote_info is not None
            facts[name] = HostFacts(remote_info.processors, remote_info.gpus)
        except StartFailed as error:
            failures[name] = str(error)
    if failures:
        raise not_started(failures)
    return facts


def _wait(places: Sequence[ListedHost], dials: Dials) -> None:
    """Until all have answered or failed; what takes longer than a moment is said on a terminal."""
    began = time.monotonic()
    try:
        while waiting := [i for i, dial in dials.by_index.items() if not dial.future.done()]:
            futures.wait([dials.by_index[i].future for i in waiting], _TOLD_EVERY)
            seconds = time.monotonic() - began
            if seconds > _MOMENT:
                names = ", ".join(dict.fromkeys(places[i].name for i in waiting))
                STATUS.show(dials, f"phalanx: logging in to {names} ({seconds:.0f} s)")
    finally:
        STATUS.show(dials, "")


def _here() -> HostFacts:
    return HostFacts(machine.processors(), machine.gpus())


def not_started(reasons: Mapping[str, str]) -> StartFailed:
    """One error for all hosts that could not be used."""
    first = next(iter(reasons))
    if len(reasons) == 1:
        message = f"the agent on {first} could not be started: {reasons[first]}"
    else:
        told = {name: reason.replace("\n", "\n    ") for name, reason in reasons.items()}
        lines = [f"  {name}: {reason}" for name, reason in told.items()]
        message = f"the agents on {len(reasons)} hosts could not be started:\n" + "\n".join(lines)
    return StartFailed(message, hostname=first)


def _number(want: object) -> int | None:
    """A number that was given; None for one that depends on the host."""
    if not isinstance(want, bool) and hasattr(want, "__index__"):
        return operator.index(want)
    if want not in ("auto", "cpu", "gpu"):
        raise ConfigError(
            f"workers_per_host: {want!r} is not a number of workers. "
            'Give a number, "cpu", "gpu" or "auto", or a list with one number for each host.'
        )
    return None


def _count(want: object, place: ListedHost, facts: HostFacts) -> int:
    if want == "cpu":
        return facts.processors
    if want == "gpu" and not facts.gpus:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") if place.target is None else None
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        where = "this machine" if place.target is None else place.name
        raise ConfigError(
            f'workers_per_host="gpu": no NVIDIA GPU is visible on {where}{why}. '
            'Give a number, or "cpu".'
        )
    return facts.gpus or place.tasks or 1
