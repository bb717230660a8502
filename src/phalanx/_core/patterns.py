"""Which files are meant: glob patterns, relative to a directory. Pure.

`*` and `?` stay within a name, `**` is any number of directories, and a pattern that fits a
directory means all that is in it. At the top wildcards leave out names that begin with a dot, and
nowhere do they mean what is in `.git`: what comes from another host must not land there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

TEMPORARY = ".phalanx-"
"""How names of our own files begin, which are nobody's to ask for."""
_NEVER_MEANT = frozenset({".git", "__pycache__"})
_LONGEST, _LONGEST_NAME, _DEEPEST = 4000, 255, 500
"""A tree that is deeper is one that many programs, Python's own among them, cannot remove."""
_WILD = frozenset("*?[")


class Patterns:
    """A list of patterns."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Raises `ValueError` for one that means nothing within the directory."""
        self.texts = tuple(texts)
        self._patterns = tuple(map(_split, self.texts))

    def __bool__(self) -> bool:
        """There are any."""
        return bool(self.texts)

    def fits(self, path: str) -> bool:
        """A path, relative to the directory, is meant."""
        return any(_fits(pattern, path.split("/")) for pattern in self._patterns)

    def unused(self, paths: Iterable[str]) -> list[str]:
        """The patterns that none of these paths fits."""
        split = [path.split("/") for path in paths]
        used = [any(_fits(p, parts) for parts in split) for p in self._patterns]
        return [text for text, is_used in zip(self.texts, used, strict=True) if not is_used]

    @property
    def starts(self) -> list[str]:
        """Files and directories outside of which nothing is meant; an empty one is all."""
        literal = set()
        for pattern in self._patterns:
            wild = next((i for i, name in enumerate(pattern) if _WILD & set(name)), len(pattern))
            literal.add("/".join(pattern[:wild]))
        return sorted(p for p in literal if not any(p != o and _is_below(p, o) for o in literal))


def _is_below(path: str, directory: str) -> bool:
    return not directory or path.startswith(f"{directory}/")


def is_inside(path: str) -> bool:
    """A path from elsewhere leads to something within a directory."""
    try:
        names = os.fsencode(path).split(b"/")
    except UnicodeEncodeError:
        return False
    return "\0" not in path and not {b"", b".", b".."} & set(names)


def why_too_long(path: str) -> str:
    """Why no such file can be made here, though it may be there elsewhere; empty: it can be."""
    encoded = os.fsencode(path)
    if len(encoded) > _LONGEST:
        return f"its path has {len(encoded)} bytes, at most {_LONGEST} are possible"
    names = encoded.split(b"/")
    if len(names) > _DEEPEST:
        return f"it is {len(names)} levels deep, at most {_DEEPEST} are possible"
    longest = max(map(len, names))
    if longest > _LONGEST_NAME:
        return f"a name in its path has {longest} bytes, at most {_LONGEST_NAME} are possible"
    return ""


def shown(path: str) -> str:
    """A path from elsewhere as it may be printed: a terminal must not obey it."""
    return path if path.isprintable() else ascii(path)


def _split(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split("/") if name not in ("", "."))
    if not names:
        raise ValueError("it matches no file")
    if text.startswith("/") or ".." in names or "\0" in text:
        raise ValueError("it is outside the working directory")
    return (*names, "*") if names[-1] == "**" else names


def _fits(pattern: Sequence[str], names: Sequence[str]) -> bool:
    if any(name in _NEVER_MEANT and name not in pattern for name in names):
        return False
    if any(name.startswith(TEMPORARY) for name in names):
        return False
    positions = {0}
    """How far into the pattern one can be: `**` may have taken any number of names."""
    for depth, name in enumerate(names):
        further: set[int] = set()
        for position in _with_skipped(pattern, positions):
            if position == len(pattern):
                return True  # a directory above it fits
            wanted = pattern[position]
            if depth == 0 and name.startswith(".") and not wanted.startswith("."):
                continue
            if wanted == "**":
                further.add(position)
            elif fnmatchcase(name, wanted):
                further.add(position + 1)
        positions = further
    return len(pattern) in positions


def _with_skipped(pattern: Sequence[str], positions: set[int]) -> set[int]:
    """With what comes after a `**` that takes nothing."""
    found = set(positions)
    for position in positions:
        while position < len(pattern) - 1 and pattern[position] == "**":
            position += 1  # noqa: PLW2901 as far as they go
            found.add(position)
    return found
