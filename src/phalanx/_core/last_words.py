"""What a program printed last that may say why it ended. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WARNS = re.compile(r"warn|^(?:\[[^\]\n]*\]:?[ ]?)*\[[WI]\d", re.IGNORECASE)
"""Python's warnings with the line of code that gave them, and those of torch's own logger."""
_OF_TORCH = re.compile(r"^(?:\[[^\]\n]*\]:?[ ]?)*\[[WI]\d{4} ")
_SOUNDS_BAD = re.compile(
    r"error|exception|fail|fatal|abort|assert|panic|cannot|can't|terminat|denied|no such|not found"
    r"|out of memory",
    re.IGNORECASE,
)


def without_torchs(lines: Iterable[str]) -> list[str]:
    """Without the warnings of torch's own logger: it gives them to those that succeed, too."""
    return [line for line in lines if not _OF_TORCH.match(line)]


def last_words(text: str, *, killed: bool) -> str:
    """The line that may say why; empty for one that was killed, unless it is about an error.

    A signal mostly comes without a word: what was printed before it says nothing of it.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not _WARNS.search(line)]
    bad = [line for line in lines if _SOUNDS_BAD.search(line)]
    return (bad or ([] if killed else lines) or [""])[-1]
