"""The fields of a launcher, checked before anything is made from them. Each mistake is named."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phalanx._core import environment, ranks
from phalanx._core.host_bounds import check_bounds
from phalanx._core.patterns import Patterns
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._launcher.planning.check_list import read_checks
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions

BACKENDS = ("auto", "nccl", "gloo", "mpi", "ucc")
_LONGEST_NAME = 100
START_METHODS = ("zygote", "spawn", "inline")
_TIMES = ("start_timeout", "process_group_timeout", "host_timeout", "orphan_timeout")


def check(options: LaunchOptions) -> None:
    """Check the fields that need no table."""
    _one_of("backend", options.backend, (None, *BACKENDS))
    _one_of("start_method", options.start_method, START_METHODS)
    for name in _TIMES:
        _seconds(name, getattr(options, name), minimum_excluded=True)
    if options.heartbeat_timeout is not None:
        _seconds("heartbeat_timeout", options.heartbeat_timeout, minimum_excluded=True)
    if options.reconnect_timeout is not None:
        _seconds("reconnect_timeout", options.reconnect_timeout, minimum_excluded=False)
    for name in ("stop_grace", "keep_warm", "restart_backoff"):
        _seconds(name, getattr(options, name), minimum_excluded=False)
    _check_environment(options)
    _check_hosts(options)
    _check_scheduler(options)
    _check_restarts(options)
    read_checks(options.host_checks)
    _check_inline(options)
    check_fetch(options.fetch)
    if options.preload != "auto" and not _is_list_of_names(options.preload):
        raise ConfigError(
            f'preload={options.preload!r}: must be "auto" or a list of modules, such as '
            "['torch']; [] for none."
        )
    if options.name is not None and not isinstance(options.name, str):
        raise ConfigError(f"name={options.name!r}: must be a string.")
    if options.name is not None and len(options.name) > _LONGEST_NAME:
        raise ConfigError(
            f"name has {len(options.name)} characters; the maximum is {_LONGEST_NAME}."
        )
    spec = options.log_spec
    if spec is not None and (isinstance(spec, type) or not hasattr(spec, "get_map")):
        raise ConfigError(f"log_spec={spec!r}: must be a LogSpec instance.")


def _is_list_of_names(value: object) -> bool:
    names = isinstance(value, Sequence) and not isinstance(value, str)
    return names and all(isinstance(name, str) and name for name in value)  # type: ignore[attr-defined]


def check_fetch(patterns: object) -> None:
    """Refuse patterns that mean nothing."""
    if isinstance(patterns, str):
        raise ConfigError(f"fetch must be a list of patterns. Write fetch=[{patterns!r}].")
    if not isinstance(patterns, Sequence) or not all(isinstance(p, str) for p in patterns):
        raise ConfigError(f"fetch={patterns!r}: must be a list of patterns, such as 'ckpt/*'.")
    for pattern in patterns:
        try:
            Patterns([pattern])
        except ValueError as error:
            raise ConfigError(
                f"fetch: {pattern!r}: {error}. Use a path below the working directory, such as "
                "'ckpt/*'."
            ) from None


def _check_environment(options: LaunchOptions) -> None:
    if isinstance(options.env_vars, Mapping):
        raise ConfigError(
            "env_vars takes patterns of variables to copy, not a dict. "
            "To set variables, use extra_env_vars={...}."
        )
    if isinstance(options.env_vars, str):
        raise ConfigError(
            f"env_vars must be a list of patterns. Write env_vars=[{options.env_vars!r}]."
        )
    for field in ("extra_env_vars", "host_env_vars"):
        if not isinstance(getattr(options, field), Mapping):
            raise ConfigError(f"{field} must be a dict, not {getattr(options, field)!r}.")
    _check_variables("extra_env_vars", options.extra_env_vars)
    for host, variables in options.host_env_vars.items():
        if not isinstance(variables, Mapping):
            raise ConfigError(f"host_env_vars[{host!r}] must be a dict, not {variables!r}.")
        _check_variables(f"host_env_vars[{host!r}]", variables)
    if options.env_file is not None:
        try:
            with open(options.env_file, "rb"):
                pass
        except OSError as error:
            raise ConfigError(
                f"cannot read env_file {options.env_file}: {error.strerror}."
            ) from None


def _check_variables(field: str, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        environment.check(field, name, value)
        if name in ranks.RANK_VARIABLES:
            raise ConfigError(f"{field}: {name} cannot be set: phalanx sets it for every worker.")


def _check_hosts(options: LaunchOptions) -> None:
    python = options.python
    if python is not None and not isinstance(python, str | Mapping | os.PathLike):
        raise ConfigError(f"python={python!r}: must be a path, or a dict of paths by host.")
    listed = options.hostnames if isinstance(options.hostnames, Sequence) else ()
    for field, by_host in (("python", python), ("host_env_vars", options.host_env_vars)):
        if isinstance(by_host, Mapping) and not isinstance(listed, str):
            for name in by_host.keys() - set(listed):
                hint = did_you_mean(closest(str(name), listed))
                raise ConfigError(f"{field}: {name!r} is not in hostnames.{hint}")
    count = options.parallel_logins
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"parallel_logins={count!r}: must be a whole number, 1 or more.")
    config = options.ssh_config_file
    if config is not None and not os.path.isfile(os.path.expanduser(config)):
        raise ConfigError(f"ssh_config_file: no such file: {config}")


def _check_scheduler(options: LaunchOptions) -> None:
    """Whether there is such a scheduler, and such options, is found out where it is asked."""
    name, count = options.scheduler, options.num_hosts
    if name is None:
        for field in ("num_hosts", "queue_timeout"):
            if getattr(options, field) is not None:
                raise ConfigError(f'{field} needs a scheduler, as in scheduler="slurm".')
        if options.image is not None:
            raise ConfigError('image needs a scheduler, as in scheduler="local_docker".')
        if options.scheduler_options:
            raise ConfigError('scheduler_options need a scheduler, as in scheduler="slurm".')
        return
    if not isinstance(name, str) or not name:
        raise ConfigError(f"scheduler={name!r}: must be a scheduler's name, such as 'slurm'.")
    if options.hostnames not in ("auto", ["auto"]):
        raise ConfigError(
            f"hostnames cannot be used with scheduler={name!r}, which chooses the hosts. Use "
            "num_hosts."
        )
    if options.keep_warm:
        raise ConfigError(
            f"keep_warm={options.keep_warm:g} has no effect with scheduler={name!r}: its hosts "
            "are given back. Use `with launcher:` to keep them from run to run."
        )
    if options.start_method == "inline":
        raise ConfigError(
            f'scheduler={name!r} cannot be used with start_method="inline", which runs in this '
            "process."
        )
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 1):
        raise ConfigError(f"num_hosts={count!r}: must be a number of hosts, 1 or more.")
    if options.image is not None and (not isinstance(options.image, str) or not options.image):
        raise ConfigError(f"image={options.image!r}: must be the name of an image.")
    if not isinstance(options.scheduler_options, Mapping):
        raise ConfigError(f"scheduler_options={options.scheduler_options!r}: must be a dict.")
    if options.queue_timeout is not None:
        _seconds("queue_timeout", options.queue_timeout, minimum_excluded=True)


def _check_restarts(options: LaunchOptions) -> None:
    _one_of("restart", options.restart, ("all", "host"))
    for name in ("max_restarts", "same_failures", "host_failures"):
        count = getattr(options, name)
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"{name}={count!r}: must be a whole number, 0 or more.")
    if options.restart == "host" and options.backend not in (None, "auto"):
        raise ConfigError(
            f'restart="host" cannot be used with backend={options.backend!r}: hosts that restart '
            "on their own have no common process group. Remove one of them."
        )
    number = getattr(signal.Signals, str(options.preempt_signal), None)
    if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
        raise ConfigError(
            f"preempt_signal={options.preempt_signal!r}: must be a signal that can be caught, "
            'such as "SIGUSR1".'
        )


def _check_inline(options: LaunchOptions) -> None:
    """What needs a worker's own process cannot be had in this one."""
    if options.start_method != "inline":
        return
    if options.env_file is not None:
        raise ConfigError(
            'env_file cannot be used with start_method="inline", which runs in this process. '
            f"Source it first: . {options.env_file}"
        )
    if options.host_checks:
        raise ConfigError(
            'host_checks cannot be used with start_method="inline", which runs in this process.'
        )
    if options.max_restarts:
        raise ConfigError(
            f"max_restarts={options.max_restarts} cannot be used with "
            'start_method="inline", which runs in this process. Set max_restarts=0.'
        )


def check_host_count(options: LaunchOptions, count: int) -> None:
    """`min_hosts` and `max_hosts`, once the number of hosts is known."""
    fewest = options.min_hosts
    check_bounds(fewest, options.max_hosts)
    if fewest is not None and fewest > count:
        where = "hostnames has" if options.scheduler is None else "num_hosts is"
        raise ConfigError(
            f"min_hosts={fewest}, but {where} only {count}. Add hosts, or lower min_hosts."
        )


def need_torch(backend: str) -> None:
    """Refuse a backend where there is no torch."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            f"backend={backend!r} needs torch, which is not installed. "
            "Run: pip install torch, or use backend=None."
        )


def _one_of(field: str, value: object, allowed: Sequence[object]) -> None:
    if value in allowed:
        return
    names = [str(a) for a in allowed]
    hint = did_you_mean(closest(str(value), names), f"Choose one of {', '.join(names)}.")
    raise ConfigError(f"unknown {field} {value!r}.{hint}")


def _seconds(field: str, value: object, *, minimum_excluded: bool) -> None:
    least = "more than 0" if minimum_excluded else "0 or more"
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if value > 0 or (value == 0 and not minimum_excluded):
            return
    raise ConfigError(f"{field}={value!r}: must be a number of seconds, {least}.")
