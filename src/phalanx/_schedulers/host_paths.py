"""Files in the copy of a project that a host has, by the names of the user's own."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MARK = "/trees/"
_QUOTED = re.compile(
    r"""(?P<quote>["'])/[^"'\n]*/phalanx[^/"'\n]*/trees/[^/"'\n]+/(?P<root>[^/"'\n]+)/"""
    r"""(?P<rest>[^"'\n]+)(?P=quote)"""
)


def at_home(text: str, directory: str) -> str:
    """A text in which quoted names of files in a host's copy are those of the files here.

    `directory` is the one that the app runs with: the project is that, or one above it. What is
    not a file here stays as it is.
    """
    if _MARK not in text:
        return text
    above = {
        parent.name: parent for parent in reversed([Path(directory), *Path(directory).parents])
    }

    def replace(found: re.Match[str]) -> str:
        own = os.path.join(above.get(found["root"], ""), found["rest"])
        return f"{found['quote']}{own}{found['quote']}" if os.path.isfile(own) else found[0]

    return _QUOTED.sub(replace, text)
