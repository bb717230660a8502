"""GPUs for containers: none is given to two, as far as the labels of containers tell.

The engine counts nothing: a request for one GPU is a request for the first. So GPUs are asked for
by number, and each container has its own in a label.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Mapping, Sequence

from phalanx._schedulers.docker import labels
from phalanx._schedulers.docker.engine import Engine
from phalanx._schedulers.replicas.assessment import assess
from phalanx.errors import SchedulerError

ALL = "all"
"""In the label of a container that has every GPU."""


def choose(counts: Sequence[int], used: Mapping[str, str], total: int | None) -> list[list[str]]:
    """The GPUs of each container: the first of those that nobody uses. Pure.

    Args:
        counts: How many each needs.
        used: Who has a GPU, by its number; `ALL` where somebody has every one.
        total: How many there are; None where nobody knows.

    Raises:
        SchedulerError: There are fewer, or others have them.
    """
    wanted = sum(counts)
    if not wanted:
        return [[] for _ in counts]
    if total is not None and wanted > total:
        raise SchedulerError(f"it needs {wanted} GPUs, but the engine's machine has {total}.")
    if ALL in used or total is not None:
        numbers = [] if ALL in used else [str(number) for number in range(total or 0)]
        free = [number for number in numbers if number not in used]
    else:
        free = [str(n) for n in range(wanted + len(used)) if str(n) not in used]
    if len(free) < wanted:
        owners = list(dict.fromkeys(used.values()))
        verb = "uses" if len(owners) == 1 else "use"
        are = "is" if len(free) == 1 else "are"
        count = "none is" if not free else f"{len(free)} of {total} {are}"
        raise SchedulerError(
            f"it needs {wanted} GPU{'s' if wanted > 1 else ''}, and {count} free: "
            f"{', '.join(owners)} {verb} the others. Wait, or share them: -cfg share_gpus=yes"
        )
    given = iter(free)
    return [[next(given) for _ in range(count)] for count in counts]


def find_used(engine: Engine) -> dict[str, str]:
    """The GPUs that apps and launches of ours have on this engine, and whose they are."""
    found: dict[str, str] = {}
    for app in engine.find_all({labels.GPUS: None, labels.APP: None}):
        if not assess(app, time.time()).state.is_final:
            for container in app.containers:
                found.update(dict.fromkeys(container.gpus, app.app_id))
    for lease, numbers in engine.lent_gpus():
        found.update(dict.fromkeys(numbers, lease))
    return found


@contextlib.contextmanager
def chosen(engine: Engine, counts: Sequence[int], *, shared: bool) -> Iterator[list[list[str]]]:
    """The GPUs of each container, which are to be created inside the `with`.

    With `shared`, it does not matter who else uses them. Raises `SchedulerError`.
    """
    if not any(counts):
        yield choose(counts, {}, None)
    else:
        with _one_at_a_time():
            used = {} if shared else find_used(engine)
            yield choose(counts, used, engine.num_gpus())


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """One process of this user at a time chooses: what it has chosen is in labels at the end."""
    from phalanx._registry import directory, make

    try:
        parent = directory().parent
        make(parent)
        file = os.open(parent / "docker-gpus.lock", os.O_WRONLY | os.O_CREAT, 0o600)
    except (OSError, RuntimeError):
        yield  # nobody can be kept out where nothing can be written
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
