"""`phalanx config`: every setting that can be configured, as it is, and where it came from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from phalanx._cli import VERBS, parsing
from phalanx._cli.commands.run import make_parser
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._core import values
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._runner import catalog, config
from phalanx._runner.config import ConfigValue
from phalanx._runner.runner import Runner, get_runner
from phalanx._schedulers.factories import get_scheduler_factories
from phalanx.errors import PhalanxError, UsageError


def main(arguments: list[str]) -> int:
    """Print one line for each setting."""
    parser = parsing.make(
        "config",
        "Show all settings and where they come from.\n\n"
        "In order of precedence: the command line, environment variables (such as\n"
        f"PHALANX_LOCAL_CWD_LOG_DIR), {config.FILE} in the current directory or its nearest\n"
        f"parent, and {config.FILE} in your home directory.",
    )
    parser.add_argument(
        "section",
        nargs="?",
        help="show only this section: local_cwd, scheduler.ssh, component.utils.echo",
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    problems: list[str] = []
    with stdout_to_stderr(), get_runner() as runner:
        sections = _sections(runner, problems)
    if options.section is not None:
        wanted = options.section
        sections = {n: s for n, s in sections.items() if wanted in (n, n.partition(".")[2])}
        if not sections:
            print(f"phalanx config: no such section: {wanted!r}", file=sys.stderr)
            return 1
    for problem in problems:
        print(f"phalanx config: {problem}", file=sys.stderr)
    if (unread := config.unread_torchx_file()) is not None:
        print(
            f"phalanx config: {unread} is not read; convert it with: phalanx configure "
            "--from-torchx",
            file=sys.stderr,
        )
    code = 1 if problems else 0
    if options.json:
        parsing.print_json(
            {
                name: {k: {"value": v.value, "origin": v.origin} for k, v in section.items()}
                for name, section in sections.items()
            }
        )
        return code
    for path, _ in runner.config.files:
        print(f"# {path}")
    rows = [
        (name, key, _shown(value.value), value.origin)
        for name, section in sections.items()
        for key, value in section.items()
    ]
    parsing.print_table(("SECTION", "SETTING", "VALUE", "FROM"), rows)
    return code


def _sections(runner: Runner, problems: list[str]) -> dict[str, dict[str, ConfigValue]]:
    """Every section as it is; what is wrong is told beside it."""
    found: dict[str, dict[str, ConfigValue]] = {}
    known = {
        key: ConfigValue(action.default, config.DEFAULT)
        for key, action in make_parser().settings().items()
    }
    known["scheduler"] = ConfigValue(runner.default_scheduler, config.DEFAULT)
    known["component"] = ConfigValue(None, config.DEFAULT)
    found["command.run"] = known | runner.config.section("command", "run", known)
    for name in runner.config.names("command"):
        found.setdefault(f"command.{name}", runner.config.section("command", name))
        if name not in VERBS:
            hint = did_you_mean(closest(name, VERBS))
            problems.append(f"[command.{name}]: unknown command{hint and '.' + hint}")
    for name in [n for n in VERBS if f"command.{n}" in found]:
        problems += _problems_of_command(name, found[f"command.{name}"])
    problems += _problems_of_run(found["command.run"])
    schedulers = get_scheduler_factories()
    for name in schedulers:
        try:
            effective = runner.effective_options(name)
            options = runner.scheduler_run_opts(name)
        except PhalanxError as error:  # not what the files say
            print(f"phalanx config: {error}", file=sys.stderr)
            continue
        required = {o.name: ConfigValue(None, "required") for o in options if o.required}
        found[f"scheduler.{name}"] = required | effective
        problems += config.option_problems(name, options, effective)
    for name in runner.config.names("scheduler"):
        if name not in schedulers:
            problems.append(f"[scheduler.{name}]: unknown scheduler")
    _add_components(runner, found, problems)
    return found


def _problems_of_command(verb: str, section: dict[str, ConfigValue]) -> Iterator[str]:
    parser = parsing.parser_of(verb)
    for key, value in section.items():
        if parser is None:
            yield f"{value.origin}: {verb} takes nothing from a configuration: {key!r}"
        elif value.origin != config.DEFAULT:
            try:
                parser.accept(key, value)
            except ValueError as error:
                yield str(error)


def _problems_of_run(section: dict[str, ConfigValue]) -> Iterator[str]:
    """What `run` itself would only find out later: whether there are such ones."""
    scheduler, component = section["scheduler"], section["component"]
    names = get_scheduler_factories()
    if isinstance(scheduler.value, str) and scheduler.value not in names:
        hint = did_you_mean(closest(scheduler.value, names))
        yield f"{scheduler.origin}: unknown scheduler {scheduler.value!r}.{hint}"
    if isinstance(component.value, str):
        try:
            catalog.find(component.value)
        except PhalanxError as error:
            yield f"{component.origin}: component: {error}"


def _add_components(
    runner: Runner, found: dict[str, dict[str, ConfigValue]], problems: list[str]
) -> None:
    components = catalog.catalog().components
    for component in components:
        section = runner.config.section("component", component.name, component.configurable)
        if not section:
            continue
        found[f"component.{component.name}"] = section
        try:
            component.accept_configured(section)
        except UsageError as error:
            problems.append(str(error))
    names = {component.name for component in components}
    tops = {name.partition(".")[0] for name in names}  # [component.dist.ddp], without quotes
    for name in runner.config.names("component"):
        if name in names | tops:
            continue
        try:  # of a file, or by its last part
            component = catalog.find(name)
            section = runner.config.section("component", name, component.configurable)
            found[f"component.{name}"] = section
            component.accept_configured(section)
        except UsageError as error:
            problems.append(str(error))
        except Exception as error:  # noqa: BLE001 a file's own
            reason = f": {error}" if ":" in name else ""
            problems.append(f'[component."{name}"]: unknown component{reason}')


def _shown(value: Any) -> str:
    return "" if value is None else values.encode(value, pair=":")
