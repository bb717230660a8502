"""`phalanx config`: every setting that can be configured, as it is, and where it came from."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any

from phalanx._aliases import instead_of
from phalanx._cli import VERBS, parsing
from phalanx._cli.commands.run import make_parser
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._core import values
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._runner import catalog, config
from phalanx._runner.config import ConfigValue
from phalanx._runner.config_check import component_problems
from phalanx._runner.runner import Runner, get_runner
from phalanx._schedulers.factories import get_scheduler_factories
from phalanx.errors import PhalanxError


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
    with stdout_to_stderr(), get_runner(settings=config.load(problems=problems)) as runner:
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
        problems += runner.option_problems(name)
    for name in runner.config.names("scheduler"):
        if name not in schedulers:
            problems.append(f"[scheduler.{name}]: unknown scheduler")
    _add_components(runner, found, problems)
    return found


def _problems_of_command(verb: str, section: dict[str, ConfigValue]) -> Iterator[str]:
    with contextlib.redirect_stderr(io.StringIO()):  # without words some say how they are called
        parser = parsing.parser_of(verb)
    for key, value in section.items():
        if parser is None:
            yield f"{value.origin}: {verb} takes nothing from a configuration: {key!r}"
        elif value.origin != config.DEFAULT and (problem := parser.problem(key, value)):
            yield problem


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
        except (Exception, SystemExit) as error:  # noqa: BLE001 a file's own
            yield f"{component.origin}: component: {component.value}: {_in_words(error)}"
    workspace = section["workspace"]
    if isinstance(workspace.value, str) and workspace.value:
        directory = os.path.abspath(os.path.expanduser(workspace.value.removeprefix("file://")))
        if not os.path.isdir(directory):
            yield f"{workspace.origin}: workspace {directory}: no such directory."


def _add_components(
    runner: Runner, found: dict[str, dict[str, ConfigValue]], problems: list[str]
) -> None:
    components = catalog.catalog().components
    for component in components:
        section = runner.config.section("component", component.name, component.configurable)
        if section:
            found[f"component.{component.name}"] = section
            problems += component_problems(component, section)
    names = {component.name for component in components}
    for name in _named(runner.config, names):
        try:  # of a file, or one that is not among the others
            component = catalog.find(name)
        except PhalanxError as error:
            hint = did_you_mean(closest(name, names))
            reason = f": {error}" if ":" in name else hint and f".{hint}"
            problems.append(f'[component."{name}"]: unknown component{reason}')
            continue
        except (Exception, SystemExit) as error:  # noqa: BLE001 a file's own
            problems.append(f'[component."{name}"]: {_in_words(error)}')
            continue
        if component.name != name:
            problems.append(f'[component."{name}"]: write [component."{component.name}"].')
            continue
        section = runner.config.section("component", name, component.configurable)
        found[f"component.{name}"] = section
        problems += component_problems(component, section)


def _named(settings: config.Config, known: set[str]) -> Iterator[str]:
    """The components that have a section and are not `known`; [component.dist.ddp], without quotes,
    is a table within a table.
    """
    tables = [data.get("component", {}) for _, data in settings.files]
    pending = [("", table) for table in tables]
    seen: set[str] = set()
    while pending:
        prefix, table = pending.pop()
        for key, value in table.items():
            name = f"{prefix}{key}"
            is_group = isinstance(value, dict) and any(n.startswith(f"{name}.") for n in known)
            if is_group:
                pending.append((f"{name}.", value))
            if name not in known | seen and not is_group and (isinstance(value, dict) or prefix):
                seen.add(name)
                yield name


def _in_words(error: BaseException) -> str:
    """What a component's own file raised, in a sentence."""
    instead = instead_of(error)
    return f"{type(error).__name__}: {error}" + (instead and f". {instead}")


def _shown(value: Any) -> str:
    return "" if value is None else values.encode(value, pair=":")
