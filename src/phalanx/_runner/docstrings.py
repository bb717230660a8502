"""Docstrings in Google's style: what a function does, and what its arguments are. Pure."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(
    r"(args|arguments|parameters|returns|raises|yields|examples?|notes?):\s*$", re.IGNORECASE
)
_ARGUMENT = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")


def parse(doc: str | None) -> tuple[str, dict[str, str]]:
    """The text without its sections, and what it says of each argument."""
    text: list[str] = []
    arguments: dict[str, str] = {}
    section, current, indent = "", "", 0
    for line in inspect.cleandoc(doc or "").splitlines():
        depth = len(line) - len(line.lstrip())
        if depth == 0 and (found := _SECTION.fullmatch(line.strip())):
            section, current = found[1].lower(), ""
        elif depth == 0 and line.strip():
            section = ""
            text.append(line)
        elif not section:
            text.append(line)
        elif section in ("args", "arguments", "parameters") and line.strip():
            found = _ARGUMENT.fullmatch(line.strip())
            if found and (not current or depth <= indent):
                current, indent = found[1], depth
                arguments[current] = found[2].strip()
            elif current:
                arguments[current] = f"{arguments[current]} {line.strip()}".strip()
    return "\n".join(text).strip(), arguments
