"""Text that came from another host, made fit to be shown. Pure.

What workers print reaches the terminal as it is; it is behind their names. What *we* say of a host
(why it is lost, what a worker raised) stands beside our own words, and must not be able to rewrite
them: of what a terminal acts on, colours alone are left.
"""

from __future__ import annotations

import re

_ACTED_ON = re.compile(
    r"(\x1b\[[0-9;:]{0,32}m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_RESET = "\x1b[0m"
_COLOUR = "\x1b["


def sanitize(text: str, limit: int = 4096) -> str:
    """The text without what moves a cursor, and without its middle if it is longer than that."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"
    # Bytes that are not text come as lone surrogates, which no stream takes.
    text = text.encode("utf-8", "backslashreplace").decode().replace("\r\n", "\n")
    shown = _ACTED_ON.sub(lambda found: found[1] or _visible(found[0]), text)
    last = shown.rfind(_COLOUR)
    return shown if last < 0 or shown.startswith((_RESET, "\x1b[m"), last) else shown + _RESET


def sanitize_line(text: str, limit: int = 200) -> str:
    """Likewise, in one line and without colours: a name, a version."""
    return " ".join(sanitize(text[:limit]).replace("\x1b", "\\x1b").split())


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()
