"""Do what is to be done for an app: start what retries, stop what is left of a failure.

Idempotent: several processes may do it at once. A container's name is its replica and attempt, so
that the engine itself sees to it that none is made twice.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any

from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.creation import put_token
from phalanx._schedulers.docker.engine import Engine, NameTaken
from phalanx._schedulers.docker.labels import container_name
from phalanx._schedulers.docker.request import TOKEN_FILE
from phalanx._schedulers.parallel import for_all
from phalanx._schedulers.replicas.assessment import Assessment, SeenApp, SeenContainer, assess
from phalanx._schedulers.replicas.lifecycle import ReplicaKey

_LONGEST_TOKEN = 4096


def carry_out(engine: Engine, app: SeenApp) -> Assessment:
    """Do all that is due, and what is due then, until nothing is. Blocks while containers stop."""
    while True:
        assessed = assess(app, time.time())
        if assessed.state.is_final or not assessed.is_due:
            return assessed
        stop_all(engine, assessed.to_stop, app.lifecycle_record.stop_grace)
        for_all(functools.partial(_start, engine, app), assessed.to_start)
        found = engine.find(app.app_id)
        if found is None:
            return assessed
        app = found


def stop_all(engine: Engine, containers: Iterable[SeenContainer], grace: float) -> None:
    """Stop containers, all at once. Blocks until they have ended."""
    for_all(lambda one: engine.stop(one.id, grace), containers)


def _start(engine: Engine, app: SeenApp, one: tuple[ReplicaKey, int]) -> None:
    key, attempt = one
    found = next((c for c in app.containers if (c.key, c.attempt) == (key, attempt)), None)
    if found is not None and attempt == 0:
        engine.start(found.id)
        return
    before = next(c for c in app.containers if (c.key, c.attempt) == (key, attempt - 1))
    known = engine.inspect(before.id)
    if known is None:
        return  # it is being deleted
    if found is None:
        own = known["Config"]["Labels"]
        base = known["Name"].lstrip("/").removesuffix(f"-try{attempt}")
        name = container_name(base, attempt)
        try:
            made = engine.create_container(name, _again(known, own, attempt))
        except NameTaken:
            return  # somebody else makes it
    else:
        made = found.id  # by one who was killed before it could start
    token = engine.read_file(before.id, TOKEN_FILE, _LONGEST_TOKEN)
    if token is not None:
        read_only = bool(known["HostConfig"].get("ReadonlyRootfs"))
        put_token(engine, made, token, is_mounted=read_only)
    engine.start(made)


def _again(known: Mapping[str, Any], own: Mapping[str, str], attempt: int) -> dict[str, Any]:
    """The container that was, as a new one: the engine has all that it was made from."""
    networks = known["NetworkSettings"]["Networks"]
    host = dict(known["HostConfig"])
    if host.get("NanoCpus"):  # Podman tells it in both ways, and takes one
        host.pop("CpuPeriod", None)
        host.pop("CpuQuota", None)
    aliases = {"Aliases": [own[labels.ALIAS]]} if labels.ALIAS in own else {}
    config = {
        **known["Config"],
        "Image": known["Image"],
        "Labels": {**own, labels.ATTEMPT: str(attempt)},
        "HostConfig": host,
    }
    if host.get("NetworkMode") not in ("host", "none"):
        config["NetworkingConfig"] = {"EndpointsConfig": dict.fromkeys(networks, aliases)}
    return config
