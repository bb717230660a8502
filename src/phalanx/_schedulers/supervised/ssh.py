"""`ssh`: replicas on a list of hosts that the user's ssh knows."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx._launcher.planning.validation import check_fetch
from phalanx._schedulers.authoring import files_needed
from phalanx._schedulers.replicas.request import AppRequest, ReplicaRequest
from phalanx._schedulers.scheduler import option
from phalanx._schedulers.supervised.gpus import distribute
from phalanx._schedulers.supervised.supervised_scheduler import SupervisedScheduler, check_grace
from phalanx._specs import AppDef
from phalanx.errors import ConfigError

_RENDEZVOUS = "c10d"
"""The port of a role at whose first replica the others meet, as TorchX's components name it too."""


@dataclass(frozen=True)
class SshOptions:
    """Options of `ssh`."""

    hosts: list[str] = option(
        help="ssh host names, user@host or user@host:port; replicas are assigned round-robin"
    )
    log_dir: str | None = option(
        None, help="local directory for the output of replicas (default: the app's record)"
    )
    python: str | None = option(None, help="Python interpreter or virtual environment on the hosts")
    env_file: str | None = option(None, help="bash file to source on each host first")
    fetch: list[str] | None = option(
        None,
        help="files written by replicas to copy back from hosts that do not share the directory "
        "(patterns such as ckpt/*), when a replica has ended",
    )
    ssh_config_file: str | None = option(None, help="ssh configuration file (default: your own)")
    address: str | None = option(
        None, help="address of the first host for the others (default: the one ssh connected to)"
    )
    host_timeout: float = option(
        30.0, help="seconds without a heartbeat after which a host is considered lost"
    )
    reconnect_timeout: float = option(
        0.0, help="seconds replicas keep running while a broken connection is restored"
    )
    stop_grace: float = option(
        5.0, help="seconds between SIGTERM and SIGKILL when stopping replicas"
    )

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        check_grace(self.stop_grace)
        check_fetch(self.fetch or [])
        if not 0 < self.host_timeout < math.inf:
            raise ConfigError(
                f"host_timeout={self.host_timeout}: must be a number of seconds, more than 0."
            )
        if not 0 <= self.reconnect_timeout < math.inf:
            raise ConfigError(
                f"reconnect_timeout={self.reconnect_timeout}: must be a number of seconds, 0 or "
                "more."
            )
        for name in ("env_file", "ssh_config_file"):
            path = getattr(self, name)
            if path is not None and not os.path.isfile(os.path.expanduser(path)):
                raise ConfigError(f"{name}={path}: no such file.")
        if not self.hosts:
            raise ConfigError("ssh needs at least one host: -cfg hosts=a,b")


class SshScheduler(SupervisedScheduler):
    """Runs replicas on hosts; a supervisor here holds the connections."""

    name = "ssh"
    options = SshOptions
    starter = "phalanx._schedulers.supervised.ssh_replicas:SshReplicas"
    root = "."  # the directory on the host is known only there; a replica starts in it

    def dryrun(self, app: AppDef, options: SshOptions) -> AppRequest:
        """The programs, and what is sent for them where not all of the directory is."""
        request = super().dryrun(app, options)
        files = files_needed(app.roles)
        roles = tuple(
            dataclasses.replace(
                role,
                replicas=tuple(
                    dataclasses.replace(replica, files=files.get(replica.cwd, ()))
                    for replica in role.replicas
                ),
            )
            for role in request.roles
        )
        # They fail if not all can meet; where some may be missing, those that meet go on.
        meeting = [r.name for r in app.roles if _RENDEZVOUS in r.port_map and not r.min_replicas]
        more = {**request.starter_options, "meeting_roles": meeting}
        return dataclasses.replace(request, roles=roles, starter_options=more)

    def fill_in(self, replica: ReplicaRequest, options: SshOptions) -> ReplicaRequest:
        """On its host: they are gone round in their order."""
        from phalanx._launcher.transport.targets import parse

        host = options.hosts[replica.id % len(options.hosts)]
        parse(host)
        return dataclasses.replace(replica, hostname=host)

    def arrange(self, replicas: Sequence[ReplicaRequest]) -> Sequence[ReplicaRequest]:
        """Those on one host that want GPUs have ones of their own."""
        devices = [str(i) for i in range(sum(replica.gpus for replica in replicas))]
        by_host: dict[str, list[ReplicaRequest]] = {}
        for replica in replicas:
            by_host.setdefault(replica.hostname, []).append(replica)
        arranged = [r for some in by_host.values() for r in distribute(some, devices)]
        order = {replica.key: i for i, replica in enumerate(replicas)}
        return sorted(arranged, key=lambda replica: order[replica.key])

    def starter_options(self, options: SshOptions) -> dict[str, Any]:
        """How the launcher reaches the hosts."""
        names = (
            "python",
            "env_file",
            "ssh_config_file",
            "address",
            "host_timeout",
            "reconnect_timeout",
        )
        launch_options = {name: getattr(options, name) for name in names}
        for name in ("env_file", "ssh_config_file"):
            if launch_options[name] is not None:
                launch_options[name] = os.path.abspath(os.path.expanduser(launch_options[name]))
        return {
            "launch_options": launch_options,
            "fetch": options.fetch or [],
            "rank0_env": self.rank0_env,
        }


def create_scheduler(session_name: str, **kwargs: object) -> SshScheduler:
    """As the entry points of plugins have it."""
    return SshScheduler(session_name, **kwargs)
