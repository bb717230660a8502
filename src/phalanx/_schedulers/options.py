"""A scheduler's options: a dataclass, from which flags, config keys and help come. Pure."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._core import values
from phalanx._core.suggestions import closest, did_you_mean
from phalanx.errors import ConfigError


def option(default: Any = ..., *, help: str = "") -> Any:  # noqa: A002 the word that fits
    """A field of an options dataclass.

    Args:
        default: Its value unless another is given; a list or dict is copied for each instance. An
            option without a default is required.
        help: The sentence that `phalanx runopts` shows.
    """
    if default is ...:
        return dataclasses.field(metadata={"help": help})
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata={"help": help})
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Option:
    """One option, described."""

    name: str
    hint: Any
    default: Any
    required: bool
    help: str

    def __iter__(self) -> Iterator[Any]:
        """The name and the option: `for name, option in runner.scheduler_run_opts(…)`."""
        return iter((self.name, self))

    @property
    def opt_type(self) -> Any:
        """TorchX's name for `hint`."""
        return self.hint

    @property
    def is_required(self) -> bool:
        """TorchX's name for `required`."""
        return self.required

    @property
    def type(self) -> str:
        """Its type, as help shows it."""
        return values.name(self.hint)

    def decode(self, value: Any) -> Any:
        """A text or a value from a file as one of its type. Raises `ValueError`."""
        if not isinstance(value, str):
            return values.accept(value, self.hint)
        inner, _ = values.unwrap(self.hint)
        several = typing.get_origin(inner) in (list, dict, tuple) or inner in (list, dict, tuple)
        text = value if several else values.unquote(value)
        if several and ";" in text and not {",", '"', "'"} & set(text):
            text = text.replace(";", ",")
        first = next((c for c in text if c in ":="), "=")
        return values.decode(text, self.hint, pair=first)


def options(kind: type[Any]) -> list[Option]:
    """The options of a dataclass, in its order."""
    hints = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        required = default is dataclasses.MISSING
        text = str(field.metadata.get("help", ""))
        shown = None if required else default
        found.append(Option(field.name, hints[field.name], shown, required, text))
    return found


def parse(text: str) -> dict[str, str]:
    """`k=v,k2=v2` (or `;`) as texts by name; lists are `k=a,b`, dicts `k=a:1,b:2`.

    Raises `ConfigError`, also for a name that is given twice.
    """
    found: dict[str, str] = {}
    try:
        for key, value in values.pairs(text):
            name = key.replace("-", "_")
            if name in found:
                raise ConfigError(f"option {key!r} is given twice.")
            found[name] = value
    except ValueError as error:
        raise ConfigError(f"{error}. Write options as key=value,key2=value2.") from None
    return found


def make_from_python(scheduler: str, kind: type[Any], given: Mapping[str, Any]) -> Any:
    """As `make`, with options as people write them in Python: minutes are a number there."""
    numbers = {key: str(value) for key, value in given.items() if type(value) in (int, float)}
    return make(scheduler, kind, {**given, **numbers})


def make(scheduler: str, kind: type[Any], given: Mapping[str, Any]) -> Any:
    """An instance of an options dataclass from texts and values by name.

    Raises `ConfigError` for one that is not there, has another type, or is missing.
    """
    known = {option.name: option for option in options(kind)}
    more = f"See: phalanx runopts {scheduler}"
    made: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            instead: Mapping[str, str] = getattr(kind, "instead", {})
            hint = f" {instead[name]}" if name in instead else did_you_mean(closest(name, known))
            raise ConfigError(f"{scheduler} has no option {key!r}.{hint} {more}")
        try:
            made[name] = known[name].decode(value)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{scheduler}: option {key!r}: {error}. {more}") from None
    missing = [name for name, o in known.items() if o.required and name not in made]
    if missing:
        names = ", ".join(map(repr, missing))
        word = "option" if len(missing) == 1 else "options"
        raise ConfigError(
            f"{scheduler}: missing required {word} {names}. Use -cfg {missing[0]}=… {more}"
        )
    return kind(**made)
