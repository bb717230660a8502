"""All calls of the engine's API, and what its complaints mean.

The official client is imported when an engine is used; without it, the extra is named.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import socket
import tarfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from phalanx._core.sanitize import sanitize_line
from phalanx._logs import logger
from phalanx._schedulers.authoring import need
from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.labels import lifecycle_record
from phalanx._schedulers.replicas.assessment import SeenApp, SeenContainer
from phalanx._schedulers.replicas.lifecycle import ReplicaKey
from phalanx._schedulers.replicas.lifecycle_record import LifecycleRecord
from phalanx._system import machine
from phalanx.errors import SchedulerError, SchedulerUnreachable

if TYPE_CHECKING:
    from docker import APIClient

_EXTRA = "phalanx[docker]"
_SOCKET = "unix:///var/run/docker.sock"
_TIMEOUT = 60.0
_LONGEST = 500
_TRIES = 10
_LEAVING, _LEAVING_SLOWLY = 10.0, 60.0
"""Seconds for containers to leave a network: those that are there, and those that are gone, whose
ends a busy engine has still to remove.
"""
_GPU = re.compile(r"nvidia\.com/gpu=\d+")
"""A GPU among the devices that an engine names."""
_versions: dict[str, str] = {}
"""The version of the API that an engine has, by its address: it is asked once."""


class NotInEngine(SchedulerError):
    """The engine has no such container, image, network or volume."""


class NameTaken(SchedulerError):
    """There is a container, network or volume of that name, or it is being removed."""


class Engine:
    """A connection to the engine that the user's environment names; a context manager.

    Everything raises `SchedulerError`: `SchedulerUnreachable` where it does not answer.
    """

    def __init__(self, *, timeout: float = _TIMEOUT) -> None:
        need("docker", _EXTRA)
        self.address, tls = _address()
        _knock(self.address)
        with self.errors("reach it"):
            self.api = _connect(
                base_url=self.address,
                version=_versions.get(self.address, "auto"),
                timeout=timeout,
                tls=tls,
            )
        _versions[self.address] = self.api.api_version

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection."""
        self.api.close()

    # ── what is there ─────────────────────────────────────────────────────────

    def find(self, app_id: str, session: str | None = None) -> SeenApp | None:
        """All that there is of an app; None if it is not there."""
        wanted: dict[str, str | None] = {labels.APP: app_id}
        if session is not None:
            wanted[labels.SESSION] = session
        found = self.find_all(wanted)
        return found[0] if found else None

    def find_all(self, wanted: Mapping[str, str | None]) -> list[SeenApp]:
        """The apps whose containers have these labels, the latest last. None: with any value."""
        listed = self._listed(wanted)
        with self.errors("list volumes"):
            volumes = self.api.volumes(filters={"label": [labels.CANCELLED]})
        cancelled = {
            v["Labels"].get(labels.APP): float(v["Labels"][labels.CANCELLED])
            for v in volumes.get("Volumes") or ()
        }
        apps: dict[str, list[dict[str, Any]]] = {}
        for entry in listed:
            known = self.inspect(entry["Id"])
            if known is not None:
                apps.setdefault(known["Config"]["Labels"].get(labels.APP, ""), []).append(known)
        found = [_seen_app(app_id, some, cancelled.get(app_id)) for app_id, some in apps.items()]
        return sorted(filter(None, found), key=lambda app: app.lifecycle_record.created)

    def lifecycle_record(self, app_id: str, session: str) -> LifecycleRecord | None:
        """What an app consists of; None if it is not there. One question, whatever its size."""
        listed = self._listed({labels.APP: app_id, labels.SESSION: session})
        return lifecycle_record(listed[0]["Labels"]) if listed else None

    def attempts(self, app_id: str, session: str, key: ReplicaKey) -> dict[int, tuple[str, str]]:
        """The containers that a replica has had: their ids and states, by attempt."""
        wanted: dict[str, str | None] = {labels.APP: app_id, labels.SESSION: session}
        wanted |= {labels.ROLE: key[0], labels.REPLICA: str(key[1])}
        return {
            int(entry["Labels"][labels.ATTEMPT]): (entry["Id"], entry["State"])
            for entry in self._listed(wanted)
        }

    def lent_gpus(self) -> list[tuple[str, tuple[str, ...]]]:
        """The GPUs of containers that are lent to launches, each behind its lease's name."""
        listed = self._listed({labels.LEASE: None, labels.GPUS: None})
        return [(entry["Labels"][labels.LEASE], _gpus(entry["Labels"])) for entry in listed]

    def num_gpus(self) -> int | None:
        """How many it can give to containers; None where nobody can tell."""
        known = self.info().get("DiscoveredDevices") or ()
        found = sum(bool(_GPU.fullmatch(str(device.get("ID")))) for device in known)
        if not found and _socket_path(self.address) is not None:
            found = machine.gpus({})
        return found or None

    def _listed(self, wanted: Mapping[str, str | None]) -> list[dict[str, Any]]:
        given = [key if value is None else f"{key}={value}" for key, value in wanted.items()]
        filters = {"label": given}
        for left in range(_TRIES, 0, -1):
            try:
                with self.errors("list containers"):
                    listed: list[dict[str, Any]] = self.api.containers(all=True, filters=filters)
                    break
            except SchedulerError as error:
                # Podman cannot list what just ends.
                if "no such process" not in str(error) or left == 1:
                    raise
        return listed

    def inspect(self, container: str) -> dict[str, Any] | None:
        """What the engine knows of a container; None if it is not there."""
        try:
            with self.errors("look at a container"):
                known: dict[str, Any] = self.api.inspect_container(container)
        except NotInEngine:
            return None
        return known

    def image_env(self, image: str) -> list[str]:
        """The environment that an image sets."""
        with self.errors(f"look at the image {image}"):
            config = self.api.inspect_image(image).get("Config") or {}
        return list(config.get("Env") or ())

    def info(self) -> dict[str, Any]:
        """What the engine says of its machine."""
        with self.errors("ask what it has"):
            known: dict[str, Any] = self.api.info()
        return known

    # ── what is made ──────────────────────────────────────────────────────────

    def create_network(self, name: str, own: Mapping[str, str]) -> None:
        """A network in which containers find each other by name."""
        with self.errors(f"create the network {name}"):
            self.api.create_network(name, driver="bridge", labels=dict(own))

    def create_volume(self, name: str, own: Mapping[str, str]) -> None:
        """A volume; one of that name that is there is left as it is."""
        with self.errors(f"create the volume {name}"):
            self.api.create_volume(name, labels=dict(own))

    def create_container(self, name: str, config: Mapping[str, Any]) -> str:
        """A container that does not run yet. Raises `NameTaken`."""
        with self.errors(f"create the container {name}"):
            made: str = self.api.create_container_from_config(dict(config), name)["Id"]
        if config.get("HostConfig", {}).get("DeviceRequests"):
            host = (self.inspect(made) or {}).get("HostConfig", {})
            if not host.get("DeviceRequests") and not host.get("Devices"):
                logger.warning(
                    "phalanx: the engine ignores the request for GPUs, as Podman 4 does over "
                    "Docker's API: %s may have none",
                    name,
                )
        return made

    def put_files(self, container: str, directory: str, files: Mapping[str, bytes]) -> None:
        """Write files, by their names, into a directory of a container, running or not."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, data in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(data), 0o644
                tar.addfile(entry, io.BytesIO(data))
        with self.errors("copy files into a container"):
            self.api.put_archive(container, directory, buffer.getvalue())

    def read_file(self, container: str, path: str, limit: int) -> bytes | None:
        """A file of a container, running or not; None where there is none, or it is longer."""
        try:
            with self.errors("read a file of a container"):
                pieces, facts = self.api.get_archive(container, path)
                if facts["size"] > limit:
                    pieces.close()
                    return None
                data = b"".join(pieces)
        except SchedulerError:
            return None  # what it says is a help, no more
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            members = [member for member in tar.getmembers() if member.isfile()]
            file = tar.extractfile(members[0]) if members else None
            return None if file is None else file.read()

    # ── what is begun and ended ───────────────────────────────────────────────

    def start(self, container: str) -> None:
        """Start a container.

        One that cannot be started says so from then on, and nothing is raised; but with Podman,
        which keeps no such record, `SchedulerError` is.
        """
        from docker.errors import APIError

        with self.errors("start a container"):
            try:
                self.api.start(container)
            except APIError:
                known = self.inspect(container)
                if known is None or known["State"].get("Error") or _has_begun(known):
                    return
                raise

    def stop(self, container: str, grace: float) -> None:
        """SIGTERM, after the grace SIGKILL. Blocks until it has ended."""
        known = self.inspect(container)
        with contextlib.suppress(NotInEngine), self.errors("stop a container"):
            if known is not None and known["State"].get("Paused"):
                self.api.unpause(container)  # one that stands still hears nothing
            self.api.stop(container, timeout=round(grace))

    def remove_container(self, container: str) -> None:
        """With the volumes that have no name; one that runs is killed."""
        with contextlib.suppress(NotInEngine, NameTaken), self.errors("remove a container"):
            self.api.remove_container(container, v=True, force=True)

    def remove_all(self, app_id: str) -> None:
        """Whatever there is of an app."""
        filters = {"label": [f"{labels.APP}={app_id}"]}
        with self.errors(f"remove {app_id}"):
            # A retry may be on its way: it is looked for until there is none.
            while listed := self.api.containers(all=True, filters=filters):
                for entry in listed:
                    self.remove_container(entry["Id"])
            for network in self.api.networks(filters=filters):
                self.remove_network(network["Id"])
            for volume in self.api.volumes(filters=filters).get("Volumes") or ():
                self.remove_volume(volume["Name"])

    def remove_network(self, network: str) -> None:
        """Containers that are gone may take a moment to leave it. One that is not there is none."""
        began = time.monotonic()
        while True:
            try:
                with contextlib.suppress(NotInEngine, NameTaken), self.errors("remove a network"):
                    self.api.remove_network(network)
            except SchedulerError as error:
                waited = time.monotonic() - began
                is_used = waited > _LEAVING and self._is_used(network)
                if "active endpoints" not in str(error) or is_used or waited > _LEAVING_SLOWLY:
                    raise
                time.sleep(0.1)
            else:
                return

    def _is_used(self, network: str) -> bool:
        """A container that is there is in it."""
        try:
            with self.errors("look at a network"):
                known = self.api.inspect_network(network)
        except NotInEngine:
            return False
        return any(self.inspect(one) is not None for one in known.get("Containers") or {})

    def remove_volume(self, name: str) -> None:
        """One that is not there is no error."""
        with contextlib.suppress(NotInEngine), self.errors("remove a volume"):
            self.api.remove_volume(name, force=True)

    def events(self, app_id: str) -> Generator[Any, None, None]:
        """Blocks until something happens to an app's containers, again and again."""
        filters = {"label": [f"{labels.APP}={app_id}"], "type": ["container"]}
        with self.errors("listen to it"):
            stream = self.api.events(filters=filters, decode=True)
        return self._guarded(stream)

    def _guarded(self, stream: Any) -> Generator[Any, None, None]:
        try:
            with self.errors("listen to it"):
                yield from stream
        finally:
            stream.close()

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """What the engine, or the way to it, complains of, as errors of ours."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except APIError as error:
            said = explain(str(error.explanation or error))
            kind = {404: NotInEngine, 409: NameTaken}.get(error.status_code or 0, SchedulerError)
            raise kind(f"the Docker engine cannot {what}: {said}") from error
        except (DockerException, RequestException, HTTPError, OSError) as error:
            raise SchedulerUnreachable(
                f"the Docker engine at {self.address} does not answer "
                f"({sanitize_line(str(error), _LONGEST)}). Look at it: docker info"
            ) from error


def _connect(**settings: Any) -> APIClient:
    from docker import APIClient

    class Client(APIClient):  # type: ignore[misc]
        """One that trusts the authority of the engine's certificates, and no other."""

        def merge_environment_settings(
            self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
        ) -> Any:
            """$REQUESTS_CA_BUNDLE would win over $DOCKER_CERT_PATH."""
            given = self.verify if verify is None else verify
            return super().merge_environment_settings(url, proxies, stream, given, cert)

    return Client(**settings)


def _address() -> tuple[str, Any]:
    """Where the engine is: $DOCKER_HOST, the user's current context, or the usual place."""
    from docker.context import ContextAPI
    from docker.utils import kwargs_from_env

    known = kwargs_from_env()
    if "base_url" in known:
        return str(known["base_url"]), known.get("tls", False)
    context = ContextAPI.get_current_context()
    if context is None or not context.Host:
        return _SOCKET, False
    return str(context.Host), context.TLSConfig or False


def _socket_path(address: str) -> str | None:
    """The file of an engine's socket; None where it is reached in another way."""
    found = re.fullmatch(r"(?:http\+)?unix:/+(.*)", address)
    return f"/{found[1]}" if found else None


def _knock(address: str) -> None:
    """Say why a socket of this machine cannot be used. Raises `SchedulerUnreachable`."""
    path = _socket_path(address)
    if path is None:
        return
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.settimeout(_TIMEOUT)
            tried.connect(path)
    except OSError as error:
        raise SchedulerUnreachable(_no_entry(path, error)) from error


def _no_entry(path: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return (
            f"permission denied: {path}. To use the Docker engine: sudo usermod -aG docker "
            f"{os.environ.get('USER') or '$USER'}, then log in again."
        )
    if error.errno == errno.ENOENT:
        return (
            f"no Docker engine at {path}. Start it: sudo systemctl start docker; or name another: "
            "export DOCKER_HOST=unix:///run/user/$(id -u)/podman/podman.sock"
        )
    reason = error.strerror or str(error)
    return (
        f"the Docker engine at {path} does not answer ({reason}). Start it: "
        "sudo systemctl restart docker"
    )


_NO_GPUS = (
    "the engine cannot give GPUs to containers. Install nvidia-container-toolkit, then: sudo "
    "nvidia-ctk runtime configure && sudo systemctl restart docker"
)
_MEANINGS = (
    (r"nvidia-container-cli: device error: (\S+?): unknown device", "there is no GPU {0}"),
    (
        r"could not select device driver|nvidia-container-cli|unresolvable CDI devices",
        _NO_GPUS,
    ),
    (r"exec: \"(.*?)\": .*(?:not found|no such file)", "the image has no program {0!r}"),
    (
        r"exec: \"(.*?)\": .*permission denied",
        "the program {0!r} in the image cannot be executed",
    ),
    (
        r"bind source path does not exist: (\S+)",
        "there is no {0} on the engine's machine, which the app mounts",
    ),
    (
        r"Bind for \S+?:(\d+) failed: port is already allocated",
        "port {0} of this machine is taken",
    ),
    (r"unable to find user (.*?): no matching", "the image has no user {0!r}"),
    (r"error gathering device information .*\"(.*?)\"", "this machine has no device {0}"),
    (r"network (\S+) not found", "there is no network {0}. Create it: docker network create {0}"),
)


def explain(text: str) -> str:
    """What the engine complains of, as a sentence of ours where we know it. Pure."""
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, text):
            return meaning.format(*(sanitize_line(word) for word in found.groups()))
    return sanitize_line(text.strip().rstrip("."), _LONGEST)


# ── what its answers mean ─────────────────────────────────────────────────────


def _seen_app(
    app_id: str, known: Sequence[Mapping[str, Any]], cancelled: float | None
) -> SeenApp | None:
    own = known[0]["Config"]["Labels"]
    record = lifecycle_record(own)
    if record is None:
        return None
    return SeenApp(
        app_id,
        own.get(labels.NAME, ""),
        own.get(labels.SESSION, ""),
        own.get(labels.USER, ""),
        record,
        tuple(_seen(container) for container in known),
        cancelled,
    )


def _seen(known: Mapping[str, Any]) -> SeenContainer:
    own, state = known["Config"]["Labels"], known["State"]
    return SeenContainer(
        key=(own[labels.ROLE], int(own[labels.REPLICA])),
        attempt=int(own[labels.ATTEMPT]),
        id=known["Id"],
        state=state["Status"],
        exit_code=int(state.get("ExitCode") or 0),
        error=state.get("Error") or "",
        out_of_memory=bool(state.get("OOMKilled")),
        started=moment(state.get("StartedAt")),
        finished=moment(state.get("FinishedAt")),
        memory=int(known["HostConfig"].get("Memory") or 0),
        image=known["Config"].get("Image") or "",
        program=next(iter(known["Config"].get("Entrypoint") or ()), ""),
        hostname=own.get(labels.ALIAS, ""),
        pid=state.get("Pid") or None,
        gpus=_gpus(own),
    )


def _has_begun(known: Mapping[str, Any]) -> bool:
    return moment(known["State"].get("StartedAt")) is not None


def _gpus(own: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(filter(None, own.get(labels.GPUS, "").split(",")))


def moment(text: str | None) -> float | None:
    """A time of the engine's in seconds since 1970; None for one that has not come. Pure."""
    if not text or text.startswith("0001-"):
        return None
    whole, _, rest = text.partition(".")
    digits = re.match(r"\d*", rest)
    fraction = digits[0] if digits else ""
    zone = re.search(r"(Z|[+-]\d\d:\d\d)$", text)
    base = whole.removesuffix("Z") if not rest else whole
    offset = zone[1].replace("Z", "+00:00") if zone else "+00:00"
    base = base.removesuffix(zone[1]) if zone and not rest else base
    return datetime.fromisoformat(base + offset).timestamp() + float(f"0.{fraction or 0}")
