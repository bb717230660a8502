"""TorchX's functions that make apps, handles and mounts of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx._runner import builders
from phalanx._runner.builders import parse_args
from phalanx._runner.handles import make_app_handle
from phalanx._specs import AppDef as FrozenAppDef
from phalanx._specs import BindMount, DeviceMount, VolumeMount, parse_mounts
from phalanx._specs.mutable import MutableAppDef, thawed

__all__ = [
    "BindMount",
    "DeviceMount",
    "VolumeMount",
    "make_app_handle",
    "materialize_appdef",
    "parse_args",
    "parse_mounts",
]


def materialize_appdef(
    cmpnt_fn: Callable[..., FrozenAppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> MutableAppDef:
    """The app that a component function makes of the words of a command line.

    Args:
        cmpnt_fn: The function.
        cmpnt_args: The words.
        cmpnt_defaults: Values of arguments that are not among the words, by name.
        config: Values by name that win over the words.
    """
    return thawed(builders.materialize_appdef(cmpnt_fn, cmpnt_args, cmpnt_defaults, config))
