"""What TorchElastic's agents are told and give back: specs, states, results, failures. Data."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from phalanx._core.signals import signal_name
from phalanx._rendezvous.handler_api import problem_of
from phalanx.errors import ConfigError, LaunchError

NOT_AVAILABLE = "<N/A>"
"""Torch's word for no error file."""


class WorkerState(StrEnum):
    """How the workers of an agent stand."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    @staticmethod
    def is_running(state: WorkerState) -> bool:
        """There are processes in this state.

        Args:
            state: The state.
        """
        return state in (WorkerState.HEALTHY, WorkerState.UNHEALTHY)


@dataclass
class WorkerSpec:
    """The workers of one host: what they run, how many they are, where they meet the others."""

    role: str = "default"
    """What these workers are, for programs that ask."""
    local_world_size: int = 1
    """Workers on this host."""
    rdzv_handler: Any = None
    """Where hosts meet; by default this one is alone."""
    fn: Callable[..., Any] | None = None
    """The function that each calls; `entrypoint` by another name."""
    entrypoint: Callable[..., Any] | str | None = None
    """The function that each calls, or a program that each becomes."""
    args: tuple[Any, ...] = ()
    """Its positional arguments; a program's words."""
    max_restarts: int = 3
    """How often all workers are started anew when one has failed."""
    monitor_interval: float = 0.1
    """Seconds between looks whether hosts wait to come in, for handlers that have to be asked."""
    master_port: int | None = None
    """That of the rendezvous, if it is given at all."""
    master_addr: str | None = None
    """That of the rendezvous, if it is given at all."""
    local_addr: str | None = None
    """The address that others reach this host at; see also the handler's settings."""
    event_log_handler: str = "null"
    """"null", or "console" for every event as a JSON line on stderr."""
    numa_options: Any = None
    """Refused: see `phalanx torchrun --numa-binding`."""
    duplicate_stdout_filters: list[str] | None = None
    """Texts whose lines of stdout go into a file of their own as well."""
    duplicate_stderr_filters: list[str] | None = None
    """The same for stderr."""
    virtual_local_rank: bool = False
    """Every worker of a program sees local rank 0, and one GPU."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """More arguments for the function."""

    def __post_init__(self) -> None:
        """Check what was given. Raises `ConfigError`."""
        if self.fn is not None and self.entrypoint is not None:
            raise ConfigError("give either fn or entrypoint, not both.")
        self.entrypoint = self.entrypoint if self.fn is None else self.fn
        if self.entrypoint is None:
            raise ConfigError("WorkerSpec needs fn=..., the function for workers to call.")
        if not callable(self.entrypoint) and not isinstance(self.entrypoint, str):
            raise ConfigError(f"{self.entrypoint!r} is neither a function nor a program.")
        if not isinstance(self.local_world_size, int) or self.local_world_size < 1:
            raise ConfigError(f"local_world_size={self.local_world_size!r}: must be 1 or more.")
        if not isinstance(self.max_restarts, int) or self.max_restarts < 0:
            raise ConfigError(f"max_restarts={self.max_restarts!r}: must be 0 or more.")
        if not isinstance(self.monitor_interval, int | float) or self.monitor_interval <= 0:
            raise ConfigError(
                f"monitor_interval={self.monitor_interval!r}: must be a number of seconds."
            )
        if self.event_log_handler not in ("null", "console"):
            raise ConfigError(
                f"event_log_handler={self.event_log_handler!r}: choose null or console."
            )
        if self.numa_options is not None:
            raise ConfigError(
                "numa_options is not supported here. Use phalanx torchrun --numa-binding."
            )
        if self.rdzv_handler is not None and (problem := problem_of(self.rdzv_handler)):
            raise ConfigError(f"rdzv_handler: {problem}.")
        if self.virtual_local_rank and not isinstance(self.entrypoint, str):
            raise ConfigError(
                "virtual_local_rank is only supported for programs, not for functions."
            )
        self._check_master()

    def _check_master(self) -> None:
        """What is given beside the rendezvous must be where it is."""
        if self.master_addr is None and self.master_port is None:
            return
        endpoint = getattr(self.rdzv_handler, "endpoint", None)
        known = (getattr(endpoint, "address", None), getattr(endpoint, "port", None))
        for given, own in zip((self.master_addr, self.master_port), known, strict=True):
            if given is not None and given != own:
                raise ConfigError(
                    "set master_addr and master_port on the rendezvous: "
                    'rdzv_handler=get_handler("static", "ADDRESS:PORT", ...).'
                )

    def get_entrypoint_name(self) -> str:
        """The function's qualified name, or the program's last part."""
        if isinstance(self.entrypoint, str):
            return os.path.basename(self.entrypoint)
        name = getattr(self.entrypoint, "__qualname__", None)
        return str(name or type(self.entrypoint).__name__)


@dataclass(frozen=True)
class WorkerFailure:
    """How one worker failed."""

    rank: int
    """The global rank."""
    local_rank: int
    """Its number among the workers of its host, from 0."""
    hostname: str
    """The host's name, as the launcher knows it."""
    pid: int | None
    """Its process, if it had one."""
    exitcode: int | None
    """The code that it exited with, or minus the number of the signal that killed it."""
    message: str
    """What happened, in one line."""
    traceback: str
    """The worker's traceback, or the end of its stderr."""
    timestamp: float
    """When, in seconds since 1970, by this host's clock."""
    error_file_data: dict[str, Any] = field(default_factory=dict)
    """What went wrong in the format of torch's error files."""
    error_file: str = NOT_AVAILABLE
    """Torch's word for none: the file was the worker's, and its content is `error_file_data`."""

    def __str__(self) -> str:
        """What happened, and the worker's traceback."""
        pid = f" (pid {self.pid})" if self.pid else ""  # of a worker that was never seen, none
        text = f"rank {self.rank} on {self.hostname}{pid} {self.message}"
        return f"{text}\n{self.traceback}".rstrip()

    def signal_name(self) -> str:
        """The signal that killed it; empty if none did."""
        code = self.exitcode or 0
        return signal_name(-code) if code < 0 else ""

    def timestamp_isoformat(self) -> str:
        """When, as 2030-01-31_12:00:00."""
        when = datetime.fromtimestamp(int(self.timestamp))  # noqa: DTZ006 local, as torch has it
        return when.isoformat(sep="_")


@dataclass
class RunResult:
    """What came of an agent's workers, by global rank."""

    state: WorkerState
    """SUCCEEDED, FAILED, or STOPPED when it was cancelled."""
    return_values: dict[int, Any] = field(default_factory=dict)
    """The values of this host's workers, by global rank."""
    failures: dict[int, WorkerFailure] = field(default_factory=dict)
    """How workers failed, on whichever host, by global rank."""

    def is_failed(self) -> bool:
        """They did not all succeed."""
        return self.state is not WorkerState.SUCCEEDED


class ChildFailedError(LaunchError):
    """Workers of `launch_agent` failed; `failures` says how, by global rank."""

    def __init__(self, name: str, failures: dict[int, WorkerFailure]) -> None:
        """What failed, and how its workers did.

        Args:
            name: The function's or program's name.
            failures: How workers failed, by global rank; the first that did comes first.
        """
        said = "\n".join(map(str, failures.values()))
        super().__init__(f"{name} failed:\n{said}")
        self.name = name
        self.failures = failures

    def get_first_failure(self) -> tuple[int, WorkerFailure]:
        """The rank that failed first, and how."""
        return next(iter(self.failures.items()))


@dataclass
class Worker:
    """One worker of a group; numbers are -1 as long as hosts have not met."""

    local_rank: int
    """Its number on this host."""
    global_rank: int = -1
    """Its number among all workers."""
    role_rank: int = -1
    """Its number among the workers of its role."""
    world_size: int = -1
    """How many workers there are."""
    role_world_size: int = -1
    """How many of its role there are."""
    id: Any = None
    """Its process, where it is known."""


@dataclass
class WorkerGroup:
    """The workers of an agent, and how they stand."""

    spec: WorkerSpec
    """What they were made from."""
    workers: list[Worker] = field(init=False)
    """One for each local rank."""
    store: Any = None
    """None: each round has a store of its own."""
    group_rank: int | None = None
    """This host's number among the hosts."""
    group_world_size: int | None = None
    """How many hosts there are."""
    master_addr: str | None = None
    """Not known to the agent's process."""
    master_port: int | None = None
    """Not known to the agent's process."""
    state: WorkerState = WorkerState.INIT
    """How they stand."""

    def __post_init__(self) -> None:
        """Workers without ranks."""
        self.workers = [Worker(local) for local in range(self.spec.local_world_size)]
