"""`.dockerignore`, as Docker reads it. Pure.

A pattern that fits a directory means all that is in it; the last pattern that fits a path decides,
and one with `!` takes it in again. `*` and `?` stay within a name, `**` is any number of
directories.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_WILD = frozenset("*?[\\")
_BRACKET = r"\["


class DockerIgnore:
    """The patterns of a file."""

    def __init__(self, text: str) -> None:
        """Raises `ValueError`, with the line, for what is no pattern."""
        self._rules = [
            rule
            for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1)
            if (rule := _rule(line, number)) is not None
        ]

    def __call__(self, path: str) -> bool:
        """A path is left out. A directory's ends in a slash: nothing in it can be wanted."""
        clean = posixpath.normpath(path)
        if not self._leaves_out(clean):
            return False
        return not path.endswith("/") or not any(
            rule.is_exception and rule.may_fit_below(clean.split("/")) for rule in self._rules
        )

    def _leaves_out(self, path: str) -> bool:
        for rule in reversed(self._rules):
            if rule.fits.fullmatch(path):
                return not rule.is_exception
        return False


@dataclass(frozen=True)
class _Rule:
    fits: re.Pattern[str]
    is_exception: bool
    literal: tuple[str, ...]
    """The names before the first with a wildcard."""
    is_literal: bool

    def may_fit_below(self, directory: list[str]) -> bool:
        shared = min(len(self.literal), len(directory))
        if list(self.literal[:shared]) != directory[:shared]:
            return False
        return not self.is_literal or len(self.literal) > len(directory)


def _rule(line: str, number: int) -> _Rule | None:
    if line.startswith("#") or not line.strip():
        return None
    pattern = line.strip()
    is_exception = pattern.startswith("!")
    pattern = pattern.removeprefix("!").strip() if is_exception else pattern
    if not pattern:
        raise ValueError(f"line {number}: '!' without a pattern")
    pattern = posixpath.normpath(pattern).lstrip("/")
    names = pattern.split("/")
    wild = next((i for i, name in enumerate(names) if _WILD & set(name)), len(names))
    try:
        # A directory that fits means what is in it.
        fits = re.compile(f"(?:{_expression(pattern)})(?:/.*)?", re.DOTALL)
    except (re.error, ValueError) as error:
        raise ValueError(f"line {number}: {line.strip()!r} is no pattern: {error}") from None
    return _Rule(fits, is_exception, tuple(names[:wild]), wild == len(names))


def _expression(pattern: str) -> str:
    made, position = "", 0
    while position < len(pattern):
        rest = pattern[position:]
        if rest.startswith("**"):
            position += 3 if rest.startswith("**/") else 2
            made += ".*" if position >= len(pattern) else "(?:.*/)?"
        elif rest[0] == "[":
            end = rest.find("]", 2 + rest.startswith("[^"))
            if end < 0:
                raise ValueError("'[' without ']'")
            made += _characters(rest[1:end])
            position += end + 1
        elif rest[0] == "\\":
            if len(rest) == 1:
                raise ValueError("it ends in a backslash")
            made += re.escape(rest[1])
            position += 2
        else:
            made += {"*": "[^/]*", "?": "[^/]"}.get(rest[0]) or re.escape(rest[0])
            position += 1
    return made


def _characters(inside: str) -> str:
    """Ranges and escapes are written as in an expression; a bracket would begin a set there."""
    negation = "^" if inside.startswith("^") else ""
    return f"[{negation}{inside.removeprefix('^').replace('[', _BRACKET)}]"
