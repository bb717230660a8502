"""What can be asked of Slurm for an app. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from phalanx._schedulers.options import option
from phalanx.errors import ConfigError

_TIME = re.compile(r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_SIGNAL = re.compile(r"(?:(?:SIG)?([A-Z][A-Z0-9]*)@)?(\d+)")
_LONGEST_LEAD = 65535
_OURS = {
    "job-name": "it is the app's id",
    "output": "output is in the app's directory",
    "error": "output is in the app's directory",
    "open-mode": "output is in the app's directory",
    "array": "an app is one job; use num_replicas",
    "wrap": "the script is the app's",
    "nodes": "it is the number of replicas",
    "ntasks": "it is the number of replicas",
    "ntasks-per-node": "a replica is one task on one node",
    "chdir": "it is the workspace",
    "parsable": "phalanx reads the answer",
    "wait": "use phalanx run --wait",
    "test-only": "use phalanx run --dryrun",
}
"""Directives that the script needs for itself."""
_SHORT = re.compile(r"[a-z0-9-]+")


@dataclass(frozen=True)
class SlurmOptions:
    """Options of `slurm`."""

    instead: ClassVar[Mapping[str, str]] = {
        "nomem": "Leave it out: memory is asked for only where a role or 'mem' says how much.",
    }
    """What to do in place of options that others have."""

    partition: str | None = option(None, help="partition, or several: the first that is free")
    account: str | None = option(None, help="account to charge")
    qos: str | None = option(None, help="quality of service")
    time: str | None = option(
        None, help="time limit: MINUTES, HH:MM:SS or D-HH:MM:SS (default: the partition's)"
    )
    constraint: str | None = option(None, help="features that nodes must have")
    nodelist: str | None = option(None, help="nodes that must be among the job's")
    exclude: str | None = option(None, help="nodes that must not be among the job's")
    gpus_per_node: str | None = option(
        None, help="GPUs per replica, [TYPE:]COUNT (default: what the role requests)"
    )
    gres: str | None = option(None, help="generic resources per node, such as gpu:a100:4")
    cpus: int | None = option(None, help="CPUs per replica (default: what the role requests)")
    mem: str | None = option(
        None,
        help="memory per node, such as 64G; 0 is all of it (default: the role's or partition's)",
    )
    exclusive: bool = option(False, help="share nodes with no other job")
    requeue: bool = option(
        False, help="start again after preemption, a lost node or the time limit"
    )
    signal: str = option(
        "60",
        help="warn replicas before the time limit, [SIGNAL@]SECONDS; 0: no warning. "
        "phalanx.context().should_stop() is true from then on",
    )
    comment: str | None = option(None, help="comment on the job")
    mail_type: str | None = option(None, help="when Slurm sends mail, such as END,FAIL")
    mail_user: str | None = option(None, help="who gets it (default: you)")
    job_dir: str | None = option(
        None,
        help="directory on shared storage for logs and a copy of the project (default: the app's "
        "record, the project used in place)",
    )
    python: str | None = option(
        None,
        help="Python interpreter or virtual environment on nodes (default: the one that submits)",
    )
    stop_grace: float = option(
        5.0, help="seconds between SIGTERM and SIGKILL when a replica fails and others are stopped"
    )
    sbatch: dict[str, str] = option(
        {}, help="other sbatch directives, as key:value,flag:; such as reservation:big,nice:100"
    )

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise ConfigError(
                f"time={self.time}: not a time limit. Write minutes, HH:MM:SS or D-HH:MM:SS."
            )
        if self.cpus is not None and self.cpus < 1:
            raise ConfigError(f"cpus={self.cpus}: must be 1 or more.")
        if not 0 <= self.stop_grace < _LONGEST_LEAD:
            raise ConfigError(
                f"stop_grace={self.stop_grace}: must be a number of seconds, 0 or more."
            )
        _ = self.warning
        for key in self.sbatch:
            name = key.lstrip("-").replace("_", "-")
            if not _SHORT.fullmatch(name):
                raise ConfigError(f"sbatch: {key!r} is not the long name of a directive.")
            if name in _OURS:
                raise ConfigError(f"sbatch: {name} cannot be set: {_OURS[name]}.")
            own = name.replace("-", "_")
            own = {"cpus_per_task": "cpus"}.get(own, own)
            if own in type(self).__dataclass_fields__ and own != "sbatch":
                raise ConfigError(f"sbatch: set {name} by its own option: -cfg {own}=…")
        for name, value in self.directives():
            if value is not None and ("\n" in value or "\0" in value):
                raise ConfigError(f"{name}: {value!r} is more than one line.")

    @property
    def warning(self) -> tuple[str, int]:
        """The signal that programs get before the time limit, and how many seconds before."""
        found = _SIGNAL.fullmatch(self.signal.upper())
        if found is None or int(found[2]) > _LONGEST_LEAD:
            raise ConfigError(
                f"signal={self.signal}: expected [SIGNAL@]SECONDS, such as 120 or TERM@120."
            )
        name = found[1] or "USR1"
        if f"SIG{name}" not in signal.Signals.__members__ or name in ("KILL", "STOP"):
            raise ConfigError(f"signal={self.signal}: {name} is not a signal that can be handled.")
        return name, int(found[2])

    def directives(self) -> Iterator[tuple[str, str | None]]:
        """What is asked for the whole job, by sbatch's names; None for one without a value."""
        for name in (
            *("partition", "account", "qos", "time", "constraint", "nodelist", "exclude"),
            *("gres", "comment", "mail_type", "mail_user"),
        ):
            value = getattr(self, name)
            if value is not None:
                yield name.replace("_", "-"), str(value)
        if self.exclusive:
            yield "exclusive", None
        for key, value in self.sbatch.items():
            yield key.lstrip("-").replace("_", "-"), value or None
