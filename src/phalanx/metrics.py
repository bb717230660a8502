"""Numbers about what goes on, for a handler of the user's own: `configure(MyHandler())`.

Nothing is measured for anybody unless a handler is configured. Handlers are called on a thread of
their own, see `delivery`; whoever puts a metric neither waits for them nor sees them fail.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

from phalanx._delivery import Deliveries

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "NullMetricHandler",
    "configure",
    "flush",
    "prof",
    "put_metric",
]

GROUP = "phalanx"

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class MetricData:
    """One value of one metric."""

    timestamp: float
    """Seconds since the epoch, when it was put."""
    group_name: str
    """Its group, by which handlers are chosen."""
    name: str
    """What was measured."""
    value: float
    """How much."""


class MetricHandler(ABC):
    """Takes metrics somewhere. Any other object with such a method will do as well."""

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Take one metric; called in order, on one thread.

        It may block, and it may raise: the next one follows.

        Args:
            metric_data: Name, value, group and time.
        """


class NullMetricHandler(MetricHandler):
    """Takes nothing; this is the default."""

    def emit(self, metric_data: MetricData) -> None:
        """Do nothing."""


class ConsoleMetricHandler(MetricHandler):
    """Writes a line to stdout for every metric."""

    def emit(self, metric_data: MetricData) -> None:
        """Write `[timestamp][group][name]: value`."""
        data = metric_data
        line = f"[{data.timestamp:.3f}][{data.group_name}][{data.name}]: {data.value}\n"
        out, own = sys.stdout, sys.__stdout__
        if own is None or out is not own:  # a notebook's, a test's
            print(line, end="", file=out, flush=True)
            return
        # Past the buffer: a write to a pipe that nobody reads would keep its lock, and an
        # interpreter that ends meanwhile is aborted for that.
        rest = line.encode(own.encoding, "backslashreplace")
        while rest:
            rest = rest[os.write(own.fileno(), rest) :]


_DELIVERIES = Deliveries("emit", NullMetricHandler)
_NOBODY = NullMetricHandler()


def configure(handler: MetricHandler | Any = _NOBODY, group: str | None = None) -> None:
    """Give metrics to a handler, all of them or those of one group.

    A group that has a handler of its own keeps it when one is configured for all. What was put
    before still goes to the former handler.

    Args:
        handler: An object with a method `emit(metric_data)`; without one: silence.
        group: The group; by default all that have no handler of their own.

    Raises:
        ConfigError: It cannot be a handler.
    """
    _DELIVERIES.choose([handler], group)


def put_metric(metric_name: str, metric_value: float, metric_group: str = GROUP) -> None:
    """Emit a value. Return at once, whatever the handler does.

    Args:
        metric_name: What was measured.
        metric_value: How much.
        metric_group: Which handler gets it; see `configure`.
    """
    chosen = _DELIVERIES.chosen
    deliveries = chosen.get(metric_group)
    if deliveries is None:
        deliveries = chosen[None]
    if deliveries:
        data = MetricData(time.time(), metric_group, metric_name, metric_value)
        for delivery in deliveries:
            delivery.put(data)


def flush(timeout: float = 5.0) -> bool:
    """Wait until the handlers had all that was put so far.

    The interpreter's exit does so by itself, with a bound; `os._exit` does not.

    Args:
        timeout: Seconds to wait at most.

    Returns:
        Whether they had all of it in time.
    """
    return _DELIVERIES.flush(timeout)


@overload
def prof(function: Callable[P, R], /, group: str = GROUP) -> Callable[P, R]: ...


@overload
def prof(
    function: None = None, /, group: str = GROUP
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def prof(function: Callable[..., Any] | None = None, /, group: str = GROUP) -> Any:
    """Put `NAME.success` or `NAME.failure`, and `NAME.duration.ms`, whenever the function ends.

    As `@prof` or `@prof(group="mine")`; NAME is the function's qualified name. What the function
    raises goes through. Of an `async def` the awaiting is measured.

    Args:
        function: The function to decorate.
        group: The metrics' group.

    Returns:
        A function that is called in the same way.
    """
    if function is None:
        return functools.partial(prof, group=group)
    called = function
    name = getattr(called, "__qualname__", type(called).__qualname__)

    @functools.wraps(called)
    def measured(*args: Any, **kwargs: Any) -> Any:
        with _Measurement(name, group):
            return called(*args, **kwargs)

    @functools.wraps(called)
    async def measured_async(*args: Any, **kwargs: Any) -> Any:
        with _Measurement(name, group):
            return await called(*args, **kwargs)

    return measured_async if inspect.iscoroutinefunction(called) else measured


class _Measurement:
    __slots__ = ("_group", "_name", "_started")

    def __init__(self, name: str, group: str) -> None:
        self._name = name
        self._group = group

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        took = (time.perf_counter() - self._started) * 1000
        ended = "success" if kind is None else "failure"
        put_metric(f"{self._name}.{ended}", 1, self._group)
        put_metric(f"{self._name}.duration.ms", took, self._group)
