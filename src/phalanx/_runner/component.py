"""A component: a typed function that returns an app; its docstring and hints are its options."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from phalanx._core import values
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._runner import docstrings
from phalanx._runner.config import ConfigValue
from phalanx._specs import AppDef
from phalanx.errors import ComponentError, ConfigError, UsageError


class HelpWanted(Exception):
    """`--help` was among the arguments; the text is the message."""


@dataclass(frozen=True)
class Parameter:
    """One argument of a component."""

    name: str
    hint: Any
    default: Any
    required: bool
    help: str

    @property
    def flag(self) -> str:
        """How it is written."""
        return f"-{self.name}" if len(self.name) == 1 else f"--{self.name}"


@dataclass(frozen=True)
class Component:
    """A function that may be run by its name."""

    name: str
    function: Callable[..., AppDef]

    @cached_property
    def problem(self) -> str:
        """Why it cannot be run; empty if it can."""
        try:
            return self._find_problem()
        except Exception as error:  # noqa: BLE001 annotations are the author's code
            return f"cannot read its annotations: {type(error).__name__}: {error}"

    def _find_problem(self) -> str:
        hints = typing.get_type_hints(self.function)
        signature = inspect.signature(self.function)
        if inspect.iscoroutinefunction(self.function):
            return "it is an async function"
        if "return" not in hints:
            return "it has no return annotation: add -> AppDef"
        if not (isinstance(hints["return"], type) and issubclass(hints["return"], AppDef)):
            shown = getattr(hints["return"], "__name__", None)
            return f"it returns {shown or hints['return']}, not AppDef"
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                return f"**{parameter.name} cannot be given on the command line"
            if parameter.name == "help":
                return "its parameter 'help' must be renamed: --help prints the help"
            if parameter.name not in hints:
                return f"its parameter {parameter.name!r} has no type annotation"
            if reason := values.problem(hints[parameter.name]):
                return f"its parameter {parameter.name!r}: {reason}"
            if parameter.kind is parameter.VAR_POSITIONAL and hints[parameter.name] is not str:
                return f"*{parameter.name} must be annotated with str"
        return ""

    @cached_property
    def _doc(self) -> tuple[str, dict[str, str]]:
        return docstrings.parse(self.function.__doc__)

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return self._doc[0].partition("\n")[0]

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Its options."""
        hints = typing.get_type_hints(self.function)
        found = {}
        for p in inspect.signature(self.function).parameters.values():
            if p.kind is not p.VAR_POSITIONAL:
                required = p.default is p.empty
                text = self._doc[1].get(p.name, "")
                default = None if required else p.default
                found[p.name] = Parameter(p.name, hints[p.name], default, required, text)
        return found

    @cached_property
    def configurable(self) -> list[str]:
        """The names that a configuration may have for it."""
        return [*self.parameters, *([self.rest] if self.rest else [])]

    @cached_property
    def rest(self) -> str | None:
        """The name of its `*args`, if it has them."""
        parameters = inspect.signature(self.function).parameters.values()
        return next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)

    # ── calling it ────────────────────────────────────────────────────────────

    def build(
        self,
        arguments: Sequence[str] | Mapping[str, Any],
        defaults: Mapping[str, ConfigValue] | None = None,
        wins: Mapping[str, Any] | None = None,
    ) -> AppDef:
        """The app for these arguments: words of a command line, or values by name.

        `defaults` are from the configuration; `wins` are values that count more than arguments.
        Raises `UsageError`, `HelpWanted`, and whatever the component itself does.
        """
        given, rest = self.resolve(arguments, defaults, wins)
        positional, named = [], {}
        for p in inspect.signature(self.function).parameters.values():
            if p.kind is p.POSITIONAL_ONLY or (
                p.kind is p.POSITIONAL_OR_KEYWORD and self._leads(p)
            ):
                positional.append(given.get(p.name, p.default))
            elif p.kind is not p.VAR_POSITIONAL and p.name in given:
                named[p.name] = given[p.name]
        try:
            app = self.function(*positional, *rest, **named)
        except ConfigError as error:
            raise UsageError(f"{self.name}: {error}") from error
        if not isinstance(app, AppDef):
            raise ComponentError(f"{self.name} must return an AppDef, not {app!r}.", name=self.name)
        return app

    def resolve(
        self,
        arguments: Sequence[str] | Mapping[str, Any],
        defaults: Mapping[str, ConfigValue] | None = None,
        wins: Mapping[str, Any] | None = None,
    ) -> tuple[dict[str, Any], list[str]]:
        """The values that are given for its arguments by name, and the program's own words.

        Raises as `build`.
        """
        if self.problem:
            raise ComponentError(f"{self.name} is not a component: {self.problem}.", name=self.name)
        if isinstance(arguments, Mapping):
            given, rest = self._take(arguments)
        else:
            given, rest = self._read(list(arguments))
        configured = self.accept_configured(defaults or {})
        rest = rest or configured.get(self.rest or "", [])
        configured.pop(self.rest or "", None)
        given = configured | given | self._accept(wins or {})
        self._check_complete(given)
        return given, rest

    def _leads(self, parameter: inspect.Parameter) -> bool:
        """It stands before `*args`, and so cannot be given by name together with them."""
        names = list(inspect.signature(self.function).parameters)
        return self.rest is not None and names.index(parameter.name) < names.index(self.rest)

    def _take(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        given = dict(arguments)
        rest = given.pop(self.rest, []) if self.rest else []
        return self._accept(given), self._texts(rest)

    def accept_configured(self, defaults: Mapping[str, ConfigValue]) -> dict[str, Any]:
        """Values of the configuration. Raises `UsageError` that says where one came from."""
        made: dict[str, Any] = {}
        for name, value in defaults.items():
            try:
                if name == self.rest:
                    made[name] = self._words(value.value)
                else:
                    made |= self._accept({name: value.value})
            except UsageError as error:
                raise UsageError(f"{value.origin}: {error}") from None
        return made

    def _accept(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Values from elsewhere than a command line, each as its parameter has it."""
        made = {}
        for name, value in given.items():
            parameter = self._find(name)
            try:
                made[parameter.name] = values.accept(value, parameter.hint)
            except (ValueError, TypeError) as error:
                raise UsageError(f"{self.name}: {name}: {error}.") from None
        return made

    def _words(self, value: Any) -> list[str]:
        """The program's arguments: a list, or a text as a shell would split it."""
        if not isinstance(value, str):
            return self._texts(value)
        import shlex

        try:
            return shlex.split(value)
        except ValueError as error:
            raise UsageError(f"{self.name}: {self.rest}: {value!r}: {error}.") from None

    def _texts(self, rest: Any) -> list[str]:
        if isinstance(rest, list | tuple) and all(isinstance(item, str) for item in rest):
            return list(rest)
        raise UsageError(f"{self.name}: {self.rest}: {rest!r} is not a list of strings.")

    def _read(self, words: list[str]) -> tuple[dict[str, Any], list[str]]:
        given: dict[str, Any] = {}
        while words:
            word = words.pop(0)
            if word == "--":
                if self.rest:
                    return given, words
                continue  # there is no program behind it: what follows is the component's own
            if word == "--help" or (word == "-h" and "h" not in self.parameters):
                raise HelpWanted(self.help())
            if not word.startswith("-") or word == "-":
                if not self.rest:
                    raise UsageError(self._unexpected(word))
                return given, [word, *words]
            flag, equals, value = word.partition("=")
            parameter = self._find(flag.lstrip("-"), flag)
            if parameter.name in given:
                raise UsageError(f"{self.name}: {parameter.flag} is given twice.")
            if not equals:
                if not words or (words[0] == "--"):
                    what = values.name(parameter.hint)
                    what = "yes or no" if what == "bool" else what
                    more = f" For help: phalanx run {self.name} --help" if word == "-h" else ""
                    raise UsageError(f"{self.name}: {flag} needs a value: {what}.{more}")
                value = words.pop(0)
            given[parameter.name] = self._decode(parameter, flag, value)
        return given, []

    def _decode(self, parameter: Parameter, flag: str, value: str) -> Any:
        try:
            return values.decode(value, parameter.hint)
        except ValueError as error:
            raise UsageError(f"{self.name}: {flag}: {error}.") from None

    def _find(self, name: str, shown: str | None = None) -> Parameter:
        found = self.parameters.get(name) or self.parameters.get(name.replace("-", "_"))
        if found is None or (shown is not None and not shown.strip("-")):
            if "j" in self.parameters and (said := _OF_TORCHRUN.get(name.replace("-", "_"))):
                raise UsageError(
                    f"{self.name} has no option {shown or name!r}. {said}",
                    component=self.name,
                    option=shown or name,
                )
            near = closest(name.replace("-", "_"), self.parameters)
            meant = None if near is None else self.parameters[near].flag
            own = "Put the program's arguments after '--'. " if self.rest else ""
            hint = did_you_mean(meant, f"{own}{self._more}", quoted=False)
            raise UsageError(
                f"{self.name} has no option {shown or name!r}.{hint}",
                component=self.name,
                option=shown or name,
            )
        return found

    def _unexpected(self, word: str) -> str:
        texts = [p for p in self.parameters.values() if values.unwrap(p.hint)[0] is str]
        meant = f"{texts[0].flag} {word}" if texts else None
        hint = did_you_mean(meant, self._more, quoted=False)
        return f"{self.name} takes only options: unexpected argument {word!r}.{hint}"

    def _check_complete(self, given: Mapping[str, Any]) -> None:
        missing = [p.flag for p in self.parameters.values() if p.required and p.name not in given]
        if missing:
            raise UsageError(f"{self.name}: missing required {', '.join(missing)}. {self._more}")

    # ── its help ──────────────────────────────────────────────────────────────

    @property
    def _more(self) -> str:
        return f"See: phalanx run {self.name} --help"

    def help(self) -> str:
        """Its docstring, and each option with type and default."""
        usage = f"usage: phalanx run [RUN OPTIONS] {self.name} [OPTIONS]"
        if self.rest:
            usage += f" [--] [{self.rest.upper()} ...]"
        parts = [usage, self._doc[0], self._help_of_options()]
        if self.rest and (text := self._doc[1].get(self.rest)):
            parts.append(f"{self.rest.upper()}: {text}")
        return "\n\n".join(filter(None, parts))

    def _help_of_options(self) -> str:
        import textwrap

        if not self.parameters:
            return ""
        lines = ["options:"]
        for p in self.parameters.values():
            head = f"  {p.flag} {values.name(p.hint)}"
            default = "required" if p.required else f"default: {_shown(p.default)}"
            text = f"{p.help} ({default})" if p.help else f"({default})"
            lines.append(head)
            lines += textwrap.wrap(text, 92, initial_indent=" " * 8, subsequent_indent=" " * 8)
        return "\n".join(lines)


_COUNTS = "Use -j REPLICASxWORKERS, such as -j 2x4: 2 replicas with 4 workers each."
_SET_BY_US = "Leave it out: it is set for every replica."
_OF_TORCHRUN = {
    **dict.fromkeys(("nnodes", "nproc_per_node", "num_hosts", "workers_per_host"), _COUNTS),
    **dict.fromkeys(("nproc", "np", "num_processes", "num_workers"), _COUNTS),
    **dict.fromkeys(("node_rank", "master_addr", "standalone", "rdzv_id"), _SET_BY_US),
    "master_port": "Use --rdzv_port, if it has to be a certain one.",
    "max_restarts": "Use --max_retries: the scheduler starts replicas again.",
}
"""What to use for flags of torchrun's, and of others that count workers, where `-j` counts."""


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return values.encode(value) if not isinstance(value, str) else repr(value)
