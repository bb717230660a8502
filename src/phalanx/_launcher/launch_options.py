"""What can be asked of a launch: the fields of `Launcher`, as data. Knows nothing of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypedDict

from phalanx._core.environment import COPIED_BY_DEFAULT
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs.spec import LogSpec
from phalanx.errors import ConfigError

OTHER_NAMES = {
    **dict.fromkeys(
        (
            *("nproc_per_node", "nprocs", "num_workers", "num_processes", "world_size", "workers"),
            *("ntasks_per_node", "gpus_per_node", "workers_per_node", "num_gpus", "np"),
        ),
        "workers_per_host",
    ),
    **dict.fromkeys(("hosts", "host", "nodes", "nodelist", "hostlist"), "hostnames"),
    **dict.fromkeys(("env", "environment"), "extra_env_vars"),
    "copy_env_vars": "env_vars",
    "worker_timeout": "process_group_timeout",
    "agent_timeout": "host_timeout",
}
"""What other tools call some of a launcher's fields."""


@dataclass
class LaunchOptions:
    """Where and how to run functions. Plain data: it can be copied, pickled and changed."""

    hostnames: list[str] | Literal["auto", "slurm"] = "auto"
    """Hosts to run on, one agent for each entry: names that your ssh knows, user@host or
    user@host:port. "slurm" is the hosts of the allocation; "auto" is that inside salloc or sbatch,
    and this machine elsewhere."""

    workers_per_host: int | list[int] | Literal["cpu", "gpu", "auto"] = "auto"
    """Workers on each host: a number, one for each host, "cpu" (one a processor), "gpu" (one a
    GPU), or "auto" (the allocation's tasks, or the GPUs if there are any, else 1)."""

    backend: Literal["auto", "nccl", "gloo", "mpi", "ucc"] | None = "auto"
    """The process group that workers find: "auto" makes one if the function uses torch."""

    env_vars: tuple[str, ...] = COPIED_BY_DEFAULT
    """Patterns (fnmatch) of the environment variables that are copied to other hosts. On this
    machine workers inherit all of them."""

    extra_env_vars: dict[str, str] = field(default_factory=dict)
    """More environment variables for the workers (on a command line: NAME VALUE NAME VALUE …)."""

    host_env_vars: dict[str, dict[str, str]] = field(default_factory=dict)
    """More environment variables for the workers of single hosts, by their names."""

    env_file: str | None = None
    """A bash file that is sourced on each host before anything else. Hosts need not have it."""

    python: str | dict[str, str] | None = None
    """The interpreter on other hosts, or a virtual environment there; one for all, or by host. By
    default this one's path if it is there, else python3."""

    workspace: str | None = "auto"
    """The project that hosts without this directory are sent: "auto" (the git repository, or the
    directory that this runs in), a directory, or None for nothing."""

    fetch: list[str] = field(default_factory=list)
    """Files that workers write to bring here, from hosts that do not share the working directory:
    patterns such as ckpt/*, relative to it. At the end, and before each restart, when they also go
    to the other hosts."""

    preload: list[str] | Literal["auto"] = "auto"
    """Packages to load once for all workers of a host: "auto" finds what the function imports."""

    start_method: Literal["zygote", "spawn", "inline"] = "zygote"
    """How workers start: forked from a process that has loaded the packages, spawned as new
    interpreters, or (one worker) inline in this process, for debuggers."""

    min_hosts: int | None = None
    """The fewest hosts that the app goes on with when some are lost; by default all of them."""

    max_hosts: int | None = None
    """The most hosts that run workers; those that are listed beyond them wait as spares. By default
    all of them."""

    max_restarts: int = 0
    """How often all workers are started anew when one has failed."""

    restart: Literal["all", "host"] = "all"
    """What a failed worker restarts: the workers of all hosts, or, for hosts that do not
    communicate, those of its own host (each host then has max_restarts; no group is made)."""

    restart_backoff: float = 0.5
    """Seconds before the second restart of workers that fail within 10 s, twice that before the
    third, and so on; the first comes at once."""

    same_failures: int = 5
    """The same failure within 10 s of the start, so many times in a row, ends the app though there
    are restarts left; 0: never."""

    preempt_signal: str = "SIGUSR1"
    """The signal to an agent that tells its workers, through `phalanx.context().should_stop()`,
    that the host will be taken away."""

    start_timeout: float = 300.0
    """Seconds until all workers must be running; and, later, until enough hosts are back."""

    process_group_timeout: float = 600.0
    """Seconds that forming the process group, and each of its operations, may take."""

    stop_grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL when workers are stopped."""

    host_timeout: float = 30.0
    """Seconds without a word from a host after which it is given up."""

    orphan_timeout: float = 3600.0
    """Seconds without a word from the launcher after which a host ends its workers by itself."""

    name: str | None = None
    """The app's name in titles and ids; by default the function's."""

    log_spec: LogSpec | None = None
    """Where the workers' output goes; by default into files under ./logs, and rank 0's to stdout as
    well."""

    ssh_config_file: str | None = None
    """The ssh configuration for other hosts; by default the user's own."""

    address: str | None = None
    """The address of the first host at which workers meet; by default the one that ssh came to."""

    interface: str | None = None
    """The network interface that workers use, the same on every host; by default the one that leads
    to that address."""

    parallel_logins: int = 64
    """How many hosts are dialled at a time."""

    keep_warm: float = 0.0
    """Seconds that this machine's agent, with the packages it has loaded, waits for the next
    command with the same interpreter and environment; 0: it ends with this one."""


class LaunchOptionsDict(TypedDict, total=False):
    """The same as keyword arguments: what `launch(...)` takes beside the function."""

    hostnames: list[str] | Literal["auto", "slurm"]
    workers_per_host: int | list[int] | Literal["cpu", "gpu", "auto"]
    backend: Literal["auto", "nccl", "gloo", "mpi", "ucc"] | None
    env_vars: tuple[str, ...]
    extra_env_vars: dict[str, str]
    host_env_vars: dict[str, dict[str, str]]
    env_file: str | None
    python: str | dict[str, str] | None
    workspace: str | None
    fetch: list[str]
    preload: list[str] | Literal["auto"]
    start_method: Literal["zygote", "spawn", "inline"]
    min_hosts: int | None
    max_hosts: int | None
    max_restarts: int
    restart: Literal["all", "host"]
    restart_backoff: float
    same_failures: int
    preempt_signal: str
    start_timeout: float
    process_group_timeout: float
    stop_grace: float
    host_timeout: float
    orphan_timeout: float
    name: str | None
    log_spec: LogSpec | None
    ssh_config_file: str | None
    address: str | None
    interface: str | None
    parallel_logins: int
    keep_warm: float


NAMES = tuple(f.name for f in fields(LaunchOptions))


def check_names(verb: str, names: Iterable[str], parameters: Sequence[str] = ()) -> None:
    """Refuse what is not an option, with what may be meant. Raises `ConfigError`.

    `parameters` are those of the user's function.
    """
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"{verb} has no option {name!r}.{option_hint(name, parameters)}")


def option_hint(name: str, parameters: Sequence[str] = ()) -> str:
    """What may be meant by an option that there is not; `parameters` are the function's own."""
    if name in parameters:
        return f" The function's own arguments go in a dict: launch(func, {{{name!r}: ...}})."
    if name == "timeout":
        return (
            " A function may run as long as it likes; see Launcher.start(...).result(timeout=...)."
        )
    if name in OTHER_NAMES:
        return f" Use {OTHER_NAMES[name]}."
    return did_you_mean(closest(name, NAMES))
