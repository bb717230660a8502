"""What a configuration has that a command would refuse, all of it, before any command does.

It knows neither files nor schedulers: values, and what is made of them.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from phalanx._core import values
from phalanx._runner.component import Component
from phalanx._runner.config import DEFAULT, ConfigValue, option_problems
from phalanx._schedulers.options import Option, make
from phalanx.errors import PhalanxError, UsageError

_STAND_INS: dict[Any, Any] = {str: "x", int: 1, float: 1.0, bool: False, list: [], dict: {}}
"""Values for what is required and will be given with the command."""


def component_problems(component: Component, section: Mapping[str, ConfigValue]) -> Iterator[str]:
    """What is wrong with configured arguments of a component, and where it stands.

    It is called with them, and with stand-ins for what is still to be given. What it refuses for a
    stand-in alone is nobody's mistake.
    """
    sound: dict[str, ConfigValue] = {}
    for key, value in section.items():
        try:
            component.accept_configured({key: value})
            sound[key] = value
        except UsageError as error:
            yield str(error)
    required = {p.name: p.hint for p in component.parameters.values() if p.required}
    stand_ins = _stand_ins(required)
    if not required.keys() <= stand_ins.keys() | sound.keys():
        return

    def refusal(chosen: Mapping[str, ConfigValue]) -> str:
        given = {key: value for key, value in stand_ins.items() if key not in chosen}
        said = ""
        # a program's words, as most commands give them; some components take none beside others
        for words in [["x"], []] if component.rest and component.rest not in chosen else [None]:
            rest = {} if words is None else {str(component.rest): words}
            try:
                component.build({**given, **rest}, chosen)
            except (Exception, SystemExit) as error:  # noqa: BLE001 it is the author's code
                said = said or _said(component.name, error)
            else:
                return ""
        return said

    yield from _misfits(sound, refusal, complete=required.keys() <= sound.keys())


def scheduler_problems(
    scheduler: str,
    kind: type[Any],
    known: Sequence[Option],
    effective: Mapping[str, ConfigValue],
) -> Iterator[str]:
    """What is wrong with configured options of a scheduler, one by one and together."""
    sound: dict[str, ConfigValue] = {}
    for key, value in effective.items():
        if value.origin == DEFAULT:
            continue
        problems = list(option_problems(scheduler, known, {key: value}))
        yield from problems
        if not problems:
            sound[key] = value
    required = {option.name: option.hint for option in known if option.required}
    stand_ins = _stand_ins(required)
    if not required.keys() <= stand_ins.keys() | sound.keys():
        return

    def refusal(chosen: Mapping[str, ConfigValue]) -> str:
        given = {key: value.value for key, value in chosen.items()}
        try:
            make(scheduler, kind, {**stand_ins, **given})
        except Exception as error:  # noqa: BLE001 a plugin's own check
            return _said(scheduler, error)
        return ""

    yield from _misfits(sound, refusal, complete=required.keys() <= sound.keys())


def _misfits(
    configured: Mapping[str, ConfigValue],
    refusal: Callable[[Mapping[str, ConfigValue]], str],
    *,
    complete: bool,
) -> Iterator[str]:
    """For values that are not taken beside the others that are: where each is, and why not.

    `refusal` says why some of them are not taken, or nothing; `complete` that none of them is a
    stand-in's.
    """
    if not configured or not refusal(configured):
        return
    without = refusal({})
    taken: dict[str, ConfigValue] = {}
    pending, said = dict(configured), dict[str, str]()
    while True:
        said = {}
        for key, value in pending.items():
            if why := refusal({**taken, key: value}):
                said[key] = why
            else:
                taken[key] = value
        if len(said) == len(pending):
            break
        pending = {key: pending[key] for key in said}  # one may need another that came later
    if without and not taken:
        said = {k: why for k, why in said.items() if why != without} if complete else {}
    yield from dict.fromkeys(f"{configured[key].origin}: {why}" for key, why in said.items())


def _stand_ins(hints: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, hint in hints.items():
        kind, optional = values.unwrap(hint)
        kind = typing.get_origin(kind) or kind
        if optional or kind in _STAND_INS:
            found[name] = None if optional else _STAND_INS[kind]
    return found


def _said(name: str, error: BaseException) -> str:
    kind = "" if isinstance(error, ValueError | PhalanxError) else f"{type(error).__name__}: "
    text = f"{kind}{error}"
    return text if text.startswith(name) else f"{name}: {text}"
