"""The containers of an app. Pure.

What only the engine knows is left open: how much memory it has, what the image's environment is,
which image a project becomes.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx._core.ranks import REPLICA as REPLICA_VARIABLE
from phalanx._images.plan import ImagePlan
from phalanx._rendezvous.tcp.tokens import FILE_VARIABLE as RENDEZVOUS_TOKEN_FILE
from phalanx._schedulers.authoring import (
    UNSAID_MEMORY,
    check_text,
    make_app_id,
    needs_phalanx,
    replicas,
)
from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.labels import container_name
from phalanx._schedulers.docker.options import DockerOptions
from phalanx._schedulers.replicas.lifecycle import RoleLifecycle
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._schedulers.replicas.request import ROLE, with_python
from phalanx._specs import AppDef, Role
from phalanx._specs.instances import DEVICE_FILES
from phalanx._specs.mounts import BindMount, DeviceMount, VolumeMount
from phalanx._worker.program import ERROR_FILE
from phalanx.errors import ConfigError

TMP = "/tmp"  # noqa: S108 in a container of its own
ERROR_PATH = f"{TMP}/phalanx-error.json"
"""Where in its container a replica reports its error: the engine reads it when it has ended."""
CODE_PATH = "/opt/phalanx-code"
"""Where in a container Phalanx itself is, for programs that need it."""
TOKEN_PATH = "/opt/phalanx-token"  # noqa: S105
TOKEN_FILE = f"{TOKEN_PATH}/rendezvous.token"
"""Where in a container the token of its app's rendezvous is: `docker inspect` shows variables."""
_HOST = "host"
_LONGEST_WORD = 40


@dataclass(frozen=True)
class ContainerRequest:
    """One replica's container."""

    role: str
    replica: int
    name: str
    image: str
    """The role's; with a workspace, the one that the project is laid over."""
    image_plan: ImagePlan | None
    """What is built first."""
    config: Mapping[str, Any]
    """As the engine's API takes it."""
    num_gpus: int = 0
    """Which ones is said when it is created: those that nobody else has."""

    def with_gpus(self, numbers: Sequence[str]) -> dict[str, Any]:
        """The config with these GPUs."""
        host = {**self.config["HostConfig"], "DeviceRequests": gpu_request(DeviceIDs=[*numbers])}
        own = {**self.config["Labels"], labels.GPUS: ",".join(numbers)}
        return {**self.config, "HostConfig": host, "Labels": own}


@dataclass(frozen=True)
class DockerRequest:
    """What is created: a network, and a container for each replica."""

    app_id: str
    session: str
    network: str | None
    """The app's own; None: its containers join another."""
    containers: tuple[ContainerRequest, ...]
    lifecycle_record: LifecycleRecord
    labels: Mapping[str, str]
    """Of everything that is the app's."""
    options: DockerOptions
    ships_phalanx: bool
    """A volume with Phalanx is mounted, since a program needs it."""
    copied_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of this environment, which are not shown."""

    def __str__(self) -> str:
        """What would be created, for reading."""
        shown: dict[str, Any] = {"app_id": self.app_id}
        if self.network is not None:
            shown["network"] = self.network
        if self.ships_phalanx:
            shown["volume"] = {"name": code_volume(self.app_id), "content": "Phalanx"}
        plans = dict.fromkeys(plan for c in self.containers if (plan := c.image_plan))
        if plans:
            shown["images"] = [_shown_plan(plan) for plan in plans]
        if self.copied_env:
            shown["copied_env"] = sorted(self.copied_env)
        shown["pull"] = self.options.pull
        shown["containers"] = {c.name: {"Image": c.image, **c.config} for c in self.containers}
        return json.dumps(shown, indent=2, ensure_ascii=False)


def _shown_plan(plan: ImagePlan) -> dict[str, Any]:
    return {
        "build": f"{plan.repository}:(digest)",
        "from": plan.base,
        "project": plan.project,
        "dockerfile": plan.dockerfile,
        "files": plan.num_files,
        "bytes": plan.size,
        "push": plan.is_pushed,
    }


def gpu_request(**which: Any) -> list[dict[str, Any]]:
    """A request for GPUs: `DeviceIDs`, or a `Count`, of which -1 means all."""
    return [{"Driver": "", **which, "Capabilities": [["gpu"]]}]


def writable_tmp() -> dict[str, Any]:
    """A volume without a name for /tmp: it goes with its container, and can be read until then."""
    return {"Type": "volume", "Target": TMP}


def token_volume() -> dict[str, Any]:
    """A volume without a name for the token, where no other file of the container is writable."""
    return {"Type": "volume", "Target": TOKEN_PATH}


def code_volume(app_id: str) -> str:
    """The volume that has Phalanx for an app."""
    return f"{app_id}-phalanx"


def make_request(
    app: AppDef,
    session: str,
    options: DockerOptions,
    rank0_env: str,
    plans: Mapping[str, ImagePlan | None],
    environ: Mapping[str, str],
) -> DockerRequest:
    """All of an app's containers; `plans` are the images of roles' workspaces, by role.

    Raises `ConfigError`.
    """
    app_id = make_app_id(app.name)
    for role in app.roles:
        if not role.image:
            raise ConfigError(
                f"role {role.name!r} has no image to run in. Name one, such as --image python:3.12"
            )
    check_text(app, options.env)
    record = LifecycleRecord(
        tuple(
            RoleLifecycle(role.name, role.num_replicas, role.max_retries, role.retry_policy)
            for role in app.roles
        ),
        options.stop_grace,
        time.time(),
    )
    own = {
        labels.APP: app_id,
        labels.SESSION: session,
        labels.USER: user_name(),
        labels.NAME: app.name,
    }
    meant = list(replicas(app, app_id, rank0_env=rank0_env, root="."))
    network = app_id if options.network is None else options.network
    words = role_words([role.name for role in app.roles])
    ships = any(needs_phalanx(role) for role, _ in meant)
    maker = _ContainerMaker(app_id, options, network, words, record, own, rank0_env, ships=ships)
    return DockerRequest(
        app_id=app_id,
        session=session,
        network=app_id if options.network is None else None,
        containers=tuple(
            maker.container(role, number, plans.get(role.name)) for role, number in meant
        ),
        lifecycle_record=record,
        labels=own,
        options=options,
        ships_phalanx=ships,
        copied_env=options.copied(environ),
    )


def user_name() -> str:
    """Who submits."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


def role_words(names: Sequence[str]) -> dict[str, str]:
    """A word for each role that can be part of a host's name; no two are the same."""
    found: dict[str, str] = {}
    for index, name in enumerate(names):
        word = re.sub(r"[^a-z0-9]+", "-", name.lower())[:_LONGEST_WORD].strip("-") or "role"
        found[name] = f"{word}-{index}" if word in found.values() else word
    return found


@dataclass(frozen=True)
class _ContainerMaker:
    app_id: str
    options: DockerOptions
    network: str
    words: Mapping[str, str]
    lifecycle_record: LifecycleRecord
    labels: Mapping[str, str]
    rank0_env: str
    ships: bool = field(kw_only=True)

    def hostname(self, role: str, number: int) -> str:
        """What other replicas call it: short in a network of its own, unique in another."""
        own = f"{self.words[role]}-{number}"
        return own if self.options.network is None else f"{self.app_id[-8:]}-{own}"

    def container(self, role: Role, number: int, plan: ImagePlan | None) -> ContainerRequest:
        argv = with_python((role.entrypoint, *role.args), self.options.python)
        host = self.hostname(role.name, number)
        is_host = self.network == _HOST
        config: dict[str, Any] = {
            "Entrypoint": [argv[0]],
            "Cmd": list(argv[1:]),
            "Env": [f"{name}={value}" for name, value in self._env(role, number).items()],
            "Labels": {
                **self.labels,
                labels.ROLE: role.name,
                labels.REPLICA: str(number),
                labels.ATTEMPT: "0",
                labels.ALIAS: host,
                labels.LIFECYCLE: self.lifecycle_record.to_text(),
            },
            "StopTimeout": round(self.options.stop_grace),
            "HostConfig": self._host_config(role),
        }
        if self.options.user is not None:
            config["User"] = self.options.user
        if not is_host:
            config["Hostname"] = host
            config["NetworkingConfig"] = {"EndpointsConfig": {self.network: {"Aliases": [host]}}}
            if role.port_map:
                config["ExposedPorts"] = {f"{port}/tcp": {} for port in role.port_map.values()}
                config["HostConfig"]["PortBindings"] = {
                    # Of several replicas, each has another port of this machine.
                    f"{port}/tcp": [
                        {
                            "HostIp": "127.0.0.1",
                            "HostPort": str(port) if role.num_replicas == 1 else "",
                        }
                    ]
                    for port in role.port_map.values()
                }
        base = f"{self.app_id}-{self.words[role.name]}-{number}"
        name, gpus = container_name(base, 0), max(0, role.resource.gpu)
        return ContainerRequest(role.name, number, name, role.image, plan, config, gpus)

    def _env(self, role: Role, number: int) -> dict[str, str]:
        first = "localhost" if self.network == _HOST else self.hostname(role.name, 0)
        return {
            ROLE: role.name,
            REPLICA_VARIABLE: str(number),
            self.rank0_env: first,
            ERROR_FILE: ERROR_PATH,
            RENDEZVOUS_TOKEN_FILE: TOKEN_FILE,
            "PYTHONUNBUFFERED": "1",
            **self.options.env,
            **role.env,
        }

    def _host_config(self, role: Role) -> dict[str, Any]:
        options, resource = self.options, role.resource
        config: dict[str, Any] = {
            "NetworkMode": self.network,
            # A first process that passes signals on and buries orphans.
            "Init": True,
            # What can be read back, whatever the engine does by default.
            "LogConfig": {"Type": "json-file", "Config": {}},
            "RestartPolicy": {"Name": "no"},
            "Mounts": list(self._mounts(role)),
            "Devices": list(_devices(role)),
        }
        if options.privileged:
            config["Privileged"] = True
        if resource.cpu > 0:
            config["NanoCpus"] = int(resource.cpu * 1e9)
        if resource.memMB > 0 and resource.memMB != UNSAID_MEMORY:
            # Without swap: beyond the limit a replica is killed, instead of being slow.
            config["Memory"] = config["MemorySwap"] = resource.memMB << 20
        if options.shm_bytes is not None:
            config["ShmSize"] = options.shm_bytes
        if resource.gpu > 0:  # as many; which ones is said when it is created
            config["DeviceRequests"] = gpu_request(Count=resource.gpu)
        if options.read_only:
            config["ReadonlyRootfs"] = True
        return config

    def _mounts(self, role: Role) -> Iterator[dict[str, Any]]:
        if self.ships:
            name = code_volume(self.app_id)
            yield {"Type": "volume", "Source": name, "Target": CODE_PATH, "ReadOnly": True}
        if self.options.read_only:
            yield token_volume()
        if self.options.read_only and not any(m.dst_path == TMP for m in role.mounts):
            yield writable_tmp()
        for mount in role.mounts:
            match mount:
                case BindMount(source, target, read_only):
                    path = os.path.abspath(os.path.expanduser(source))
                    yield {"Type": "bind", "Source": path, "Target": target, "ReadOnly": read_only}
                case VolumeMount(source, target, read_only):
                    yield {
                        "Type": "volume",
                        "Source": source,
                        "Target": target,
                        "ReadOnly": read_only,
                    }


def _devices(role: Role) -> Iterator[dict[str, str]]:
    for mount in role.mounts:
        if isinstance(mount, DeviceMount):
            yield _device(mount.src_path, mount.dst_path, mount.permissions)
    for name, count in role.resource.devices.items():
        if name not in DEVICE_FILES:
            raise ConfigError(
                f"role {role.name!r}: local_docker does not know the device {name!r}. Mount its "
                "file: type=device,src=/dev/…"
            )
        for number in range(count):
            path = DEVICE_FILES[name].format(number)
            yield _device(path, path, "rwm")


def _device(source: str, target: str, permissions: str) -> dict[str, str]:
    return {
        "PathOnHost": source,
        "PathInContainer": target,
        "CgroupPermissions": permissions,
    }
