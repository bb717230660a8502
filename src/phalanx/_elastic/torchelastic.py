"""Agents by TorchElastic's names: describe the workers, start an agent, get what came of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from phalanx._core.ids import AgentId
from phalanx._core.rounds import Member, signal_name
from phalanx._elastic import host_work
from phalanx._elastic.torchrun_logs import TorchrunLogSpec
from phalanx._launcher import payload
from phalanx._launcher.interrupts import interruptible
from phalanx._launcher.launcher import check_call
from phalanx._launcher.planning import imports
from phalanx._launcher.planning.imports import Needs
from phalanx._launcher.session.collected_results import CollectedResults
from phalanx._launcher.session.decider import MakeDecider
from phalanx._logs.spec import LogSpec
from phalanx._rendezvous.causes import Failure
from phalanx._rendezvous.handler_api import problem_of
from phalanx._rendezvous.handlers import get_handler
from phalanx._rendezvous.protocol import Reason, Verdict
from phalanx._rendezvous.tcp.handler import TcpHandler
from phalanx._worker import script
from phalanx.errors import ConfigError

_START_METHODS = {"zygote": "zygote", "fork": "zygote", "forkserver": "zygote", "spawn": "spawn"}


class WorkerState(StrEnum):
    """How the workers of an agent stand."""

    UNKNOWN = "UNKNOWN"
    INIT = "INIT"
    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class WorkerSpec:
    """The workers of one host: what they run, how many they are, where they meet the others."""

    local_world_size: int = 1
    """Workers on this host."""
    fn: Callable[..., Any] | None = None
    """The function that each calls; `entrypoint` by another name."""
    entrypoint: Callable[..., Any] | str | None = None
    """The function that each calls, or a program that each becomes."""
    args: tuple[Any, ...] = ()
    """Its positional arguments; a program's words."""
    rdzv_handler: Any = None
    """Where hosts meet; by default this one is alone."""
    role: str = "default"
    """What these workers are, for programs that ask."""
    max_restarts: int = 3
    """How often all workers are started anew when one has failed."""
    monitor_interval: float = 0.1
    """Seconds between looks whether hosts wait to come in, for handlers that have to be asked."""
    master_addr: str | None = None
    """Refused: it belongs to the rendezvous."""
    master_port: int | None = None
    """Refused: it belongs to the rendezvous."""
    local_addr: str | None = None
    """The address that others reach this host at; see also the handler's settings."""
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
        if not isinstance(self.local_world_size, int) or self.local_world_size < 1:
            raise ConfigError(f"local_world_size={self.local_world_size!r}: must be 1 or more.")
        if self.rdzv_handler is not None and (problem := problem_of(self.rdzv_handler)):
            raise ConfigError(f"rdzv_handler: {problem}.")
        if self.virtual_local_rank and not isinstance(self.entrypoint, str):
            raise ConfigError(
                "virtual_local_rank is only supported for programs, not for functions."
            )
        if self.master_addr is not None or self.master_port is not None:
            raise ConfigError(
                "set master_addr and master_port on the rendezvous: "
                'rdzv_handler=get_handler("static", "ADDRESS:PORT", ...).'
            )


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
    """When, by this host's monotonic clock."""

    def __str__(self) -> str:
        """What happened, and the worker's traceback."""
        text = f"rank {self.rank} on {self.hostname} (pid {self.pid}) {self.message}"
        return f"{text}\n{self.traceback}".rstrip()

    def signal_name(self) -> str:
        """The signal that killed it; empty if none did."""
        code = self.exitcode or 0
        return signal_name(-code) if code < 0 else ""


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


class LocalElasticAgent:
    """Runs the workers of this host, together with the agents that meet it at the rendezvous."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogSpec | None = None,
        start_method: str = "zygote",
        exit_barrier_timeout: float = 300.0,
        shutdown_timeout: float = 30.0,
    ) -> None:
        """Describe the agent; `run` starts it.

        Args:
            spec: The workers, and where they meet those of other hosts.
            logs_specs: Where output goes; by default to this process's own stdout and stderr.
            start_method: "zygote" forks workers from a process that has loaded the packages,
                "spawn" starts new interpreters.
            exit_barrier_timeout: Seconds that hosts wait for each other at the end.
            shutdown_timeout: Seconds between SIGTERM and SIGKILL when workers are stopped.

        Raises:
            ConfigError: There is no such `start_method`.
        """
        if start_method not in _START_METHODS:
            known = ", ".join(_START_METHODS)
            raise ConfigError(f"unknown start_method {start_method!r}; choose one of {known}.")
        self.spec = spec
        self._log_spec = logs_specs
        self._start_method = _START_METHODS[start_method]
        self._barrier = exit_barrier_timeout
        self._grace = float(shutdown_timeout)

    def run(self, role: str | None = None) -> RunResult:
        """Run to the end, restarts included; blocks.

        Args:
            role: The workers' role; by default that of the spec.

        Returns:
            Values or failures by global rank: that workers failed is part of the result.

        Raises:
            RendezvousError: Hosts could not meet.
            OutputLost: All succeeded, but some of their output could not be written.
            KeyboardInterrupt: It was interrupted; nothing is left running.
        """
        spec = self.spec
        work = self._work(role or spec.role)
        handler = spec.rdzv_handler or get_handler("tcp")
        alone = isinstance(handler, TcpHandler) and handler.max_hosts == 1
        prepared = host_work.prepare(work, is_alone=alone)
        with interruptible() as interrupts:
            app = prepared.start(decide=self._decide(handler))
            interrupts.attach(app.cancel)
            app.wait()
        if app.error is not None:
            raise app.error
        result = self._result(app.verdict, app.collect(), prepared.plan.members[0].agent)
        if not result.is_failed() and (lost := app.lost_output(result)) is not None:
            raise lost
        return result

    def _work(self, role: str) -> host_work.HostWork:
        spec = self.spec
        entry = spec.entrypoint
        needs = Needs((), torch=False)
        if isinstance(entry, str):
            words = ("binary", entry, tuple(map(str, spec.args)), spec.virtual_local_rank)
            function = payload.pack(script.run, words, {}, needs)
            title = entry
        else:
            assert entry is not None
            check_call(entry, spec.args, spec.kwargs)
            needs = imports.of_function(entry)
            function = payload.pack(entry, spec.args, spec.kwargs, needs)
            title = getattr(entry, "__name__", type(entry).__name__)
        run_id = "" if spec.rdzv_handler is None else str(spec.rdzv_handler.get_run_id())
        nothing = (0,) * spec.local_world_size
        return host_work.HostWork(
            function=function,
            needs=needs,
            title=title,
            workers=spec.local_world_size,
            run_id=run_id,
            role=role,
            max_restarts=spec.max_restarts,
            start_method=self._start_method,
            stop_grace=self._grace,
            log_spec=self._log_spec or TorchrunLogSpec(run_id or "none", role, nothing, nothing),
            exits=isinstance(entry, str),
        )

    def _decide(self, handler: Any) -> MakeDecider:
        if not isinstance(handler, TcpHandler):
            from phalanx._elastic.handler_decider import HandlerDecider

            spec, barrier = self.spec, self._barrier
            return lambda plan, now: HandlerDecider(
                plan, handler, spec.monitor_interval, now, barrier, spec.local_addr
            )
        if self.spec.local_addr is not None:
            handler.settings = replace(handler.settings, local_addr=self.spec.local_addr)
        return host_work.decide_over_tcp(handler)

    def _result(self, verdict: Verdict, collect: CollectedResults, own: AgentId) -> RunResult:
        member = next((m for m in verdict.members if m.agent == own), None)
        ranks = member.ranks if member is not None else range(0)
        if verdict.reason is Reason.SUCCEEDED:
            values = {rank: collect.value(rank) for rank in ranks if collect.has(rank)}
            collect.close()
            return RunResult(WorkerState.SUCCEEDED, values)
        collect.close()
        known = [f for f in (verdict.cause, *verdict.others) if f is not None]
        known = known or list(verdict.attempts[-1:])  # where no round has begun since
        failures = {f.outcome.rank: _describe(f, verdict.members) for f in known}
        cancelled = verdict.reason is Reason.CANCELLED
        state = WorkerState.STOPPED if cancelled else WorkerState.FAILED
        return RunResult(state, {}, failures)


def _describe(failure: Failure, members: tuple[Member, ...]) -> WorkerFailure:
    outcome = failure.outcome
    member = next((m for m in members if outcome.rank in m.ranks), None)
    code = outcome.code if outcome.signal is None else -outcome.signal
    return WorkerFailure(
        rank=outcome.rank,
        local_rank=outcome.rank - member.first_rank if member is not None else outcome.rank,
        hostname=failure.hostname,
        pid=outcome.pid,
        exitcode=code,
        message=outcome.describe(),
        traceback=outcome.fault.traceback if outcome.fault is not None else outcome.stderr,
        timestamp=outcome.clock,
    )
