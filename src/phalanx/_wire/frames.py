"""Every frame: what launcher, agent and zygote say to each other. Data alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

from phalanx._core.collectives import LastCollective
from phalanx._core.limits import (
    AgentNumber,
    Amount,
    AnyCount,
    Digest,
    ExitCode,
    Message,
    Moment,
    Name,
    Path,
    Pid,
    Port,
    RoundNumber,
    RunId,
    Seconds,
    SignalNumber,
    Size,
    WorkerCount,
)
from phalanx._core.rounds import Outcome, RankSteps, Round

T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def frame(kind: type[T]) -> type[T]:
    """A frozen dataclass to the type checker, and a quick one to make.

    Every process of ours makes all of these when it starts; what `dataclass` writes for comparing
    and printing each of them took 20 ms.
    """
    return dataclass(kw_only=True, repr=False, eq=False)(kind)


@frame
class Frame:
    """What every frame carries."""

    app: RunId = ""
    round: RoundNumber = 0
    rank: AnyCount | None = None

    def contradiction(self) -> str:
        """What is wrong between its fields, each of which is in its range; empty: nothing."""
        return ""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"


@dataclass(frozen=True, slots=True)
class Import:
    """One import statement: `import module`, or `from module import names`."""

    module: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProjectRoot:
    """A directory of the launcher's with the user's code, and its name within the project."""

    path: Path
    name: Path
    token: Name
    """The name of a file in it. Where that is found, the directory is shared."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that workers wrote, by its path within their working directory."""

    path: Path
    size: Size
    digest: Digest = ""
    """Of its contents; empty where it was not asked for, and where it cannot be read."""
    problem: Message = ""
    """Why it cannot be read."""


@dataclass(frozen=True, slots=True)
class RemoteContext:
    """What an agent on another host has to know of the launcher's."""

    roots: tuple[ProjectRoot, ...] = ()
    """The project's directories; none when nothing is to be sent."""


@dataclass(frozen=True, slots=True)
class RankDump:
    """What a worker wrote of its stacks, or why it did not."""

    rank: AnyCount
    pid: Pid
    text: Message = ""
    problem: Message = ""
    native: Message = ""
    """What a debugger said of its native frames, where that was asked for."""
    collectives: tuple[LastCollective, ...] = ()
    """What torch's flight recorder says, where there is one."""


# ── both ways, where a stream may break ───────────────────────────────────────


@frame
class FramesReceived(Frame):
    """So many frames have come so far, this kind not counted."""

    count: Size


@frame
class EndOfFrames(Frame):
    """Nothing follows: the end of the stream is no accident."""


# ── launcher to agent ─────────────────────────────────────────────────────────


@frame
class Prepare(Frame):
    """The first frame of an app: what a worker's process looks like, so that warming can begin."""

    preload: tuple[Import, ...]
    late: tuple[str, ...] | None
    """Packages that must not be loaded before the fork; None: only those to preload may be."""
    python_path: tuple[str, ...]
    environment: dict[str, str]
    passing: bool
    """`environment` has all variables that say where a command was typed, and those alone."""
    argv: tuple[str, ...]
    cwd: str | None
    main_file: str | None
    title: str
    spawn: bool
    workers: WorkerCount
    heartbeat: Seconds
    orphan_timeout: Seconds
    stop_grace: Seconds
    preempt: SignalNumber = 0
    """The signal to the agent by which workers learn that the host will be taken away."""
    remote: RemoteContext | None = None
    """For another host than the launcher's: `python_path` has the user's own entries alone, and
    paths below the project's are as they are at the launcher's."""
    networked: bool = False
    """Other hosts take part: the store must be reached from there."""
    probed: bool = False
    """Other hosts are asked to try whether they reach this one."""
    interface: Name = ""
    """The network interface to use."""
    terminal: str = ""
    """The path of the terminal that debuggers, and the first worker of the host, may read."""
    reconnect_timeout: Seconds = 0.0
    """How long the agent goes on without its launcher when the stream breaks."""
    reconnect_key: Name = ""
    """What a launcher that comes back proves that it has."""


@frame
class BeginRound(Frame):
    """Run this round: your part is the member with your number."""

    membership: Round
    agent: AgentNumber
    function: Digest
    backend: str | None
    uses_torch: bool
    process_group_timeout: Seconds
    records: tuple[AnyCount, ...] = ()
    """The local ranks whose `logging` records are wanted as records."""
    run_id: str = ""
    """What the workers know the app by; the app's own id if empty."""
    max_restarts: Size = 0
    heartbeat_timeout: Seconds = 0.0
    """How long a worker that beats may be silent; 0: for ever."""
    exits: bool = False
    """The workers are programs: how each exits is how it ended."""
    is_call: bool = False
    """One of many calls over one channel, each a round: the function follows unasked, and the last
    of the logs comes before `RoundCleared`."""


@frame
class HaltRound(Frame):
    """End the round's workers: a signal, SIGTERM as a rule, then after `grace` seconds SIGKILL.

    `spared` ranks (the agent fills them in for the zygote) have ended already and are only leaving.
    With `stacks` the agent first sends home where they are, for a second at most.
    """

    grace: Seconds
    number: SignalNumber = 15
    spared: tuple[AnyCount, ...] = ()
    stacks: bool = False


@frame
class LogsTaken(Frame):
    """So much of the log (see `cost_of`) has been written away; as much may be sent again."""

    size: Size


@frame
class ShipProject(Frame):
    """The project's files, by the digest of their list; what is not there is to be asked for."""

    manifest: Digest


@frame
class Reach(Frame):
    """Try to connect to this address, and say `Reached`."""

    address: Name
    port: Port


@frame
class CheckHost(Frame):
    """Make these checks of the host, and say `HostChecked` with the same number."""

    number: AnyCount
    clock: Moment
    """The launcher's time of day, in seconds since 1970."""
    checks: dict[Name, Amount]
    """Our own, by their names, with the values that they go by."""
    functions: dict[Name, bytes]
    """The user's, each pickled, by their names."""
    seconds: Seconds
    """How long all of them may take."""


@frame
class DumpStacks(Frame):
    """Send the stacks of the round's workers home, as `WorkerStacks` of the same request.

    With `below` those of the workers of launches that the round's workers have started.
    """

    request: AnyCount
    seconds: Seconds
    below: bool = False
    native: bool = False
    """With native frames, where a tool for that is installed."""


@frame
class ListWritten(Frame):
    """Say, in `WrittenList`, which files workers wrote that fit the patterns."""

    number: AnyCount
    """Comes back with the answer."""
    patterns: tuple[Path, ...]
    digests: bool = True


@frame
class OfferFile(Frame):
    """Have these files in the workers' working directory: fetch them, then say `FileStored`.

    One, or several that together fit into a `SmallFiles`.
    """

    number: AnyCount
    files: tuple[WrittenFile, ...]


@frame
class ReleaseFiles(Frame):
    """These files of the workers' working directory are home: they need not be kept."""

    paths: tuple[Path, ...]


@frame
class ShutDown(Frame):
    """Nothing more will be asked: send what is left of the logs, and end."""


@frame
class StayWarm(Frame):
    """Send what is left of the logs, say `StayingWarm`, and wait for another app's `Prepare`.

    It comes over this channel; or, with `keep`, for so many seconds, over a socket that you put
    into the directory `directory` under the name `key`.
    """

    keep: Seconds = 0.0
    directory: Path = ""
    key: Name = ""


@frame
class Ping(Frame):
    """A heartbeat from the launcher, with its clock."""

    sent: Moment


# ── agent to launcher ─────────────────────────────────────────────────────────


@frame
class Hello(Frame):
    """The agent is there; `port` is bound on its host for the round's store."""

    version: Name
    python: Name
    hostname: Name
    pid: Pid
    port: Port
    spool: Path
    space: Name = ""
    """Names the network that loopback addresses are of."""
    address: Name = ""
    """An address of the host that others can reach, as far as it knows."""
    probe_port: Port = 0
    """A port that takes connections, for others to try."""
    tree: Path = ""
    """Where the project is put; empty when it is not to be sent."""
    apart: bool = False
    """Workers' working directory is in there: what they write is on this host alone."""


@frame
class WantContent(Frame):
    """The agent does not have these yet: the function, or files of the project."""

    digests: tuple[Digest, ...]


@frame
class ProjectArrived(Frame):
    """So many more bytes of the project's files are here; `complete` when it is all in place."""

    size: Size
    complete: bool = False


@frame
class WrittenList(Frame):
    """Some of the files that were asked for; `complete` with the last of them.

    Without any it says that they are still looked at.
    """

    number: AnyCount
    files: tuple[WrittenFile, ...] = ()
    complete: bool = False
    problem: Message = ""


@frame
class FileStored(Frame):
    """Files that were offered are there; or why some, by their position in it, are not."""

    number: AnyCount
    problems: dict[AnyCount, Message]


@frame
class Reached(Frame):
    """What came of trying: empty, or why it could not be reached."""

    problem: Message
    address: Name
    port: Port


@frame
class HostChecked(Frame):
    """What came of checking the host: why each check that failed did."""

    number: AnyCount
    problems: dict[Name, Message]


@frame
class UserNote(Frame):
    """Something that the user should know when the app has ended."""

    message: Message


@frame
class Ready(Frame):
    """The packages are loaded (the zygote says it to the agent, the agent to the launcher)."""

    torch: bool
    spawn: bool
    stale: bool = False
    """Files that were loaded have changed since: another zygote is needed."""
    left_out: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@frame
class WorkersStarted(Frame):
    """The round's workers run; their process ids by global rank."""

    pids: dict[AnyCount, Pid]


@frame
class WorkerEntered(Frame):
    """A worker has come to the user's code, at a moment by its host's clock."""

    clock: Moment


@frame
class WorkerEnded(Frame):
    """How a worker ended; its pickled value or exception, if any, came in pieces before."""

    outcome: Outcome


@frame
class LogData(Frame):
    """Bytes that a worker, or without a rank the agent, wrote; whole lines wherever possible.

    The stream `records` carries `logging` records, a line of JSON each.
    """

    stream: Name
    data: bytes
    is_cut: bool = False
    """What was written before this could not all be kept: the host's disk was full."""


LOG_CHUNK = 256 << 10
"""The most that one frame of log carries."""
LOG_CAP = 4 << 30
"""The most that is handed on of one stream of one rank."""
LOG_WINDOW = 8 << 20
"""How much of a round's logs may be on its way before the launcher has taken some."""
LOG_COST = 256
"""What a frame of log counts beside its bytes: many small ones are as dear as a large one."""


def cost_of(log: LogData) -> int:
    """What a frame of log counts in the window."""
    return len(log.data) + LOG_COST


@frame
class WorkerStacks(Frame):
    """The stacks of the workers that run; `request` 0: they were taken before a stop."""

    request: AnyCount
    ranks: tuple[RankDump, ...]
    below: bool = False
    """They are ranks of launches that the round's workers have started."""


@frame
class WorkerSteps(Frame):
    """How far the workers are that tell it; about once a second while that changes."""

    ranks: tuple[RankSteps, ...]


@frame
class RoundCleared(Frame):
    """No process of the round is left on the host; `port` is bound for the next one's store."""

    port: Port = 0


@frame
class Preempted(Frame):
    """The host will be taken away; its workers know it, and the others should not wait for it."""


@frame
class StayingWarm(Frame):
    """The agent's last word on an app; it waits for another."""


@frame
class AgentGone(Frame):
    """The agent cannot go on, and why."""

    message: Message
    left: bool = False
    """It was told to end, by its host's own people."""


@frame
class Pong(Frame):
    """The answer to a ping, with the agent's clock."""

    sent: Moment
    clock: Moment


# ── both ways ─────────────────────────────────────────────────────────────────


@frame
class Piece(Frame):
    """A part of something large: a function or a file by its digest, or the payload of a rank."""

    key: Digest
    offset: Size
    total: Size
    data: bytes


@frame
class PayloadFile(Frame):
    """The payload of a rank as a file of the agent's spool, for a launcher on the same machine: it
    takes the file and removes its name.
    """

    name: Name
    total: Size


@frame
class FetchFile(Frame):
    """Send so many bytes of a file, as `FilePart`s."""

    number: AnyCount
    """Of the transfer; comes back with each part."""
    path: Path
    offset: Size
    size: Size


@frame
class FilePart(Frame):
    """The next bytes of a file that is fetched, as many as fit; or why they cannot be sent."""

    number: AnyCount
    offset: Size
    data: bytes
    problem: Message = ""


@frame
class FetchSmall(Frame):
    """Send these files, which together fit into one frame, as `SmallFiles`."""

    number: AnyCount
    """Of the transfer; comes back with them."""
    files: tuple[WrittenFile, ...]


@frame
class SmallFiles(Frame):
    """The contents of files that are fetched, one after another, each of the size asked for.

    What cannot be sent is left out, and said by its position among those asked for.
    """

    number: AnyCount
    data: bytes
    problems: dict[AnyCount, Message]


# ── agent to zygote (descriptors travel beside the frame), zygote to agent ────


@frame
class ForkWorkers(Frame):
    """Start one process per set of rank variables; see `worker.zygote` for the descriptors."""

    function: Path
    directory: Path
    workers: tuple[dict[str, str], ...]
    backend: str | None
    uses_torch: bool
    process_group_timeout: Seconds
    records: tuple[AnyCount, ...] = ()
    is_call: bool = False


@frame
class SignalWorkers(Frame):
    """Send a signal to the workers that catch it (to an agent as well, from whoever placed it)."""

    number: SignalNumber


@frame
class WorkerExited(Frame):
    """A worker's process was reaped, with this wait status; `signalled` is what we last sent it."""

    status: ExitCode
    clock: Moment
    signalled: SignalNumber | None


MESSAGES: tuple[type[Frame], ...] = (
    FramesReceived,
    EndOfFrames,
    Prepare,
    BeginRound,
    HaltRound,
    LogsTaken,
    ShipProject,
    Reach,
    ListWritten,
    OfferFile,
    ReleaseFiles,
    ShutDown,
    StayWarm,
    Ping,
    Hello,
    WantContent,
    ProjectArrived,
    WrittenList,
    FileStored,
    Reached,
    UserNote,
    Ready,
    WorkersStarted,
    WorkerEntered,
    WorkerEnded,
    LogData,
    RoundCleared,
    Preempted,
    StayingWarm,
    AgentGone,
    Pong,
    Piece,
    PayloadFile,
    FetchFile,
    FilePart,
    ForkWorkers,
    SignalWorkers,
    WorkerExited,
    DumpStacks,
    WorkerStacks,
    FetchSmall,
    SmallFiles,
    WorkerSteps,
    CheckHost,
    HostChecked,
)
