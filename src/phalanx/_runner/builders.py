"""Apps of component functions, without a runner."""

from __future__ import annotations

from argparse import Namespace
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
        config: Values by name that win over the words. In both, names that are not arguments of
            the function are passed over.

    Raises:
        ComponentError: The function is not a component.
        UsageError: It does not take these arguments.
    """
    component = Component(cmpnt_fn.__name__, cmpnt_fn)
    return component.build(cmpnt_args, *_more(component, cmpnt_defaults, config))


def parse_args(
    cmpnt_fn: Callable[..., AppDef],
    cmpnt_args: Sequence[str],
    cmpnt_defaults: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Namespace:
    """The values of a component function's arguments, from the words of a command line.

    Args:
        cmpnt_fn: The function.
        cmpnt_args: The words.
        cmpnt_defaults: Values of arguments that are not among the words, by name.
        config: Values by name that win over the words. In both, names that are not arguments of
            the function are passed over.

    Raises:
        ComponentError: The function is not a component.
        UsageError: It does not take these arguments.
    """
    component = Component(cmpnt_fn.__name__, cmpnt_fn)
    given, rest = component.resolve(cmpnt_args, *_more(component, cmpnt_defaults, config))
    found = {name: p.default for name, p in component.parameters.items()} | given
    return Namespace(**found, **({component.rest: rest} if component.rest else {}))


def _more(
    component: Component, defaults: Mapping[str, Any] | None, config: Mapping[str, Any] | None
) -> tuple[dict[str, ConfigValue], dict[str, Any]]:
    """Those that are arguments of the function."""
    known = component.configurable
    made = {k: ConfigValue(v, "cmpnt_defaults") for k, v in (defaults or {}).items() if k in known}
    return made, {k: v for k, v in (config or {}).items() if k in component.parameters}
