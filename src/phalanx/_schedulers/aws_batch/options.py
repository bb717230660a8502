"""What can be asked of AWS Batch. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from phalanx._schedulers.options import option
from phalanx.errors import ConfigError

DEFAULT_LOG_GROUP = "/aws/batch/job"
RESERVED = "AWS_BATCH"
"""What the names of the service's own variables begin with; jobs may set none of them."""
_SHARE = re.compile(r"[a-zA-Z0-9]{1,255}")
_SIZE = re.compile(r"(\d+)([mg])i?b?", re.IGNORECASE)
_ULIMIT = re.compile(r"([a-z]+)=(-1|\d+)(?::(-1|\d+))?")
_LEAST_TIMEOUT = 60
_MOST_ATTEMPTS = 10


@dataclass(frozen=True)
class AwsBatchOptions:
    """Options of `aws_batch`."""

    instead: ClassVar[Mapping[str, str]] = {
        "num_retries": "Use --max_retries of the component, or spot_retries.",
    }
    """What to do in place of options that others have."""

    queue: str = option(help="job queue, by name or ARN")
    region: str | None = option(None, help="AWS region (default: your profile's)")
    profile: str | None = option(None, help="profile of ~/.aws (default: the current one)")
    endpoint: str | None = option(None, help="URL to send all requests to (default: AWS)")
    job_type: Literal["auto", "nodes", "array"] = option(
        "auto",
        help="nodes: replicas that find each other; array: independent ones; "
        "auto: nodes, or one container for one replica",
    )
    image_repo: str | None = option(
        None, help="repository to push images with your project to (default: none is built)"
    )
    job_role_arn: str | None = option(None, help="role that the program has, such as for S3")
    execution_role_arn: str | None = option(
        None, help="role that pulls the image and reads secrets"
    )
    user: str | None = option(None, help="user in the container (default: the image's)")
    privileged: bool = option(False, help="run containers privileged")
    share_id: str | None = option(None, help="share identifier, for queues with fair shares")
    priority: int | None = option(None, help="scheduling priority within the share, 0 to 9999")
    timeout: int | None = option(
        None, help="seconds after which an attempt is ended, 60 or more (default: never)"
    )
    spot_retries: int = option(
        0, help="how often to start again when the host was lost, as spot instances are"
    )
    efa: bool | None = option(
        None, help="use Elastic Fabric Adapters (default: those that the named resource has)"
    )
    ulimits: list[str] | None = option(None, help="limits, as NAME=SOFT[:HARD]; -1 is no limit")
    shm_size: str | None = option(None, help="size of /dev/shm, such as 8g (default: 64m)")
    env: dict[str, str] = option({}, help="environment variables to set, as A:1,B:2")
    secrets: dict[str, str] = option(
        {}, help="variables from Secrets Manager or Parameter Store, as A:ARN,B:ARN"
    )
    log_group: str = option(DEFAULT_LOG_GROUP, help="CloudWatch log group of the output")
    tags: dict[str, str] = option({}, help="tags of the job and its tasks, as a:b,c:d")
    python: str = option("python3", help="what 'python' is in the image")

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if not self.queue:
            raise ConfigError("queue: must be the name or ARN of a job queue.")
        if self.share_id is not None and not _SHARE.fullmatch(self.share_id):
            raise ConfigError(f"share_id={self.share_id}: must consist of letters and digits.")
        if self.priority is not None:
            if not 0 <= self.priority <= 9999:
                raise ConfigError(f"priority={self.priority}: must be from 0 to 9999.")
            if self.share_id is None:
                raise ConfigError("priority: needs share_id, and a queue with fair shares.")
        if self.timeout is not None and self.timeout < _LEAST_TIMEOUT:
            raise ConfigError(f"timeout={self.timeout}: must be 60 seconds or more.")
        if not 0 <= self.spot_retries < _MOST_ATTEMPTS:
            raise ConfigError(f"spot_retries={self.spot_retries}: must be from 0 to 9.")
        if not self.python:
            raise ConfigError("python: must be a program of the image, such as python3.")
        for name in (*self.env, *self.secrets):
            if not name or "=" in name or name.startswith(RESERVED):
                raise ConfigError(
                    f"env: {name!r} is not a variable that a job may set"
                    f"{': AWS Batch sets it' if name.startswith(RESERVED) else ''}."
                )
        if self.secrets and self.execution_role_arn is None:
            raise ConfigError("secrets: need execution_role_arn, the role that reads them.")
        for key in self.tags:
            if not key or key.startswith(("aws:", "phalanx/")):
                raise ConfigError(f"tags: {key!r} is not a key that you may set.")
        _ = self.shm_mib, self.ulimit_specs

    @property
    def shm_mib(self) -> int | None:
        """The size of /dev/shm in MiB, if one is said."""
        if self.shm_size is None:
            return None
        found = _SIZE.fullmatch(self.shm_size)
        if found is None or not int(found[1]):
            raise ConfigError(f"shm_size={self.shm_size}: must be a size such as 512m or 8g.")
        return int(found[1]) * (1024 if found[2].lower() == "g" else 1)

    @property
    def ulimit_specs(self) -> list[dict[str, Any]]:
        """The limits, as containers have them."""
        return [_ulimit(text) for text in self.ulimits or ()]


def _ulimit(text: str) -> dict[str, Any]:
    found = _ULIMIT.fullmatch(text)
    if found is None:
        raise ConfigError(f"ulimits: {text!r} must be NAME=SOFT[:HARD], such as nofile=65536.")
    return {
        "name": found[1],
        "softLimit": int(found[2]),
        "hardLimit": int(found[3] or found[2]),
    }
