"""`phalanx runopts`: the schedulers, and their options."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from phalanx._cli import parsing
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._core import values
from phalanx._runner.handles import SESSION
from phalanx._runner.runner import get_runner
from phalanx._schedulers.factories import create_scheduler, get_scheduler_factories, problems
from phalanx._schedulers.options import Option
from phalanx.errors import PhalanxError


def main(arguments: list[str]) -> int:
    """Print the options of all schedulers, or of one."""
    parser = parsing.make("runopts", "List schedulers and their options.")
    parser.add_argument("scheduler", nargs="?", help="show only this scheduler")
    parser.add_argument(
        "--rights",
        action="store_true",
        help="print the rights that users of SCHEDULER need, for an administrator to grant",
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    if options.rights:
        return _print_rights(parser, options.scheduler)
    found: dict[str, list[Option]] = {}
    failed = False
    with stdout_to_stderr(), get_runner() as runner:
        for problem in problems():
            print(f"phalanx: {problem}", file=sys.stderr)
        for name in [options.scheduler] if options.scheduler else get_scheduler_factories():
            try:
                found[name] = list(runner.scheduler_run_opts(name))
            except PhalanxError as error:
                print(f"phalanx runopts: {error}", file=sys.stderr)
                failed = True
    if options.json:
        parsing.print_json({name: list(map(_as_json, known)) for name, known in found.items()})
    elif found:
        print("\n\n".join(_describe(name, known) for name, known in found.items()))
    return 1 if failed and options.scheduler else 0


def _print_rights(parser: ArgumentParser, name: str | None) -> int:
    if name is None:
        parser.error("--rights needs the name of a scheduler.")
    with stdout_to_stderr():
        rights = create_scheduler(name, SESSION).rights
    if not rights:
        print(f"phalanx runopts: {name} needs no rights beyond your own.", file=sys.stderr)
        return 1
    print(rights, end="")
    return 0


def _describe(name: str, known: list[Option]) -> str:
    lines = [f"{name}:"]
    required = [o for o in known if o.required]
    optional = [o for o in known if not o.required]
    for title, some in (("required", required), ("optional", optional)):
        if some:
            lines.append(f"  {title}:")
        for option in some:
            # Where there is no value, the help says what happens then.
            default = "" if option.default is None else f", default: {_shown(option.default)}"
            lines.append(f"    {option.name} ({option.type}{'' if option.required else default})")
            lines.append(f"        {option.help}")
    if not known:
        lines.append("  no options")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return values.encode(value, pair=":") or "''"


def _as_json(option: Option) -> dict[str, Any]:
    return {
        "name": option.name,
        "type": option.type,
        "required": option.required,
        "default": option.default,
        "help": option.help,
    }
