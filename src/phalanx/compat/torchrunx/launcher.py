"""torchrunx's `Launcher`, `LaunchResult` and `launch`, on ours."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Literal, ParamSpec, Self, TypeVar

import phalanx
from phalanx._aliases import VARIABLE
from phalanx._launcher.result import LaunchResult as _Result
from phalanx._logs.spec import DefaultLogSpec, LogSpec
from phalanx.compat.torchrunx.utils.log_handling import Factory, HandlerFactorySpec

__all__ = ["DEFAULT_ENV_VARS_FOR_COPY", "LaunchResult", "Launcher", "launch"]

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_ENV_VARS_FOR_COPY = (
    *("PATH", "LD_LIBRARY*", "LIBRARY_PATH"),
    *("PYTHON*", "CUDA*", "TORCH*", "PYTORCH*", "NCCL*"),
)
"""The patterns of variables that torchrunx copies to other hosts."""

_PATH = str | os.PathLike[str]

Handling = Factory | Literal["auto"] | None
"""What makes the log handlers of a run; the default ones; none."""
Handlers = Handling | list[logging.Handler]
"""As 0.2.0 had it, also the handlers themselves."""

_HANDLERS = ("handler_factory", "log_handlers_builder", "log_handlers")
_OF_0_2 = {"func_args", "func_kwargs", *_HANDLERS}
"""What `run` takes in 0.2: the arguments of the function, and of the run."""


class LaunchResult(_Result[R]):
    """Every rank's value, with the methods of torchrunx 0.2 as well."""

    def by_hostnames(self) -> dict[str, list[R]]:
        """The values by host name."""
        return self.results

    def by_ranks(self) -> list[R]:
        """The values in rank order."""
        return list(self.values)


@dataclass
class Launcher:
    """Where and how to run functions, with torchrunx's fields and defaults."""

    hostnames: list[str] | Literal["auto", "slurm"] = "auto"
    """Hosts to run on; "auto" uses the Slurm allocation, or this machine."""
    workers_per_host: int | list[int] | Literal["cpu", "gpu", "auto"] = "gpu"
    """Workers per host: a number, one number for each host, "cpu" or "gpu"."""
    ssh_config_file: _PATH | None = None
    """ssh configuration file. Default: your own."""
    backend: Literal["nccl", "gloo", "mpi", "ucc", "auto"] | None = "nccl"
    """Process group backend, or None for no process group."""
    worker_timeout: int = 600
    """Timeout of the process group in seconds."""
    agent_timeout: int = 60
    """Seconds that a host may be silent."""
    copy_env_vars: tuple[str, ...] = DEFAULT_ENV_VARS_FOR_COPY
    """Environment variables to copy to other hosts, as patterns."""
    extra_env_vars: dict[str, str] | None = None
    """Environment variables to set for the workers."""
    env_file: _PATH | None = None
    """Bash file to source on each host."""
    handler_factory: Handling = field(default="auto", init=False)
    """Makes the log handlers of a run: see `set_logging_handlers`."""
    timeout: InitVar[int | None] = field(default=None, kw_only=True)
    """The name of `worker_timeout` until 0.3.0."""
    default_env_vars: InitVar[tuple[str, ...] | None] = field(default=None, kw_only=True)
    """The name of `copy_env_vars` in 0.2."""

    def __post_init__(self, timeout: int | None, default_env_vars: tuple[str, ...] | None) -> None:
        """Take what earlier versions had by other names."""
        if timeout is not None:
            self.worker_timeout = timeout
        if default_env_vars is not None:
            self.copy_env_vars = default_env_vars
        extra: Any = self.extra_env_vars
        if isinstance(extra, tuple | list):  # in 0.2: names of variables to copy
            self.copy_env_vars, self.extra_env_vars = (*self.copy_env_vars, *extra), None

    def set_logging_handlers(self, handler_factory: Handling) -> Self:
        """Have each run's output go to the handlers that this function makes.

        "auto": the default handlers; None: none. Returns the launcher itself.
        """
        self.handler_factory = handler_factory
        return self

    def run(self, func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> LaunchResult[R]:
        """Call `func(*args, **kwargs)` on every rank; block until all have ended.

        Raises what the function raised, with its own type; `WorkerFailedError` and
        `AgentFailedError` for workers and hosts that were lost; `PhalanxError` for the rest.

        `func_args` and `func_kwargs`, which 0.2 had, hold the arguments of a function that has
        none of these names; `handler_factory`, there, is for this run alone.
        """
        given, named, handlers = _arguments(func, args, kwargs)
        spec = _log_spec(*handlers or [self.handler_factory])
        try:
            result = self._phalanx(spec).run(func, named, args=given)
        finally:
            if isinstance(spec, HandlerFactorySpec):
                spec.close()
        return LaunchResult(result.values, result.members)

    def _phalanx(self, log_spec: LogSpec) -> phalanx.Launcher:
        return phalanx.Launcher(
            hostnames=self.hostnames,
            workers_per_host=self.workers_per_host,
            ssh_config_file=_text(self.ssh_config_file),
            backend=self.backend,
            process_group_timeout=self.worker_timeout,
            host_timeout=self.agent_timeout,
            env_vars=(*self.copy_env_vars, VARIABLE),
            extra_env_vars=dict(self.extra_env_vars or {}),
            env_file=_text(self.env_file),
            log_spec=log_spec,
        )


def launch(
    func: Callable[..., R],
    func_args: Sequence[Any] | Mapping[str, Any] | None = None,
    func_kwargs: Mapping[str, Any] | None = None,
    *,
    hostnames: list[str] | Literal["auto", "slurm"] = "auto",
    workers_per_host: int | list[int] | Literal["cpu", "gpu", "auto", "slurm"] = "auto",
    ssh_config_file: _PATH | None = None,
    backend: Literal["nccl", "gloo", "mpi", "ucc", "auto"] | None = "auto",
    timeout: int = 600,
    default_env_vars: tuple[str, ...] = DEFAULT_ENV_VARS_FOR_COPY,
    extra_env_vars: tuple[str, ...] = (),
    env_file: _PATH | None = None,
    handler_factory: Handlers = "auto",
    log_handlers_builder: Handlers = "auto",
    log_handlers: Handlers = "auto",
) -> LaunchResult[R]:
    """Call `func(*func_args, **func_kwargs)` on every rank, with the arguments of torchrunx 0.2.

    A dict in place of `func_args` is taken for `func_kwargs`, as still earlier versions had it;
    `log_handlers_builder` (0.2.1) and `log_handlers` (0.2.0) are `handler_factory`.
    """
    if isinstance(func_args, Mapping):
        func_kwargs, func_args = {**func_args, **(func_kwargs or {})}, ()
    launcher = Launcher(
        hostnames=hostnames,
        workers_per_host="auto" if workers_per_host == "slurm" else workers_per_host,
        ssh_config_file=ssh_config_file,
        backend=backend,
        timeout=timeout,
        copy_env_vars=(*default_env_vars, *extra_env_vars),
        env_file=env_file,
    )
    given = [h for h in (handler_factory, log_handlers_builder, log_handlers) if h != "auto"]
    launcher.handler_factory = _factory(given[0]) if given else "auto"
    return launcher.run(func, *(func_args or ()), **(func_kwargs or {}))


def _arguments(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any], list[Handling]]:
    """The function's arguments, also as 0.2 takes them, and the handlers that are given there."""
    handlers = [name for name in _HANDLERS if name in kwargs]
    if (args and not handlers) or not kwargs or not kwargs.keys() <= _OF_0_2:
        return args, kwargs, []
    try:
        inspect.signature(func).bind(*args, **kwargs)
    except TypeError:
        call = {**dict(zip(("func_args", "func_kwargs"), args, strict=False)), **kwargs}
        given = tuple(call.get("func_args") or ())
        return given, call.get("func_kwargs") or {}, [_factory(kwargs[name]) for name in handlers]
    except ValueError:  # a builtin that does not say what it takes
        pass
    return args, kwargs, []


def _factory(handlers: Handlers) -> Handling:
    """What makes the handlers, or says which: in 0.2.0, it was a list of them."""
    return (lambda: handlers) if isinstance(handlers, list) else handlers


def _log_spec(handlers: Handling) -> LogSpec:
    if handlers is None:
        return DefaultLogSpec.nothing()
    return HandlerFactorySpec(None if handlers == "auto" else handlers)


def _text(path: _PATH | None) -> str | None:
    return None if path is None else os.fspath(path)
