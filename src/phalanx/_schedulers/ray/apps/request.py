"""A job that runs an app, and what its driver is told. Pure.

The job itself says little, since everybody on the cluster can see it: arguments and environment of
replicas travel in the driver's package.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.ranks import REPLICA
from phalanx._images.context import BuildContext
from phalanx._schedulers.authoring import make_app_id, needs_phalanx, replicas
from phalanx._schedulers.ray.api.job import make_job
from phalanx._schedulers.ray.api.package import executables
from phalanx._schedulers.ray.apps.names import JobMetadata, RayApp
from phalanx._schedulers.ray.options import RayOptions
from phalanx._schedulers.ray.resources import bundle_of
from phalanx._schedulers.replicas.lifecycle import RoleLifecycle
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._schedulers.replicas.request import ROLE
from phalanx._specs import AppDef
from phalanx.errors import ConfigError


@dataclass(frozen=True)
class RayRequest:
    """What is submitted."""

    app: RayApp
    job: Mapping[str, Any]
    """As the job API takes it, but for the packages."""
    driver: Mapping[str, Any]
    """What the driver is told, but for the token and the URIs of projects."""
    projects: Mapping[str, BuildContext] = field(default_factory=dict)
    """The files that replicas run with, by directory."""

    def __str__(self) -> str:
        """What would be submitted, as JSON."""
        shown: dict[str, Any] = {"app_id": str(self.app), "dashboard": self.app.dashboard}
        if self.projects:
            shown["working_dir"] = [
                {"path": path, "files": len(one.files), "bytes": one.size}
                for path, one in self.projects.items()
            ]
        shown["job"] = self.job
        shown["driver"] = {k: v for k, v in self.driver.items() if k != "lifecycle"}
        return json.dumps(shown, indent=2, ensure_ascii=False)


def make_request(
    app: AppDef,
    dashboard: str,
    session: str,
    user: str,
    options: RayOptions,
    rank0_env: str,
    projects: Mapping[str, BuildContext],
    directories: Mapping[str, str],
    pip: list[str],
) -> RayRequest:
    """The job and its driver; `directories` are what each role runs in. Raises `ConfigError`."""
    if len(app.roles) > 1 and any(role.min_replicas is not None for role in app.roles):
        raise ConfigError("ray: min_replicas is for apps of one role.")
    place = RayApp(dashboard, make_app_id(app.name))
    record = LifecycleRecord(
        tuple(
            RoleLifecycle(role.name, role.num_replicas, role.max_retries, role.retry_policy)
            for role in app.roles
        ),
        options.stop_grace,
        time.time(),
    )
    told = []
    for role, number in replicas(
        app, place.name, rank0_env=rank0_env, root=".", handle_id=str(place)
    ):
        directory = directories[role.name]
        least = role.num_replicas if role.min_replicas is None else role.min_replicas
        told.append(
            {
                "role": role.name,
                "id": number,
                "argv": [role.entrypoint, *role.args],
                "env": {
                    ROLE: role.name,
                    REPLICA: str(number),
                    "PYTHONUNBUFFERED": "1",
                    **options.env,
                    **role.env,
                },
                "bundle": bundle_of(role.resource, options.resources),
                "is_extra": number >= least,
                "working_dir": directory,
                "executables": executables(projects[directory]) if directory in projects else [],
                "needs_phalanx": needs_phalanx(role),
            }
        )
    metadata = JobMetadata(session, user, app.name, record)
    return RayRequest(
        app=place,
        job=make_job(place.name, options, metadata.to_dict(), pip),
        driver={
            "kind": "app",
            "app": place.name,
            "lifecycle": record.to_text(),
            "stop_grace": options.stop_grace,
            "strategy": options.strategy,
            "rank0_env": rank0_env,
            "replicas": told,
        },
        projects=projects,
    )
