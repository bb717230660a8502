"""`local_cwd`: replicas as processes on this machine, in the current directory."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from typing import Any

from phalanx._schedulers.replicas.request import ReplicaRequest, with_python
from phalanx._schedulers.scheduler import option
from phalanx._schedulers.supervised.supervised_scheduler import SupervisedScheduler, check_grace
from phalanx._system.machine import program_path
from phalanx._worker.error_file import VARIABLE as ERROR_FILE


@dataclass(frozen=True)
class LocalOptions:
    """Options of `local_cwd`."""

    log_dir: str | None = option(
        None, help="directory for the output of replicas (default: the app's record)"
    )
    prepend_cwd: bool = option(False, help="put the current directory first on PATH")
    auto_set_cuda_visible_devices: bool = option(
        True, help="assign each replica its own GPUs, as many as it requests"
    )
    stop_grace: float = option(
        5.0, help="seconds between SIGTERM and SIGKILL when stopping replicas"
    )

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        check_grace(self.stop_grace)


class LocalScheduler(SupervisedScheduler):
    """Runs replicas here. The image is of no account."""

    name = "local_cwd"
    options = LocalOptions
    starter = "phalanx._schedulers.supervised.replicas:LocalReplicas"
    capabilities = dataclasses.replace(SupervisedScheduler.capabilities, host_files=True)

    def fill_in(self, replica: ReplicaRequest, options: LocalOptions) -> ReplicaRequest:
        """With this interpreter, and an environment that is found here."""
        path = replica.env.get("PATH", os.environ.get("PATH", os.defpath))
        env = {
            self.rank0_env: "localhost",
            "PYTHONUNBUFFERED": "1",
            ERROR_FILE: replica.error_file,
            **replica.env,
            "PATH": _path(path, replica.cwd, first=options.prepend_cwd),
        }
        return dataclasses.replace(
            replica, argv=with_python(replica.argv, sys.executable or "python3"), env=env
        )

    def starter_options(self, options: LocalOptions) -> dict[str, Any]:
        """Whether GPUs are given out."""
        return {"assign_gpus": options.auto_set_cuda_visible_devices}


def _path(path: str, cwd: str, *, first: bool) -> str:
    """PATH with the programs of our own environment, and with the current directory."""
    path = program_path(path)
    parts = [cwd, *path.split(os.pathsep)] if first else [*path.split(os.pathsep), cwd]
    return os.pathsep.join(part for part in dict.fromkeys(parts) if part)


def create_scheduler(session_name: str, **kwargs: object) -> LocalScheduler:
    """As the entry points of plugins have it."""
    return LocalScheduler(session_name, **kwargs)
