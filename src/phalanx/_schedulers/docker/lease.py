"""Containers as hosts for launches, on a network of their own.

What keeps a container is its first process, which ends when nobody else has run in it for a while:
however a launcher ends, its agents do so soon after, and the containers after them. Nothing has to
be cleaned up but a network, which the next lease, or `phalanx clean`, removes.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from phalanx._images.builder import ensure_image
from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.engine import Engine
from phalanx._schedulers.docker.gpus import ALL, chosen
from phalanx._schedulers.docker.leftovers import remove_leftovers
from phalanx._schedulers.docker.options import DockerOptions
from phalanx._schedulers.docker.request import gpu_request, user_name, writable_tmp
from phalanx._schedulers.leases import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx._schedulers.parallel import for_all
from phalanx.errors import PhalanxError, SchedulerError

_IDLE = 30
"""Seconds after which a container in which nobody runs ends."""
_LOOKED_AT = 1.0
"""Seconds between two questions whether containers are there."""
_AGAIN = 2.0
"""Seconds after which a replacement that failed is tried again: the engine may be restarting."""

# Waits by turns for a moment, which also buries what others have left, and looks who is there.
_HOLDER = """
trap "exit 0" TERM INT
idle=0
while [ $idle -lt $1 ]; do
    sleep 1 & wait $!
    set -- $1 /proc/[0-9]*
    if [ $# -gt 2 ]; then idle=0; else idle=$((idle + 1)); fi
done
"""


class DockerLease(Lease):
    """Containers of one image, created at once; another for each that is lost."""

    def __init__(self, request: LeaseRequest, environ: Mapping[str, str]) -> None:
        """Begin to create them; does not wait. Raises `SchedulerError`."""
        options = request.options
        assert isinstance(options, DockerOptions)
        assert request.image is not None
        Engine().close()  # where there is none, that is said at once
        slug = re.sub(r"[^a-z0-9]+", "-", request.name.lower()).strip("-")[:30] or "launch"
        self.id = f"{slug}-{secrets.token_hex(4)}"
        self._image, self._options, self._num_hosts = request.image, options, request.num_hosts
        self._env = {**options.copied(environ), **options.env}
        self._lock = threading.Lock()
        self._numbers = count()
        self._hosts: list[str] = []
        """The names of containers that run, as far as is known."""
        self._replacing = 0
        """How many containers are on their way in the place of others."""
        self._problem = ""
        """Why one does not come."""
        self._state, self._end = "CREATING", ""
        self._given_back = threading.Event()
        self._looked = 0.0
        self._created = threading.Thread(target=self._create_all, name="phalanx-docker")
        self._created.start()

    # ── creating ──────────────────────────────────────────────────────────────

    def _create_all(self) -> None:
        try:
            with Engine() as engine:
                with contextlib.suppress(SchedulerError):  # no reason not to launch
                    remove_leftovers(engine)
                self._state = "PULLING"
                ensure_image(engine.api, self._image, self._options.pull)
                self._state = "CREATING"
                if self._options.network is None:
                    engine.create_network(self.id, self._labels)
                self._create_hosts(engine, self._num_hosts)
        except PhalanxError as error:
            self._end = str(error)
        except Exception as error:  # noqa: BLE001 whoever asks for the status gets it
            self._end = f"{type(error).__name__}: {error}"

    def _create_hosts(self, engine: Engine, count: int) -> None:
        """So many containers more, which run. Raises `SchedulerError`."""
        wanted = [max(0, self._options.gpus or 0)] * count
        config = self._config(engine.info())
        made: list[str] = []

        def create(gpus: list[str]) -> None:
            if not self._given_back.is_set():
                made.append(self._create(engine, config, gpus))

        with chosen(engine, wanted, shared=self._options.share_gpus) as gpus:
            for_all(create, gpus)
        with self._lock:
            self._hosts = sorted([*self._hosts, *made], key=_number)

    def _create(self, engine: Engine, config: Mapping[str, Any], gpus: list[str]) -> str:
        """A container, which runs; gives its name. Raises `SchedulerError`."""
        with self._lock:
            name = f"{self.id}-{next(self._numbers)}"
        made = engine.create_container(name, self._named(config, name, gpus))
        try:
            with engine.errors(f"start {name}"):
                engine.api.start(made)
        except SchedulerError:
            engine.remove_container(made)
            raise
        return name

    def _named(self, config: Mapping[str, Any], name: str, gpus: list[str]) -> dict[str, Any]:
        """What is a container's own."""
        own = dict(config)
        if self._options.network != "host":
            own["Hostname"] = name
        if self._options.network is None:
            own["NetworkingConfig"] = {"EndpointsConfig": {self.id: {"Aliases": [name]}}}
        if gpus:
            request = gpu_request(DeviceIDs=gpus)
            own["HostConfig"] = {**own["HostConfig"], "DeviceRequests": request}
            own["Labels"] = {**own["Labels"], labels.GPUS: ",".join(gpus)}
        return own

    def _config(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """What all containers have."""
        options = self._options
        host: dict[str, Any] = {
            "AutoRemove": True,
            "Privileged": options.privileged,
            "NetworkMode": options.network or self.id,
            "ShmSize": options.shm_bytes or int(info.get("MemTotal") or 0) // 2 or 1 << 30,
        }
        if options.cpus is not None:
            host["NanoCpus"] = round(options.cpus * 1e9)
        if options.mem_bytes is not None:
            host["Memory"] = host["MemorySwap"] = options.mem_bytes
        own = self._labels
        if options.gpus == -1:
            host["DeviceRequests"] = gpu_request(Count=-1)
            own[labels.GPUS] = ALL
        if options.read_only:
            host["ReadonlyRootfs"] = True
            host["Mounts"] = [writable_tmp()]
        config: dict[str, Any] = {
            "Image": self._image,
            "Entrypoint": ["/bin/sh", "-c", _HOLDER, "phalanx", str(_IDLE)],
            "Cmd": [],
            "Env": [f"{key}={value}" for key, value in self._env.items()],
            "Labels": own,
            "HostConfig": host,
        }
        if options.user is not None:
            config["User"] = options.user
        return config

    @property
    def _labels(self) -> dict[str, str]:
        return {labels.LEASE: self.id, labels.USER: user_name()}

    # ── how it stands ─────────────────────────────────────────────────────────

    def status(self) -> LeaseStatus:
        """How the containers stand; the engine is asked at most once a second."""
        if self._given_back.is_set():
            return LeaseStatus(LeasePhase.ENDED, reason="given back")
        if self._end:
            return LeaseStatus(LeasePhase.ENDED, reason=self._end)
        if self._created.is_alive():
            return LeaseStatus(LeasePhase.WAITING, state=self._state)
        self._look()
        with self._lock:
            hosts = tuple(self._lent(name) for name in self._hosts)
            replacing, problem = self._replacing, self._problem
        if not hosts and not replacing:
            return LeaseStatus(LeasePhase.ENDED, reason="all containers have ended")
        return LeaseStatus(LeasePhase.READY, hosts, "RUNNING", problem)

    def _look(self) -> None:
        with self._lock:
            if time.monotonic() - self._looked < _LOOKED_AT:
                return
            self._looked = time.monotonic()
            known = set(self._hosts)
        try:
            with Engine() as engine, engine.errors("list containers"):
                listed = engine.api.containers(filters={"label": f"{labels.LEASE}={self.id}"})
        except SchedulerError:
            return  # it may come back, and the containers may go on
        running = {name.lstrip("/") for entry in listed for name in entry["Names"]}
        with self._lock:
            # One that has come since is not in that list.
            self._hosts = [name for name in self._hosts if name in running or name not in known]

    def _lent(self, name: str) -> LentHost:
        return LentHost(name, exec_command(name), reconnect_timeout=0.0)

    # ── ends ──────────────────────────────────────────────────────────────────

    def replace(self, name: str) -> bool:
        """Create another container, on a thread; where that fails, it is tried again."""
        if self._given_back.is_set():
            return False
        with self._lock:
            self._hosts = [host for host in self._hosts if host != name]
            self._replacing += 1

        def create() -> None:
            is_created = False
            while not is_created and not self._given_back.is_set():
                try:
                    with Engine() as engine:
                        engine.remove_container(name)
                        self._create_hosts(engine, 1)
                    is_created = True
                except PhalanxError as error:
                    self._problem = str(error)
                    self._given_back.wait(_AGAIN)
            with self._lock:
                self._replacing -= 1
                self._problem = ""
            if self._given_back.is_set():
                self._remove()

        threading.Thread(target=create, name="phalanx-docker", daemon=True).start()
        return True

    def give_back(self) -> None:
        """Remove the containers and their network."""
        self._given_back.set()
        self._created.join()
        self._remove()

    def _remove(self) -> None:
        with Engine() as engine, engine.errors("remove containers"):
            mine = {"label": f"{labels.LEASE}={self.id}"}
            listed = engine.api.containers(all=True, filters=mine)
            for_all(engine.remove_container, [entry["Id"] for entry in listed])
            for network in engine.api.networks(filters=mine):
                engine.remove_network(network["Id"])


def exec_command(container: str) -> tuple[str, ...]:
    """What runs another command in a container: docker's own, or where that is missing, ours."""
    if shutil.which("docker") is not None:
        return ("docker", "exec", "-i", container)
    return (sys.executable, "-m", "phalanx._schedulers.docker.exec_stream", container)


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])
