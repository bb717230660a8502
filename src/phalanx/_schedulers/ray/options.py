"""What can be asked of Ray. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from phalanx._core import amounts
from phalanx._schedulers.options import option
from phalanx.errors import ConfigError

_URI = "://"
_LEAST = 1 << 20
"""Bytes. Who writes fewer has forgotten the unit."""


@dataclass(frozen=True)
class RayOptions:
    """Options of `ray`."""

    cluster: str = option(
        "auto",
        help="the cluster: auto (this machine's, or RAY_ADDRESS), or the head's HOST:PORT",
    )
    dashboard_address: str | None = option(
        None, help="the dashboard, such as http://HOST:8265 (default: asked of the cluster)"
    )
    working_dir: str | None = option(
        None, help="directory, or URI of a zip file, to run in (default: the workspace)"
    )
    requirements: str | None = option(
        None, help="requirements file to install on the nodes with pip"
    )
    env: dict[str, str] = option({}, help="environment variables to set, as A:1,B:2")
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = option(
        "SPREAD", help="placement strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD"
    )
    resources: dict[str, float] = option(
        {}, help="custom Ray resources per replica or lent host, as A:1,B:2"
    )
    cpus: float | None = option(
        None, help="CPUs per lent host, default 1; for apps, set the role's resource"
    )
    gpus: float | None = option(None, help="GPUs per lent host; for apps, set the role's resource")
    mem: str | None = option(
        None, help="memory per lent host, such as 16g; for apps, set the role's resource"
    )
    relay_port: int = option(
        0, help="port of the cluster's head that launchers outside connect to; 0: any free one"
    )
    stop_grace: float = option(10.0, help="seconds between SIGTERM and SIGKILL when stopping")

    instead: ClassVar[Mapping[str, str]] = {
        "cluster_config_file": "Give the cluster's address: cluster=HOST:PORT.",
        "cluster_name": "Give the cluster's address: cluster=HOST:PORT.",
    }

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        for name, number in self.resources.items():
            if not name or number <= 0:
                raise ConfigError(f"ray: resources: {name}:{number:g} must be more than 0.")
        for name in ("cpus", "gpus", "stop_grace"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise ConfigError(f"ray: {name} must be 0 or more, not {value:g}.")
        _ = self.mem_bytes
        if not 0 <= self.relay_port < 1 << 16:
            raise ConfigError(f"ray: relay_port {self.relay_port} is not a port.")
        if self.cluster.startswith("ray://"):
            raise ConfigError(
                f"ray: {self.cluster} is an address of Ray Client. Give the dashboard's: "
                "dashboard_address=http://HOST:8265"
            )

    @property
    def mem_bytes(self) -> int:
        """The memory of a lent host; 0 if it is not said."""
        if self.mem is None:
            return 0
        try:
            found = amounts.size(self.mem)
        except ValueError:
            found = 0
        if found < _LEAST:
            raise ConfigError(f"ray: mem={self.mem}: must be a size such as 512m or 8g.")
        return found

    @property
    def has_remote_directory(self) -> bool:
        """`working_dir` is a URI that nodes load themselves."""
        return self.working_dir is not None and _URI in self.working_dir

    @property
    def for_lent_hosts(self) -> str:
        """An option that is set and has no effect on apps; empty where there is none."""
        names = ("cpus", "gpus", "mem", "relay_port")
        return next((name for name in names if getattr(self, name)), "")

    @property
    def for_apps(self) -> str:
        """An option that is set and has no effect on lent hosts; empty where there is none."""
        return "working_dir" if self.working_dir is not None else ""

    @property
    def host_bundle(self) -> dict[str, float]:
        """What a lent host needs, as Ray counts it."""
        bundle: dict[str, float] = {"CPU": 1.0 if self.cpus is None else self.cpus}
        bundle["GPU"] = self.gpus or 0.0
        bundle["memory"] = float(self.mem_bytes)
        return {name: n for name, n in {**bundle, **self.resources}.items() if n} or {"CPU": 0.001}
