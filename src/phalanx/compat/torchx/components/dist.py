"""TorchX's `dist` components."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

from phalanx._specs import AppDef
from phalanx.compat.torchx.specs.api import thawing
from phalanx.components import dist as _ours

__all__ = ["ddp", "parse_nnodes", "spmd"]

EXPERIMENT = "TORCHX_TRACKING_EXPERIMENT_NAME"
"""The variable in which a program finds the experiment of its name."""

P = ParamSpec("P")


def _tracked(component: Callable[P, AppDef]) -> Callable[P, AppDef]:
    """A component whose programs find their experiment, as TorchX names one for all."""

    @functools.wraps(component)
    def call(*args: P.args, **kwargs: P.kwargs) -> AppDef:
        app = component(*args, **kwargs)
        for role in app.roles:
            named = role.env.get("PHALANX_EXPERIMENT", "default-experiment")
            app = app.with_role(role.with_env({EXPERIMENT: named, **role.env}))
        return app

    return call


ddp = thawing(_tracked(_ours.ddp), __name__)
spmd = thawing(_tracked(_ours.spmd), __name__)


class _noquote(str):  # noqa: N801 TorchX's name
    """An argument that the shell of a replica is to expand: components do not quote it."""

    __slots__ = ()


def parse_nnodes(j: str) -> tuple[int, int, int, str]:
    """The least and the most hosts, the workers of each, and what torchrun's `--nnodes` is then.

    Args:
        j: `[MIN:]HOSTSxWORKERS`, or `WORKERS` on one host.

    Raises:
        ValueError: It is not written like that.
    """
    least, most, workers = _ours._parse_j(j)
    return least, most, workers, f"{least}:{most}" if ":" in j else str(most)
