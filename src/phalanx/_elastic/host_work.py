"""One host's part of an app whose hosts meet by themselves: its agent, workers and decider."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.ids import AgentId
from phalanx._launcher.launch_options import LaunchOptions
from phalanx._launcher.payload import Function
from phalanx._launcher.planning.imports import Needs
from phalanx._launcher.planning.plan import HostPart, Plan
from phalanx._launcher.session.decider import Decider, MakeDecider
from phalanx._launcher.start import PreparedApp, Work, prepare_app
from phalanx._logs.spec import LogSpec
from phalanx._rendezvous.membership import Host
from phalanx._rendezvous.protocol import CoordinatorSettings
from phalanx._rendezvous.settings import Settings
from phalanx._rendezvous.tcp.handler import TcpHandler


@dataclass(frozen=True)
class HostWork:
    """What workers of this host do, and how they are started."""

    function: Function
    needs: Needs
    title: str
    workers: int
    run_id: str
    role: str = "default"
    max_restarts: int = 0
    start_method: str = "zygote"
    stop_grace: float = 30.0
    start_timeout: float = 600.0
    heartbeat_timeout: float | None = None
    host_checks: Sequence[str] = ()
    host_failures: int = 0
    log_spec: LogSpec | None = None
    hostname: str = ""
    exits: bool = False
    extra_env: Mapping[str, str] = field(default_factory=dict)
    frame: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the first frame that are otherwise than this process's own."""


def prepare(work: HostWork, *, is_alone: bool) -> PreparedApp:
    """Check this host's part, which is one of several unless it is alone. Raises `ConfigError`."""
    options = LaunchOptions(
        hostnames=["localhost"],
        workers_per_host=work.workers,
        backend=None,
        extra_env_vars=dict(work.extra_env),
        start_method=work.start_method,  # type: ignore[arg-type]
        start_timeout=work.start_timeout,
        stop_grace=work.stop_grace,
        heartbeat_timeout=work.heartbeat_timeout,
        host_checks=list(work.host_checks),
        host_failures=work.host_failures,
        max_restarts=work.max_restarts,
        log_spec=work.log_spec,
    )
    part = HostPart(
        agent=AgentId(secrets.randbits(48)),
        hostname=work.hostname or socket.gethostname(),
        run_id=work.run_id,
        role=work.role,
        exits=work.exits,
        is_alone=is_alone,
        frame=work.frame,
    )
    return prepare_app(options, Work.of(work.function, work.needs, work.title), part=part)


def decide_over_tcp(handler: TcpHandler) -> MakeDecider:
    """Have the hosts that meet at a handler of ours decide among themselves."""
    alone = handler.max_hosts == 1

    def decide(plan: Plan, now: Callable[[], float]) -> Decider:
        member = plan.members[0]
        bounds = handler.min_hosts, handler.max_hosts
        settings = coordinator_settings_of(plan, handler.settings, *bounds, alone=alone)
        return handler.decider(
            member.agent, member.hostname, member.workers, settings, now, member.role
        )

    return decide


def coordinator_settings_of(
    plan: Plan, rendezvous: Settings, least: int, most: int, *, alone: bool
) -> CoordinatorSettings:
    """What hosts that meet go by."""
    options = plan.options
    member = plan.members[0]
    own = Host(member.agent, member.hostname, member.workers, role=member.role)
    return CoordinatorSettings(
        hosts=(own,) if alone else (),
        start_timeout=rendezvous.join_timeout,
        stop_grace=options.stop_grace,
        failure_window=0.0 if most == 1 else 0.1,
        min_hosts=least,
        max_hosts=most,
        open=not alone,
        last_call=rendezvous.last_call_timeout,
        max_restarts=options.max_restarts,
        backoff=options.restart_backoff,
        same_failures=options.same_failures,
        host_failures=options.host_failures,
        quorum=not alone,
    )
