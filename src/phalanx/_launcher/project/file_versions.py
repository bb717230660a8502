"""Several hosts have written files of the same name: whose are taken. Pure.

No clock is asked, since those of two hosts cannot be compared. What a host has unchanged since all
last had the same is older than what another host has changed; among those that were changed, the
host of the lowest rank counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Host = TypeVar("Host")


class FileVersion(NamedTuple):
    """What a file is at one time."""

    size: int
    digest: str


@dataclass
class VersionChoice(Generic[Host]):
    """What follows from what hosts have."""

    new: dict[str, tuple[Host, FileVersion]] = field(default_factory=dict)
    """Files that were written since, and the host whose counts."""
    differ: dict[tuple[Host, Host], list[str]] = field(default_factory=dict)
    """By whose counts and whose does not: files of which both have written other versions."""
    removed: set[str] = field(default_factory=set)
    """Files that all had, and workers have removed."""


def choose(
    agreed: Mapping[str, FileVersion],
    holders: Mapping[str, Collection[Host]],
    listings: Sequence[tuple[Host, Mapping[str, FileVersion]]],
) -> VersionChoice[Host]:
    """MakeDecider, from what each host has, in the order of ranks.

    `agreed` are the files as all last had them, `holders` the hosts that did have them.
    """
    choice: VersionChoice[Host] = VersionChoice()
    for host, listed in listings:
        for path, version in listed.items():
            if version == agreed.get(path):
                continue
            first, chosen = choice.new.setdefault(path, (host, version))
            if chosen != version:
                choice.differ.setdefault((first, host), []).append(path)
        for path in agreed.keys() - listed.keys():
            if host in holders.get(path, ()):
                choice.removed.add(path)
    choice.removed -= choice.new.keys()
    return choice
