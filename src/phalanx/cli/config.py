"""`phalanx config`: every setting that can be configured, as it is, and where it came from."""

from __future__ import annotations

import sys
from typing import Any

from phalanx import values
from phalanx.cli import parsing
from phalanx.cli.run import make_parser
from phalanx.errors import PhalanxError
from phalanx.runner import Runner, catalog, config, get_runner
from phalanx.runner.config import Value
from phalanx.schedulers import get_scheduler_factories


def main(arguments: list[str]) -> int:
    """Print one line for each setting."""
    parser = parsing.make(
        "config",
        "Every setting as it is, and where it came from.\n\n"
        "The command line counts most, then the environment (PHALANX_LOCAL_CWD_LOG_DIR), then\n"
        f"{config.FILE} of the project (the nearest upward from here), then the one in your home.",
    )
    parser.add_argument(
        "section", nargs="?", help="only this one: local_cwd, scheduler.ssh, component.utils.echo"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    with get_runner() as runner:
        sections = _sections(runner)
    if options.section is not None:
        wanted = options.section
        sections = {n: s for n, s in sections.items() if wanted in (n, n.partition(".")[2])}
        if not sections:
            print(f"phalanx config: there is no section {wanted!r}", file=sys.stderr)
            return 1
    if options.json:
        parsing.print_json(
            {
                name: {k: {"value": v.value, "origin": v.origin} for k, v in section.items()}
                for name, section in sections.items()
            }
        )
        return 0
    for path, _ in runner.config.files:
        print(f"# {path}")
    rows = [
        (name, key, _shown(value.value), value.origin)
        for name, section in sections.items()
        for key, value in section.items()
    ]
    parsing.print_table(("SECTION", "SETTING", "VALUE", "FROM"), rows)
    return 0


def _sections(runner: Runner) -> dict[str, dict[str, Value]]:
    found: dict[str, dict[str, Value]] = {}
    known = {
        key: Value(action.default, config.DEFAULT)
        for key, action in make_parser().settings().items()
    }
    known["scheduler"] = Value(runner.default_scheduler, config.DEFAULT)
    found["command.run"] = known | runner.config.section("command", "run", known)
    for name in runner.config.names("command"):
        found.setdefault(f"command.{name}", runner.config.section("command", name))
    for name in get_scheduler_factories():
        try:
            found[f"scheduler.{name}"] = runner.effective_options(name)
        except PhalanxError as error:
            print(f"phalanx config: {error}", file=sys.stderr)
    for component in catalog.catalog().components:
        section = runner.config.section("component", component.name, component.parameters)
        if section:
            found[f"component.{component.name}"] = section
    return found


def _shown(value: Any) -> str:
    return "" if value is None else values.encode(value, pair=":")
