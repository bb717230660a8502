"""Containers for launches: hosts that end with this process.

Each container's first process reads its input, which the engine takes from a connection of this
process: however this process ends, it comes to the end of that input, and the engine removes the
container. There is nobody else to clean up, and no network of its own that could be left. What
leads into a container is `docker exec`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import socket
import threading
import time
import weakref
from typing import Any

from phalanx._core.sanitize import sanitize_line
from phalanx._images.builder import ensure_image
from phalanx._schedulers.docker.carrying import for_all
from phalanx._schedulers.docker.creation import complete
from phalanx._schedulers.docker.engine import Engine, EngineGone, explain
from phalanx._schedulers.docker.options import DockerOptions
from phalanx._schedulers.docker.request import make_request, user_name
from phalanx._schedulers.lending import Lease, LeasePhase, LeaseRequest, LeaseStatus, LentHost
from phalanx._specs import AppDef, Resource, Role
from phalanx._specs.app_def import UNSPECIFIED
from phalanx.errors import ConfigError, PhalanxError, SchedulerError

LEASE = "phalanx.lease"
"""The label of a container that is lent."""
_INTERVAL = 1.0
"""Seconds between two questions to the engine."""
_READY = "phalanx: ready"
_HOLD = f"import sys; print({_READY!r}, flush=True); sys.stdin.buffer.read()"
_STARTING = 60.0
"""Seconds for an interpreter to start."""


class DockerLease(Lease):
    """Containers, from the request until they are given back."""

    def __init__(self, request: LeaseRequest) -> None:
        """Ask for them, on a thread. Raises `ConfigError`."""
        options = request.options
        assert isinstance(options, DockerOptions)
        if options.image is None:
            raise ConfigError(
                "local_docker lends containers of an image: name one, as in "
                'scheduler_options={"image": "python:3.12"}.'
            )
        if options.image_repo is not None:
            raise ConfigError(
                "local_docker: image_repo has no effect on lent hosts: the launcher sends the "
                "project itself."
            )
        if shutil.which("docker") is None:
            raise ConfigError("the command docker is not installed here: it leads into containers.")
        self._options = options
        self._lock = threading.Lock()
        self._made: dict[str, _Container] = {}
        """The containers that are there, by the name of the host."""
        self._reason = ""
        """Why there will be none."""
        self._state = "starting containers"
        self._given_back = False
        self._looked = 0.0
        self._count = request.num_hosts
        self._wanted = request.num_hosts
        network = options.network or "bridge"
        role = Role(
            "container",
            image=options.image,
            entrypoint="python",
            args=["-c", _HOLD],
            num_replicas=request.num_hosts,
            resource=Resource(UNSPECIFIED, options.gpus, UNSPECIFIED),
        )
        self._request = make_request(
            AppDef(request.name, [role]),
            "",
            dataclasses.replace(options, network=network),
            "PHALANX_RANK0_HOST",
            {},
            os.environ,
        )
        self.id = self._request.app_id
        self._making = [self._make_soon(range(request.num_hosts))]

    # ── making ────────────────────────────────────────────────────────────────

    def _make_soon(self, numbers: range) -> threading.Thread:
        thread = threading.Thread(
            target=self._make, args=[numbers], name="docker-lease", daemon=True
        )
        thread.start()
        return thread

    def _make(self, numbers: range) -> None:
        try:
            with Engine() as engine:
                self._state = "waiting for the image"
                ensure_image(engine.api, str(self._options.image), self._options.pull)
                self._state = "starting containers"
                info = engine.info()
                for_all(lambda number: self._start(engine, info, number), numbers)
        except PhalanxError as error:
            self._reason = str(error).rstrip(".")

    def _start(self, engine: Engine, info: dict[str, Any], number: int) -> None:
        if self._given_back:
            return
        base = self._request.containers[number % self._wanted]
        name = f"container-{number}"
        config = complete(engine, self._request, base, base.image, [], info)
        host = {**config["HostConfig"], "AutoRemove": True}
        if host["NetworkMode"] == "bridge":
            del config["NetworkingConfig"]  # it takes no other names
        config |= {
            "HostConfig": host,
            "Labels": {LEASE: self.id, "phalanx.user": user_name()},
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
        }
        if host["NetworkMode"] != "host":
            config["Hostname"] = name
        made = _Container(engine.create_container(f"{self.id}-{number}", config), number)
        with self._lock:
            self._made[name] = made
        with engine.errors("start a container"):
            try:
                made.hold(engine)
                engine.api.start(made.id)
            except Exception as error:
                from docker.errors import APIError

                if isinstance(error, APIError):
                    raise SchedulerError(explain(str(error.explanation))) from error
                raise
        if _READY not in (said := made.first_words()):
            why = f"the image {base.image} has no program {self._options.python!r}"
            if "No such file" not in said:
                why = f"{self._options.python} does not run in {base.image}: {sanitize_line(said)}"
            raise SchedulerError(f"{why}. Name another: python=…")
        made.is_ready = True

    # ── how it stands ─────────────────────────────────────────────────────────

    def status(self) -> LeaseStatus:
        """The containers that run, as of a second ago at most."""
        if self._given_back:
            return LeaseStatus(LeasePhase.ENDED, reason="given back")
        if self._reason and len(self._making) == 1:
            return LeaseStatus(LeasePhase.ENDED, reason=self._reason)
        self._look()
        with self._lock:
            hosts = tuple(
                LentHost(name, self._command(made))
                for name, made in sorted(self._made.items(), key=lambda one: one[1].number)
                if made.is_ready and not made.is_lost
            )
            all_made = all(made.is_ready or made.is_lost for made in self._made.values())
        if len(self._making) == 1 and (len(self._made) < self._wanted or not all_made):
            return LeaseStatus(LeasePhase.WAITING, state=self._state)
        return LeaseStatus(LeasePhase.READY, hosts, "running")

    def _command(self, made: _Container) -> tuple[str, ...]:
        return ("docker", "--host", made.address, "exec", "--interactive", made.id)

    def _look(self) -> None:
        """Find out which containers are gone, once a second."""
        now = time.monotonic()
        with self._lock:
            if now - self._looked < _INTERVAL:
                return
            self._looked = now
        try:
            with Engine() as engine, engine.errors("list containers"):
                listed = engine.api.containers(filters={"label": [f"{LEASE}={self.id}"]})
        except EngineGone:
            return  # it may come back
        running = {entry["Id"] for entry in listed}
        with self._lock:
            for made in self._made.values():
                made.is_lost = made.is_lost or (made.is_ready and made.id not in running)

    def replace(self, name: str) -> bool:
        """Start another container."""
        with self._lock:
            if self._given_back:
                return False
            lost = self._made.get(name)
            if lost is not None:
                lost.is_lost = True
                lost.let_go()
            number = self._count
            self._count += 1
            self._making.append(self._make_soon(range(number, number + 1)))
        return True

    def give_back(self) -> None:
        """Remove the containers."""
        with self._lock:
            self._given_back = True
        for thread in self._making:
            thread.join()
        for made in self._made.values():
            made.let_go()
        with contextlib.suppress(EngineGone), Engine() as engine:
            for_all(engine.remove_container, [made.id for made in self._made.values()])


class _Container:
    """One container, and the connection that holds it."""

    def __init__(self, container: str, number: int) -> None:
        self.id = container
        self.number = number
        self.address = ""
        self.is_ready = False
        self.is_lost = False
        self._connection: socket.socket | None = None
        self._output: socket.socket | None = None

    def hold(self, engine: Engine) -> None:
        """Take hold of its input, before it starts."""
        self.address = engine.address.replace("http+unix://", "unix://")
        # A connection that has the output as well would not end the input.
        self._connection = engine.attach(self.id, "stdin")
        self._output = engine.attach(self.id, "stdout", "stderr")
        _OPEN.add(self)

    def first_words(self) -> str:
        """What it says when it has started, or why it could not. Raises `EngineGone`."""
        assert self._output is not None
        said = b""
        with self._output as output:
            output.settimeout(_STARTING)
            try:
                while b"\n" not in said and (data := output.recv(4096)):
                    said += data
            except OSError as error:
                raise EngineGone(f"a container does not start ({error})") from error
        return said.decode("utf-8", "replace")

    def let_go(self) -> None:
        """Its input ends, and it with it. Idempotent; also in a process that was forked, whose
        connection would keep it.
        """
        for connection in (self._connection, self._output):
            if connection is not None:
                connection.close()
        self._connection = None
        _OPEN.discard(self)


_OPEN: weakref.WeakSet[_Container] = weakref.WeakSet()


def _forget_in_fork() -> None:
    for container in list(_OPEN):
        container.let_go()


os.register_at_fork(after_in_child=_forget_in_fork)
