"""`.torchxconfig`: what is in one, and the `.phalanxconfig` that says the same.

TorchX's sections are `[SCHEDULER]`, `[component:NAME]` and `[cli:COMMAND]`, in INI; all its values
are texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from phalanx.errors import ConfigError

FILE = ".torchxconfig"
_KINDS = {"component": "component", "cli": "command"}
TRACKERS = ("torchx", "tracker")
"""Kinds of section that name trackers, and say how each is configured."""

Sections = dict[str, dict[str, dict[str, str]]]


def read(path: Path) -> Sections:
    """What is in a file, in sections of ours. Raises `ConfigError`."""
    try:
        return parse(path.read_text(encoding="utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}.") from None


def parse(text: str, path: str) -> Sections:
    """What a text says, in sections of ours; `path` is for errors. Raises `ConfigError`."""
    import configparser

    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ConfigError(f"{path}: invalid INI: {str(error).splitlines()[0]}.") from None
    found: Sections = {}
    for section in parser.sections():
        kind, colon, name = section.partition(":")
        key = (_KINDS.get(kind, kind), name) if colon else ("scheduler", section)
        if key[0] in TRACKERS:
            found.setdefault(kind, {}).setdefault(name, {}).update(parser.items(section))
        elif key[1] and key[0] in ("scheduler", *_KINDS.values()) and section not in TRACKERS:
            values = {k: v for k, v in parser.items(section) if v not in ("None", "")}
            values = {k: v for k, v in values.items() if not v.startswith("#FIXME")}
            found.setdefault(key[0], {}).setdefault(key[1], {}).update(values)
    return found


def to_toml(sections: Sections, problem: Callable[[str, str, str, Any], str]) -> Iterator[str]:
    """The lines of a file of ours; what `problem` finds wrong is commented out, with the reason.

    `problem` is asked for every section, with an empty key, and for every key in it.
    """
    for kind in ("command", "component", "scheduler", *TRACKERS):
        for name, values in sections.get(kind, {}).items():
            yield from _table(kind, name, values, problem)


def _table(
    kind: str, name: str, values: Mapping[str, str], problem: Callable[[str, str, str, Any], str]
) -> Iterator[str]:
    shown = name if name.replace("_", "").isalnum() else json.dumps(name)
    wrong = problem(kind, name, "", None)
    yield f"# {wrong}" if wrong else ""
    yield f"{'# ' if wrong else ''}[{kind}.{shown}]"
    for key, value in values.items():
        line = f"{key.replace('-', '_')} = {json.dumps(value, ensure_ascii=False)}"
        reason = wrong or problem(kind, name, key.replace("-", "_"), value)
        yield f"# {line}" + (f"  # {reason}" if reason and not wrong else "") if reason else line
