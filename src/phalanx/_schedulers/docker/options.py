"""What can be asked of Docker for an app. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from phalanx._core.environment import not_a_name
from phalanx._schedulers.authoring import copied_variables
from phalanx._schedulers.options import option
from phalanx.errors import ConfigError

_SIZE = re.compile(r"(\d+)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST = 1 << 20


@dataclass(frozen=True)
class DockerOptions:
    """Options of `local_docker`."""

    copy_env: list[str] | None = option(
        None, help="variables of this environment to pass on; patterns such as WANDB_*,HF_TOKEN"
    )
    env: dict[str, str] = option({}, help="environment variables to set, as A:1,B:2")
    privileged: bool = option(False, help="run privileged containers: all devices, no confinement")
    read_only: bool = option(False, help="make the root file system read-only; /tmp stays writable")
    network: str | None = option(
        None, help="network to join, or 'host' (default: a network of the app's own)"
    )
    user: str | None = option(
        None, help="user in the container, USER[:GROUP] (default: the image's)"
    )
    shm_size: str | None = option(
        None, help="size of /dev/shm, such as 8g (default: half of the engine's memory)"
    )
    pull: Literal["always", "missing", "never"] = option(
        "missing", help="when to pull images: always, missing or never"
    )
    image_repo: str | None = option(
        None, help="repository to push images with your project to (default: not pushed)"
    )
    python: str = option("python3", help="what 'python' is in the image")
    cpus: float | None = option(None, help="CPUs per lent host; for apps, set the role's resource")
    mem: str | None = option(
        None, help="memory per lent host, such as 16g; for apps, set the role's resource"
    )
    gpus: int | None = option(
        None, help="GPUs per lent host, -1 for all; for apps, set the role's resource"
    )
    share_gpus: bool = option(
        False, help="use GPUs that other apps or launches use as well, beginning with the first"
    )
    stop_grace: float = option(
        10.0, help="seconds between SIGTERM and SIGKILL when stopping containers"
    )

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if not 0 <= self.stop_grace < math.inf:
            raise ConfigError(
                f"stop_grace={self.stop_grace}: must be a number of seconds, 0 or more."
            )
        if self.network is not None and (not self.network or ":" in self.network):
            raise ConfigError(f"network={self.network}: must be the name of a network, or host.")
        if not self.python:
            raise ConfigError("python: must be a program of the image, such as python3.")
        for name in self.env:
            if not name or "=" in name:
                raise ConfigError(f"env: {not_a_name(name)}")
        if self.cpus is not None and not 0 < self.cpus < math.inf:
            raise ConfigError(f"cpus={self.cpus}: must be a number of CPUs, more than 0.")
        if self.gpus is not None and self.gpus < -1:
            raise ConfigError(f"gpus={self.gpus}: must be a number of GPUs, or -1 for all.")
        _ = self.shm_bytes, self.mem_bytes

    @property
    def shm_bytes(self) -> int | None:
        """The size of /dev/shm, if it is said."""
        return _bytes("shm_size", self.shm_size)

    @property
    def mem_bytes(self) -> int | None:
        """The memory of a lent host, if it is said."""
        return _bytes("mem", self.mem)

    @property
    def for_lent_hosts(self) -> str:
        """An option that is given, and means nothing for apps; empty if there is none."""
        given = [name for name in ("cpus", "mem", "gpus") if getattr(self, name) is not None]
        return given[0] if given else ""

    def copied(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables of an environment that are passed on. Raises `ConfigError`."""
        return copied_variables(environ, self.copy_env or ())


def _bytes(name: str, text: str | None) -> int | None:
    """A size as people write it. Raises `ConfigError`."""
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    size = int(found[1]) * _UNITS[found[2].lower()] if found else 0
    if size < _LEAST:
        raise ConfigError(f"{name}={text}: must be a size such as 512m or 8g.")
    return size
