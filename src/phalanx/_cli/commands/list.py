"""`phalanx list`: what was launched."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

from phalanx._cli import parsing
from phalanx._cli.long_waits import say_if_long
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._logs.console import is_terminal
from phalanx._registry.recorded_app import RecordedApp, apps
from phalanx._runner.overview import overview
from phalanx._runner.runner import Runner, get_runner
from phalanx._specs import AppState
from phalanx.errors import PhalanxError

_SHOWN = 20
_SHORTEST = 30
"""Characters of a command that are shown on the narrowest terminal."""


def main(arguments: list[str], make_runner: Callable[[], Runner] = get_runner) -> int:
    """Print one line for each app, the latest last."""
    parser = parsing.make("list", "List apps, the latest last.")
    parser.add_argument(
        "-s",
        "--scheduler",
        help="list the apps of this scheduler, wherever they were submitted from",
    )
    parser.add_argument(
        "--all", action="store_true", help=f"list all apps, not only the last {_SHOWN}"
    )
    parser.add_argument(
        "--running", action="store_true", help="list only apps that are still running"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    if options.scheduler is not None:
        return _list_scheduler(options, make_runner)
    asked = say_if_long("list", "answers from the schedulers of your apps")
    with stdout_to_stderr(), get_runner() as runner, asked:
        found = overview(runner, apps())
    if options.running:
        ended = ("UNKNOWN", *(state.value for state in AppState if state.is_final))
        found = [(app, status) for app, status in found if status["state"] not in ended]
    left_out = 0 if options.all or options.json else max(0, len(found) - _SHOWN)
    found = found[left_out:]
    if options.json:
        parsing.print_json(
            [{**app.facts, "handle": app.handle, "status": status} for app, status in found]
        )
        return 0
    if not found:
        print("no apps" if not options.running else "no running apps")
        return 0
    rows: list[tuple[str, ...]] = []
    for app, status in found:
        rows.append(
            (
                app.id,
                app.scheduler,
                status["state"],
                _size(app),
                ",".join(app.hosts),
                datetime.fromtimestamp(app.created).astimezone().strftime("%Y-%m-%d %H:%M:%S"),
                _ago(status.get("seconds")),
                " ".join(app.command.split()),
            )
        )
    heads = ("APP", "ON", "STATE", "SIZE", "HOSTS", "STARTED", "TIME", "COMMAND")
    if is_terminal(sys.stdout):
        rows = _fit(heads, rows, shutil.get_terminal_size().columns)
    parsing.print_table(heads, rows)
    if left_out:
        print(f"({left_out} older apps not shown; use --all)")
    return 0


def _list_scheduler(options: Any, make_runner: Callable[[], Runner]) -> int:
    try:
        asked = say_if_long("list", f"an answer from {options.scheduler}")
        with stdout_to_stderr(), make_runner() as runner, asked:
            known = runner.list(options.scheduler)
    except PhalanxError as error:
        print(f"phalanx list: {error}", file=sys.stderr)
        return 1
    if options.running:
        known = [app for app in known if not app.state.is_final]
    if options.json:
        parsing.print_json(
            [
                {
                    "handle": a.app_handle,
                    "name": a.name,
                    "state": a.state.value,
                    "seconds": getattr(a, "seconds", None),
                }
                for a in known
            ]
        )
    elif not known:
        print(f"no apps on {options.scheduler}")
    else:
        rows = [
            (a.app_handle, a.name, a.state.value, _ago(getattr(a, "seconds", None))) for a in known
        ]
        parsing.print_table(("HANDLE", "NAME", "STATE", "TIME"), rows)
    return 0


def _size(app: RecordedApp) -> str:
    """Workers of a launch; what a replica on a scheduler starts is known to itself alone."""
    unit = "worker" if app.is_launch else "replica"
    count = app.calls or app.workers
    return f"{count} {'call' if app.calls else unit}{'' if count == 1 else 's'}"


def _ago(seconds: float | None) -> str:
    return "?" if seconds is None else parsing.ago(seconds)


def _fit(
    heads: tuple[str, ...], rows: list[tuple[str, ...]], columns: int
) -> list[tuple[str, ...]]:
    """The rows, with the last column cut to what a terminal has left for it."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    width = max(_SHORTEST, columns - sum(widths[:-1]) - parsing.GAP * (len(widths) - 1))
    return [(*row[:-1], _cut(row[-1], width)) for row in rows]


def _cut(text: str, width: int) -> str:
    """Cut in the middle: a command begins as many others do, and ends with its own arguments."""
    if len(text) <= width:
        return text
    tail = (width - 1) * 2 // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"
