"""Agents that outlast an app, so that the next one starts in the time of a fork.

Three kinds of pool: the pool of a launcher that is used as a context, the pool that
`phalanx.warm` fills beforehand, and the directory in which a command leaves agents to the next one.
An agent is used again only where everything that acts when a process starts or a package is
imported is the same: see `local_fingerprint`. That the files are still those that were loaded, the
zygote itself makes sure of.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import socket
import stat
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, Unpack

from phalanx import _wire as wire
from phalanx._launcher.planning.listed_hosts import HostFacts, list_hosts
from phalanx._launcher.transport.agent_process import AgentProcess
from phalanx._launcher.warm.fingerprint import Fingerprint, digest, local_fingerprint
from phalanx._logs import logger
from phalanx._system import identity, temporary_directory
from phalanx._system.processes import start_time
from phalanx._system.small_files import load_json
from phalanx._worker import leftovers
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptionsDict

_PATIENCE = 3.0
"""Seconds for a warm agent to end."""


class AgentPool(Protocol):
    """Where agents stay between apps."""

    def take(self, fingerprint: Fingerprint) -> AgentProcess | None:
        """An agent with this fingerprint that has nothing to do."""

    def make_room(self, fingerprint: Fingerprint) -> None:
        """None was there: a new one is started with this fingerprint.

        Called when a launch has taken all that it can.
        """

    def stay_warm(self, fingerprint: Fingerprint) -> wire.StayWarm | None:
        """What to tell an agent so that it stays; None where it cannot."""

    def put(self, fingerprint: Fingerprint, child: AgentProcess) -> None:
        """Take an agent in that was told so."""


class Pool:
    """Warm agents of this process. All methods may be called from any thread."""

    def __init__(self, *, asked: bool = False, shared: SharedPool | None = None) -> None:
        """Empty. `asked`: say so when what was warmed cannot be used."""
        self._warm: list[tuple[Fingerprint, AgentProcess]] = []
        self._lock = threading.Lock()
        self._closed = False
        self._asked = asked
        self._shared = shared
        self.known: dict[str, HostFacts] = {}
        """What is known of the hosts that have had an agent."""
        _POOLS.add(self)

    def __enter__(self) -> Self:
        """Nothing to do: it is open from the beginning."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    @property
    def is_closed(self) -> bool:
        """Nothing can stay here any more."""
        return self._closed

    def take(self, fingerprint: Fingerprint) -> AgentProcess | None:
        """An agent with this fingerprint."""
        with self._lock:
            for i, (known, child) in enumerate(self._warm):
                if known == fingerprint:
                    del self._warm[i]
                    return child
        return None if self._shared is None else self._shared.take(fingerprint)

    def make_room(self, fingerprint: Fingerprint) -> None:
        """A new agent is started: end one that waits on the same host, and say why."""
        host = _host(fingerprint)
        with self._lock:
            other = next((one for one in self._warm if _host(one[0]) == host), None)
            if other is not None:
                self._warm.remove(other)
        if other is not None:
            if self._asked:
                logger.warning("phalanx: %s", _why_not(other[0], fingerprint))
            other[1].end(_PATIENCE)

    def stay_warm(self, fingerprint: Fingerprint) -> wire.StayWarm | None:
        """It waits on its channel."""
        return None if self._closed else wire.StayWarm()

    def put(self, fingerprint: Fingerprint, child: AgentProcess) -> None:
        """Take an agent in; if the pool was closed meanwhile, end it."""
        with self._lock:
            if not self._closed:
                self._warm.append((fingerprint, child))
                if child.remote_info is not None:
                    known = HostFacts(child.remote_info.processors, child.remote_info.gpus)
                    self.known[child.remote_info.host] = known
                return
        if not self._leave_warm(fingerprint, child):
            child.end(_PATIENCE)

    def close(self) -> None:
        """End the warm agents, or leave them to the next command; those at work end after it.

        Idempotent.
        """
        with self._lock:
            self._closed = True
            warm, self._warm = self._warm, []
        # All are told first, then waited for.
        ending = [child for fingerprint, child in warm if not self._leave_warm(fingerprint, child)]
        for child in ending:
            child.end(_PATIENCE)

    def _leave_warm(self, fingerprint: Fingerprint, child: AgentProcess) -> bool:
        """Leave an agent to the next command, or shut it down."""
        frame = None if self._shared is None else self._shared.stay_warm(fingerprint)
        if frame is not None and child.say(wire.encode(frame)):
            child.close()
            return True
        child.say(wire.encode(wire.ShutDown()))
        return False


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()


def _empty_in_fork() -> None:
    """A process that the program forks has no agents: they are its parent's."""
    for pool in list(_POOLS):
        pool._warm, pool._lock = [], threading.Lock()


os.register_at_fork(after_in_child=_empty_in_fork)


def _host(fingerprint: Fingerprint) -> str | None:
    """Which host an agent with this fingerprint is on; None for this machine."""
    target = fingerprint.get("host")
    return None if target is None else target.name


def _why_not(known: Fingerprint, fingerprint: Fingerprint) -> str:
    different = [name for name in fingerprint if known.get(name) != fingerprint[name]]
    if "environment" in different:
        before, now = known["environment"], fingerprint["environment"]
        names = sorted(n for n in {*before, *now} if before.get(n) != now.get(n))
        different[different.index("environment")] = f"environment ({', '.join(names[:5])})"
    hint = ""
    if different == ["several workers"]:
        count = "1" if known["several workers"] else "N"
        hint = f" Set the number of workers: phalanx.warm(..., workers_per_host={count})."
    return (
        "phalanx.warm cannot be used for this launch, which differs in: "
        f"{', '.join(different)}.{hint}"
    )


def warm(*packages: str, **options: Unpack[LaunchOptionsDict]) -> Pool:
    """Begin to load packages for the workers of launches to come, and return at once.

    Call it before the program's own slow imports: both then load at the same time. The launches of
    this program that fit start from there, until the program ends or the pool is closed.

    Args:
        *packages: The names of packages, as in `import NAME`.
        **options: The fields of `Launcher` that the launches will have; without `workers_per_host`,
            launches with several workers on a host fit.

    Returns:
        A pool; `close()` ends what was started.

    Raises:
        ConfigError: An unknown option, something that is not the name of a package, or hosts other
            than this machine.
    """
    from phalanx._launcher.launch_options import LaunchOptions, check_names
    from phalanx._launcher.planning.imports import Needs
    from phalanx._launcher.planning.plan import make_plan

    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _closed()  # a worker has loaded the file that says so: it was meant for its launcher
    check_names("warm", options)
    launch_options = LaunchOptions(**options)
    for name in packages:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{name!r} is not a package name. Write phalanx.warm('torch').")
    needs = Needs(tuple(map(wire.Import, packages)), torch=False)
    lent = launch_options.scheduler is not None
    if lent or any(host.target is not None for host in list_hosts(launch_options, os.environ)):
        if not {"hostnames", "scheduler"} & options.keys():
            return _closed()  # inside an allocation: what works elsewhere must not fail here
        raise ConfigError(
            "phalanx.warm works on this machine only. For other hosts, use: "
            "with phalanx.Launcher(hostnames=[...]) as launcher:"
        )
    plan = make_plan(launch_options, needs, "warm")
    pool = Pool(asked=True)
    for prepare in [host.prepare for host in plan.hosts]:
        if "workers_per_host" not in options:
            prepare = dataclasses.replace(prepare, workers=2)  # noqa: PLW2901
        child = AgentProcess.start(plan.env_file, wire.encode(prepare))
        pool.put(local_fingerprint(prepare, plan.env_file), child)
    _WARMED.append(pool)
    return pool


def _closed() -> Pool:
    pool = Pool()
    pool.close()
    return pool


_WARMED: list[Pool] = []


def pools(own: Pool | None, keep_warm: float) -> list[AgentPool]:
    """Where a launch looks for agents, in order; its new ones stay in the first."""
    found: list[AgentPool] = [] if own is None else [own]
    if keep_warm and own is None:
        found.append(SharedPool(keep_warm))
    _WARMED[:] = [pool for pool in _WARMED if not pool.is_closed]
    return [*found, *_WARMED]


@atexit.register
def _close_all() -> None:
    for pool in _WARMED:
        pool.close()


# ── from one command to the next ──────────────────────────────────────────────


def directory(*, create: bool = True) -> Path | None:
    """The directory, which only its owner may enter, where agents wait; None where it cannot be."""
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    own = own if os.path.isabs(own) else ""
    base = Path(own) if own else Path(temporary_directory.place())
    path = base / (f"phalanx-{os.geteuid()}" if not own else "phalanx")
    try:
        for level in (path, path / "warm"):
            if create:
                level.mkdir(mode=0o700, exist_ok=True)
            elif not level.exists():
                return None
            found = level.lstat()
            private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
            if not private or found.st_uid != os.geteuid():
                logger.warning("phalanx: ignoring %s: other users can write to it", level)
                return None
    except OSError as error:
        logger.warning("phalanx: keep_warm: cannot keep an agent: %s", error)
        return None
    return path / "warm"


class SharedPool:
    """Agents that are left to the user's next command, for some seconds each."""

    def __init__(self, seconds: float) -> None:
        """Makes the directory if need be."""
        self._seconds = seconds
        self._directory = directory()

    def take(self, fingerprint: Fingerprint) -> AgentProcess | None:
        """Connect to an agent that waits with this fingerprint."""
        if self._directory is None or "host" in fingerprint:
            return None
        for found in warm_agents(self._directory, digest(fingerprint)):
            if (child := found.visit()) is not None:
                return child
        return None

    def make_room(self, fingerprint: Fingerprint) -> None:
        """There is room."""

    def stay_warm(self, fingerprint: Fingerprint) -> wire.StayWarm | None:
        """It waits at a socket of its own, on this machine."""
        if self._directory is None or "host" in fingerprint:
            return None
        return wire.StayWarm(
            keep=self._seconds, directory=str(self._directory), key=digest(fingerprint)
        )

    def put(self, fingerprint: Fingerprint, child: AgentProcess) -> None:
        """It stays by itself."""
        child.close()


@dataclass(frozen=True)
class WarmAgent:
    """An agent that waits for a command."""

    path: Path
    pid: int
    start: int
    python: str
    packages: tuple[str, ...]
    since: float
    until: float
    zygote: int

    def visit(self) -> AgentProcess | None:
        """Go to it; it is then nobody else's. None, and its traces removed, if it is gone."""
        from phalanx._agent.warm_wait import ACCEPTED, peer

        parent = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_PATIENCE)
                connection.connect(f"/proc/self/fd/{parent}/{self.path.stem}.sock")
                if peer(connection) == (self.pid, os.geteuid()):
                    child = AgentProcess.found(connection, self.pid)
                    # Whoever is told so has it; the others were too late.
                    if _is_told(connection, ACCEPTED):
                        return child
                    child.close()
        except OSError:
            self.remove_traces()
        finally:
            os.close(parent)
        return None

    def remove_traces(self) -> None:
        """If it is gone, remove what it could not remove itself."""
        if start_time(self.pid) != self.start:
            for suffix in (".sock", ".json"):
                self.path.with_suffix(suffix).unlink(missing_ok=True)

    def stop(self, patience: float = _PATIENCE) -> None:
        """Have it end; by force if it does not answer, or after the patience."""
        child = self.visit()
        if child is not None:
            child.say(wire.encode(wire.ShutDown()))
            child.end(patience)
        elif self.path.exists() and start_time(self.pid) == self.start:
            leftovers.end_agent(self.pid, self.start, "")
            self.remove_traces()


def _is_told(connection: socket.socket, word: bytes) -> bool:
    try:
        return connection.recv(len(word)) == word
    except OSError:
        return False


def warm_agents(directory: Path, key: str = "") -> Iterator[WarmAgent]:
    """The agents that wait in a directory, those of a name or all; some may be gone already."""
    for path in sorted(directory.glob(f"{key}*.json")):
        try:
            known = load_json(path, lambda user: user == os.geteuid())
            if known.pop("space") != identity.space("pid"):
                continue  # of another machine or container with the same directory
            agent = WarmAgent(path, **{**known, "packages": tuple(known["packages"])})
            if start_time(agent.pid) == agent.start:
                yield agent
            else:
                agent.remove_traces()
        except (OSError, ValueError, TypeError, KeyError):
            continue
