"""What other tools call what we have: flags and verbs that people type first."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from phalanx._core.option_names import as_flags
from phalanx._launcher.launch_options import OTHER_NAMES
from phalanx._logs import logger
from phalanx.errors import ConfigError

VERBS: Mapping[str, str] = {
    **dict.fromkeys(("ps", "jobs", "ls", "queue", "squeue", "top", "history"), "list"),
    **dict.fromkeys(("kill", "stop", "scancel", "terminate", "abort"), "cancel"),
    **dict.fromkeys(("submit", "start", "sbatch", "schedule"), "run"),
    **dict.fromkeys(("logs", "tail", "output"), "log"),
    **dict.fromkeys(("exec", "call", "srun", "mpirun"), "launch"),
    **dict.fromkeys(("rm", "remove"), "delete"),
    **dict.fromkeys(("info", "state"), "status"),
    **dict.fromkeys(("inspect", "show"), "describe"),
    **dict.fromkeys(("components",), "builtins"),
    **dict.fromkeys(("schedulers", "options"), "runopts"),
    **dict.fromkeys(("init",), "configure"),
    **dict.fromkeys(("check", "nodes", "doctor"), "hosts"),
    **dict.fromkeys(("prune", "gc"), "clean"),
}
"""Verbs of other tools, and ours for them."""

_SHORT = {"n": "workers_per_host", "np": "workers_per_host", "H": "hostnames", "w": "hostnames"}


def say_flags() -> None:
    """From now on, what is warned of names options as flags."""
    logger.addFilter(_with_flags)


def _with_flags(record: logging.LogRecord) -> bool:
    record.msg, record.args = as_flags(record.getMessage()), ()
    return True


def check_flags(arguments: Sequence[str]) -> None:
    """Refuse flags of other tools with the name of ours. Raises `ConfigError`."""
    for argument in arguments:
        flag = argument.partition("=")[0]
        if not flag.startswith("-"):
            continue
        name = flag.lstrip("-").replace("-", "_")
        ours = OTHER_NAMES.get(name) if flag.startswith("--") else _SHORT.get(name)
        if ours is not None:
            raise ConfigError(f"unknown option {flag}. Use --{ours.replace('_', '-')}.")
