"""`local_cwd`: replicas as processes on this machine, in the current directory."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from phalanx.hosts import program_path
from phalanx.registry import directory
from phalanx.schedulers import make_app_id, option, replicas
from phalanx.schedulers.authoring import workspace_of
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
from phalanx.worker.program import ERROR_FILE


@dataclass(frozen=True)
class LocalOptions:
    """Options of `local_cwd`."""

    log_dir: str | None = option(
        None, help="where the replicas' output goes; by default beside the app's record"
    )
    prepend_cwd: bool = option(
        False, help="programs of the current directory come before those on PATH"
    )
    auto_set_cuda_visible_devices: bool = option(
        True, help="give each replica GPUs of its own, as many as it asks for"
    )
    stop_grace: float = option(
        10.0, help="seconds between SIGTERM and SIGKILL when replicas are stopped"
    )

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        check_grace(self.stop_grace)


class LocalScheduler(Supervised):
    """Runs replicas here. The image is of no account."""

    name = "local_cwd"
    options = LocalOptions

    def dryrun(self, app: AppDef, options: LocalOptions) -> AppRequest:
        """The processes that would be started."""
        app_id = make_app_id(app.name)
        logs = log_root(options.log_dir, self.session_name, app_id)
        meant = replicas(app, app_id, rank0_env=self.rank0_env)
        processes = [self._replica(role, number, logs, options) for role, number in meant]
        return AppRequest(
            app_id=app_id,
            name=app.name,
            scheduler=self.name,
            session=self.session_name,
            crew="phalanx.schedulers.crew:LocalCrew",
            stop_grace=options.stop_grace,
            roles=AppRequest.roles_of(app, processes),
            settings={"assign_gpus": options.auto_set_cuda_visible_devices},
        )

    def _replica(
        self, role: Role, number: int, logs: Path, options: LocalOptions
    ) -> ReplicaRequest:
        cwd = workspace_of(role)
        own = logs / role.name / str(number)
        path = role.env.get("PATH", os.environ.get("PATH", os.defpath))
        env = {
            self.rank0_env: "localhost",
            ROLE: role.name,
            REPLICA: str(number),
            "PYTHONUNBUFFERED": "1",
            ERROR_FILE: str(own / "error.json"),
            **role.env,
            "PATH": _path(path, cwd, first=options.prepend_cwd),
        }
        return ReplicaRequest(
            role=role.name,
            id=number,
            argv=argv(role, sys.executable or "python3"),
            env=env,
            cwd=cwd,
            hostname="localhost",
            gpus=role.resource.gpu,
            logs={stream: str(own / f"{stream}.log") for stream in STREAMS},
        )


def _path(path: str, cwd: str, *, first: bool) -> str:
    """PATH with the programs of our own environment, and with the current directory."""
    path = program_path(path)
    parts = [cwd, *path.split(os.pathsep)] if first else [*path.split(os.pathsep), cwd]
    return os.pathsep.join(part for part in dict.fromkeys(parts) if part)


def log_root(log_dir: str | None, session: str, app_id: str) -> Path:
    """Where the logs of an app are."""
    if log_dir is None:
        return directory() / app_id / "logs"
    return Path(log_dir).expanduser().absolute() / session / app_id


def create_scheduler(session_name: str, **kwargs: object) -> LocalScheduler:
    """As the entry points of plugins have it."""
    return LocalScheduler(session_name, **kwargs)
