"""Run one worker in this very process: for debuggers, `breakpoint()` and profilers."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from phalanx._core.environment import defaults
from phalanx._core.ranks import jax_environment, worker_environment
from phalanx._core.rounds import Endpoint, Round
from phalanx._launcher.planning.plan import Plan
from phalanx._launcher.result import LaunchResult
from phalanx._system.network import bind_pair
from phalanx._worker.hooks import jax_cluster
from phalanx.errors import ConfigError


def run_inline(
    plan: Plan,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    uses_torch: bool,
) -> LaunchResult[Any]:
    """Call the function here, as rank 0 of 1. Nothing is pickled, its exception is its own."""
    if len(plan.members) != 1 or plan.members[0].workers != 1:
        count = sum(member.workers for member in plan.members)
        raise ConfigError(
            f'start_method="inline" runs one worker in this process, not {count}. '
            "Set workers_per_host=1."
        )
    first, second = bind_pair(anywhere=False)
    port = first.getsockname()[1]
    first.close()
    second.close()
    round_ = Round(1, plan.members, Endpoint("127.0.0.1", port))
    variables = worker_environment(
        round_, plan.members[0], 0, run_id=plan.app, error_file=os.devnull, agent_store=False
    )
    own = plan.hosts[0].own_variables
    environ = {**os.environ, **own}
    variables |= defaults(environ, jax_environment(round_, environ))
    jax_cluster.announce()
    with (
        _environment({**own, **variables}),
        _group(plan, wanted=uses_torch),
    ):
        return LaunchResult((function(*args, **kwargs),), plan.members)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _group(plan: Plan, *, wanted: bool) -> Iterator[None]:
    backend = plan.options.backend
    if backend is None or not (wanted or backend != "auto"):
        yield
        return
    group: Any = importlib.import_module("phalanx._torch.group")
    joined = group.join_alone(backend, plan.options.process_group_timeout)
    try:
        yield
    finally:
        if joined:
            group.leave()
