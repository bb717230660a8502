"""What several verbs read alike: ranks, times, apps; and how they print."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from phalanx._core import amounts, values
from phalanx._core.suggestions import closest, did_you_mean
from phalanx.errors import ConfigError

if TYPE_CHECKING:
    from phalanx._runner.config import ConfigValue

DRY_RUN = ("--dryrun", "--dry-run")
"""TorchX's spelling, and everybody else's."""
_TYPED_ONLY = ("help", "json", "stdin", "scheduler_args")
"""Options that are not configured: those of schedulers have sections of their own."""
_NEED_CONFIGURATION = ("run",)
"""Others do without what cannot be read, and say so."""
_TELLS_ITSELF = "config"
"""It has no defaults to be configured, and says all that is wrong, not what is found first."""


_UNRECOGNIZED = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes are one sentence and exit code 2, and whose defaults can be set."""

    verb = ""
    config_only: tuple[str, ...] = ()
    """What may be configured besides its options."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, what may have been meant, and where to read more."""
        if message.startswith(_UNRECOGNIZED):
            message = self._unrecognized(message.removeprefix(_UNRECOGNIZED))
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(2, f"{self.prog}: {message}{end} See: {self.prog} --help\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """With what the configuration has under `[command.VERB]` as defaults."""
        if _ASKED.get():
            raise ParserMade(self)
        if self.verb not in ("", _TELLS_ITSELF) and not {"-h", "--help"} & set(args or ()):
            self._take_defaults()
        return super().parse_args(args, namespace)

    def _unrecognized(self, words: str) -> str:
        """For words that argparse had no use for: the first is what is wrong."""
        word = next((w for w in words.split() if w.startswith("-")), words.partition(" ")[0])
        if not word.startswith("-"):
            return f"unexpected argument {word!r}"
        flag = word.partition("=")[0]
        names = {_stem(name): name for name in self._option_string_actions}
        meant = names.get(closest(_stem(flag), names) or "")
        return f"unknown option {flag}.{did_you_mean(meant, quoted=False)}"

    def find(self, flag: str) -> argparse.Action | None:
        """What a flag is for, if there is one; with dashes or underscores."""
        return self._option_string_actions.get(self.in_full(flag))

    def in_full(self, flag: str) -> str:
        """A flag as this parser has it."""
        other = "--" + flag[2:].replace("-", "_")
        is_known = flag.startswith("--") and other in self._option_string_actions
        return other if is_known and flag not in self._option_string_actions else flag

    def settings(self) -> dict[str, argparse.Action]:
        """The options that may be configured."""
        return {
            action.dest: action
            for action in self._actions
            if action.option_strings and action.dest not in _TYPED_ONLY
        }

    def _take_defaults(self) -> None:
        from phalanx._runner import config

        keys = [*self.settings(), *self.config_only]
        try:
            configured = config.load().section("command", self.verb, keys)
        except ConfigError as error:
            if self.verb in _NEED_CONFIGURATION:
                raise
            print(f"{self.prog}: {error}", file=sys.stderr)
            return
        for key, value in configured.items():
            try:
                self.set_defaults(**{key: self.accept(key, value)})
            except ValueError as error:
                self.error(str(error))

    def accept(self, key: str, value: ConfigValue) -> Any:
        """A configured value, as the option's own. Raises `ValueError` that says where it is."""
        known = self.settings()
        if key in self.config_only:
            if isinstance(value.value, str) and value.value:
                return value.value
            raise ValueError(f"{value.origin}: {key}: {value.value!r} is not a name")
        if key not in known:
            hint = did_you_mean(closest(key, [*known, *self.config_only]))
            text = f"{value.origin}: {self.verb} has no option {key!r}"
            raise ValueError(f"{text}.{hint}" if hint else text)
        try:
            return _configured(known[key], value.value)
        except ValueError as error:
            raise ValueError(f"{value.origin}: {key}: {error}") from None

    def problem(self, key: str, value: ConfigValue) -> str:
        """What this parser would say of a configured value; nothing if it takes it."""
        try:
            accepted = self.accept(key, value)
        except ValueError as error:
            return str(error)
        action = self.settings().get(key)
        if action is None or not isinstance(accepted, str):
            return ""
        try:
            self._get_value(action, accepted)  # as argparse does with a default, when it parses
        except argparse.ArgumentError as error:
            return f"{value.origin}: {key}: {error.message}"
        return ""


def _stem(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_")


class ParserMade(Exception):
    """A command has made its parser, which was asked for."""

    def __init__(self, parser: Parser) -> None:
        super().__init__(parser.verb)
        self.parser = parser


_ASKED: ContextVar[bool] = ContextVar("asked", default=False)


def parser_of(verb: str) -> Parser | None:
    """The parser that a command makes; None for one that is parsed otherwise."""
    token = _ASKED.set(True)
    try:
        import_module(f"phalanx._cli.commands.{verb}").main([])
    except ParserMade as made:
        return made.parser
    finally:
        _ASKED.reset(token)
    return None


def _configured(action: argparse.Action, value: Any) -> Any:
    """A value from a file or the environment, as the option's own."""
    if action.nargs == 0:
        return values.accept(value, bool)
    text = value if isinstance(value, str) else str(value)
    if action.choices is not None and text not in action.choices:
        raise ValueError(f"{text!r}: choose one of {', '.join(action.choices)}")
    return text


class StoreOnce(argparse.Action):
    """An option that is given once."""

    def __call__(
        self, parser: Any, namespace: Any, value: Any, option_string: str | None = None
    ) -> None:
        """Refuse a second time."""
        given = vars(namespace).setdefault("given", set())
        if self.dest in given:
            parser.error(f"{option_string} is given twice")
        given.add(self.dest)
        setattr(namespace, self.dest, value)


def make(
    verb: str, description: str, *, usage: str | None = None, epilog: str | None = None
) -> Parser:
    """A parser for a verb."""
    parser = Parser(
        prog=f"phalanx {verb}",
        description=description,
        usage=usage,
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.verb = verb
    return parser


def add_app(parser: Parser) -> None:
    """The app, by its id or the beginning of it."""
    parser.add_argument(
        "app", nargs="?", help="handle or id, or a unique prefix of it (default: the latest app)"
    )


def add_json(parser: Parser) -> None:
    """Every listing has it."""
    parser.add_argument("--json", action="store_true", help="output JSON")


def ranks(text: str) -> list[int]:
    """`0,2-4` as a list."""
    try:
        return values.numbers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration(text: str) -> float:
    """`90`, `10m`, `2h`, `7d` in seconds."""
    try:
        return amounts.seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def age(text: str) -> float:
    """`10m`, `2h`, `7d` in seconds, and `0`: of a bare number nobody knows what it counts."""
    seconds = duration(text)
    bare = text.strip()
    if seconds and not bare[-1].isalpha():
        raise argparse.ArgumentTypeError(
            f"{bare!r} has no unit: write {bare}d, {bare}h, {bare}m or {bare}s"
        )
    return seconds


def size(text: str) -> int:
    """`512MiB`, `20GiB` in bytes."""
    try:
        return amounts.size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def moment(text: str) -> float:
    """`10m` (ago), or a date and time, in seconds since 1970."""
    with suppress(ValueError):
        return datetime.fromisoformat(text).astimezone().timestamp()
    try:
        return time.time() - age(text)
    except argparse.ArgumentTypeError as error:
        if "has no unit" in str(error):
            raise
        raise argparse.ArgumentTypeError(
            f"invalid time {text!r}: use 10m (ago) or 2026-01-31T12:00"
        ) from None


def regex(text: str) -> re.Pattern[str]:
    """A regular expression."""
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"invalid regular expression {text!r}: {error}") from None


def ago(seconds: float) -> str:
    """A span in the two largest of its units."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for name, size, part, sub in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{int(seconds // size)}{name}{int(seconds % size // sub):02d}{part}"
    return f"{seconds:.0f} s"


_COLOURS = {"SUCCEEDED": 32, "RUNNING": 36, "FAILED": 31, "CANCELLED": 33}


def coloured(text: str) -> str:
    """A state, perhaps padded, in its colour where there are colours."""
    from phalanx._logs.console import shows_colour

    colour = _COLOURS.get(text.strip())
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and shows_colour(sys.stdout) else text


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    json.dump(value, sys.stdout, indent=1, default=str)
    print()


GAP = 2
"""Spaces between columns."""


def print_table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print columns, each as wide as it must be; states in their colours."""
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    for row in [heads, *rows]:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        print((" " * GAP).join(map(coloured, cells)).rstrip())
