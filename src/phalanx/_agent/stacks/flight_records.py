"""The last collectives of this host's workers, asked of torch's flight recorder in each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable

from phalanx._core.collectives import ANSWER, COMPLETE, QUESTIONS, LastCollective
from phalanx._worker.outcome import open_regular

_LARGEST = 64 << 20
_RECORDERS = 4
_GROUPS = 64
_LONGEST_NAME = 200
_PAUSE = 0.01


async def take(directories: Iterable[str], seconds: float) -> dict[str, tuple[LastCollective, ...]]:
    """The last collective of each group, by the directory of the rank, for those that answer in so
    many seconds.
    """
    until = time.monotonic() + seconds
    asked = {path for path in directories if _ask(path)}
    found = {}
    while asked:
        for path in list(asked):
            if (records := _answer(path)) is not None:
                found[path] = records
                asked.remove(path)
        if time.monotonic() >= until:
            break
        await asyncio.sleep(_PAUSE)
    return found


def _ask(directory: str) -> bool:
    """Ask a worker; False where nobody listens."""
    path = os.path.join(directory, QUESTIONS)
    with contextlib.suppress(OSError):
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            return False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, COMPLETE))
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(number, b"\n")
        finally:
            os.close(number)
        return True
    return False


def _answer(directory: str) -> tuple[LastCollective, ...] | None:
    """What is in the files, once they are complete. A worker's: they may be anything."""
    records: list[LastCollective] = []
    try:
        with open_regular(os.path.join(directory, COMPLETE)) as file:
            count = int(file.read(8))
    except (OSError, ValueError):
        return None
    for number in range(min(count, _RECORDERS)):
        path = os.path.join(directory, f"{ANSWER}-{number}")
        with contextlib.suppress(OSError), open_regular(path) as file:
            records += parse(file.read(_LARGEST))
    return tuple(records)


def parse(data: bytes) -> list[LastCollective]:
    """The last collective of each group in what the flight recorder has dumped."""
    last: dict[str, LastCollective] = {}
    try:
        dump = json.loads(data)
        members = _members(dump.get("pg_config") or {})
        for entry in dump.get("entries") or ():
            if entry.get("is_p2p"):
                continue
            name, description = (str(part) for part in entry["process_group"])
            number = int(entry["collective_seq_id"])
            if name not in last or number >= last[name].number:
                last[name] = LastCollective(
                    group=(description or name)[:_LONGEST_NAME],
                    number=max(0, number),
                    name=str(entry["profiling_name"])[:_LONGEST_NAME],
                    is_done=bool(entry.get("retired")) or entry.get("state") == "completed",
                    ranks=members.get(name, members.get("", ())),
                )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return []  # it is a worker's file
    return list(last.values())[:_GROUPS]


def _members(configured: dict[str, dict[str, str]]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group. torch has those of the default one under no name, or under 0."""
    return {
        str(name): tuple(map(int, re.findall(r"\d+", str(config.get("ranks", "")))))
        for name, config in configured.items()
    }
