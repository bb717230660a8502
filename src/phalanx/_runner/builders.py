"""Apps of component functions, without a runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx._runner.component import Component
from phalanx._runner.config import ConfigValue
from phalanx._specs import AppDef


def materialize_appdef(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> AppDef:
    """The app that a component function makes of the words of a command line.

    Args:
        cmpnt_fn: The function.
        cmpnt_args: The words.
        cmpnt_defaults: Values of arguments that are not among the words, by name.
        config: Values by name that win over the words; names that are not arguments of the
            function are passed over.

    Raises:
        ComponentError: The function is not a component.
        UsageError: It does not take these arguments.
    """
    component = Component(cmpnt_fn.__name__, cmpnt_fn)
    wins = {k: v for k, v in (config or {}).items() if k in component.parameters}
    defaults = {k: ConfigValue(v, "cmpnt_defaults") for k, v in (cmpnt_defaults or {}).items()}
    return component.build(cmpnt_args, defaults, wins)
