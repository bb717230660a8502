"""What can be asked of a launch: the fields of `Launcher`, as data. Knows nothing of the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

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
    **dict.fromkeys(("nnodes", "num_nodes", "nhosts", "n_hosts"), "num_hosts"),
    "copy_env_vars": "env_vars",
    "worker_timeout": "process_group_timeout",
    "agent_timeout": "host_timeout",
}
"""What other tools call some of a launcher's fields."""


@dataclass
class LaunchOptions:
    """Where and how to run functions. Plain data: it can be copied, pickled and changed."""

    hostnames: list[str] | Literal["auto", "slurm"] = "auto"
    """Hosts to run on, one agent per entry: ssh host names, user@host or user@host:port. "slurm"
    uses the hosts of the allocation; "auto" does so inside salloc or sbatch, and uses this machine
    otherwise."""

    workers_per_host: int | list[int] | Literal["cpu", "gpu", "auto"] = "auto"
    """Workers per host: a number, a list with one number for each host, "cpu" (one per CPU), "gpu"
    (one per GPU), or "auto" (the tasks of the allocation, else one per GPU, else 1)."""

    backend: Literal["auto", "nccl", "gloo", "mpi", "ucc"] | None = "auto"
    """Process group backend: auto, nccl, gloo, mpi, ucc, or None for no process group. "auto"
    creates one if the function uses torch."""

    env_vars: tuple[str, ...] = COPIED_BY_DEFAULT
    """Environment variables to copy to other hosts, as fnmatch patterns. Workers on this machine
    inherit all variables."""

    extra_env_vars: dict[str, str] = field(default_factory=dict)
    """Environment variables to set for the workers (on the command line: NAME VALUE …)."""

    host_env_vars: dict[str, dict[str, str]] = field(default_factory=dict)
    """Environment variables to set for the workers of individual hosts, by host name."""

    env_file: str | None = None
    """Bash file to source on each host before anything else. The hosts need no copy of it."""

    python: str | dict[str, str] | None = None
    """Python interpreter or virtual environment on other hosts: one for all, or one per host.
    Default: the path of this interpreter if it exists there, else python3."""

    workspace: str | None = "auto"
    """Project to send to hosts that lack the working directory: "auto" (the git repository, or the
    current directory), a directory, or None to send nothing."""

    fetch: list[str] = field(default_factory=list)
    """Files written by workers to copy back from hosts that do not share the working directory:
    patterns relative to it, such as ckpt/*. Copied at the end and before each restart, when they
    also go to the other hosts."""

    preload: list[str] | Literal["auto"] = "auto"
    """Packages to import once per host, before its workers start: "auto" detects what the function
    imports."""

    start_method: Literal["zygote", "spawn", "inline"] = "zygote"
    """How to start workers: "zygote" forks them from a process that has imported the packages,
    "spawn" starts new interpreters, "inline" runs one worker in this process, for debuggers."""

    min_hosts: int | None = None
    """Minimum number of hosts: keep going while at least this many are left. Default: all."""

    max_hosts: int | None = None
    """Maximum number of hosts that run workers; further ones wait as spares. Default: all."""

    max_restarts: int = 0
    """Maximum number of restarts of all workers when one fails."""

    restart: Literal["all", "host"] = "all"
    """Workers to restart when one fails: "all", or "host" for those of its host only, if hosts do
    not communicate (max_restarts then applies per host, and no process group is created)."""

    restart_backoff: float = 0.5
    """Seconds to wait before the second restart of workers that fail within 10 s, doubled for each
    further one; the first restart is immediate."""

    same_failures: int = 5
    """Stop restarting after this many identical failures in a row, each within 10 s of the start;
    0 to never stop."""

    host_failures: int = 0
    """Exclude a host after this many failures that began there: a spare, or another host of the
    scheduler, takes its place, and it is not used again; 0 to never exclude one."""

    host_checks: list[Any] = field(default_factory=list)
    """Checks of each host before its workers start, in every round: "gpus" or "gpus=8", "ecc",
    "disk" or "disk=20GiB", "clock" or "clock=5s", names of plugins; in Python also functions that
    run on the host and return None, or what is wrong. A host that fails one is not used."""

    preempt_signal: str = "SIGUSR1"
    """Signal that tells an agent that its host will be preempted; workers poll
    `phalanx.context().should_stop()`."""

    start_timeout: float = 300.0
    """Seconds to wait until all workers are running and, later, until enough hosts are back."""

    process_group_timeout: float = 600.0
    """Timeout in seconds for creating the process group, and for each of its operations."""

    stop_grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL when stopping workers."""

    heartbeat_timeout: float | None = None
    """Seconds without a call of `phalanx.heartbeat()` or `phalanx.step()` after which a worker has
    hung, counted from its first call. It then fails with its stacks. Default: no limit."""

    host_timeout: float = 30.0
    """Seconds without a heartbeat after which a host is considered lost."""

    orphan_timeout: float = 3600.0
    """Seconds without contact with the launcher after which a host stops its workers."""

    reconnect_timeout: float | None = None
    """Seconds for which workers on another host go on when the connection to it breaks, while the
    launcher reconnects; with 0 a broken connection is a lost host. Default: 90 in pods, else 0."""

    name: str | None = None
    """App name, for process titles and ids. Default: the function's name."""

    log_spec: LogSpec | None = None
    """Where worker output goes. Default: files under ./logs, and rank 0 to stdout as well."""

    ssh_config_file: str | None = None
    """ssh configuration file. Default: your own."""

    address: str | None = None
    """Address of the first host that workers connect to. Default: the one ssh connected to."""

    interface: str | None = None
    """Network interface for workers, the same on every host. Default: the one that routes to the
    address of the first host."""

    parallel_logins: int = 64
    """Maximum number of concurrent logins."""

    keep_warm: float = 0.0
    """Seconds to keep this machine's agent and its imported packages for the next command with the
    same interpreter and environment; 0 to stop it with this one."""

    scheduler: str | None = None
    """Scheduler to borrow the hosts from, such as slurm, instead of naming them with hostnames.
    They are released when the launch, or the launcher's `with`, ends."""

    num_hosts: int | None = None
    """Number of hosts to borrow from the scheduler. Default: 1."""

    image: str | None = None
    """Container image to run in, for container schedulers such as local_docker. It needs Python
    and a shell; your project is sent to it."""

    scheduler_options: dict[str, Any] = field(default_factory=dict)
    """Scheduler options for the hosts (on the command line: key=value,key2=value2). List
    them with: phalanx runopts SCHEDULER"""

    queue_timeout: float | None = None
    """Seconds to wait for the scheduler's hosts; start_timeout begins when they are ready.
    Default: no limit."""


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
    host_failures: int
    host_checks: list[Any]
    preempt_signal: str
    start_timeout: float
    process_group_timeout: float
    stop_grace: float
    heartbeat_timeout: float | None
    host_timeout: float
    orphan_timeout: float
    reconnect_timeout: float | None
    name: str | None
    log_spec: LogSpec | None
    ssh_config_file: str | None
    address: str | None
    interface: str | None
    parallel_logins: int
    keep_warm: float
    scheduler: str | None
    num_hosts: int | None
    image: str | None
    scheduler_options: dict[str, Any]
    queue_timeout: float | None


NAMES = tuple(f.name for f in fields(LaunchOptions))


def check_names(verb: str, names: Iterable[str], parameters: Sequence[str] = ()) -> None:
    """Refuse what is not an option, with what may be meant. Raises `ConfigError`.

    `parameters` are those of the user's function.
    """
    for name in names:
        if name not in NAMES:
            raise ConfigError(f"{verb} has no option {name!r}.{option_hint(name, parameters)}")


def option_hint(name: str, parameters: Sequence[str] = ()) -> str:
    """What may be meant by an unknown option; `parameters` are the function's own."""
    if name in parameters:
        return f" Pass the function's arguments as a dict: launch(func, {{{name!r}: ...}})."
    if name == "timeout":
        return (
            " There is no time limit. To limit the wait: Launcher.start(...).result(timeout=...)."
        )
    if name in OTHER_NAMES:
        return f" Use {OTHER_NAMES[name]}."
    return did_you_mean(closest(name, NAMES))
