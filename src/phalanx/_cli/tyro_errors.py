"""Arguments by the types of what takes them, with tyro; a mistake in them is one sentence."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from phalanx._core.suggestions import closest, did_you_mean
from phalanx.errors import ConfigError

T = TypeVar("T")

_NOT_TYPED = "takes what cannot be typed on a command line"
_KINDS = {"INT": "a whole number", "FLOAT": "a number"}


def parse(
    made: Callable[..., T],
    arguments: Sequence[str],
    prog: str,
    known: Iterable[str],
    hint: str = "",
    metavars: Mapping[str, str] = MappingProxyType({}),
    **options: Any,
) -> T:
    """What a class or a function makes of arguments. Exits after the help that was asked for.

    `known` are the names that an unknown one may have been meant for; `hint` goes with it.
    `metavars` stand for the values of some: N for a number, SECONDS for a number of them. Raises
    `ConfigError` for what it does not take.
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
        kinds = {f"--{name.replace('_', '-')}": value for name, value in metavars.items()}
        sentence = _in_a_sentence(said.getvalue(), arguments, flags, kinds)
        if sentence.startswith(_NOT_TYPED):  # its help would say the same
            raise ConfigError(
                f"{prog.removeprefix('phalanx launch ').removesuffix(' --')} {sentence}"
            ) from None
        unknown = sentence.startswith(("unknown option", "unexpected"))
        more = f" {hint}" if hint and unknown else ""
        raise ConfigError(f"{sentence}{more} See: {prog} --help") from None
    sys.stderr.write(said.getvalue())
    return parsed


def _in_a_sentence(
    text: str, arguments: Sequence[str], flags: Sequence[str], metavars: Mapping[str, str]
) -> str:
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
        if "key-value pairs" in whole:
            return f"Write name and value as two words: {found[1]} A 1."
        given, *more = _given(found[1], arguments) or [""]
        if kinds and "INT" in kinds[1] and _is_whole(given):
            return f"unexpected argument {next(itertools.filterfalse(_is_whole, more), given)!r}."
        if given and metavars.get(found[1]) == "SECONDS":
            return f"{found[1]} {given}: must be a number of seconds, such as 30."
        if given and kinds and (meant := _describe(kinds[1])):
            return f"{found[1]} {given}: must be {meant}."
        return f"{whole.removeprefix('Error parsing ').partition(' Got errors:')[0].rstrip('.')}."
    if found := re.match(r"Missing value for argument '(--[\w.-]+)'", whole):
        needed = {"N": "number", "SECONDS": "number of seconds"}
        return f"{found[1]} needs a {needed.get(metavars.get(found[1], ''), 'value')}."
    if whole.startswith("Could not create CLI parser"):
        return _NOT_TYPED + _unsupported(parts)
    return f"{whole[:1].lower()}{whole[1:].rstrip('.')}."


def _unsupported(parts: Sequence[str]) -> str:
    """Which parameter has a type that no text is parsed as."""
    found = re.search(r"Unsupported type annotation for field (\w+) with type (.+?) •", str(parts))
    return f": {found[1]} is a {found[2].removeprefix('typing.')}." if found else "."


def _is_whole(word: str) -> bool:
    return re.fullmatch(r"[+-]?\d+", word) is not None


def _given(flag: str, arguments: Sequence[str]) -> list[str]:
    """The values behind a flag."""
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            after = itertools.takewhile(lambda word: not word.startswith("-"), arguments[at + 1 :])
            return [value] if equals else list(after)
    return []


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
