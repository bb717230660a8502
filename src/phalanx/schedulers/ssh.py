"""`ssh`: replicas on a list of hosts that the user's ssh knows."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import ConfigError
from phalanx.schedulers import make_app_id, option, replicas
from phalanx.schedulers.authoring import workspace_of
from phalanx.schedulers.gpus import VISIBLE
from phalanx.schedulers.local_cwd import log_root
from phalanx.schedulers.request import (
    REPLICA,
    ROLE,
    STREAMS,
    AppRequest,
    ReplicaRequest,
    argv,
)
from phalanx.schedulers.supervised import Supervised, check_grace
from phalanx.specs import AppDef, Role


@dataclass(frozen=True)
class SshOptions:
    """Options of `ssh`."""

    hosts: list[str] = option(
        help="names that your ssh knows, user@host or user@host:port; replicas go round them"
    )
    log_dir: str | None = option(
        None, help="where the replicas' output goes, here; by default beside the app's record"
    )
    python: str | None = option(
        None, help="the interpreter on other hosts, or a virtual environment there"
    )
    env_file: str | None = option(None, help="a bash file that is sourced on each host first")
    ssh_config_file: str | None = option(None, help="the ssh configuration, if not your own")
    address: str | None = option(
        None, help="the address of the first host for the others; by default the one ssh came to"
    )
    host_timeout: float = option(
        30.0, help="seconds without a word from a host after which it is given up"
    )
    stop_grace: float = option(
        10.0, help="seconds between SIGTERM and SIGKILL when replicas are stopped"
    )

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        check_grace(self.stop_grace)
        if not 0 < self.host_timeout < math.inf:
            raise ConfigError(f"host_timeout={self.host_timeout}: more than 0 seconds are wanted.")
        for name in ("env_file", "ssh_config_file"):
            path = getattr(self, name)
            if path is not None and not os.path.isfile(os.path.expanduser(path)):
                raise ConfigError(f"{name}={path}: there is no such file.")
        if not self.hosts:
            raise ConfigError("ssh needs at least one host: -cfg hosts=a,b")


class SshScheduler(Supervised):
    """Runs replicas on hosts; a supervisor here holds the connections."""

    name = "ssh"
    options = SshOptions

    def dryrun(self, app: AppDef, options: SshOptions) -> AppRequest:
        """The programs that would be started, and where."""
        from phalanx.launcher.targets import parse

        for host in options.hosts:
            parse(host)
        app_id = make_app_id(app.name)
        logs = log_root(options.log_dir, self.session_name, app_id)
        given: Counter[str] = Counter()
        # The directory on the host is known only there; a replica starts in it.
        meant = replicas(app, app_id, rank0_env=self.rank0_env, root=".")
        programs = [self._replica(role, number, logs, options, given) for role, number in meant]
        names = ("python", "env_file", "ssh_config_file", "address", "host_timeout")
        launcher = {name: getattr(options, name) for name in names}
        for name in ("env_file", "ssh_config_file"):
            if launcher[name] is not None:
                launcher[name] = os.path.abspath(os.path.expanduser(launcher[name]))
        return AppRequest(
            app_id=app_id,
            name=app.name,
            scheduler=self.name,
            session=self.session_name,
            crew="phalanx.schedulers.abroad:SshCrew",
            stop_grace=options.stop_grace,
            roles=AppRequest.roles_of(app, programs),
            settings={"launcher": launcher, "rank0_env": self.rank0_env},
        )

    def _replica(
        self, role: Role, number: int, logs: Path, options: SshOptions, given: Counter[str]
    ) -> ReplicaRequest:
        host = options.hosts[number % len(options.hosts)]
        own = logs / role.name / str(number)
        env = {ROLE: role.name, REPLICA: str(number), **_devices(role, host, given), **role.env}
        return ReplicaRequest(
            role=role.name,
            id=number,
            argv=argv(role, "python"),
            env=env,
            cwd=workspace_of(role),
            hostname=host,
            gpus=role.resource.gpu,
            logs={stream: str(own / f"{stream}.log") for stream in STREAMS},
        )


def _devices(role: Role, host: str, given: Counter[str]) -> dict[str, str]:
    """GPUs of a host that no other replica of the app has there."""
    if not role.resource.gpu:
        return {}
    first = given[host]
    given[host] += role.resource.gpu
    return {VISIBLE: ",".join(str(first + i) for i in range(role.resource.gpu))}


def create_scheduler(session_name: str, **kwargs: object) -> SshScheduler:
    """As the entry points of plugins have it."""
    return SshScheduler(session_name, **kwargs)
