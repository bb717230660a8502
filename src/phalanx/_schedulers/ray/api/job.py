"""Jobs of a cluster that run our driver: how one is submitted, and how it stands. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from phalanx._schedulers.ray.api.package import DRIVER
from phalanx._schedulers.ray.options import RayOptions
from phalanx._specs import AppState

_STOPPING = 5.0
"""Seconds that a driver has beyond the grace of its replicas."""
_STATES = {
    "PENDING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "STOPPED": AppState.CANCELLED,
    "SUCCEEDED": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
}


def make_job(
    name: str, options: RayOptions, metadata: Mapping[str, str], pip: list[str]
) -> dict[str, Any]:
    """A job that runs our driver."""
    wait = str(math.ceil(options.stop_grace + _STOPPING))
    runtime_env: dict[str, Any] = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": wait}}
    if pip:
        runtime_env["pip"] = pip
    return {
        "entrypoint": f"exec python -m {DRIVER}",
        "submission_id": name,
        "metadata": dict(metadata),
        "runtime_env": runtime_env,
    }


def with_driver(job: Mapping[str, Any], uri: str) -> dict[str, Any]:
    """A job with the package that it runs."""
    return {**job, "runtime_env": {**job["runtime_env"], "py_modules": [uri]}}


def state_of(job: Mapping[str, Any]) -> AppState:
    """A job's state, in our words."""
    return _STATES.get(str(job.get("status")), AppState.UNKNOWN)


def seconds_of(job: Mapping[str, Any], now: float) -> float | None:
    """How long a job has run, or ran."""
    began, ended = job.get("start_time"), job.get("end_time")
    if not began:
        return None
    return max(0.0, (float(ended) / 1000 if ended else now) - float(began) / 1000)
