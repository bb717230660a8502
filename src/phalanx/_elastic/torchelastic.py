"""Agents by TorchElastic's names: describe the workers, start an agent, get what came of them."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from typing import Any

from phalanx._core.ids import AgentId
from phalanx._core.ranks import position
from phalanx._core.rounds import Member, runs_of
from phalanx._elastic import file_timers, host_work
from phalanx._elastic.torch_logs_specs import TorchLogsSpec, is_torch_logs_specs
from phalanx._elastic.torchrun_logs import PREFIX, TorchrunLogSpec
from phalanx._elastic.worker_spec import (
    RunResult,
    WorkerFailure,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from phalanx._launcher import payload
from phalanx._launcher.interrupts import interruptible
from phalanx._launcher.launcher import check_call
from phalanx._launcher.planning import imports
from phalanx._launcher.planning.imports import Needs
from phalanx._launcher.reporting.collected_results import CollectedResults
from phalanx._launcher.session.decider import MakeDecider
from phalanx._logs.spec import LogSpec
from phalanx._rendezvous.causes import Failure
from phalanx._rendezvous.handlers import get_handler
from phalanx._rendezvous.protocol import Reason, Verdict
from phalanx._rendezvous.tcp.handler import TcpHandler
from phalanx._worker import error_file, script
from phalanx.errors import ConfigError

_START_METHODS = {"zygote": "zygote", "fork": "zygote", "forkserver": "zygote", "spawn": "spawn"}


class LocalElasticAgent:
    """Runs the workers of this host, together with the agents that meet it at the rendezvous."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: LogSpec | Any = None,
        start_method: str = "zygote",
        exit_barrier_timeout: float = 300.0,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30.0,
        health_check_server: Any = None,
        uninterruptible_state_timeout: float | None = None,
    ) -> None:
        """Describe the agent; `run` starts it.

        Args:
            spec: The workers, and where they meet those of other hosts.
            logs_specs: Where output goes: a log spec of ours or of torch's; by default to this
                process's own stdout and stderr.
            start_method: "zygote" forks workers from a process that has loaded the packages,
                "spawn" starts new interpreters.
            exit_barrier_timeout: Seconds that hosts wait for each other at the end.
            log_line_prefix_template: What goes before lines that are teed; `${role_name}`,
                `${local_rank}` and `${rank}` are replaced.
            shutdown_timeout: Seconds between SIGTERM and SIGKILL when workers are stopped.
            health_check_server: A server that runs already; its `stop` is called at the end.
            uninterruptible_state_timeout: Taken, and without effect.

        Raises:
            ConfigError: There is no such `start_method`, or something given is not what it
                should be.
        """
        if not isinstance(spec, WorkerSpec):
            raise ConfigError(f"spec must be a WorkerSpec, not {spec!r}.")
        if start_method not in _START_METHODS:
            known = ", ".join(_START_METHODS)
            raise ConfigError(f"unknown start_method {start_method!r}; choose one of {known}.")
        if logs_specs is not None and not isinstance(logs_specs, LogSpec):
            if not is_torch_logs_specs(logs_specs):
                raise ConfigError(f"logs_specs must be a log spec, not {logs_specs!r}.")
        if not shutdown_timeout >= 0 or not exit_barrier_timeout >= 0:
            raise ConfigError("shutdown_timeout and exit_barrier_timeout must be 0 or more.")
        self.spec = spec
        self._log_spec = logs_specs
        self._start_method = _START_METHODS[start_method]
        self._barrier = exit_barrier_timeout
        self._prefix = log_line_prefix_template
        self._grace = float(shutdown_timeout)
        self._health_check_server = health_check_server
        self._group = WorkerGroup(spec)

    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """The workers, and how they stand. Their ranks are known when `run` has returned.

        Args:
            role: Taken as torch has it; there is one group.
        """
        return self._group

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
        self._group.state = WorkerState.HEALTHY
        try:
            result = self._run(role or self.spec.role)
        except BaseException:
            self._group.state = WorkerState.FAILED
            raise
        finally:
            if callable(stop := getattr(self._health_check_server, "stop", None)):
                stop()
        self._group.state = result.state
        return result

    def _run(self, role: str) -> RunResult:
        spec = self.spec
        handler = spec.rdzv_handler or get_handler("tcp")
        alone = isinstance(handler, TcpHandler) and handler.max_hosts == 1
        with contextlib.ExitStack() as stack:
            variables = stack.enter_context(file_timers.served(os.environ))
            prepared = host_work.prepare(self._work(role, variables), is_alone=alone)
            if spec.event_log_handler == "console":
                from phalanx import events

                events.configure(events.JSONLinesEventHandler(sys.stderr))
            interrupts = stack.enter_context(interruptible())
            app = prepared.start(decide=self._decide(handler))
            interrupts.attach(app.cancel)
            app.wait()
        if app.error is not None:
            raise app.error
        own = prepared.plan.members[0].agent
        if (member := _member_of(own, app.verdict.members)) is not None:
            _set_ranks(self._group, app.verdict, member)
        result = self._result(app.verdict, app.collect(), own)
        if not result.is_failed() and (lost := app.lost_output(result)) is not None:
            raise lost
        return result

    def _work(self, role: str, variables: dict[str, str]) -> host_work.HostWork:
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
            log_spec=self._logs(run_id or "none", role),
            extra_env=variables,
            exits=isinstance(entry, str),
        )

    def _logs(self, run_id: str, role: str) -> LogSpec:
        given, spec = self._log_spec, self.spec
        if isinstance(given, LogSpec):
            return given
        nothing = (0,) * spec.local_world_size
        filters = (spec.duplicate_stdout_filters or (), spec.duplicate_stderr_filters or ())
        prefix = self._prefix or PREFIX
        duplicates = (tuple(filters[0]), tuple(filters[1]))
        if given is None:
            return TorchrunLogSpec(
                run_id, role, nothing, nothing, prefix=prefix, duplicates=duplicates
            )
        return TorchLogsSpec(
            run_id, role, nothing, nothing, prefix=prefix, duplicates=duplicates, specs=given
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
        member = _member_of(own, verdict.members)
        ranks = member.ranks if member is not None else range(0)
        if verdict.reason is Reason.SUCCEEDED:
            values = {rank: collect.value(rank) for rank in ranks if collect.has(rank)}
            collect.close()
            return RunResult(WorkerState.SUCCEEDED, values)
        collect.close()
        known = [f for f in (verdict.cause, *verdict.others) if f is not None]
        known = known or list(verdict.restart_causes[-1:])  # where no round has begun since
        failures = {f.outcome.rank: _describe(f, verdict.members) for f in known}
        cancelled = verdict.reason is Reason.CANCELLED
        state = WorkerState.STOPPED if cancelled else WorkerState.FAILED
        return RunResult(state, {}, failures)


def _set_ranks(group: WorkerGroup, verdict: Verdict, own: Member) -> None:
    """Give the workers the ranks of the round that there was."""
    hosts = verdict.hosts or runs_of(verdict.members)
    at = position(hosts, rank=own.first_rank)
    group.group_rank, group.group_world_size = at.host, at.hosts
    for worker in group.workers:
        worker.global_rank = own.first_rank + worker.local_rank
        worker.role_rank = at.role_rank + worker.local_rank
        worker.world_size = sum(run.hosts * run.workers for run in hosts)
        worker.role_world_size = at.role_size


def _member_of(agent: AgentId, members: tuple[Member, ...]) -> Member | None:
    return next((member for member in members if member.agent == agent), None)


def _describe(failure: Failure, members: tuple[Member, ...]) -> WorkerFailure:
    outcome = failure.outcome
    member = next((m for m in members if outcome.rank in m.ranks), None)
    code = outcome.code if outcome.signal is None else -outcome.signal
    exception = outcome.exception
    said = (
        outcome.describe() if exception is None else f"{exception.type_name}: {exception.message}"
    )
    traceback = outcome.stderr if exception is None else exception.traceback
    when = time.time() - max(0.0, time.monotonic() - outcome.clock)
    return WorkerFailure(
        rank=outcome.rank,
        local_rank=outcome.rank - member.first_rank if member is not None else outcome.rank,
        hostname=failure.hostname,
        pid=outcome.pid,
        exitcode=code,
        message=outcome.describe(),
        traceback=traceback,
        timestamp=when,
        error_file_data=error_file.content(said, traceback, when),
    )
