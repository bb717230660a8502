"""Handlers of the program's own logging that never return: neither we nor its end wait for them."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from phalanx._logs import logger

_Reference = Callable[[], logging.Handler | None]


def warn(text: str, *args: object) -> None:
    """Say something; what the program's logging raises is not our concern."""
    with contextlib.suppress(Exception):
        logger.warning(text, *args)


def warn_on_thread(text: str, *args: object) -> None:
    """Likewise, on a thread of its own: logging may be what a handler is stuck in."""
    with contextlib.suppress(RuntimeError):  # too many threads, or the interpreter ends
        threading.Thread(target=warn, args=(text, *args), daemon=True).start()


def forget(handler: logging.Handler) -> None:
    """Have the interpreter's exit not wait for the lock of this one."""
    _keep(lambda reference: reference() is not handler)


def forget_stuck() -> bool:
    """Likewise of all that are inside now; whether there were none: then logging can be used."""
    return _keep(lambda reference: _is_free(reference()))


def _keep(wanted: Callable[[_Reference], bool]) -> bool:
    """Have `logging.shutdown` know these alone; whether it is all of them."""
    known: list[_Reference] = getattr(logging, "_handlerList", [])
    kept = [reference for reference in known if wanted(reference)]
    is_all = len(kept) == len(known)
    known[:] = kept
    return is_all


def _is_free(handler: logging.Handler | None) -> bool:
    lock = getattr(handler, "lock", None)
    if lock is None:
        return True
    is_free: bool = lock.acquire(timeout=0.1)
    if is_free:
        lock.release()
    return is_free
