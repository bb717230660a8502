"""Options of a launch in what is said to users: `python=...` in a program, flags in a shell. Pure.

Messages are written as a program has it, since whoever writes them does not know who launches; what
prints them to a shell's user puts them in its terms.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_NAMES = "address|env_file|fetch|interface|python|workspace"
_OPTION = re.compile(
    rf"(?<![\w-])(?P<name>{_NAMES})=(?P<value>\.\.\.|None|\[\.\.\.\]|\['[^'\n]*'\])"
    r"(?P<flag> \(--[a-z-]+\))?"
)
_METAVARS = {"env_file": "FILE", "fetch": "PATTERN", "python": "PATH", "workspace": "DIR"}
_OF_SSH = ("address", "env_file", "fetch", "python")


def as_flags(text: str) -> str:
    """As `phalanx launch` takes them: `--python PATH`."""
    return _replaced(text, lambda name, value: f"--{name.replace('_', '-')} {value}")


def as_scheduler_options(text: str) -> str:
    """As `phalanx run -s ssh` takes them: `-cfg python=PATH`."""
    text = text.replace(", or send nothing with workspace=None", "")

    def replace(name: str, value: str) -> str:
        if name in _OF_SSH:
            return f"-cfg {name}={value}"
        return f"--workspace {value}" if name == "workspace" else ""

    return _replaced(text, replace)


def _replaced(text: str, spell: Callable[[str, str], str]) -> str:
    def replace(found: re.Match[str]) -> str:
        name, value = found["name"], found["value"]
        if value in ("...", "[...]"):
            value = _METAVARS.get(name, name.upper())
        elif value.startswith("["):
            value = value[2:-2]
        return spell(name, value) or found[0]

    return _OPTION.sub(replace, text)
