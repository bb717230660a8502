"""What a command line of `phalanx torchrun` means: torchrun's rules, resolved, in one object.

No process is started and nothing is written. `flags` has the flags, `given_flags` reads them,
`rendezvous_choice` says where hosts meet.
"""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx._core import values
from phalanx._core.ranks import MOST_WORKERS
from phalanx._elastic.command import given_flags as texts
from phalanx._elastic.command import rendezvous_choice
from phalanx._elastic.command.given_flags import GivenFlags
from phalanx._system import machine
from phalanx.errors import ConfigError

ProgramKind = Literal["script", "module", "binary", "path"]

_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)


@dataclass(frozen=True)
class TorchrunOptions:
    """Everything that the command line and the environment said, resolved."""

    min_hosts: int
    max_hosts: int
    """Static: the number of hosts, whatever the minimum."""
    workers: int
    """On this host."""

    backend: str
    """`static`, `c10d`, `tcp`, `etcd`, `etcd-v2`, or a name that a plugin may know."""
    endpoint: str
    """As a text. A path for c10d with store_type=file."""
    endpoint_host: str | None
    """None where only the backend can read the endpoint."""
    endpoint_port: int | None
    """0 for any free port; None where only the backend can know."""
    run_id: str
    """Static: `none` unless said. A random one for a host alone."""
    rdzv_conf: dict[str, str]
    """As given: without torch's timeout=900 and, for static, rank."""
    standalone: bool
    """One host, by itself: asked for, or because nothing was said of a rendezvous."""
    node_rank: int
    """For static alone."""
    master_addr: str
    master_port: int
    """For static without --rdzv-endpoint, and then part of `endpoint`."""
    local_addr: str | None

    kind: ProgramKind
    program: str
    arguments: tuple[str, ...]
    """Before `${local_rank}` is put in: see `string.Template.safe_substitute`."""
    python: str
    """For scripts and modules, with -u. `PYTHON_EXEC`, or this interpreter."""
    role: str
    start_method: Literal["zygote", "spawn"]
    """`spawn` where it was asked for. It is torch's default too, and costs each worker seconds."""
    virtual_local_rank: bool
    numa_binding: str | None
    """See `numa.choose`."""
    omp_num_threads: str | None
    """To be set for workers; None when it is set already, or there is one worker."""

    max_restarts: int
    heartbeat_timeout: float | None
    host_checks: tuple[str, ...]
    host_failures: int
    monitor_interval: float
    signals_to_handle: tuple[signal.Signals, ...]
    shutdown_timeout: int

    log_dir: str | None
    """None for a temporary directory."""
    redirects: tuple[int, ...]
    """One number for each local rank: bit 1 stdout, bit 2 stderr."""
    tee: tuple[int, ...]
    """The same. What is teed is in a file too, whatever `redirects` says."""
    local_ranks_filter: frozenset[int] | None
    """Whom the console shows; None for all."""
    ranks_filter: frozenset[int] | None
    """The same by global rank."""
    duplicate_stdout_filters: tuple[str, ...]
    duplicate_stderr_filters: tuple[str, ...]
    log_line_prefix_template: str | None
    """With `${role_name}`, `${local_rank}`, `${rank}`; None for `[default0]:`."""
    event_log_handler: str
    logs_specs: str | None

    notes: tuple[str, ...] = ()
    """What the user should be told before anything starts."""


def parse(arguments: Sequence[str], environ: Mapping[str, str]) -> TorchrunOptions:
    """Read a command line. Raises `ConfigError`; prints help and raises `SystemExit` if asked to.

    Processors and GPUs are counted if a number of workers depends on them.
    """
    words = texts.read(arguments, environ)
    rendezvous = rendezvous_choice.resolve(words, environ)
    workers = _workers(words, environ)
    limited = workers > 1 and "OMP_NUM_THREADS" not in environ
    return TorchrunOptions(
        min_hosts=rendezvous.min_hosts,
        max_hosts=rendezvous.max_hosts,
        workers=workers,
        backend=rendezvous.backend,
        endpoint=rendezvous.endpoint,
        endpoint_host=rendezvous.host,
        endpoint_port=rendezvous.port,
        run_id=rendezvous.run_id,
        rdzv_conf=rendezvous.conf,
        standalone=rendezvous.standalone,
        node_rank=rendezvous.node_rank,
        master_addr=words["master_addr"],
        master_port=rendezvous.master_port,
        local_addr=words["local_addr"],
        kind=_kind(words),
        program=words.script,
        arguments=words.arguments,
        python=environ.get("PYTHON_EXEC") or sys.executable,
        role=words["role"],
        start_method=_start_method(words),
        virtual_local_rank=words["virtual_local_rank"],
        numa_binding=words["numa_binding"],
        omp_num_threads="1" if limited else None,
        max_restarts=_at_least_nothing(words, "max_restarts"),
        heartbeat_timeout=_heartbeat_timeout(words),
        host_checks=_host_checks(words),
        host_failures=_at_least_nothing(words, "host_failures"),
        monitor_interval=_interval(words),
        signals_to_handle=_signals(words),
        shutdown_timeout=_shutdown_timeout(words, environ),
        log_dir=words["log_dir"] or None,
        redirects=_streams(words, "redirects", workers),
        tee=_streams(words, "tee", workers),
        local_ranks_filter=_ranks(words, "local_ranks_filter"),
        ranks_filter=_ranks(words, "ranks_filter"),
        duplicate_stdout_filters=tuple(words["duplicate_stdout_filters"]),
        duplicate_stderr_filters=tuple(words["duplicate_stderr_filters"]),
        log_line_prefix_template=environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or None,
        event_log_handler=words["event_log_handler"],
        logs_specs=words["logs_specs"],
        notes=(
            *rendezvous.notes,
            *(("OMP_NUM_THREADS is not set: using 1 for each worker",) if limited else ()),
        ),
    )


def _workers(words: GivenFlags, environ: Mapping[str, str]) -> int:
    wanted, said = words["nproc_per_node"], words.quote("nproc_per_node")
    try:
        number = int(wanted)
    except ValueError:
        pass
    else:
        if number < 1:
            raise ConfigError(f"{said}: must be at least 1 worker. Try --nproc-per-node 1.")
        if number > MOST_WORKERS:
            raise ConfigError(f"{said}: the maximum is {MOST_WORKERS} workers per host.")
        return number
    if wanted == "cpu":
        return machine.processors()
    if wanted == "auto":
        return machine.gpus(environ) or machine.processors()
    if wanted == "gpu":
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
        if not (found := machine.gpus(environ)):
            raise ConfigError(
                f"{said}: no NVIDIA GPU is visible on this machine{why}. Give a number, or cpu."
            )
        return found
    if wanted == "xpu":
        raise ConfigError(f"{said}: only NVIDIA GPUs are detected. Give a number.")
    raise ConfigError(f"{said}: must be a number, auto, cpu or gpu.")


def _kind(words: GivenFlags) -> ProgramKind:
    if words["run_path"]:
        return "path"
    if words["no_python"] and words["module"]:
        raise ConfigError("--no-python cannot be used with --module. Remove one of them.")
    if words["no_python"]:
        return "binary"
    return "module" if words["module"] else "script"


def _start_method(words: GivenFlags) -> Literal["zygote", "spawn"]:
    said = "start_method" in words.typed | words.from_environment
    return "spawn" if said and words["start_method"] == "spawn" else "zygote"


def _at_least_nothing(words: GivenFlags, dest: str) -> int:
    number: int = words[dest]
    if number < 0:
        raise ConfigError(f"{words.quote(dest)}: must be 0 or more.")
    return number


def _interval(words: GivenFlags) -> float:
    seconds: float = words["monitor_interval"]
    if not 0 <= seconds < math.inf:
        raise ConfigError(
            f"{words.quote('monitor_interval')}: must be a number of seconds, such as 0.1."
        )
    return seconds


def _heartbeat_timeout(words: GivenFlags) -> float | None:
    seconds: float | None = words["heartbeat_timeout"]
    if seconds is not None and not 0 < seconds < math.inf:
        raise ConfigError(
            f"{words.quote('heartbeat_timeout')}: must be a number of seconds, more than 0."
        )
    return seconds


def _host_checks(words: GivenFlags) -> tuple[str, ...]:
    checks = tuple(words["host_checks"])
    if any(check.partition("=")[0] == "clock" for check in checks):
        raise ConfigError(
            f"--host-checks {','.join(checks)}: clock compares a host with its launcher, and here "
            "there is none. Remove it."
        )
    return checks


def _shutdown_timeout(words: GivenFlags, environ: Mapping[str, str]) -> int:
    if words["shutdown_timeout"] is not None:
        return _at_least_nothing(words, "shutdown_timeout")
    variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    text = environ.get(variable, "30")
    if not re.fullmatch(r"\s*\+?\d+\s*", text):
        raise ConfigError(f"{variable}={text}: must be a number of seconds, such as 30.")
    return int(text)


def _signals(words: GivenFlags) -> tuple[signal.Signals, ...]:
    text, said = words["signals_to_handle"], words.quote("signals_to_handle")
    found = []
    for name in (part.strip() for part in text.split(",")) if text.strip() else ():
        if name not in signal.Signals.__members__:
            raise ConfigError(f"{said}: unknown signal {name!r}. Example: SIGTERM,SIGUSR1.")
        if (number := signal.Signals[name]) in _UNCATCHABLE:
            raise ConfigError(f"{said}: {name} cannot be handled. Remove it.")
        found.append(number)
    return tuple(dict.fromkeys(found))


def _streams(words: GivenFlags, dest: str, workers: int) -> tuple[int, ...]:
    """One number for each local rank; those that a map does not name have 0."""
    text = words[dest]
    if re.fullmatch("[0-3]", text):
        return (int(text),) * workers
    if not re.fullmatch(r"[0-9]+:[0-3](,[0-9]+:[0-3])*", text):
        raise ConfigError(
            f"{words.quote(dest)}: must be 0 to 3, or a map from local ranks. "
            f"Example: --{dest} 3, or --{dest} 0:1,12:3."
        )
    chosen = {int(rank): int(which) for rank, which in re.findall("([0-9]+):([0-3])", text)}
    return tuple(chosen.get(rank, 0) for rank in range(workers))


def _ranks(words: GivenFlags, dest: str) -> frozenset[int] | None:
    if not words[dest]:
        return None
    try:
        return frozenset(values.numbers(words[dest]))
    except ValueError:
        raise ConfigError(
            f"{words.quote(dest)}: must be a list of ranks, such as 0,8-11."
        ) from None
