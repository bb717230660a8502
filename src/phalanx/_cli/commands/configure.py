"""`phalanx configure`: a configuration file to begin with, every setting in it commented out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from phalanx._cli import VERBS, parsing
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._runner import catalog, config, torchx_config
from phalanx._runner.config import ConfigValue
from phalanx._runner.runner import Runner, get_runner
from phalanx._schedulers.factories import get_scheduler_factories
from phalanx._schedulers.options import Option
from phalanx._system.near_files import current_directory
from phalanx.errors import ConfigError, PhalanxError


def main(arguments: list[str]) -> int:
    """Write it."""
    parser = parsing.make(
        "configure",
        f"Write a {config.FILE} template to the current directory: the options of all schedulers,\n"
        "commented out, with their defaults.",
    )
    parser.add_argument(
        "-s", "--schedulers", metavar="NAMES", help="only these schedulers, comma-separated"
    )
    parser.add_argument("-a", "--all", action="store_true", help="all schedulers (the default)")
    parser.add_argument("--print", action="store_true", help="print the file instead of writing it")
    parser.add_argument(
        "--from-torchx",
        action="store_true",
        help="convert the .torchxconfig of the current directory",
    )
    options = parser.parse_args(arguments)
    names = list(get_scheduler_factories())
    if options.schedulers and not options.all:
        names = [name.strip() for name in options.schedulers.split(",")]
    try:
        with stdout_to_stderr(), get_runner() as runner:
            if options.from_torchx:
                text = _converted(runner)
            else:
                text = _text(runner, names, strict=bool(options.schedulers))
    except PhalanxError as error:
        print(f"phalanx configure: {error}", file=sys.stderr)
        return 1
    if options.print:
        print(text, end="")
        return 0
    path = Path(config.FILE)
    try:
        path = Path(current_directory()) / config.FILE
        _write(path, text)
    except FileExistsError:
        print(f"phalanx configure: {path} already exists", file=sys.stderr)
        return 1
    except (OSError, ConfigError) as error:
        print(f"phalanx configure: {error}", file=sys.stderr)
        return 1
    print(f"wrote {path}")
    return 0


def _write(path: Path, text: str) -> None:
    """Make the file; what a full disk has taken of it does not stay."""
    with open(path, "x", encoding="utf-8") as file:
        try:
            file.write(text)
            file.flush()
        except OSError:
            path.unlink(missing_ok=True)
            raise


_HEAD = """\
# Phalanx settings for this directory and those below it. Show all settings: phalanx config

[command.run]
# scheduler = "local_cwd"

# Default arguments of a component:
# [component."utils.echo"]
# msg = "hello"
"""


def _text(runner: Runner, names: list[str], *, strict: bool) -> str:
    parts = [_HEAD]
    for name in names:
        try:
            parts.append(_section(name, list(runner.scheduler_run_opts(name))))
        except PhalanxError as error:
            if strict:
                raise
            print(f"phalanx configure: {error}", file=sys.stderr)
    return "\n".join(parts)


def _converted(runner: Runner) -> str:
    """What a `.torchxconfig` says. Raises `ConfigError`."""
    path = Path(current_directory()) / torchx_config.FILE
    if not path.is_file():
        raise ConfigError(f"no such file: {path}")

    def problem(kind: str, name: str, key: str, value: Any) -> str:
        reason = _problem(runner, kind, name, key, value)
        if reason:
            print(f"phalanx configure: {path}: {reason}", file=sys.stderr)
        return reason

    lines = torchx_config.to_toml(torchx_config.read(path), problem)
    return "\n".join(
        [f"# Converted from {torchx_config.FILE}. Show it: phalanx config", *lines, ""]
    )


_OTHER_MEANING = {
    ("kubernetes", "queue"): "kubernetes.queue is Volcano's in TorchX; here it is Kueue's, "
    'or with gang_scheduler = "volcano" Volcano\'s',
}
"""Options of schedulers that are another thing in TorchX."""


def _problem(runner: Runner, kind: str, name: str, key: str, value: Any) -> str:
    """Why something cannot be set; empty if it can."""
    if kind in torchx_config.TRACKERS:
        return "" if key else f"{kind}:{name}: Phalanx has no trackers; set what yours need in env"
    if kind == "scheduler" and (name, key) in _OTHER_MEANING:
        return _OTHER_MEANING[name, key]
    found = ConfigValue(value, f"[{kind}.{name}]")
    try:
        if kind == "scheduler":
            options = runner.scheduler_run_opts(name)
            return next(config.option_problems(name, options, {key: found} if key else {}), "")
        if kind == "component":
            component = catalog.find(name)
            if key:
                component.accept_configured({key: found})
        else:
            made = parsing.parser_of(name) if name in VERBS else None
            if made is None:
                return f"{name}: unknown command, or it takes nothing from a configuration"
            if key:
                made.accept(key, found)
    except (PhalanxError, ValueError) as error:
        return str(error)
    return ""


def _section(name: str, options: list[Option]) -> str:
    required = any(option.required for option in options)
    lines = [f"[scheduler.{name}]" if not required else f"# [scheduler.{name}]"]
    for option in options:
        need = ", required" if option.required else ""
        lines.append(f"# {option.help} ({option.type}{need})")
        lines.append(f"# {option.name} = {_toml(option)}")
    return "\n".join(lines) + "\n"


def _toml(option: Option) -> str:
    """A value as TOML has it: the default, or where there is none something to be filled in."""
    if option.default is not None:
        return json.dumps(option.default, default=str)
    return '["…"]' if option.type.startswith("list") else '"…"'
