"""Functions onto hosts: `Launcher` says where and how, `run` calls the function on every rank."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack

from phalanx._core.launch_guard import check_may_launch
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._launcher.interrupts import hide_traceback, interruptible
from phalanx._launcher.launch_options import (
    NAMES,
    LaunchOptions,
    LaunchOptionsDict,
    check_names,
    option_hint,
)
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from phalanx._launcher.calls.calls import Calls
    from phalanx._launcher.calls.jobs.job import Job
    from phalanx._launcher.host_check import HostsReport
    from phalanx._launcher.payload import Function
    from phalanx._launcher.planning.imports import Needs
    from phalanx._launcher.queued_run import QueuedApp
    from phalanx._launcher.result import LaunchResult
    from phalanx._launcher.session.app import App, Run
    from phalanx._launcher.start import PreparedApp, Work

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Launcher(LaunchOptions):
    """Where and how to run functions. Plain data: it can be copied, pickled and changed."""

    def __enter__(self) -> Self:
        """Keep agents, and the packages they have loaded, from one run to the next."""
        from phalanx._launcher.planning.validation import check
        from phalanx._launcher.warm import contexts

        check(self)
        contexts.enter(self, self.keep_warm)
        return self

    def __exit__(self, *_: object) -> None:
        """End the agents that have nothing to do; apps that still run go on."""
        from phalanx._launcher.warm import contexts

        contexts.leave(self)

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
            QueueTimeout: The scheduler's hosts were not there within `queue_timeout`.
            SchedulerError: The scheduler refused to lend hosts; its reason is the message.
            AgentLost: A host is gone, or was silent for `host_timeout`.
            ResultError: A value could not be brought back.
            FetchError: All ranks returned, but files named by `fetch` could not be brought back.
            OutputLost: All ranks returned, but some of their output could not be written.
            Cancelled: The app was cancelled.
        """
        if self.start_method == "inline":
            return self._run_inline(func, args, kwargs or {})
        app: Run[R] | None = None
        try:
            prepared = self._prepare(_pack(func, args, kwargs))
            with interruptible() as interrupts:
                app = prepared.start()
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
        detach: bool = False,
    ) -> App[R]:
        """Start `func(*args, **kwargs)` on every rank and return without waiting.

        Args:
            func: Anything that can be called.
            kwargs: Its keyword arguments.
            args: Its positional arguments.
            detach: Let the app outlive this program: it runs on when the program ends or is killed.
                Find it again with `phalanx.app(id)`, and `phalanx status`, `log` and `cancel`.

        Returns:
            A handle, to wait with, to read logs from, or to cancel.

        Raises:
            ConfigError: A mistake that was found before anything was started, or
                `start_method="inline"`, which cannot run in the background.
        """
        if self.start_method == "inline":
            raise ConfigError('start_method="inline" cannot run in the background. Use run().')
        from phalanx._launcher.session.app import App

        work = _pack(func, args, kwargs)
        if detach:
            return self._detach(work)
        return App(self._prepare(work).start())

    def _detach(self, work: Work) -> App[Any]:
        from phalanx._launcher.detached.detached_launch import start_host
        from phalanx._launcher.detached.recorded_run import app
        from phalanx._launcher.planning.validation import check

        check(self)
        return app(start_host(self, work))

    def map(
        self,
        func: Callable[..., R],
        items: Iterable[Mapping[str, Any]],
        *,
        max_parallel: int | None = None,
        ordered: bool = True,
        hosts_per_call: int = 1,
        retries: int = 0,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Calls[R]:
        """Call `func(**item)` for every item, several at a time; return without waiting.

        Each call is a launch of its own: `workers_per_host` workers on `hosts_per_call` of the
        hosts. One that fails does not end the others. Output goes to a file per call under ./logs,
        unless `log_spec` is set.

        Args:
            func: Anything that can be called.
            items: The keyword arguments of each call.
            max_parallel: How many calls run at once. Default: one on each host; on this machine,
                as many as there are CPUs for their workers.
            ordered: Give results in the order of the items; otherwise as calls end.
            hosts_per_call: How many hosts each call has.
            retries: How often a call is made again, on another host if there is one, when its host
                was lost or preempted. What a function raises is not retried.
            checkpoint: A directory that keeps the results: calls whose result is there are not
                made again.

        Returns:
            An iterator over the results; each has the `item_index`. After the last it
            raises `MapFailed` if calls have failed. What still runs is stopped when it is closed.

        Raises:
            ConfigError: A mistake that was found before anything was started.
        """
        from phalanx._launcher.calls.calls import start_calls
        from phalanx._launcher.planning import imports

        check_may_launch(os.environ)
        table = list(items)
        for number, item in enumerate(table):
            check_item(func, item, number)
        return start_calls(
            self,
            func,
            table,
            imports.of_function(func),
            _title(func),
            max_parallel=max_parallel,
            ordered=ordered,
            hosts_per_call=hosts_per_call,
            retries=retries,
            checkpoint=checkpoint,
        )

    def submit(self, func: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Start `func(*args, **kwargs)` on every rank and return a future of the result.

        With a `scheduler` it is submitted there as an app: it waits in the queue, outlives this
        program, and can be picked up by its id (`phalanx.Job(id)`) from another. Otherwise it ends
        with this program.

        Args:
            func: Anything that can be called.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Returns:
            A job: a `concurrent.futures.Future` of the `LaunchResult`, with an `id`.

        Raises:
            ConfigError: A mistake that was found before anything was started, or
                `start_method="inline"`, which cannot run in the background.
            SchedulerError: The scheduler refused it; its reason is the message.
        """
        if self.start_method == "inline":
            raise ConfigError('start_method="inline" cannot run in the background. Use run().')
        from phalanx._launcher.calls.jobs.job import Job

        work = _pack(func, args, kwargs)
        if self.scheduler is None:
            return Job.of_run(self._prepare(work).start())
        from phalanx._launcher.calls.jobs.scheduler_jobs import submit_call

        return Job.of_scheduler(submit_call(self, work))

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

    def _prepare(self, work: Work) -> PreparedApp | QueuedApp:
        if self.scheduler is not None:
            return self._queue(work)
        from phalanx._launcher.start import prepare_app
        from phalanx._launcher.warm import contexts
        from phalanx._launcher.warm.pool import pools

        own = contexts.pool_of(self)
        known = {} if own is None else own.known
        return prepare_app(self, work, pools=pools(own, self.keep_warm), known=known)

    def _queue(self, work: Work) -> QueuedApp:
        from phalanx._launcher.borrowed_hosts import find_lender
        from phalanx._launcher.queued_run import QueuedApp, draft_unplaced
        from phalanx._launcher.warm import contexts
        from phalanx._launcher.warm.pool import pools

        draft = draft_unplaced(self, work)
        lender = find_lender(draft.options, work.title)
        own = contexts.pool_of(self)
        return QueuedApp(
            draft,
            work,
            functools.partial(contexts.borrow, self, lender),
            pools(own, 0.0),
            {} if own is None else own.known,
        )

    def _run_inline(
        self, func: Callable[..., R], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> LaunchResult[R]:
        from phalanx._launcher.inline import run_inline
        from phalanx._launcher.planning import imports
        from phalanx._launcher.planning.plan import make_plan

        check_call(func, args, kwargs)
        needs = imports.of_function(func)
        plan = make_plan(self, needs, _title(func))
        return run_inline(plan, func, args, kwargs, uses_torch=needs.torch)


def launch(
    func: Callable[..., R],
    kwargs: Mapping[str, Any] | None = None,
    *,
    args: Sequence[Any] = (),
    **options: Unpack[LaunchOptionsDict],
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
        check_names("launch", options, _parameters(func))
    except KeyboardInterrupt as interrupt:
        hide_traceback(interrupt, "nothing was started")
        raise
    return Launcher(**options).run(func, kwargs, args=args)


_fill = Launcher.__init__


@functools.wraps(_fill)
def _check_and_fill(self: Launcher, *args: Any, **fields: Any) -> None:
    for name in fields:
        if name not in NAMES:
            raise TypeError(f"Launcher has no field {name!r}.{option_hint(name)}")
    _fill(self, *args, **fields)


Launcher.__init__ = _check_and_fill  # type: ignore[method-assign]


def _parameters(func: Any) -> list[str]:
    try:
        return list(inspect.signature(func).parameters)
    except (ValueError, TypeError):
        return []


def begin(launcher: Launcher, needs: Needs, title: str, call: Future[Function]) -> Run[Any]:
    """Start the agents for a function that is not there yet; its pickled call follows."""
    from phalanx._launcher.start import Work

    return launcher._prepare(Work(call, needs, title)).start()


def _pack(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Work:
    """All that can go wrong before anything starts, and may run code of the user's."""
    from phalanx._launcher import payload
    from phalanx._launcher.planning import imports
    from phalanx._launcher.start import Work

    check_may_launch(os.environ)
    check_call(func, args, kwargs)
    needs = imports.of_function(func)
    return Work.of(payload.pack(func, args, kwargs or {}, needs), needs, _title(func))


def start_work(launcher: Launcher, work: Work) -> Run[Any]:
    """Start an app for a call that is packed already."""
    return launcher._prepare(work).start()


def _wait_or_cancel(app: Run[Any], grace: float) -> None:
    try:
        app.wait()
    except BaseException:
        # The program's own signal handler raised: nothing may be left behind for that.
        app.cancel()
        app.wait(grace + 5.0)
        raise


def check_item(func: Any, item: Any, number: int) -> None:
    """Refuse an item of a map that is not the keyword arguments of a call."""
    if not isinstance(item, Mapping):
        names = _parameters(func)
        name = names[0] if names else "name"
        raise ConfigError(
            f"items must be dicts of keyword arguments, not {item!r}. "
            f"Write map(func, [{{{name!r}: value}}, ...])."
        )
    try:
        check_call(func, (), item)
    except TypeError as error:
        raise TypeError(f"item {number}: {error}") from None


def check_call(func: Any, args: Any, kwargs: Any) -> None:
    """Refuse what could not be called, before anything starts."""
    if not callable(func):
        raise ConfigError(f"{func!r} is not callable. Pass a function: launch(train, {{...}}).")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise ConfigError(
            f"keyword arguments must be a dict, not {kwargs!r}. "
            "Write launch(func, {'name': value}), or args=(...) for positional ones."
        )
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise ConfigError(f"args={args!r}: must be a tuple of positional arguments.")
    if inspect.iscoroutinefunction(func) or inspect.isasyncgenfunction(func):
        raise ConfigError(f"{_title(func)} is async. Launch a function that calls asyncio.run().")
    if inspect.isgeneratorfunction(func):
        raise ConfigError(f"{_title(func)} is a generator. Launch a function that returns a list.")
    try:
        signature = inspect.signature(func)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*args, **(kwargs or {}))
    except TypeError as error:
        unknown = _unknown(signature, kwargs or {}, str(error))
        raise TypeError(f"{_title(func)}{signature}: {error}{unknown}") from None


def _unknown(signature: inspect.Signature, kwargs: Mapping[str, Any], said: str) -> str:
    """The names that it does not take, which Python tells only if nothing is missing."""
    parameters = signature.parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return ""
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [name for name in kwargs if name not in names and repr(name) not in said]
    if not unknown:
        return ""
    listed = ", ".join(map(repr, unknown))
    return f", and it takes no {listed}.{did_you_mean(closest(str(unknown[0]), names))}"


def _title(func: Any) -> str:
    inner = getattr(func, "func", func)  # a partial shows what it calls
    name = getattr(inner, "__name__", None) or type(inner).__name__
    return "function" if name == "<lambda>" else str(name)
