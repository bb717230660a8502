"""The last collectives of workers, as torch's flight recorder has them: who has not entered which.

Pure. How they are got out of a worker is known elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx._core.limits import AnyCount, Name, Size
from phalanx._core.ranks import ranges

QUESTIONS = "collectives.ask"
"""The pipe in a rank's directory by which its worker is asked for them."""
ANSWER = "collectives"
"""With a number, each of the files in which it answers: what a recorder has, as JSON."""
COMPLETE = "collectives.complete"
"""The file that says how many they are, when they are there."""


@dataclass(frozen=True, slots=True)
class LastCollective:
    """The one that a rank has entered last in a process group."""

    group: Name
    number: Size
    """Counts the group's collectives, on each rank by itself, from 1."""
    name: Name
    """What it is, such as `gloo:all_reduce`."""
    is_done: bool
    ranks: tuple[AnyCount, ...] = ()
    """Those of the group, where they are known."""

    def describe(self) -> str:
        """In a few words."""
        return f"{self.name} (collective {self.number} of {self.group})"


def describe_missing(known: Mapping[int, Sequence[LastCollective]]) -> list[str]:
    """For each group in which ranks wait: the collective, and the ranks that are not in it."""
    by_group: dict[str, dict[int, LastCollective]] = {}
    for rank, records in known.items():
        for record in records:
            by_group.setdefault(record.group, {})[rank] = record
    lines = []
    for members in by_group.values():
        lines += _describe_group(members)
    return lines


def _describe_group(records: Mapping[int, LastCollective]) -> list[str]:
    waiting = {rank: record for rank, record in records.items() if not record.is_done}
    if not waiting:
        return []
    latest = max(waiting.values(), key=lambda record: record.number)
    entered = [rank for rank, record in records.items() if record.number >= latest.number]
    behind = {rank: record for rank, record in records.items() if record.number < latest.number}
    lines = []
    if behind:
        lasts = {record.describe() for record in behind.values()}
        last = f"; the last one that it has entered is {lasts.pop()}" if len(behind) == 1 else ""
        lines.append(
            f"{_some(entered)} {_have(entered)} entered {latest.describe()}, "
            f"{_some(behind)} {_have(behind)} not{last}."
        )
    names = {r.name: [k for k, o in waiting.items() if o.name == r.name] for r in waiting.values()}
    if len(names) > 1 and not behind:
        what = ", ".join(f"{_some(ranks)} in {name}" for name, ranks in names.items())
        lines.append(f"ranks are in different collectives, as number {latest.number}: {what}.")
    unknown = [rank for rank in latest.ranks if rank not in records]
    if unknown and not behind:
        lines.append(
            f"{_some(entered)} {_have(entered)} entered {latest.describe()}, "
            f"{_some(unknown)} {_are(unknown)} not known to have."
        )
    return lines


def _some(ranks: Mapping[int, object] | Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, dash='-')}"


def _are(ranks: Sequence[int]) -> str:
    return "are" if len(ranks) > 1 else "is"


def _have(ranks: Mapping[int, object] | Sequence[int]) -> str:
    return "have" if len(ranks) > 1 else "has"
