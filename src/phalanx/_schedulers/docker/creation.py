"""An app's images, network, volume and containers: what is made of a request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from phalanx._channel import tokens
from phalanx._images.builder import ensure_image, provide
from phalanx._logs import logger
from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.engine import Engine
from phalanx._schedulers.docker.gpus import chosen
from phalanx._schedulers.docker.request import (
    CODE_PATH,
    TOKEN_FILE,
    ContainerRequest,
    DockerRequest,
    code_volume,
)
from phalanx._schedulers.parallel import for_all
from phalanx._schedulers.replicas.request import RANK0_PORT


def have_images(engine: Engine, request: DockerRequest) -> dict[str, str]:
    """The image of each role: the project's own where it has a workspace."""
    found: dict[str, str] = {}
    for container in request.containers:
        if container.role in found:
            continue
        if container.image_plan is None:
            ensure_image(engine.api, container.image, request.options.pull)
            found[container.role] = container.image
        else:
            plan = container.image_plan
            found[container.role] = provide(plan, engine.api, pull=request.options.pull)
    return found


def create_containers(
    engine: Engine, request: DockerRequest, images: Mapping[str, str]
) -> list[str]:
    """Everything that an app consists of; gives the ids of its containers."""
    if request.network is not None:
        engine.create_network(request.network, request.labels)
    first = request.containers[0]
    more_env = [*(f"{name}={value}" for name, value in request.copied_env.items())]
    if request.options.network == "host":
        from phalanx._system.network import free_port

        more_env.append(f"{RANK0_PORT}={free_port()}")
    if request.ships_phalanx:
        _ship(engine, request, images[first.role])
    info, token = engine.info(), tokens.make_token().encode()
    made: dict[tuple[str, int], str] = {}

    def create(one: tuple[ContainerRequest, list[str]]) -> None:
        container, gpus = one
        config = container.with_gpus(gpus) if gpus else container.config
        image = images[container.role]
        config = complete(engine, request, container.role, config, image, more_env, info)
        made_one = engine.create_container(container.name, config)
        put_token(engine, made_one, token, is_mounted=request.options.read_only)
        made[container.role, container.replica] = made_one

    counts = [container.num_gpus for container in request.containers]
    with chosen(engine, counts, shared=request.options.share_gpus) as gpus:
        for_all(create, zip(request.containers, gpus, strict=True))
    return [made[container.role, container.replica] for container in request.containers]


def complete(
    engine: Engine,
    request: DockerRequest,
    role: str,
    config: Mapping[str, Any],
    image: str,
    more_env: list[str],
    info: Mapping[str, Any],
) -> dict[str, Any]:
    """A container's request with what the engine knows."""
    host = {**config["HostConfig"]}
    processors = int(info.get("NCPU") or 0)
    if processors and host.get("NanoCpus", 0) > processors * 10**9:
        logger.warning(
            "phalanx: %s asks for %g CPUs; the engine has %d",
            role,
            host["NanoCpus"] / 1e9,
            processors,
        )
        del host["NanoCpus"]
    if "ShmSize" not in host:
        host["ShmSize"] = int(info.get("MemTotal") or 0) // 2 or 1 << 30
    # What is said for the app wins over what is copied from here.
    own = {entry.partition("=")[0] for entry in config["Env"]}
    env = [entry for entry in more_env if entry.partition("=")[0] not in own]
    if request.ships_phalanx:
        paths = [
            e.partition("=")[2] for e in engine.image_env(image) if e.startswith("PYTHONPATH=")
        ]
        env.append(f"PYTHONPATH={':'.join([CODE_PATH, *paths])}")
    return {
        **config,
        "Image": image,
        "Env": [*env, *config["Env"]],
        "HostConfig": host,
    }


def put_token(engine: Engine, container: str, token: bytes, *, is_mounted: bool) -> None:
    """Give a container that has not begun the token of its app's rendezvous."""
    place, file = os.path.split(TOKEN_FILE)
    if is_mounted:  # the rest of it cannot be written to
        engine.put_files(container, place, {file: token})
    else:
        engine.put_files(container, "/", {TOKEN_FILE.lstrip("/"): token})


def _ship(engine: Engine, request: DockerRequest, image: str) -> None:
    """Fill a volume with Phalanx. A container that never runs takes it in: any engine can do that,
    one on another machine too.
    """
    from phalanx._launcher.transport.bundle import make_bundle

    volume = code_volume(request.app_id)
    engine.create_volume(volume, request.labels)
    mount = {"Type": "volume", "Source": volume, "Target": CODE_PATH}
    helper = engine.create_container(
        f"{volume}-filling",
        {
            "Image": image,
            "Entrypoint": ["true"],
            "NetworkDisabled": True,
            "HostConfig": {"Mounts": [mount], "NetworkMode": "none"},
            "Labels": {
                labels.FILLING: request.app_id,
                labels.USER: request.labels[labels.USER],
            },
        },
    )
    try:
        engine.put_files(helper, CODE_PATH, make_bundle().files)
    finally:
        engine.remove_container(helper)
