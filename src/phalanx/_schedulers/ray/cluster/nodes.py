"""A placement group, and a server on each of its bundles: Ray says where, and nothing else.

The only module that imports Ray: in a driver of ours on the cluster, or within a Ray program.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx._schedulers.ray.resources import strictly_placed, why_waiting
from phalanx.errors import SchedulerError

_STANDARD = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}


@dataclass(frozen=True)
class NodeServer:
    """Where commands are run on a node."""

    name: str
    """What users know the node by; no two of a group have the same."""
    address: str
    port: int
    hostname: str
    free_port: int
    """A port of the node that was free."""


class PlacedBundle:
    """One bundle of a placement group, and the actor that holds its server.

    One thread may look while another replaces or removes.
    """

    def __init__(self, group: PlacedGroup, index: int) -> None:
        self.group = group
        self.index = index
        self.server: NodeServer | None = None
        self.end = ""
        """Why the server is gone, once it is."""
        self._is_replaced = False
        """It is placed again, until it is there: Ray may try a node that has just died."""
        self._actor: Any = None
        self._starting: Any = None
        self._watching: Any = None
        self._lock = threading.RLock()

    def place(self) -> None:
        """Start an actor; it waits until its bundle is there."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.server, self.end = None, ""
        bundle = self.group.bundles[self.index]
        options: dict[str, Any] = {"num_cpus": 0, "max_concurrency": 2, "max_restarts": 0}
        options |= {_STANDARD[name]: n for name, n in bundle.items() if name in _STANDARD}
        options["resources"] = {n: v for n, v in bundle.items() if n not in _STANDARD}
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            self.group.handle, placement_group_bundle_index=self.index
        )
        if self.group.runtime_env:
            options["runtime_env"] = dict(self.group.runtime_env)
        self._actor = ray.remote(_holder_class()).options(**options).remote()
        self._starting = self._actor.start.remote(
            self.group.archive, self.group.token, dict(self.group.env)
        )

    def replace(self) -> None:
        """Have another server, wherever there is room, for one that is lost or cannot be reached.

        Ray may not know of it yet.
        """
        with self._lock:
            self.remove()
            self.place()
            self._is_replaced = True

    def look(self) -> None:
        """Take what has happened since the last time."""
        with self._lock:
            self._take()
            if self.server is not None:
                self._is_replaced = False
            elif self.end and self._is_replaced:
                self.replace()

    def _take(self) -> None:
        import ray

        if self._starting is not None:
            ready, _ = ray.wait([self._starting], timeout=0)
            if not ready:
                return
            try:
                facts = ray.get(self._starting)
            except Exception as error:  # noqa: BLE001 whatever Ray has for it
                self.end = _reason(error)
            else:
                name = self.group.names.give(facts["address"])
                self.server = NodeServer(name, **facts)
                self._watching = self._actor.wait.remote()
            self._starting = None
        elif self._watching is not None:
            ready, _ = ray.wait([self._watching], timeout=0)
            if ready:
                try:
                    ray.get(self._watching)
                    self.end = "the server on its node has ended"
                except Exception as error:  # noqa: BLE001 likewise
                    self.end = _reason(error)
                self._watching, self.server = None, None

    @property
    def waits(self) -> bool:
        """It is not there yet."""
        return self._starting is not None

    def remove(self) -> None:
        """End the actor, and the server with it. Idempotent."""
        import ray

        with self._lock:
            if self._actor is not None:
                with contextlib.suppress(Exception):
                    ray.kill(self._actor)
            self._actor = self._starting = self._watching = self.server = None


class NodeNames:
    """Names of nodes: their addresses, numbered where they repeat."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def give(self, address: str) -> str:
        """One that was not given before."""
        number = self._given[address] = self._given.get(address, 0) + 1
        return address if number == 1 else f"{address}-{number}"


class PlacedGroup:
    """Bundles that are placed together. Not for several threads at once."""

    def __init__(
        self,
        bundles: Sequence[Mapping[str, float]],
        strategy: str,
        token: str,
        names: NodeNames,
        runtime_env: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Ask for them; does not wait.

        Args:
            bundles: What each needs.
            strategy: How they are placed.
            token: What those prove who run commands there.
            names: Where nodes get their names from.
            runtime_env: Ray's, for the actors; everybody on the cluster can see it.
            env: Variables of all commands, which nobody sees.
        """
        from ray.util.placement_group import placement_group

        self.bundles = bundles
        self.strategy = strategy
        self.token = token
        self.env = env or {}
        self.names = names
        self.runtime_env = runtime_env
        self.archive = _archive()
        self.handle = placement_group([dict(one) for one in bundles], strategy=strategy)
        self.places = [PlacedBundle(self, index) for index in range(len(bundles))]
        for one in self.places:
            one.place()

    def look(self) -> None:
        """Take what has happened since the last time."""
        for one in self.places:
            one.look()

    def why_waiting(self) -> str:
        """Which resources are missing; empty if none is waited for."""
        import ray

        waiting = [self.bundles[one.index] for one in self.places if one.waits]
        if not waiting:
            return ""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        strict = strictly_placed(self.bundles, nodes, self.strategy)
        return strict or why_waiting(waiting, nodes, ray.available_resources())

    def remove(self) -> None:
        """Give everything back. Idempotent."""
        from ray.util.placement_group import remove_placement_group

        for one in self.places:
            one.remove()
        with contextlib.suppress(Exception):
            remove_placement_group(self.handle)


def connect() -> None:
    """Be connected to the cluster that the environment names. Raises `SchedulerError`."""
    try:
        import ray
    except ImportError as error:
        raise SchedulerError(f"the cluster's Python has no Ray: {error}") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, logging_level=logging.ERROR)


def logs_directory() -> str | None:
    """Where this node's logs are, if this Ray tells."""
    import ray

    try:
        return str(ray._private.worker._global_node.get_logs_dir_path())
    except AttributeError:
        return None


_ARCHIVES: dict[str, Any] = {}
_MAKING = threading.Lock()


def _archive() -> Any:
    """Phalanx itself, put once where all nodes of the cluster get it from."""
    import ray

    from phalanx._launcher.transport.bundle import make_bundle

    with _MAKING:
        job = ray.get_runtime_context().get_job_id()
        if job not in _ARCHIVES:
            _ARCHIVES.clear()
            _ARCHIVES[job] = ray.put(make_bundle().archive())
        return _ARCHIVES[job]


def _holder_class() -> type:
    """The actor. Made in a function, so that it travels as it is: nodes may not have Phalanx."""

    class PhalanxHolder:
        """Holds a server of ours on its node, and nothing else."""

        def start(self, archive: bytes, token: str, env: dict[str, str]) -> dict[str, Any]:
            """Start it; gives where it listens."""
            import io
            import json
            import os
            import shutil
            import subprocess
            import sys
            import tempfile
            import zipfile

            import ray

            code = tempfile.mkdtemp(prefix="phalanx-ray-")  # which the server removes
            try:
                zipfile.ZipFile(io.BytesIO(archive)).extractall(code)
            except OSError:
                shutil.rmtree(code, ignore_errors=True)
                raise
            # Not a child of this process: those are killed with it, and would leave theirs.
            words = "import os, sys; os.fork() and os._exit(0); os.setsid(); "
            words += f"sys.path.insert(0, {code!r}); "
            words += "from phalanx._schedulers.ray.cluster.node_server import main; main()"
            own = dict(os.environ)
            # Ray sets it while it calls: as many as the bundle has CPUs. A user's was there first.
            with open("/proc/self/environ", "rb") as began:
                if not any(
                    one.startswith(b"OMP_NUM_THREADS=") for one in began.read().split(b"\0")
                ):
                    own.pop("OMP_NUM_THREADS", None)
            self.process = subprocess.Popen(
                [sys.executable, "-c", words],
                env=own,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self.process.wait()
            # By its path: Ray may unpack the project once more, and remove what it had unpacked.
            directory = os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
            told = {
                "address": ray.util.get_node_ip_address(),
                "cluster": ray.get_runtime_context().gcs_address,
                "token": token,
                "code": code,
                "directory": directory,
                "env": env,
            }
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(f"{json.dumps(told)}\n".encode())
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(
                    f"the server could not be started with {sys.executable} "
                    f"(Python {sys.version.split()[0]}; Phalanx needs 3.11 or later)"
                )
            facts: dict[str, Any] = json.loads(line)
            return facts

        def wait(self) -> None:
            """Until it has ended."""
            assert self.process.stdout is not None
            self.process.stdout.read()

    return PhalanxHolder


def _reason(error: BaseException) -> str:
    """Ray's own words, in one line."""
    cause = getattr(error, "cause", None)
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
