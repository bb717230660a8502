"""Files that workers wrote, between hosts that share no directory: home, and to the others.

Before every round but the first, the files that the patterns mean come home from the hosts that are
there, and go to those that lack them, or have older ones. In the end they come home once more. What
a host says is not believed: paths are checked, only what is meant is written, and only if it is
what was announced. A host that cannot, or lies, loses its own files' way home and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx import _wire as wire
from phalanx._channel.transfer import describe, in_batches
from phalanx._core.ids import AgentId
from phalanx._core.patterns import Patterns, shown
from phalanx._core.rounds import Member, Round
from phalanx._launcher.project.file_versions import FileVersion, VersionChoice, choose
from phalanx._launcher.project.remote_files import FileAgent, RemoteFiles
from phalanx._logs import PASSING, logger
from phalanx._system.filetree import FileTree

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions

_LARGE = 64 << 20
"""Bytes from which on it is said that files are on their way: it may take a while."""
_COUNTED = 1_000_000
"""Bytes from which on it is said how many have come; less than that, files alone are counted."""
_TOLD_EVERY = 1.0
_NAMED = 3
_LONG = 160
_LAST_WARNING = 2.0
"""Seconds that an app that has ended waits for what there is to warn of."""

Source = RemoteFiles | None
"""A host with files of its own; None: the launcher's directory, and whoever shares it."""


class FileFetcher:
    """The files of one app."""

    def __init__(
        self,
        options: LaunchOptions,
        directory: str | None,
        hostname: Callable[[AgentId], str],
        hold: Callable[[set[str]], object],
        on_progress: Callable[[], None],
        spawn: Callable[[Coroutine[None, None, None]], asyncio.Task[None]],
    ) -> None:
        """Files come home into `directory`. `hostname` names an agent's host.

        `hold` is called with paths of files of ours before others take their places,
        `on_progress` now and then while something moves; `spawn` does something on the side.
        """
        self.problems: tuple[str, ...] = ()
        """What could not be brought home in the end."""
        self._patterns = Patterns(options.fetch)
        self._is_hostwise = options.restart == "host"
        self._home = FileTree(directory or os.curdir)
        self._hostname = hostname
        self._hold = hold
        self._on_progress = on_progress
        self._spawn = spawn
        self._remotes: dict[FileAgent, RemoteFiles] = {}
        self._agreed: dict[str, FileVersion] = {}
        self._holders: dict[str, set[Source]] = {}
        self._last: tuple[Member, ...] = ()
        self._states: dict[str, tuple[int, ...]] = {}
        """What was in our own directory, and how, when hosts last had the same."""
        self._warned: set[str] = set()
        self._lock = asyncio.Lock()
        self._moving: asyncio.Task[None] | None = None
        self._warning: asyncio.Task[None] | None = None
        self._gave_up = False
        self._began = time.time_ns()
        self._files = self._files_moved = 0
        self._bytes = self._bytes_moved = 0
        self._told = 0.0
        self._what = ""

    def hear(self, agent: FileAgent, frame: Any) -> None:
        """An agent has said something about files."""
        if (remote := self._remotes.get(agent)) is not None:
            remote.hear(frame)

    def describe(self) -> str:
        """What is on its way, in a few words; empty when nothing is."""
        if not self._files:
            return ""
        counts = []
        if self._files > 1:
            counts.append(f"{self._files_moved} of {self._files} files")
        if self._files == 1 or self._bytes >= _COUNTED:
            counts.append(f"{self._bytes_moved / 1e6:.1f} of {self._bytes / 1e6:.1f} MB")
        return f"{self._what}: {', '.join(counts)}"

    def stop(self) -> None:
        """Give up what is on its way."""
        if self._moving is not None:
            self._moving.cancel()

    def give_up(self) -> None:
        """Whoever asked for the end does not wait for files either."""
        self._gave_up = True
        self.stop()

    # ── between rounds ────────────────────────────────────────────────────────

    async def exchange(self, round_: Round, agents: Mapping[AgentId, FileAgent]) -> bool:
        """Before a round begins: have what was written where it will be wanted.

        Gives whether it was done; `stop` may have been called. With `restart="host"` every host
        keeps to itself until the end.
        """
        async with self._lock:
            last, self._last = self._last, round_.members
            if self._is_hostwise:
                return True
            if not self._patterns:
                if last and not self._warned:
                    self._warning = self._spawn(self._warn_of_unshared(last, round_, agents))
                return True
            if last:
                return await self._run(self._exchange(last, round_, agents))
            if len({bool(agent.hello and agent.hello.apart) for agent in agents.values()}) > 1:
                self._states = dict(await asyncio.to_thread(self._look_here))
            return True

    async def _exchange(
        self, last: Sequence[Member], round_: Round, agents: Mapping[AgentId, FileAgent]
    ) -> None:
        listings = await self._list(last, agents)
        failed = await self._fetch(listings, self._say)
        members = {member.agent for member in round_.members}
        wanting = [self._remotes.get(agent) for i, agent in agents.items() if i in members]
        offers = {
            remote: {
                path: version
                for path, version in self._agreed.items()
                if path not in failed and listings[remote].get(path) != version
            }
            for remote in wanting
            if remote in listings and remote is not None
        }
        self._begin({remote: offer for remote, offer in offers.items() if offer}, "to")
        await _all(self._offer(remote, offer) for remote, offer in offers.items())

    async def _offer(self, remote: RemoteFiles, offer: Mapping[str, FileVersion]) -> None:
        move = _until_silent(lambda batch: remote.offer(batch, self._count))
        for batch in in_batches(wire.WrittenFile(path, *offer[path]) for path in offer):
            problems = await move(batch)
            for position, file in enumerate(batch):
                if position not in problems:
                    self._holders.setdefault(file.path, set()).add(remote)
            for names, problem in _by_problem(batch, problems):
                self._say(f"cannot copy {names} to {remote.hostname}: {problem}")
            self._count(0, files=len(batch))

    async def _warn_of_unshared(
        self, last: Sequence[Member], round_: Round, agents: Mapping[AgentId, FileAgent]
    ) -> None:
        """Once: that what workers wrote on one host is not on another that takes part now."""
        everything = Patterns(["**"])
        written: dict[str, set[str]] = {}
        names = [member.hostname for member in round_.members]
        for member in last:
            agent = agents.get(member.agent)
            if agent is None or agent.is_gone or agent.hello is None or not agent.hello.apart:
                continue
            remote = self._remote(member.agent, agent)
            with contextlib.suppress(OSError):
                written[remote.hostname] = {*(await remote.list(everything, digests=False)).files}
        for host, paths in written.items():
            alone = {
                p: [n for n in names if n != host and p not in written.get(n, ())] for p in paths
            }
            if found := sorted(path for path, missing in alone.items() if missing):
                directory = os.path.dirname(found[0])
                pattern = f"{directory}/*" if directory else found[0]
                missing = some_names(name for path in found for name in alone[path])
                self._say(
                    f"{host}: workers wrote {some_names(map(shown, found))}, which {missing} "
                    "cannot see: the hosts share no directory. Use a shared one, or "
                    f"fetch=[{shown(pattern)!r}]"
                )
                return

    # ── the end ───────────────────────────────────────────────────────────────

    async def bring_home(
        self, members: Sequence[Member], agents: Mapping[AgentId, FileAgent]
    ) -> None:
        """When the app has ended: have all of it here. What cannot be is in `problems`."""
        if self._warning is not None:
            await asyncio.wait({self._warning}, timeout=_LAST_WARNING)
        if not self._patterns or not self._last:
            return
        async with self._lock:
            problems: list[str] = []
            if not await self._run(self._bring_home(members, agents, problems)):
                problems.append("fetching was given up: files of workers remain on their hosts")
                self._say(problems[-1])
            self.problems = tuple(problems)

    async def _bring_home(
        self, members: Sequence[Member], agents: Mapping[AgentId, FileAgent], problems: list[str]
    ) -> None:
        def fail(problem: str) -> None:
            problems.append(problem)
            self._say(problem)

        listings = await self._list(members, agents, fail)
        if not listings:
            return
        before = dict(self._agreed)
        failed = await self._fetch(listings, fail)
        written = {path for listed in listings.values() for path in listed}
        for unused in self._patterns.unused({*written, *before}):
            self._say(f"fetch: workers wrote no file that matches {unused!r}")
        for remote, listed in listings.items():
            home = [
                path
                for path, version in listed.items()
                if path not in failed and version in (self._agreed.get(path), before.get(path))
            ]
            if remote is not None and home:
                await remote.drop(home)

    # ── parts of both ─────────────────────────────────────────────────────────

    async def _run(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do it, unless `stop` is called; gives whether it was done."""
        self._moving = asyncio.create_task(work)
        if self._gave_up:
            self._moving.cancel()
        try:
            await asyncio.wait({self._moving})
        finally:
            self._moving.cancel()
            self._files = 0
        if self._moving.cancelled():
            return False
        self._moving.result()
        return True

    async def _list(
        self,
        members: Sequence[Member],
        agents: Mapping[AgentId, FileAgent],
        fail: Callable[[str], None] | None = None,
    ) -> dict[Source, dict[str, FileVersion]]:
        """What there is, in the order of the ranks that hosts had."""
        ranks = {member.agent: member.first_rank for member in members}
        order = sorted(agents, key=lambda agent_id: (ranks.get(agent_id, 1 << 30), agent_id))
        sources: dict[Source, dict[str, FileVersion]] = {}
        for agent_id in order:
            agent = agents[agent_id]
            if agent.hello is None or agent.is_gone:
                continue
            if not agent.hello.apart:
                if agent_id in ranks:
                    sources.setdefault(None, {})
                continue
            sources[self._remote(agent_id, agent)] = {}
        if not any(sources):
            return {}  # all share our directory
        await _all(self._list_one(source, sources, fail or self._say) for source in [*sources])
        return sources

    def _remote(self, agent_id: AgentId, agent: FileAgent) -> RemoteFiles:
        if agent not in self._remotes:
            self._remotes[agent] = RemoteFiles(agent, self._hostname(agent_id), self._home)
        return self._remotes[agent]

    async def _list_one(
        self,
        source: Source,
        sources: dict[Source, dict[str, FileVersion]],
        fail: Callable[[str], None],
    ) -> None:
        if source is None:
            sources[None] = await asyncio.to_thread(self._list_here)
            return
        try:
            listing = await source.list(self._patterns, self._count)
        except (OSError, ValueError) as error:
            del sources[source]
            fail(f"cannot fetch files from {source.hostname}: {describe(error)}")
            return
        sources[source] = listing.files
        for path, problem in listing.unread.items():
            fail(f"cannot fetch {_brief(path)} from {source.hostname}: {problem}")

    async def _fetch(
        self, listings: Mapping[Source, Mapping[str, FileVersion]], fail: Callable[[str], None]
    ) -> set[str]:
        """Have here what was written; gives what could not be had."""
        choice = choose(self._agreed, self._holders, list(listings.items()))
        self._tell_differences(choice)
        for path in choice.removed:
            del self._agreed[path]
        wanted: dict[Source, dict[str, FileVersion]] = {}
        for path, (source, version) in choice.new.items():
            wanted.setdefault(source, {})[path] = version
        self._begin({source: files for source, files in wanted.items() if source}, "from")
        failed: set[str] = set()
        if None not in listings:
            self._tell_replaced(wanted)
        await _all(
            self._fetch_from(source, files, failed, fail) for source, files in wanted.items()
        )
        self._holders = {
            path: {source for source, listed in listings.items() if listed.get(path) == version}
            for path, version in self._agreed.items()
        }
        return failed

    async def _fetch_from(
        self,
        source: Source,
        files: Mapping[str, FileVersion],
        failed: set[str],
        fail: Callable[[str], None],
    ) -> None:
        if source is None:
            self._agreed |= files
            return

        def fetch(batch: Sequence[wire.WrittenFile]) -> Coroutine[Any, Any, dict[int, str]]:
            self._hold({os.path.join(self._home.root, file.path) for file in batch})
            return source.fetch(batch, self._count)

        move = _until_silent(fetch)
        for batch in in_batches(wire.WrittenFile(path, *files[path]) for path in files):
            problems = await move(batch)
            here = [file.path for position, file in enumerate(batch) if position not in problems]
            await asyncio.to_thread(self._note_states, here)
            self._agreed |= {path: files[path] for path in here}
            failed |= {batch[position].path for position in problems}
            for names, problem in _by_problem(batch, problems):
                fail(f"cannot fetch {names} from {source.hostname}: {problem}")
            self._count(0, files=len(batch))

    # ── here ──────────────────────────────────────────────────────────────────

    def _look_here(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(found.path, found.state) for found in self._home.files(self._patterns)]

    def _list_here(self) -> dict[str, FileVersion]:
        """What workers wrote into our own directory: what is not as it was. In a thread."""
        listed = {}
        for path, state in self._look_here():
            if self._states.get(path) != state:
                with contextlib.suppress(OSError):
                    listed[path] = FileVersion(state[2], self._home.digest(path))
            elif path in self._agreed:
                listed[path] = self._agreed[path]
        return listed

    def _note_states(self, paths: Iterable[str]) -> None:
        """In a thread."""
        for path in paths:
            self._states |= {f.path: f.state for f in self._home.look(path, self._patterns)}

    # ── what is said ──────────────────────────────────────────────────────────

    def _begin(self, moving: Mapping[RemoteFiles, Mapping[str, FileVersion]], way: str) -> None:
        names = some_names(remote.hostname for remote in moving)
        self._what = (
            f"fetching files {way} {names}" if way == "from" else f"sending files to {names}"
        )
        sizes = [version.size for files in moving.values() for version in files.values()]
        self._files, self._files_moved = len(sizes), 0
        self._bytes, self._bytes_moved = sum(sizes), 0
        if self._bytes >= _LARGE:
            said = self._what, self._bytes / 1e6
            logger.warning("phalanx: %s, %.0f MB", *said, extra={PASSING: True})

    def _count(self, size: int, *, files: int = 0) -> None:
        self._bytes_moved += size
        self._files_moved += files
        if time.monotonic() - self._told > _TOLD_EVERY:
            self._told = time.monotonic()
            self._on_progress()

    def _say(self, problem: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            logger.warning("phalanx: %s", problem)

    def _tell_differences(self, choice: VersionChoice[Source]) -> None:
        here = "the launcher's directory"
        for (first, other), paths in choice.differ.items():
            winner, loser = (here if s is None else s.hostname for s in (first, other))
            self._say(
                f"{winner} and {loser} wrote different {some_names(map(shown, paths))}: "
                f"keeping that of {winner}, which has the lower rank"
            )

    def _tell_replaced(self, wanted: Mapping[Source, Mapping[str, FileVersion]]) -> None:
        """Say which files somebody else has written here since the app began."""
        for source, files in wanted.items():
            for path in files:
                for found in self._home.look(path, self._patterns):
                    known = self._states.get(path) == found.state
                    if not known and found.changed > self._began and source is not None:
                        self._say(
                            f"{shown(path)} was written here while the app ran: replaced "
                            f"by that of {source.hostname}"
                        )


def _until_silent(
    move: Callable[[Sequence[wire.WrittenFile]], Awaitable[dict[int, str]]],
) -> Callable[[Sequence[wire.WrittenFile]], Awaitable[dict[int, str]]]:
    """Move one batch after another, and give what failed; a silent host is waited for once."""
    given_up = ""

    async def move_one(batch: Sequence[wire.WrittenFile]) -> dict[int, str]:
        nonlocal given_up
        reason = given_up
        if not reason:
            try:
                return await move(batch)
            except (OSError, ValueError) as error:
                reason = describe(error)
                if isinstance(error, TimeoutError):
                    given_up = reason
        return dict.fromkeys(range(len(batch)), reason)

    return move_one


def some_names(names: Iterable[str]) -> str:
    """The first few of them."""
    known = list(dict.fromkeys(names))
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    return ", ".join(known[:_NAMED]) + more


def _by_problem(
    batch: Sequence[wire.WrittenFile], problems: Mapping[int, str]
) -> list[tuple[str, str]]:
    """The files that have a problem, named together with others that have the same."""
    paths: dict[str, list[str]] = {}
    for position, problem in sorted(problems.items()):
        paths.setdefault(problem, []).append(_brief(batch[position].path))
    return [(some_names(names), problem) for problem, names in paths.items()]


def _brief(path: str) -> str:
    """A path as it may be printed, without its middle if it is very long."""
    text = shown(path)
    return text if len(text) <= _LONG else f"{text[: _LONG // 2]}…{text[-_LONG // 2 :]}"


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All of it at once; if one raises, or this is cancelled, none goes on."""
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)
