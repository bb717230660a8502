"""How schedulers are asked: what one raises names it, what it gives is held against its type."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

from phalanx.errors import PhalanxError, SchedulerError

T = TypeVar("T")


@contextlib.contextmanager
def asking(scheduler: str) -> Iterator[None]:
    """Ask a scheduler something: what its own code raises names it."""
    try:
        yield
    except PhalanxError:
        raise
    except NotImplementedError as error:
        raise SchedulerError(f"the scheduler {scheduler} does not support this: {error}") from error
    except (Exception, SystemExit) as error:
        if type(error) is LookupError:  # what is not there, as the interface has it
            raise
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise SchedulerError(f"the scheduler {scheduler} failed: {text}") from error


def expect(value: Any, kind: type[T]) -> T:
    """What a scheduler gave, if it is that. Raises `TypeError`."""
    if not isinstance(value, kind):
        raise TypeError(f"it gave {value!r}, not a {kind.__name__}")
    return value


def guarded(scheduler: str, items: Iterator[T]) -> Iterator[T]:
    """What a scheduler gives one by one, such as lines."""
    while True:
        with asking(scheduler):
            item = next(items, None)
        if item is None:
            return
        yield item
