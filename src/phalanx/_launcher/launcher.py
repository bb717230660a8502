"""Functions onto hosts: `Launcher` says where and how, `run` calls the function on every rank."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, ParamSpec, Self, TypeVar

from phalanx._core.environment import COPIED_BY_DEFAULT
from phalanx._core.nesting import check_may_launch
from phalanx._launcher.interrupts import hide_traceback, interruptible
from phalanx._logs.spec import LogSpec
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from phalanx._launcher.host_check import HostsReport
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.imports import Needs
    from phalanx._launcher.planning.plan import Plan
    from phalanx._launcher.result import LaunchResult
    from phalanx._launcher.session.app import App

P = ParamSpec("P")
R = TypeVar("R")


OTHER_NAMES = {
    **dict.fromkeys(
        (
            *("nproc_per_node", "nprocs", "num_workers", "num_processes", "world_size", "workers"),
            *("ntasks_per_node", "gpus_per_node", "workers_per_node", "num_gpus", "np"),
        ),
        "workers_per_host",
    ),
    **dict.fromkeys(("hosts", "host", "nodes", "nodelist", "hostlist"), "hostnames"),
    **dict.fromkeys(("env", "environment"), "extra_env_vars"),
    "copy_env_vars": "env_vars",
    "worker_timeout": "process_group_timeout",
    "agent_timeout": "host_timeout",
}
"""What other tools call some of a launcher's fields."""


@dataclass
class Launcher:
    """Where and how to run functions. Plain data: it can be copied, pickled and changed."""

    hostnames: list[str] | Literal["auto", "slurm"] = "auto"
    """Hosts to run on, one agent for each entry: names that your ssh knows, user@host or
    user@host:port. "slurm" is the hosts of the allocation; "auto" is that inside salloc or sbatch,
    and this machine elsewhere."""

    workers_per_host: int | list[int] | Literal["cpu", "gpu", "auto"] = "auto"
    """Workers on each host: a number, one for each host, "cpu" (one a processor), "gpu" (one a
    GPU), or "auto" (the allocation's tasks, or the GPUs if there are any, else 1)."""

    backend: Literal["auto", "nccl", "gloo", "mpi", "ucc"] | None = "auto"
    """The process group that workers find: "auto" makes one if the function uses torch."""

    env_vars: tuple[str, ...] = COPIED_BY_DEFAULT
    """Patterns (fnmatch) of the environment variables that are copied to other hosts. On this
    machine workers inherit all of them."""

    extra_env_vars: dict[str, str] = field(default_factory=dict)
    """More environment variables for the workers (on a command line: NAME VALUE NAME VALUE …)."""

    host_env_vars: dict[str, dict[str, str]] = field(default_factory=dict)
    """More environment variables for the workers of single hosts, by their names."""

    env_file: str | None = None
    """A bash file that is sourced on each host before anything else. Hosts need not have it."""

    python: str | dict[str, str] | None = None
    """The interpreter on other hosts, or a virtual environment there; one for all, or by host. By
    default this one's path if it is there, else python3."""

    workspace: str | None = "auto"
    """The project that hosts without this directory are sent: "auto" (the git repository, or the
    directory that this runs in), a directory, or None for nothing."""

    fetch: list[str] = field(default_factory=list)
    """Files that workers write to bring here, from hosts that do not share the working directory:
    patterns such as ckpt/*, relative to it. At the end, and before each restart, when they also go
    to the other hosts."""

    preload: list[str] | Literal["auto"] = "auto"
    """Packages to load once for all workers of a host: "auto" finds what the function imports."""

    start_method: Literal["zygote", "spawn", "inline"] = "zygote"
    """How workers start: forked from a process that has loaded the packages, spawned as new
    interpreters, or (one worker) inline in this process, for debuggers."""

    min_hosts: int | None = None
    """The fewest hosts that the app goes on with when some are lost; by default all of them."""

    max_hosts: int | None = None
    """The most hosts that run workers; those that are listed beyond them wait as spares. By default
    all of them."""

    max_restarts: int = 0
    """How often all workers are started anew when one has failed."""

    restart: Literal["all", "host"] = "all"
    """What a failed worker restarts: the workers of all hosts, or, for hosts that do not
    communicate, those of its own host (each host then has max_restarts; no group is made)."""

    restart_backoff: float = 0.5
    """Seconds before the second restart of workers that fail within 10 s, twice that before the
    third, and so on; the first comes at once."""

    same_failures: int = 5
    """The same failure within 10 s of the start, so many times in a row, ends the app though there
    are restarts left; 0: never."""

    preempt_signal: str = "SIGUSR1"
    """The signal to an agent that tells its workers, through `phalanx.context().should_stop()`,
    that the host will be taken away."""

    start_timeout: float = 300.0
    """Seconds until all workers must be running; and, later, until enough hosts are back."""

    process_group_timeout: float = 600.0
    """Seconds that forming the process group, and each of its operations, may take."""

    stop_grace: float = 5.0
    """Seconds between SIGTERM and SIGKILL when workers are stopped."""

    host_timeout: float = 30.0
    """Seconds without a word from a host after which it is given up."""

    orphan_timeout: float = 3600.0
    """Seconds without a word from the launcher after which a host ends its workers by itself."""

    name: str | None = None
    """The app's name in titles and ids; by default the function's."""

    log_spec: LogSpec | None = None
    """Where the workers' output goes; by default into files under ./logs, and rank 0's to stdout as
    well."""

    ssh_config_file: str | None = None
    """The ssh configuration for other hosts; by default the user's own."""

    address: str | None = None
    """The address of the first host at which workers meet; by default the one that ssh came to."""

    interface: str | None = None
    """The network interface that workers use, the same on every host; by default the one that leads
    to that address."""

    parallel_logins: int = 64
    """How many hosts are dialled at a time."""

    keep_warm: float = 0.0
    """Seconds that this machine's agent, with the packages it has loaded, waits for the next
    command with the same interpreter and environment; 0: it ends with this one."""

    _pool: ClassVar[Any] = None
    """Where agents stay between runs, within a `with`."""

    _entered: ClassVar[int] = 0
    """How many `with`s deep."""

    def __enter__(self) -> Self:
        """Keep agents, and the packages they have loaded, from one run to the next."""
        if not self._entered:
            from phalanx._launcher.planning.validation import check
            from phalanx._launcher.warm.pool import KeptPool, Pool

            check(self)
            kept = KeptPool(self.keep_warm) if self.keep_warm else None
            vars(self)["_pool"] = Pool(kept=kept)
        vars(self)["_entered"] = self._entered + 1
        return self

    def __exit__(self, *_: object) -> None:
        """End the agents that have nothing to do; apps that still run go on."""
        vars(self)["_entered"] = self._entered - 1
        if not self._entered and self._pool is not None:
            self._pool.close()
            vars(self)["_pool"] = None

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: agents cannot be carried."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def run(
        self,
        func: Callable[..., R],
        kwargs: Mapping[str, Any] | None = None,
        *,
        args: Sequence[Any] = (),
    ) -> LaunchResult[R]:
        """Call `func(*args, **kwargs)` on every rank; block until all have ended.

        Whatever is raised, nothing of the launch is left running.

        Args:
            func: Anything that can be called: a function, lambda, closure, partial, bound method.
            kwargs: Its keyword arguments.
            args: Its positional arguments.

        Returns:
            Every rank's value.

        Raises:
            ConfigError: A mistake that was found before anything was started.
            Exception: What the function raised, with its own type; its notes have rank, host and
                the worker's traceback.
            WorkerFailed: A worker exited, was killed, or raised what cannot be raised here.
            StartFailed: An agent could not be started on a host.
            StartTimeout: Not everything was running within `start_timeout`.
            AgentLost: A host went away, or was silent for `host_timeout`.
            ResultError: A value could not be brought back.
            FetchError: All ranks returned, but files named by `fetch` could not be brought back.
            OutputLost: All ranks returned, but some of their output could not be written.
            Cancelled: The app was cancelled.
        """
        if self.start_method == "inline":
            return self._run_inline(func, args, kwargs or {})
        app: App[R] | None = None
        try:
            plan, call = self._prepare(func, args, kwargs)
            with interruptible() as interrupts:
                app = self._start(plan, call)
                interrupts.attach(app.cancel)
                app.show_status()
                app.tell_failure()
                _wait_or_cancel(app, self.stop_grace)
            return app.result()
        except KeyboardInterrupt as interrupt:
            hide_traceback(interrupt, "nothing was started" if app is None else app.describe_left())
            raise

    def call(self, func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> LaunchResult[R]:
        """Call `func(*args, **kwargs)` on every rank, as `run` does, typed by its signature.

        Args:
            func: Anything that can be called.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            Every rank's value.

        Raises:
            PhalanxError: As `run`.
            Exception: What the function raised, as `run`.
        """
        return self.run(func, kwargs, args=args)

    def start(
        self,
        func: Callable[..., R],
        kwargs: Mapping[str, Any] | None = None,
        *,
        args: Sequence[Any] = (),
    ) -> App[R]:
        """Start `func(*args, **kwargs)` on every rank and return without waiting.

        Args:
            func: Anything that can be called.
            kwargs: Its keyword arguments.
            args: Its positional arguments.

        Returns:
            A handle, to wait with, to read logs from, or to cancel.

        Raises:
            ConfigError: A mistake that was found before anything was started, or
                `start_method="inline"`, which cannot run in the background.
        """
        if self.start_method == "inline":
            raise ConfigError('start_method="inline" cannot run in the background. Use run().')
        return self._start(*self._prepare(func, args, kwargs))

    def check(self) -> HostsReport:
        """Log in to the hosts and report what they have, and whether they reach each other.

        Blocks until all have answered.

        Returns:
            A report with every host, those that cannot be used among them.

        Raises:
            ConfigError: A field of the launcher is wrong.
        """
        from phalanx._launcher.host_check import check

        return check(self)

    def _start(self, plan: Plan, call: Future[Function]) -> App[Any]:
        from phalanx._launcher.session.app import App
        from phalanx._launcher.warm.pool import pools

        return App(plan, call, pools(self._pool, self.keep_warm))

    def _prepare(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> tuple[Plan, Future[Function]]:
        """All that can go wrong before anything starts, and may run code of the user's."""
        from concurrent.futures import Future

        from phalanx._launcher import payload
        from phalanx._launcher.planning import imports

        check_may_launch(os.environ)
        check_call(func, args, kwargs)
        needs = imports.of_function(func)
        call: Future[Function] = Future()
        call.set_result(payload.pack(func, args, kwargs or {}, needs))
        return self._plan(needs, _title(func)), call

    def _plan(self, needs: Needs, title: str) -> Plan:
        from phalanx._launcher.planning.plan import make_plan

        known = {} if self._pool is None else self._pool.known
        return make_plan(dataclasses.replace(self), needs, title, known)

    def _run_inline(
        self, func: Callable[..., R], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> LaunchResult[R]:
        from phalanx._launcher.inline import run_inline
        from phalanx._launcher.planning import imports

        check_call(func, args, kwargs)
        needs = imports.of_function(func)
        plan = self._plan(needs, _title(func))
        return run_inline(plan, func, args, kwargs, uses_torch=needs.torch)


def launch(
    func: Callable[..., R],
    kwargs: Mapping[str, Any] | None = None,
    *,
    args: Sequence[Any] = (),
    **options: Any,
) -> LaunchResult[R]:
    """Call `func(*args, **kwargs)` on every rank and return every rank's value.

    Args:
        func: Anything that can be called: a function, lambda, closure, partial, bound method.
        kwargs: Its keyword arguments.
        args: Its positional arguments.
        **options: The fields of `Launcher`, such as `hostnames` and `workers_per_host`.

    Returns:
        Every rank's value.

    Raises:
        ConfigError: A mistake that was found before anything was started, such as an unknown
            option.
        PhalanxError: As `Launcher.run`.
        Exception: What the function raised, with its own type.
    """
    try:
        launcher = check_options("launch", options, func)
    except KeyboardInterrupt as interrupt:
        hide_traceback(interrupt, "nothing was started")
        raise
    return launcher.run(func, kwargs, args=args)


def check_options(verb: str, options: Mapping[str, Any], func: Any = None) -> Launcher:
    """A launcher with these fields. Raises `ConfigError` for what is not one."""
    known = [f.name for f in dataclasses.fields(Launcher)]
    for name in options:
        if name not in known:
            raise ConfigError(f"{verb} has no option {name!r}.{_option_hint(name, func, known)}")
    return Launcher(**options)


def _option_hint(name: str, func: Any, known: list[str]) -> str:
    if name in _parameters(func):
        return f" The function's own arguments go in a dict: launch(func, {{{name!r}: ...}})."
    if name == "timeout":
        return (
            " A function may run as long as it likes; see Launcher.start(...).result(timeout=...)."
        )
    if name in OTHER_NAMES:
        return f" Use {OTHER_NAMES[name]}."
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


_fill = Launcher.__init__


@functools.wraps(_fill)
def _check_and_fill(self: Launcher, *args: Any, **fields: Any) -> None:
    known = [f.name for f in dataclasses.fields(Launcher)]
    for name in fields:
        if name not in known:
            raise TypeError(f"Launcher has no field {name!r}.{_option_hint(name, None, known)}")
    _fill(self, *args, **fields)


Launcher.__init__ = _check_and_fill  # type: ignore[method-assign]


def _parameters(func: Any) -> list[str]:
    try:
        return list(inspect.signature(func).parameters)
    except (ValueError, TypeError):
        return []


def begin(launcher: Launcher, needs: Needs, title: str, call: Future[Function]) -> App[Any]:
    """Start the agents for a function that is not there yet; its pickled call follows."""
    return launcher._start(launcher._plan(needs, title), call)


def _wait_or_cancel(app: App[Any], grace: float) -> None:
    try:
        app.wait()
    except BaseException:
        # The program's own signal handler raised: nothing may be left behind for that.
        app.cancel()
        app.wait(grace + 5.0)
        raise


def check_call(func: Any, args: Any, kwargs: Any) -> None:
    """Refuse what could not be called, before anything starts."""
    if not callable(func):
        raise ConfigError(f"{func!r} cannot be called. Give a function: launch(train, {{...}}).")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigError(
            f"the keyword arguments are {kwargs!r}, not a dict. "
            "Write launch(func, {'name': value}), or args=(...) for positional ones."
        )
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise ConfigError(f"args={args!r} is not a tuple of positional arguments.")
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
        raise ConfigError(f"{_title(func)} is async. Launch a function that calls asyncio.run.")
    if inspect.isgeneratorfunction(func):
        raise ConfigError(f"{_title(func)} is a generator: it cannot be carried. Return a list.")
    try:
        signature = inspect.signature(func)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*args, **(kwargs or {}))
    except TypeError as error:
        raise TypeError(f"{_title(func)}{signature}: {error}") from None


def _title(func: Any) -> str:
    inner = getattr(func, "func", func)  # a partial shows what it calls
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "function" if name == "<lambda>" else str(name)
