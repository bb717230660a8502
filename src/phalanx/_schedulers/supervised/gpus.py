"""GPUs of this machine for the replicas that ask for them: none is given to two."""

from __future__ import annotations

import dataclasses
import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from phalanx._registry import read, replace
from phalanx._registry.recorded_app import get
from phalanx._schedulers.replicas.request import AppRequest, ReplicaRequest
from phalanx._system import machine

VISIBLE = "CUDA_VISIBLE_DEVICES"


class NotEnough(Exception):
    """There are fewer than are wanted, whoever has them."""


def assign(request: AppRequest, path: Path, wait: Callable[[str], bool]) -> list[ReplicaRequest]:
    """The replicas, those that want GPUs with ones of their own.

    While other apps of this user have them, `wait` is called with a sentence, until it says that
    the app is to end. A machine without any assigns none. Raises `NotEnough`.
    """
    wanted = sum(replica.gpus for replica in request.replicas)
    devices = visible(os.environ, machine.gpus())
    if not wanted or not request.starter_options.get("assign_gpus", True) or not devices:
        return request.replicas
    if wanted > len(devices):
        raise NotEnough(
            f"it needs {wanted} GPUs, but there are {len(devices)}. To share them: "
            "-cfg auto_set_cuda_visible_devices=no"
        )
    while True:
        taken, given = _try(path, wanted, devices)
        if given is not None:
            return distribute(request.replicas, given)
        free = len(devices) - taken
        if not wait(f"waiting for {wanted} GPUs: {free} of {len(devices)} are free"):
            return request.replicas


def visible(environ: Mapping[str, str], count: int) -> list[str]:
    """The devices that this process may use, as CUDA names them."""
    if environ.get(VISIBLE) is None:
        return [str(i) for i in range(count)]
    return [device.strip() for device in environ[VISIBLE].split(",")][:count]


def distribute(replicas: list[ReplicaRequest], given: list[str]) -> list[ReplicaRequest]:
    """The replicas, each with its share of the devices, in their order. Pure."""
    made, at = [], 0
    for replica in replicas:
        if replica.gpus:
            own = ",".join(given[at : at + replica.gpus])
            at += replica.gpus
            replica = dataclasses.replace(replica, env={VISIBLE: own, **replica.env})  # noqa: PLW2901
        made.append(replica)
    return made


def _try(path: Path, wanted: int, devices: list[str]) -> tuple[int, list[str] | None]:
    """How many are taken; and those that are ours from now on, if there were enough."""
    with open(path.parent.parent / "gpus.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return len(devices), None  # somebody else is choosing: look again
        taken = _taken(path.parent)
        free = [device for device in devices if device not in taken]
        if len(free) < wanted:
            return len(devices) - len(free), None
        replace(path / "gpus.json", {"devices": free[:wanted]})
        return len(taken), free[:wanted]


def _taken(root: Path) -> set[str]:
    """What apps that run on this machine have."""
    found: set[str] = set()
    for path in root.glob("*/gpus.json"):
        app, given = get(path.parent.name), read(path)
        if app is not None and given is not None and app.is_local and not app.state.is_final:
            found.update(given["devices"])
    return found
