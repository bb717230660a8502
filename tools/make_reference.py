"""Write docs/reference.md from the docstrings: `make reference`."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import phalanx
from phalanx import cli

MODULES = (
    "phalanx.specs",
    "phalanx.agent",
    "phalanx.rendezvous",
    "phalanx.events",
    "phalanx.metrics",
    "phalanx.runner",
    "phalanx.schedulers",
    "phalanx.testing",
)
PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
HEAD = """\
# Reference

Made from the docstrings by `make reference`. What is here is public; everything else may change.
"""


def main() -> None:
    text = make()
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == text else "docs/reference.md is old: make reference")
    PAGE.write_text(text)


def make() -> str:
    names = [n for n in phalanx.__all__ if n != "__version__"]
    values = {name: getattr(phalanx, name) for name in names}
    functions = [n for n, v in values.items() if inspect.isfunction(v)]
    errors = [n for n, v in values.items() if inspect.isclass(v) and issubclass(v, Exception)]
    classes = sorted(n for n in values if n not in functions and n not in errors)
    parts = [HEAD, "## Functions\n"]
    parts += [function(f"phalanx.{name}", values[name], "###") for name in functions]
    parts += ["## Classes\n"]
    parts += [whole_class(f"phalanx.{name}", values[name]) for name in classes]
    parts += ["## Errors\n", "```text", tree(values["PhalanxError"]), "```\n"]
    parts += [f"- `{name}`: {doc(values[name])}" for name in errors]
    for module in MODULES:
        parts += [f"\n## `{module}`\n", *of_module(module)]
    parts += ["\n## Commands\n", "`phalanx COMMAND --help` says more.\n"]
    parts += [f"- `phalanx {verb}`: {text}" for verb, text in cli.VERBS.items()]
    return "\n".join(parts) + "\n"


def of_module(name: str) -> list[str]:
    """What a module of its own has for its users."""
    module = importlib.import_module(name)
    parts = [f"{doc(module).partition(chr(10) * 2)[0]}\n"]
    for public in sorted(module.__all__):
        value = getattr(module, public)
        if getattr(phalanx, public, None) is value:
            parts.append(f"### `{name}.{public}`\n\nThe same as `phalanx.{public}`.\n")
        elif inspect.isclass(value):
            parts.append(whole_class(f"{name}.{public}", value))
        elif not callable(value):
            parts.append(f"### `{name}.{public}`\n\n{doc(value)}\n")
        else:
            parts.append(function(f"{name}.{public}", value, "###"))
    return parts


def doc(value: Any) -> str:
    return inspect.getdoc(value) or ""


def function(name: str, value: Any, level: str) -> str:
    return f"{level} `{name}{signature(value)}`\n\n{doc(value)}\n"


def signature(value: Any) -> str:
    parameters = inspect.signature(value).parameters.values()
    shown = [p for p in parameters if p.name != "self"]
    return "(" + ", ".join(_parameters(shown)) + ")"


def _parameters(parameters: list[inspect.Parameter]) -> list[str]:
    found: list[str] = []
    star = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            star = True
            if not any(p.kind is p.VAR_POSITIONAL for p in parameters):
                found.append("*")
        mark = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = parameter.default
        text = "" if default is parameter.empty else f"={default!r}"
        found.append(f"{mark}{parameter.name}{text}")
    return found


def whole_class(name: str, value: Any) -> str:
    parts = [f"### `{name}`\n", doc(value), ""]
    if issubclass(value, enum.Enum):
        parts += [f"Members: {', '.join(f'`{member.name}`' for member in value)}.\n"]
    elif dataclasses.is_dataclass(value):
        texts = field_docs(value)
        for field in dataclasses.fields(value):
            parts.append(
                f"- `{field.name}{_default(field)}`: {texts.get(field.name, '')}".rstrip(": ")
            )
        parts.append("")
    for member, kind in methods(value):
        if isinstance(kind, property):
            parts.append(f"**`.{member}`**: {doc(kind)}\n")
        else:
            inner = getattr(value, member)
            parts.append(f"**`.{member}{signature(inner)}`**: {doc(inner)}\n")
    return "\n".join(parts)


def methods(value: Any) -> list[tuple[str, Any]]:
    shown = (inspect.isfunction, lambda v: isinstance(v, property | classmethod))
    return [
        (name, member)
        for name, member in vars(value).items()
        if (not name.startswith("_") or name in ("__enter__", "__await__"))
        and any(is_one(member) for is_one in shown)
    ]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        text = repr(field.default)
        return f"={text}" if len(text) < 40 else "=(...)"
    if isinstance(field.default_factory, type):
        return f"={field.default_factory()!r}"
    if field.default_factory is not dataclasses.MISSING:
        return "=(...)"
    return ""


def field_docs(value: Any) -> dict[str, str]:
    """The strings below a dataclass's fields."""
    (tree_,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    found: dict[str, str] = {}
    for node, after in zip(tree_.body, tree_.body[1:], strict=False):  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
            found[node.target.id] = " ".join(after.value.value.split())  # type: ignore[attr-defined]
    return found


def tree(root: type, indent: str = "") -> str:
    lines = [indent + root.__name__]
    lines += [tree(kind, indent + "    ") for kind in root.__subclasses__()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
