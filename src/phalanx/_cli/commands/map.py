"""`phalanx map TARGET ITEMS`: a function of a file or module, called for every item."""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TextIO

from phalanx._cli import hints, launch_help, tyro_errors
from phalanx._cli.function_target import FunctionTarget, check_target
from phalanx._cli.scheduler_flags import take_scheduler_options
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._cli.tracebacks import print_users_part
from phalanx._core.option_names import as_flags
from phalanx._launcher.launcher import Launcher
from phalanx._launcher.result import CallResult
from phalanx._logs.console import STATUS, is_terminal
from phalanx.errors import ConfigError, MapFailed

USAGE = "usage: phalanx map FILE.py:FUNCTION | MODULE:FUNCTION ITEMS.jsonl [OPTIONS]"

_DESCRIPTION = """\
Call a function for every item of a file, several at a time, and print what each call returns.

  phalanx map sweep.py:train items.jsonl --max-parallel 4 --checkpoint done
  generate-items | phalanx map sweep.py:train - --json > results.jsonl

Each line of ITEMS.jsonl is a JSON object: the keyword arguments of one call. - reads stdin."""

_EPILOG = """\
exit codes: 0 all calls returned; 1 some failed; 2 invalid command line or items;
130 interrupted."""

_OWN = {
    "max_parallel": "N",
    "hosts_per_call": "N",
    "retries": "N",
    "checkpoint": "DIR",
    "unordered": "",
    "json": "",
}


@dataclass
class _MapOptions:
    """What the command line has on top of a launcher's fields."""

    launcher: Launcher
    """Hosts, workers and the rest."""

    max_parallel: int | None = None
    """Calls that run at once. Default: one per host; on this machine, as many as there are CPUs for
    their workers."""

    hosts_per_call: int = 1
    """Hosts of each call."""

    retries: int = 0
    """Maximum number of retries of a call whose host was lost or preempted."""

    checkpoint: str | None = None
    """Directory for results; calls that have a result there are skipped."""

    unordered: bool = False
    """Print results as calls end, not in the order of the items."""

    json: bool = False
    """Print one JSON object per line: item, values and hosts, or item and error."""


def main(arguments: list[str]) -> int:
    """Make the calls; gives the exit code."""
    if not arguments or {"-h", "--help"} & {*arguments}:
        print(_help())
        return 0 if arguments else 2
    hints.say_flags()
    try:
        return _map(*_parse(arguments))
    except ConfigError as error:
        print(f"phalanx map: {as_flags(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        left = getattr(interrupt, "hushed", "nothing was started")
        print(f"phalanx map: interrupted; {left}", file=sys.stderr)
        return 130


def _help() -> str:
    shared = {
        title: {name: value for name, value in options.items() if name not in _NOT_SHARED}
        for title, options in launch_help.GROUPS.items()
    }
    groups = {"options": {**_OWN, **shared.pop("options")}, **shared}
    groups = {title: options for title, options in groups.items() if options}
    return launch_help.render(
        Launcher, _MapOptions, head=(USAGE, _DESCRIPTION), groups=groups, epilog=_EPILOG
    )


_NOT_SHARED = ("detach", "log_dir", "show", "quiet", "verbose")
"""Options of `phalanx launch` that have no meaning here."""


def _parse(arguments: list[str]) -> tuple[FunctionTarget, _Items, _MapOptions]:
    import tyro

    if len(arguments) < 2 or arguments[0].startswith("-") or arguments[1].startswith("--"):
        raise ConfigError(
            f"name the function and the items first, as in: phalanx map sweep.py:train "
            f"items.jsonl\n{USAGE}"
        )
    target, path, *rest = arguments
    check_target(target, [path] if rest and not rest[0].startswith("-") else [])
    rest, given = take_scheduler_options(rest)
    hints.check_flags(rest)
    options = tyro_errors.parse(
        _MapOptions,
        rest,
        "phalanx map",
        [field.name for kind in (Launcher, _MapOptions) for field in fields(kind)],
        metavars={**launch_help.METAVARS, **_OWN},
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.SuppressFixed,
        ),
    )
    options.launcher.scheduler_options = given
    found = FunctionTarget(target)
    return found, _read_items(path), options


_Items = dict[str, dict[str, Any]]
"""Keyword arguments, by where they were read."""


def _read_items(path: str) -> _Items:
    if path == "-":
        return _items_of(sys.stdin, "stdin")
    try:
        with open(path, encoding="utf-8") as file:
            return _items_of(file, path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8.") from None


def _items_of(file: TextIO, name: str) -> _Items:
    items = {}
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{name}, line {number}: not JSON: {error}.") from None
        if not isinstance(item, dict):
            raise ConfigError(
                f"{name}, line {number}: must be a JSON object of keyword arguments, such as "
                '{"lr": 0.1}.'
            )
        items[f"{name}, line {number}"] = item
    return items


def _map(target: FunctionTarget, items: _Items, options: _MapOptions) -> int:
    try:
        with stdout_to_stderr():
            function = target.load()
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 the user's file: shown as Python shows it
        print_users_part(error)
        return 1
    show = _print_json if options.json else _print_values
    try:
        calls = options.launcher.map(
            function,
            list(items.values()),
            max_parallel=options.max_parallel,
            ordered=not options.unordered,
            hosts_per_call=options.hosts_per_call,
            retries=options.retries,
            checkpoint=options.checkpoint,
        )
    except TypeError as error:
        found = re.match(r"item (\d+)(?=: )", str(error))  # those who typed it count lines
        where = str(error) if found is None else [*items][int(found[1])] + str(error)[found.end() :]
        raise ConfigError(where) from None
    try:
        with calls:
            for result in calls:
                with STATUS.print_above():
                    show(result)
    except MapFailed as failed:
        for item, raised in failed.failures.items():
            if options.json:
                _print_line({"item": item, "error": _error_fields(raised)})
            text = "".join(traceback.format_exception_only(raised)).rstrip()
            print(f"item {item}: {text}", file=sys.stderr)
        total = len(items)
        print(f"phalanx map: {len(failed.failures)} of {total} calls failed", file=sys.stderr)
        return 1
    return 0


def _print_values(result: CallResult[Any]) -> None:
    for rank, value in enumerate(result):
        where = f" rank {rank}" if len(result) > 1 else ""
        line = f"item {result.item_index}{where}: {_shown(value)}"
        print(line, flush=is_terminal(sys.stdout))


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 the user's code
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _print_json(result: CallResult[Any]) -> None:
    hosts = [member.hostname for member in result.members]
    _print_line({"item": result.item_index, "values": list(result.values), "hosts": hosts})


def _error_fields(error: BaseException) -> dict[str, str]:
    notes = "\n".join(getattr(error, "__notes__", ()))
    log = re.search(r"^Full log: (.*)$", notes, re.MULTILINE)
    found = {"type": type(error).__name__, "message": str(error), "notes": notes.strip()}
    return found | ({"log": log[1]} if log else {})


def _print_line(line: Mapping[str, Any]) -> None:
    print(json.dumps(line, default=_shown), flush=True)
