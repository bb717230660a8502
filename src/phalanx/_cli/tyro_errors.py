"""Arguments by the types of what takes them, with tyro; a mistake in them is one sentence."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from phalanx._core.suggestions import closest, did_you_mean
from phalanx.errors import ConfigError

T = TypeVar("T")

_KINDS = {"INT": "a whole number", "FLOAT": "a number"}


def parse(
    made: Callable[..., T],
    arguments: Sequence[str],
    prog: str,
    known: Iterable[str],
    hint: str = "",
    **options: Any,
) -> T:
    """What a class or a function makes of arguments. Exits after the help that was asked for.

    `known` are the names that an unknown one may have been meant for; `hint` goes with it.
    Raises `ConfigError` for what it does not take.
    """
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed: T = tyro.cli(made, args=arguments, prog=prog, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        flags = [f"--{name.replace('_', '-')}" for name in known]
        sentence = _in_a_sentence(said.getvalue(), arguments, flags)
        unknown = sentence.startswith(("unknown option", "unexpected"))
        more = f" {hint}" if hint and unknown else ""
        raise ConfigError(f"{sentence}{more} See: {prog} --help") from None
    sys.stderr.write(said.getvalue())
    return parsed


def _in_a_sentence(text: str, arguments: Sequence[str], flags: Sequence[str]) -> str:
    """What tyro draws as a box: of its parts, between rules, the first says what is wrong."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [line.strip("│╭╰╮╯ ") for line in plain.splitlines()]
    parts = re.split(r"(?:^|\s)─[^\n]*(?:\s|$)", "\n".join(lines).strip())
    parts = [" ".join(part.split()) for part in parts if part.strip("─ \n")]
    parts.sort(key=lambda part: not part.startswith("Unrecognized"))  # else it seems to be missing
    whole = next((part for part in parts if not part.startswith("For full")), "")
    if found := re.match(r"Unrecognized options: (.+)", whole):
        word = found[1].split(",")[0].split()[0]
        if not word.startswith("-"):
            return f"unexpected argument {word!r}."
        hint = did_you_mean(closest(word, flags, cutoff=0.75), quoted=False)
        return f"unknown option {word}.{hint}"
    missing = re.findall(r"^│ {5}(--[\w.-]+)", plain, re.MULTILINE)
    if missing and whole.startswith("Missing"):
        return f"missing required {', '.join(missing)}."
    if found := re.match(r"[Ii]nvalid choice '(.*)' for argument '(--[\w.-]+)'.*\((.*)\)", whole):
        choices = sorted(found[3].replace("'", "").rstrip(",").split(", "))
        choices.sort(key="None".__eq__)
        return f"{found[2]} {found[1]}: must be {_either(choices)}."
    if found := re.match(r"Error parsing (--[\w.-]+)", whole):
        kinds = re.search(
            rf"Argument helptext: {found[1]} (\S+(?: \[\S+ \S+\]\S*)?)", " ".join(parts)
        )
        given = _given(found[1], arguments)
        if given and kinds and (meant := _describe(kinds[1])):
            return f"{found[1]} {given}: must be {meant}."
        return f"{whole.removeprefix('Error parsing ').partition(' Got errors:')[0].rstrip('.')}."
    return f"{whole[:1].lower()}{whole[1:].rstrip('.')}."


def _given(flag: str, arguments: Sequence[str]) -> str:
    """The value behind a flag."""
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            return value if equals else after
    return ""


def _describe(kinds: str) -> str:
    """`INT|{a,b}` in words; empty for what has no such words."""
    words: list[str] = []
    for kind in re.findall(r"\{\[.*?\]\}|\{[^}]*\}|[^|{}]+", kinds):
        if kind in _KINDS:
            words.append(_KINDS[kind])
        elif kind == "{[INT [INT ...]]}":
            words.append("a list of whole numbers")
        elif re.fullmatch(r"\{[\w,-]+\}", kind):
            words += kind[1:-1].split(",")
        else:
            return ""
    return _either(words)


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))
