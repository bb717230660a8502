"""What a worker can ask about itself: `phalanx.context()`."""

from __future__ import annotations

import os
from dataclasses import dataclass

from phalanx._core.ranks import APP, HOST, ROUND, STOP_FILE


@dataclass(frozen=True, slots=True)
class Context:
    """Where a worker stands. Outside of workers: rank 0 of 1."""

    rank: int
    """The global rank."""
    local_rank: int
    """Its number among the workers of its host, from 0."""
    world_size: int
    """How many workers there are."""
    local_world_size: int
    """How many workers this host has."""
    host_rank: int
    """The host's position among those of the round."""
    round: int
    """Counts every new membership and every restart; it only grows."""
    restart_count: int
    """How many restarts it took; the same on every host."""
    run_id: str
    """What torchrun calls the run's id; the same on every host."""
    app: str
    """The app's id."""
    host: str
    """The host's name, as the launcher knows it."""
    stop_file: str = ""
    """The file whose presence `should_stop` looks for."""

    def should_stop(self) -> bool:
        """Whether the host will be taken away: save what is needed, and return.

        Cheap enough for every step. It is known on that host alone: where ranks have to stop at the
        same step, they must agree on it, as with an all_reduce.
        """
        return bool(self.stop_file) and os.path.exists(self.stop_file)


def context() -> Context:
    """The context of the worker that calls it: rank, world size, round and so on.

    Returns:
        What the environment says at the time of the call; outside of workers, rank 0 of 1.
    """
    environ = os.environ

    def number(name: str, default: int) -> int:
        text = environ.get(name, "")
        return int(text) if text.isdigit() else default

    return Context(
        rank=number("RANK", 0),
        local_rank=number("LOCAL_RANK", 0),
        world_size=number("WORLD_SIZE", 1),
        local_world_size=number("LOCAL_WORLD_SIZE", 1),
        host_rank=number("GROUP_RANK", 0),
        round=number(ROUND, 0),
        restart_count=number("TORCHELASTIC_RESTART_COUNT", 0),
        run_id=environ.get("TORCHELASTIC_RUN_ID", ""),
        app=environ.get(APP, ""),
        host=environ.get(HOST, ""),
        stop_file=environ.get(STOP_FILE, ""),
    )
