"""`phalanx log`: what an app's workers have printed."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.cli import parsing
from phalanx.logs.lines import LogLine, read_lines
from phalanx.registry.recorded import RecordedApp, find


def main(arguments: list[str]) -> int:
    """Print the lines that are asked for."""
    parser = parsing.make(
        "log",
        "What an app's workers have printed, in the order of time.\n\n"
        "Times are kept to about a tenth of a second. TIME is a span ago (30s, 10m, 2h, 7d) or a\n"
        "date and time (2026-01-31T12:00).",
    )
    parsing.add_app(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the app ends")
    parser.add_argument(
        "-r", "--ranks", type=parsing.ranks, metavar="RANKS", help="only these, such as 0,2-4"
    )
    parser.add_argument(
        "-e", "--regex", type=parsing.regex, metavar="REGEX", help="only lines that match"
    )
    parser.add_argument("--since", type=parsing.moment, metavar="TIME", help="only from then on")
    parser.add_argument("--until", type=parsing.moment, metavar="TIME", help="only before then")
    parser.add_argument("-n", "--tail", type=int, metavar="N", help="only the last N lines")
    parser.add_argument(
        "--agents", action="store_true", help="what the agents say instead (with -e and -n)"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    if options.follow and options.tail is not None:
        parser.error("--tail and --follow exclude each other")
    if options.agents and (options.follow or options.ranks or options.since or options.until):
        parser.error("--agents goes with --regex, --tail and --json alone")
    try:
        app = find(options.app)
        if options.agents:
            _print_agents(app, options)
            return 0
        files = app.log_files(options.ranks)
    except LookupError as error:
        print(f"phalanx log: {error}", file=sys.stderr)
        return 1
    if not files:
        print(f"phalanx log: {app.id} has no log files: its log spec made none", file=sys.stderr)
        return 1
    _print(app, options, several=len(files) > 1)
    return 0


def _print(app: RecordedApp, options: Any, *, several: bool) -> None:
    lines: Any = _chosen(app.lines(options.ranks, follow=options.follow), options)
    if options.tail is not None:
        lines = deque(lines, maxlen=max(0, options.tail))
    for line in lines:
        if options.json:
            print(json.dumps(dataclasses.asdict(line)), flush=options.follow)
        else:
            print(line if several else line.text, flush=options.follow)


def _chosen(lines: Iterator[LogLine], options: Any) -> Iterator[LogLine]:
    for line in lines:
        moment = line.time or 0.0
        if options.since is not None and moment < options.since:
            continue
        if options.until is not None and moment >= options.until:
            continue
        if options.regex is None or options.regex.search(line.text):
            yield line


def _print_agents(app: RecordedApp, options: Any) -> None:
    files: dict[str, Path] = app.agent_log_files()
    shown: deque[tuple[str, str]] = deque(maxlen=options.tail)
    for host, path in files.items():
        at = 0
        while (found := read_lines(path, at, final=True))[0]:
            lines, at = found
            shown.extend(
                (host, text)
                for _, text in lines
                if options.regex is None or options.regex.search(text)
            )
    for host, text in shown:
        if options.json:
            print(json.dumps({"hostname": host, "text": text}))
        else:
            print(f"[{host}] {text}" if len(files) > 1 else text)
