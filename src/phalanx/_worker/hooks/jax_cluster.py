"""What JAX has to be told so that `jax.distributed.initialize()` needs no arguments in a worker.

JAX reads the coordinator's address from the environment, but asks a *cluster* how many processes
there are and which this is: the first of its `ClusterEnv` classes that knows. Ours is defined when
JAX's own is, before those for Slurm and others. And its collectives between CPUs look for the host
under its own name, which need not lead anywhere: they are given the interface that torch's have.

Nothing is loaded where JAX is not imported. A JAX that is made otherwise is left as it is.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

from phalanx._core.ranks import HOST, JAX_ADDRESS


def announce() -> None:
    """Tell JAX as soon as it is imported, or now if it is. Idempotent."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name, tell in _TOLD.items():
        if name in sys.modules:
            tell(sys.modules[name])


class _Finder:
    """Finds nothing but a few modules, as everybody else would, and sees them loaded."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name not in _TOLD or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _TOLD[name](module)

            loader.exec_module = exec_module
        return spec


def _define_cluster(module: Any) -> None:
    """Add ours to the clusters that JAX knows, as the first."""
    base: Any = getattr(module, "ClusterEnv", None)
    known: Any = getattr(base, "_cluster_types", None)
    if not isinstance(known, list) or any(kind.name == "phalanx" for kind in known):
        return

    class PhalanxCluster(base):  # type: ignore[misc]  # JAX is not there to be checked
        """The workers of one round."""

        name = "phalanx"

        @classmethod
        def is_env_present(cls) -> bool:
            return HOST in os.environ and "RANK" in os.environ

        @classmethod
        def get_coordinator_address(cls, *_: object, **__: object) -> str:
            return os.environ[JAX_ADDRESS]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["WORLD_SIZE"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["RANK"])

        @classmethod
        def get_local_process_id(cls) -> int | None:
            """The GPU for this worker, where each of several is to have its own."""
            alone = int(os.environ["LOCAL_WORLD_SIZE"]) == 1
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",")
            return None if alone or "," not in visible else int(os.environ["LOCAL_RANK"])

    known.remove(PhalanxCluster)
    known.insert(0, PhalanxCluster)


def _choose_interface(module: Any) -> None:
    """Have collectives between CPUs use the interface that the environment names."""
    library: Any = getattr(module, "_jax", None)
    plain: Any = getattr(library, "make_gloo_tcp_collectives", None)
    if plain is None or getattr(plain, "_phalanx", False):
        return

    def make(*args: Any, **kwargs: Any) -> Any:
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
        if interface and HOST in os.environ and kwargs.keys() == {"distributed_client"}:
            kwargs["interface"] = interface
        return plain(*args, **kwargs)

    make._phalanx = True  # type: ignore[attr-defined]
    library.make_gloo_tcp_collectives = make


_TOLD: dict[str, Callable[[Any], None]] = {
    "jax._src.clusters.cluster": _define_cluster,
    "jax._src.xla_bridge": _choose_interface,
}
