"""The process group that a worker finds when its function starts.

It sits under a prefix of its own in the round's store, so that the user may form another one there:
`init_process_group`, called by code written for torchrun, replaces ours.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import time
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from phalanx._torch import flight_recorder

_PREFIX = "phalanx"
_FORMED = "formed"
_PAUSE = 0.002

_init_process_group = dist.init_process_group
_ours: Any = None
_store: Any = None
_last_seen: Any = object()
"""The last module that was looked at: those after it were loaded later."""


def join(backend: str, timeout: float) -> None:
    """Form the default group with all ranks; blocks until they are there."""
    limit = timedelta(seconds=timeout)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=limit)
    _form(backend, store, limit)


def join_alone(backend: str, timeout: float) -> bool:
    """Form a group of one without a server; false if this process is in a group already."""
    if dist.is_initialized():
        return False
    let_users_replace_it()
    _form(backend, HashStore(), timedelta(seconds=timeout))
    return True


def _form(backend: str, store: Any, limit: timedelta) -> None:
    global _ours, _store  # noqa: PLW0603 torch's default group is one per process as well
    if backend == "auto":
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _store = PrefixStore(_PREFIX, store)
    _init_process_group(
        backend,
        store=_store,
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=limit,
    )
    _ours = dist.group.WORLD
    _store.add(_FORMED, 1)
    flight_recorder.answer_questions()


def _wait_until_all_have_formed() -> None:
    """Wait for the others: a rank that is quick to leave would break the connections they make."""
    global _store
    store, _store = _store, None
    limit = time.monotonic() + store.timeout.total_seconds()
    while store.add(_FORMED, 0) < int(os.environ["WORLD_SIZE"]) and time.monotonic() < limit:
        time.sleep(_PAUSE)


def leave() -> None:
    """Take the default group down, whoever made it. That cannot fail: the function has returned."""
    try:
        if dist.is_initialized():
            if dist.group.WORLD is _ours:
                _wait_until_all_have_formed()
            dist.destroy_process_group()
    except Exception:  # noqa: BLE001 said in the log, and the value stands
        traceback.print_exc()


def let_users_replace_it(*namespaces: dict[str, Any]) -> None:
    """Have `init_process_group`, under every name it was imported by, take our group down first.

    Looks in all loaded modules, and in the namespaces given. Idempotent. A fork looks only at what
    has been loaded since: a look at all of them would cost it a copy of their pages.
    """
    global _last_seen  # noqa: PLW0603 what was loaded is one per process as well
    last, here = _last_seen, sys.modules[__name__]
    loaded = itertools.takewhile(lambda item: item[1] is not last, reversed(sys.modules.items()))
    modules = [m for _, m in list(loaded) if hasattr(m, "__dict__")]
    if modules:
        _last_seen = modules[0]
    for names in (*map(vars, modules), *namespaces):
        if names is not vars(here) and names.get("init_process_group") is _init_process_group:
            names["init_process_group"] = _replacing


@functools.wraps(_init_process_group)
def _replacing(*args: Any, **kwargs: Any) -> Any:
    global _ours  # noqa: PLW0603 as above
    if _ours is not None and dist.is_initialized() and dist.group.WORLD is _ours:
        _ours = None
        _wait_until_all_have_formed()
        dist.destroy_process_group()
    made = _init_process_group(*args, **kwargs)
    flight_recorder.answer_questions()
    return made
