"""`phalanx builtins`: list components."""

from __future__ import annotations

import sys

from phalanx._cli import parsing
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._core import values
from phalanx._runner import catalog
from phalanx.errors import PhalanxError


def main(arguments: list[str]) -> int:
    """List them, or print the source of one."""
    parser = parsing.make(
        "builtins", "List the builtin components, or those that installed plugins register."
    )
    parser.add_argument(
        "name", nargs="?", default="", help="list only components whose name contains this"
    )
    parser.add_argument("--print", metavar="NAME", help="print the source of a component as a file")
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also show summaries, and functions that are not components",
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    if options.print is not None:
        return _print_source(options.print)
    with stdout_to_stderr():
        found = catalog.catalog().named(options.name)
    for problem in found.problems:
        print(f"phalanx: {problem}", file=sys.stderr)
    if options.json:
        parsing.print_json(_as_json(found))
        return 0
    if options.name and not found.components:
        return _no_such(options.name)
    print(f"Found {len(found.components)} builtin components:")
    width = max((len(c.name) for c in found.components), default=0)
    for number, component in enumerate(found.components, 1):
        text = f"{component.name:<{width}}  {component.summary}" if options.verbose else ""
        print(f"{number:>2}. {text or component.name}".rstrip())
    if options.verbose and found.invalid:
        print("\nNot components:")
        for component in found.invalid:
            print(f"  {component.name}: {component.problem}")
    return 0


def _no_such(name: str) -> int:
    print(f"phalanx builtins: no component is named like {name!r}", file=sys.stderr)
    return 1


def _print_source(name: str) -> int:
    from phalanx._runner.standalone import source_of

    try:
        with stdout_to_stderr():
            source = source_of(catalog.find(name))
        print(source, end="")
    except (PhalanxError, OSError) as error:
        print(f"phalanx builtins: {error}", file=sys.stderr)
        return 1
    return 0


def _as_json(found: catalog.Catalog) -> dict[str, object]:
    return {
        "components": [
            {
                "name": component.name,
                "summary": component.summary,
                "parameters": [
                    {
                        "name": p.name,
                        "type": values.name(p.hint),
                        "required": p.required,
                        "default": p.default,
                        "help": p.help,
                    }
                    for p in component.parameters.values()
                ],
            }
            for component in found.components
        ],
        "invalid": {component.name: component.problem for component in found.invalid},
        "problems": found.problems,
    }
