"""The Dockerfile by which a project becomes an image. Pure.

A project may have its own; otherwise it is laid over the base image, in its `WORKDIR`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

NAMES = ("Dockerfile.phalanx", "Dockerfile.torchx")
"""What a project's own is called; the first that is there is used."""
WORKDIR = "/workspace"
"""Where projects are in images that have no `WORKDIR`: over `/` they would mix with the system."""

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:[-+])([^}]*))?\})")


def overlay(base: str, workdir: str, user: str, labels: Mapping[str, str] | None = None) -> str:
    """The Dockerfile for projects that have none of their own.

    What changes is last: the engine keeps the steps before, each of which takes it a while.
    """
    lines = [f"FROM {base}"]
    if workdir in ("", "/"):
        lines.append(f"WORKDIR {WORKDIR}")
    if labels:
        lines.append("LABEL " + " ".join(f'{name}="{text}"' for name, text in labels.items()))
    is_root = user.partition(":")[0] in ("", "0", "root")
    lines.append("COPY . ." if is_root else f"COPY --chown={user} . .")
    return "\n".join(lines) + "\n"


def arguments(text: str, base: str, project: str) -> dict[str, str]:
    """The build arguments, as TorchX names them; the engine complains of those nobody takes."""
    known = {"IMAGE": base, "WORKSPACE": project}
    taken = {words[1].partition("=")[0] for words in _instructions(text) if words[0] == "ARG"}
    return {name: value for name, value in known.items() if name in taken}


def parents(text: str, given: Mapping[str, str]) -> list[str]:
    """The images that a Dockerfile begins with or copies from, as far as its text says."""
    values: dict[str, str] = {}
    stages: set[str] = set()
    found: dict[str, None] = {}
    for number, (keyword, *words) in enumerate(_instructions(text)):
        if keyword == "ARG" and not stages:
            name, _, default = words[0].partition("=")
            values[name] = given.get(name, _replaced(default.strip("\"'"), values))
        elif keyword == "FROM":
            plain = [_replaced(word, values) for word in words if not word.startswith("--")]
            if plain and plain[0].lower() not in stages and plain[0] not in ("", "scratch"):
                found[plain[0]] = None
            named = len(plain) == 3 and plain[1].upper() == "AS"
            stages.add(plain[2].lower() if named else f"stage {number}")
        elif keyword == "COPY":
            for word in words:
                source = word.removeprefix("--from=")
                is_image = source != word and source.lower() not in stages
                if is_image and not source.isdigit() and "$" not in source:
                    found[source] = None
    return list(found)


def _instructions(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(lines))
    split = [line.split() for line in joined.splitlines()]
    return [[words[0].upper(), *words[1:]] for words in split if len(words) > 1]


def _replaced(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        own = values.get(match[1] or match[2], "")
        if match[3] == ":+":
            return match[4] if own else ""
        return own or match[4] or ""

    return _VARIABLE.sub(value, text)
