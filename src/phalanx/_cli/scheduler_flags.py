"""The flags by which launches name a scheduler and its options, as `phalanx run` has them."""

from __future__ import annotations

from typing import Any

from phalanx._schedulers.options import parse
from phalanx.errors import ConfigError


def take_scheduler_options(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The rest, with `-s` in full, and the options of a scheduler, as in `phalanx run`."""
    left: list[str] = []
    given: dict[str, Any] = {}
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag in ("-s", "--scheduler"):
            left += ["--scheduler", *([value] if equals else [])]
        elif flag in ("-cfg", "--scheduler-options", "--scheduler_options", "--scheduler_args"):
            text = value if equals else next(words, None)
            if text is None:
                raise ConfigError(f"{flag}: missing options. Write {flag} key=value,key2=value2.")
            given |= parse(text)
        else:
            left.append(word)
    return left, given
