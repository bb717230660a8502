"""Python stacks of workers: read from what `faulthandler` writes, equal ones found, put in words.

Pure, but for the lines of source that `describe` looks up.
"""

from __future__ import annotations

import dataclasses
import linecache
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx._core.collectives import LastCollective, describe_missing
from phalanx._core.ranks import ranges

_HEAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3[.\d]*/|^<frozen ")
_OWN = re.compile(r"/phalanx/_(?:worker|torch)/[a-z_]+\.py$|^<frozen runpy>$|/runpy\.py$")
_OUTERMOST = re.compile(rf"^<string>$|{_OWN.pattern}")
_ENDING = re.compile(r"/phalanx/_worker/(?:outcome|shutdown)\.py$")
_COLLECTIVE = re.compile(
    r"/torch/distributed/(?:distributed_c10d|_functional_collectives|rendezvous)\.py$"
    r"|/torch/distributed/nn/functional\.py$"
)

_SOURCE_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One call of a stack."""

    file: str
    line: int
    """0 where it is not known."""
    function: str

    @property
    def is_users(self) -> bool:
        """Neither of the standard library, nor of an installed package, nor ours."""
        return not _LIBRARY.search(self.file) and not _OWN.search(self.file)

    def describe(self, *, code: bool = False) -> str:
        """The location, in a few words; with the line of `code` where its file is here."""
        where = f"{os.path.basename(self.file)}:{self.line} in {self.function}"
        return f"{where}: `{line}`" if code and (line := _source(self)) else where


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """What one thread was doing: its calls, the outermost first, as in a traceback."""

    frames: tuple[StackFrame, ...]
    is_main: bool = False
    name: str = ""
    is_ending: bool = False
    """Its function has ended, and we see to what follows."""

    @property
    def location(self) -> StackFrame | None:
        """The innermost call in the user's own code, or the innermost of all."""
        users = [frame for frame in self.frames if frame.is_users]
        return (users or list(self.frames) or [None])[-1]  # type: ignore[list-item]

    @property
    def in_collective(self) -> bool:
        """It waits in a call of torch.distributed."""
        return any(_COLLECTIVE.search(frame.file) for frame in self.frames)

    def lines(self, *, users_only: bool = False) -> list[str]:
        """As Python prints a traceback, with the source where it is here; of what is not the
        user's, with `users_only`, the innermost call alone.
        """
        lines = []
        for frame in self.frames:
            if users_only and not frame.is_users and frame is not self.frames[-1]:
                continue
            lines.append(f'File "{frame.file}", line {frame.line or "?"}, in {frame.function}')
            if code := _source(frame):
                lines.append(f"  {code}")
        return lines or ["(no Python code)"]


def _source(frame: StackFrame) -> str:
    """The line of code, if the file is here, or a notebook's cell: another host has named it."""
    if frame.file not in linecache.cache:
        try:
            known = os.stat(frame.file)
        except (OSError, ValueError):
            return ""
        if not stat.S_ISREG(known.st_mode) or known.st_size > _SOURCE_LIMIT:
            return ""
    return linecache.getline(frame.file, frame.line).strip()


@dataclass(frozen=True, slots=True)
class RankStacks:
    """The stacks of one worker's threads, the main one first; or why there are none."""

    rank: int
    hostname: str = ""
    pid: int | None = None
    threads: tuple[ThreadStack, ...] = ()
    problem: str = ""
    """Why there are none; with stacks, what else is the matter."""
    native: str = ""
    """Its native frames, as a debugger has printed them."""
    collectives: tuple[LastCollective, ...] = ()
    """What torch's flight recorder says of it, where there is one."""

    @property
    def in_collective(self) -> bool:
        """One of its threads waits in a call of torch.distributed, or a collective is not done."""
        waits = any(not collective.is_done for collective in self.collectives)
        return waits or any(thread.in_collective for thread in self.threads)

    @property
    def waits_for_others(self) -> bool:
        """It is in a collective, and nothing else is the matter with it: another keeps it waiting.

        One that is stopped there, or stuck in the kernel, is whom the others wait for.
        """
        return self.in_collective and not self.problem

    @property
    def main(self) -> ThreadStack | None:
        """That of the main thread."""
        return next((thread for thread in self.threads if thread.is_main), None)


def parse(text: str) -> tuple[ThreadStack, ...]:
    """The stacks in what `faulthandler` has written; lines that are none of its are passed over."""
    found: list[tuple[str, str, list[StackFrame]]] = []
    for line in text.splitlines():
        if head := _HEAD.fullmatch(line):
            found.append((head[1], head[2] or "", []))
        elif found and (frame := _FRAME.fullmatch(line)):
            number = int(frame[2]) if frame[2].isdigit() else 0
            found[-1][2].append(StackFrame(frame[1], number, frame[3]))
    # The one that took the signal; that is the main thread unless it blocks signals. Threads are
    # listed from the newest to the oldest.
    current = [i for i, (kind, _, _) in enumerate(found) if kind == "Current thread"]
    main = current[0] if current else len(found) - 1
    threads = [
        ThreadStack(
            _without_ours(frames),
            i == main,
            name,
            is_ending=any(_ENDING.search(frame.file) for frame in frames),
        )
        for i, (_, name, frames) in enumerate(found)
    ]
    known = [thread for thread in threads if not _is_ours(thread)]
    return tuple(sorted(known, key=lambda thread: not thread.is_main))


def _is_ours(thread: ThreadStack) -> bool:
    """A thread of our own, which answers questions."""
    own = [bool(_OWN.search(frame.file)) for frame in thread.frames]
    return not thread.is_main and bool(own) and all(own)


def _without_ours(frames: list[StackFrame]) -> tuple[StackFrame, ...]:
    """The outermost first, from the first that is not what we begin a worker with."""
    ordered = frames[::-1]
    start = next((i for i, frame in enumerate(ordered) if not _OUTERMOST.search(frame.file)), None)
    return tuple(ordered if start is None else ordered[start:])


def group(stacks: Iterable[RankStacks]) -> dict[ThreadStack, tuple[int, ...]]:
    """Equal stacks of threads together, with their ranks: main threads first, the rarest of them
    first, since one that is alone is what is looked for.
    """
    ranks: dict[ThreadStack, set[int]] = {}
    for one in stacks:
        for thread in one.threads:
            ranks.setdefault(thread, set()).add(one.rank)
    order = sorted(
        ranks, key=lambda t: (not t.is_main, len(ranks[t]), t.in_collective, min(ranks[t]))
    )
    return {thread: tuple(sorted(ranks[thread])) for thread in order}


def in_short(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0-2, 5`."""
    ranks = list(ranks)
    return f"rank{'s' if len(ranks) > 1 else ''} {ranges(ranks, dash='-')}"


def describe(stacks: Iterable[RankStacks]) -> str:
    """All of them, equal ones together; and the ranks that gave none."""
    known = list(stacks)
    return describe_with(known, known)


def describe_with(known: Sequence[RankStacks], others: Iterable[RankStacks]) -> str:
    """The same, after who is not in the collective that others of these wait in."""
    parts = [missing] if (missing := _describe_missing(list(others))) else []
    for thread, ranks in group(known).items():
        name = f" ({thread.name})" if thread.name and not thread.is_main else ""
        which = _at(thread) if thread.is_main else f", another thread{name}"
        lines = "".join(f"\n  {line}" for line in thread.lines())
        parts.append(f"{in_short(ranks)}{which}:{lines}")
    for one in known:
        if one.native:
            lines = "".join(f"\n  {line}" for line in one.native.splitlines())
            parts.append(f"rank {one.rank}, native frames:{lines}")
    silent: dict[str, list[int]] = {}
    for one in known:
        if one.problem:
            silent.setdefault(one.problem, []).append(one.rank)
    parts += [f"{in_short(ranks)}: {problem}" for problem, ranks in silent.items()]
    return "\n\n".join(parts)


def _at(thread: ThreadStack) -> str:
    """Where in the user's code it is."""
    location = thread.location
    return f", in {location.describe()}" if location is not None and location.is_users else ""


def _describe_missing(stacks: Sequence[RankStacks]) -> str:
    """Who is not in the collective that the others wait in; empty where nobody waits."""
    if lines := describe_missing({one.rank: one.collectives for one in stacks}):
        return "\n".join(lines)
    waiting = [one for one in stacks if one.in_collective]
    missing = [one for one in stacks if not one.in_collective]
    if not waiting or not missing:
        return ""
    host = f" on {missing[0].hostname}" if len(missing) == 1 and missing[0].hostname else ""
    who, others = in_short(one.rank for one in missing), in_short(one.rank for one in waiting)
    is_, wait = "is" if len(missing) == 1 else "are", "waits" if len(waiting) == 1 else "wait"
    return f"{who}{host} {is_} not in the collective that {others} {wait} in."


def describe_hung(reason: str, stacks: RankStacks) -> str:
    """What is said of one that does not get on: why it is taken for hung, and where it is."""
    location = stacks.main.location if stacks.main is not None else None
    if location is None:
        return f"{reason}; {stacks.problem}" if stacks.problem else reason
    waits = next((last.describe() for last in stacks.collectives if not last.is_done), "")
    collective = f"waiting in {waits or 'a collective'}, " if stacks.in_collective else ""
    state = f"{stacks.problem}, " if stacks.problem else "it is "
    return f"{reason}; {state}{collective}in {location.describe(code=True)}"


def describe_stopped(stacks: Mapping[int, RankStacks]) -> list[str]:
    """Where the ranks were that were stopped because another had given up waiting for somebody:
    first those that were not where it waited.
    """
    ending: list[int] = []
    waiting: dict[str, list[int]] = {}
    silent: dict[str, list[int]] = {}
    for rank, one in sorted(stacks.items()):
        if (main := one.main) is None:
            silent.setdefault(one.problem or "no Python stack", []).append(rank)
        elif main.is_ending:
            ending.append(rank)
        elif one.in_collective:
            location = main.location
            waiting.setdefault(location.describe() if location else "?", []).append(rank)
    lines = []
    for stack, said in _elsewhere(stacks).items():
        lines += [said, "", *(f"  {line}" for line in stack.lines(users_only=True)), ""]
    lines += describe_missing({rank: one.collectives for rank, one in stacks.items()})
    for where, ranks in waiting.items():
        was = "was" if len(ranks) == 1 else "were"
        lines.append(f"{in_short(ranks)} {was} in a collective, in {where}.")
    for problem, ranks in silent.items():
        lines.append(f"{in_short(ranks)} returned no stack: {problem}.")
    if ending:
        lines.append(f"{in_short(ending)} had just ended, too.")
    return lines[:-1] if lines and not lines[-1] else lines


def describe_missed(stacks: Mapping[int, RankStacks]) -> str:
    """Which of these were not where the others waited, and where they were, in one line."""
    return "; ".join(_elsewhere(stacks).values())


def _elsewhere(stacks: Mapping[int, RankStacks]) -> dict[ThreadStack, str]:
    """The stacks of those that were in no collective, and that in words."""
    elsewhere: dict[ThreadStack, list[int]] = {}
    for rank, one in sorted(stacks.items()):
        if (main := one.main) is not None and not main.is_ending and not one.in_collective:
            elsewhere.setdefault(main, []).append(rank)
    found = {}
    for stack, ranks in elsewhere.items():
        was, it = ("was", "it was") if len(ranks) == 1 else ("were", "they were")
        where = stack.location.describe() if stack.location else "no Python code"
        host = f" on {stacks[ranks[0]].hostname}" if len(ranks) == 1 else ""
        found[stack] = f"{in_short(ranks)}{host} {was} not in the collective: {it} in {where}"
    return found


def to_dict(stacks: RankStacks) -> dict[str, Any]:
    """As plain data."""
    threads = [
        {
            "main": thread.is_main,
            "name": thread.name,
            "frames": [
                {"file": f.file, "line": f.line, "function": f.function} for f in thread.frames
            ],
        }
        for thread in stacks.threads
    ]
    return {
        "rank": stacks.rank,
        "hostname": stacks.hostname,
        "pid": stacks.pid,
        "problem": stacks.problem,
        "native": stacks.native,
        "collectives": [dataclasses.asdict(last) for last in stacks.collectives],
        "threads": threads,
    }


def _collective(plain: Mapping[str, Any]) -> LastCollective:
    return LastCollective(
        group=str(plain["group"]),
        number=int(plain["number"]),
        name=str(plain["name"]),
        is_done=bool(plain["is_done"]),
        ranks=tuple(map(int, plain["ranks"])),
    )


def from_dict(plain: Mapping[str, Any]) -> RankStacks:
    """Back from plain data. Raises `KeyError`, `TypeError` or `ValueError` for anything else."""
    threads = tuple(
        ThreadStack(
            tuple(
                StackFrame(str(f["file"]), int(f["line"]), str(f["function"]))
                for f in thread["frames"]
            ),
            bool(thread["main"]),
            str(thread["name"]),
        )
        for thread in plain["threads"]
    )
    return RankStacks(
        rank=int(plain["rank"]),
        hostname=str(plain["hostname"]),
        pid=plain["pid"],
        threads=threads,
        problem=str(plain["problem"]),
        native=str(plain.get("native", "")),
        collectives=tuple(_collective(last) for last in plain.get("collectives", ())),
    )
