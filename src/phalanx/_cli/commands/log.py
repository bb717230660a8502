"""`phalanx log`: what an app's workers have printed."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from phalanx._cli import live_log, parsing, replica_log
from phalanx._cli.app_argument import find_app
from phalanx._cli.long_waits import say_if_long
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._core.values import numbers
from phalanx._logs.console import is_terminal
from phalanx._logs.lines import LogLine, read_back, read_lines
from phalanx._registry.log_reader import by_time
from phalanx._registry.recorded_app import RecordedApp
from phalanx._runner.handles import LogSelector, parse_log_selector
from phalanx._runner.runner import Runner, get_runner
from phalanx._schedulers.scheduler import Stream
from phalanx._specs import AppState
from phalanx.errors import PhalanxError


def main(arguments: list[str]) -> int:
    """Print the lines that are asked for."""
    parser = parsing.make(
        "log",
        "Show the output of an app's workers or replicas, ordered by time.\n\n"
        "For an app on a scheduler, select replicas with APP/ROLE/REPLICAS: echo-1a2b/echo/0,2-4.\n"
        "TIME is relative (30s, 10m, 2h, 7d ago) or absolute (2026-01-31T12:00), with a precision\n"
        "of about 0.1 s.",
    )
    parser.add_argument(
        "app",
        nargs="?",
        metavar="APP[/ROLE[/REPLICAS]]",
        help="handle or id, or a unique prefix of it (default: the latest app)",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="follow the output until the app ends"
    )
    parser.add_argument(
        "-r",
        "--ranks",
        type=parsing.ranks,
        metavar="RANKS",
        help="show only these ranks, such as 0,2-4",
    )
    parser.add_argument(
        "-e", "--regex", type=parsing.regex, metavar="REGEX", help="show only lines that match"
    )
    parser.add_argument(
        "--since", type=parsing.moment, metavar="TIME", help="show only lines since this time"
    )
    parser.add_argument(
        "--until", type=parsing.moment, metavar="TIME", help="show only lines before this time"
    )
    parser.add_argument(
        "--streams",
        choices=("combined", "stdout", "stderr"),
        help="show only this stream of a replica",
    )
    parser.add_argument(
        "-n",
        "--tail",
        type=int,
        metavar="N",
        help="show only the last N lines of each rank or replica, and with -f those that follow; "
        "without N: follow",
    )
    parser.add_argument(
        "--agents", action="store_true", help="show the agents' own logs (with -e, -n and --json)"
    )
    parsing.add_json(parser)
    options = parser.parse_args(_tail_as_follow(arguments))
    if options.tail is not None and options.tail < 0:
        parser.error(f"--tail {options.tail}: must be 0 or more")
    if options.agents and (options.follow or options.ranks or options.since or options.until):
        parser.error("--agents can only be used with --regex, --tail and --json")
    try:
        selector = None if options.app is None else parse_log_selector(options.app)
        found = find_app(None if selector is None else selector.app)
        if not found.is_launch:
            return _of_replicas(found.handle, selector or LogSelector(found.handle), options)
        app = found.record
        assert app is not None
        if options.streams or (selector and selector.role):
            raise LookupError(
                f"{app.id} is a launch: select ranks with -r, it has no roles or streams"
            )
        if options.agents:
            _print_agents(app, options)
            return 0
        files = app.log_files(options.ranks)
    except (LookupError, PhalanxError) as error:
        print(f"phalanx log: {error}", file=sys.stderr)
        return 1
    if app.calls and app.facts.get("log_dir"):
        where = app.facts["log_dir"]
        print(
            f"phalanx log: {app.id} is a map: what its calls print is in {where}", file=sys.stderr
        )
        return 1
    if not files:
        print(
            f"phalanx log: {app.id} {_where(app)}",
            file=sys.stderr,
        )
        return 1
    plain = not (options.json or options.regex or options.since or options.until)
    if options.follow and plain and is_terminal(sys.stdout):
        live_log.watch(app, files, options.tail)
    else:
        _print(app, options, several=len(files) > 1)
    return 0


def _where(app: RecordedApp) -> str:
    """What is known of the output of a launch without a log file for each rank."""
    if places := app.facts.get("places"):
        return f"has no log file for each rank; what its workers print is in {', '.join(places)}"
    return (
        "has no log files. To write them, launch with --log-dir DIR, or phalanx torchrun with "
        "--tee 3 --log-dir DIR"
    )


def _tail_as_follow(arguments: list[str]) -> list[str]:
    """`--tail` (`-t`) without a number follows, as TorchX has it."""
    return [
        "--follow"
        if word == "-t" or (word == "--tail" and not re.fullmatch(r"[+-]?\d+", following))
        else word
        for word, following in itertools.zip_longest(arguments, arguments[1:], fillvalue="")
    ]


def _of_replicas(handle: str, selector: LogSelector, options: Any) -> int:
    """Of an app on a scheduler."""
    if options.ranks or options.agents:
        raise LookupError(
            f"{handle} runs on a scheduler: select replicas with {selector.app}/ROLE/REPLICAS"
        )
    with get_runner() as runner:
        with _say_if_long(handle):
            with stdout_to_stderr():
                known = runner.replicas(handle)
            selector = _with_role(selector, known)
            if selector.role is not None and selector.role not in known:
                roles = ", ".join(known)
                raise LookupError(f"{handle} has no role {selector.role!r}; it has {roles}")
            chosen = [
                (role, i)
                for role, count in known.items()
                if selector.role in (None, role)
                for i in (range(count) if selector.replicas is None else selector.replicas)
            ]
            stream = Stream(options.streams or "combined")
            found = _lines_of_replicas(runner, handle, chosen, stream, options)
            if options.follow:
                _print_queued(runner, handle)
            else:
                found = itertools.chain(list(itertools.islice(found, 1)), found)
        printer = replica_log.Printer(sys.stdout, at_once=options.follow)
        plain = not (options.json or options.regex or options.since or options.until)
        live = options.follow and plain and is_terminal(sys.stdout)
        printed = False
        with replica_log.bars(runner, handle, chosen if live else (), stream=stream):
            for line in found:
                printed = True
                if options.json:
                    print(json.dumps(line.to_dict()), flush=options.follow)
                else:
                    printer.print(line)
        if options.follow or not printed:
            _print_end(runner, handle)
    return 0


def _say_if_long(handle: str) -> AbstractContextManager[None]:
    return say_if_long("log", f"an answer from {handle.partition('://')[0]}")


def _lines_of_replicas(
    runner: Runner,
    handle: str,
    chosen: list[tuple[str, int]],
    stream: Stream,
    options: Any,
) -> Iterator[LogLine]:
    if options.tail is not None and not options.follow:
        each = (_last_of_replica(runner, handle, one, stream, options) for one in chosen)
        return heapq.merge(*each, key=by_time)
    found = _matching(
        replica_log.lines(
            runner,
            handle,
            chosen,
            stream=stream,
            since=options.since,
            until=options.until,
            follow=options.follow,
        ),
        options,
    )
    if options.tail is None:
        return found
    there = Counter(
        {one: _count_of_replica(runner, handle, one, stream, options) for one in chosen}
    )
    return _from_the_last(found, _replica_of, there, options.tail)


def _print_queued(runner: Runner, handle: str) -> None:
    """Whoever follows an app that is queued sees nothing for a while: say why."""
    with stdout_to_stderr():
        status = runner.status(handle)
    if status is not None and status.state is AppState.PENDING and status.message:
        print(f"phalanx log: {status.app}: PENDING: {status.message}", file=sys.stderr)


def _print_end(runner: Runner, handle: str) -> None:
    """Whoever has followed an app wants to know that it failed; who finds nothing, too."""
    with _say_if_long(handle):
        status = runner.status(handle)
    if status is not None and status.state is AppState.FAILED:
        print(f"phalanx log: {status.app}: FAILED: {status.message}".rstrip(": "), file=sys.stderr)


def _with_role(selector: LogSelector, known: dict[str, int]) -> LogSelector:
    """`APP/1` is a replica where there is one role, and none of that name."""
    if (
        selector.role is None
        or selector.role in known
        or len(known) != 1
        or selector.replicas is not None
    ):
        return selector
    try:
        return LogSelector(selector.app, next(iter(known)), tuple(numbers(selector.role)))
    except ValueError:
        return selector


def _print(app: RecordedApp, options: Any, *, several: bool) -> None:
    lines: Iterable[LogLine]
    if options.tail is None or options.follow:
        lines = _chosen(app.lines(options.ranks, follow=options.follow), options)
        if options.tail is not None:
            there = Counter(line.rank for line in _chosen(app.lines(options.ranks), options))
            lines = _from_the_last(lines, lambda line: line.rank, there, options.tail)
    else:
        lines = heapq.merge(
            *(_last(app, rank, options) for rank in app.log_files(options.ranks)), key=by_time
        )
    for line in lines:
        if options.json:
            print(json.dumps(line.to_dict()), flush=options.follow)
        else:
            print(line if several else line.text, flush=options.follow)


def _last(app: RecordedApp, rank: int, options: Any) -> list[LogLine]:
    """The last lines of a rank, read from the end of its file."""
    chosen = itertools.takewhile(
        lambda line: options.since is None or line.time is None or line.time >= options.since,
        app.lines_back(rank),
    )
    return [*itertools.islice(_chosen(chosen, options), max(0, options.tail))][::-1]


def _last_of_replica(
    runner: Runner, handle: str, replica: tuple[str, int], stream: Stream, options: Any
) -> Iterable[LogLine]:
    """The last lines of a replica, read from the end of its log where that can be done."""
    chosen = {"stream": stream, "since": options.since, "until": options.until}
    count = min(options.tail, sys.maxsize)
    back = runner.lines_back(handle, *replica, **chosen)
    if back is not None:
        return [*itertools.islice(_matching(back, options), count)][::-1]
    return deque(_matching(runner.lines(handle, *replica, **chosen), options), maxlen=count)


def _count_of_replica(
    runner: Runner, handle: str, replica: tuple[str, int], stream: Stream, options: Any
) -> int:
    """How many lines of a replica there are already; none of one that has not begun."""
    chosen = {"stream": stream, "since": options.since, "until": options.until}
    with contextlib.suppress(LookupError, PhalanxError):
        return sum(1 for _ in _matching(runner.lines(handle, *replica, **chosen), options))
    return 0


def _replica_of(line: LogLine) -> tuple[str | None, int | None]:
    return line.role, line.replica


def _from_the_last(
    lines: Iterator[LogLine], whose: Callable[[LogLine], Any], there: Counter[Any], tail: int
) -> Iterator[LogLine]:
    """Of the lines that were there already, the last so many of each; then all that come."""
    for line in lines:
        if there[key := whose(line)] > tail:
            there[key] -= 1
        else:
            there[key] = 0
            yield line


def _matching(lines: Iterator[LogLine], options: Any) -> Iterator[LogLine]:
    return (line for line in lines if options.regex is None or options.regex.search(line.text))


def _chosen(lines: Iterator[LogLine], options: Any) -> Iterator[LogLine]:
    for line in lines:
        moment = line.time  # one whose time was not noted is not left out
        if options.since is not None and moment is not None and moment < options.since:
            continue
        if options.until is not None and moment is not None and moment >= options.until:
            continue
        if options.regex is None or options.regex.search(line.text):
            yield line


def _print_agents(app: RecordedApp, options: Any) -> None:
    files: dict[str, Path] = app.agent_log_files()
    for host, path in files.items():
        for text in _of_agent(path, options):
            if options.json:
                print(json.dumps({"hostname": host, "text": text}))
            else:
                print(f"[{host}] {text}" if len(files) > 1 else text)


def _of_agent(path: Path, options: Any) -> Iterable[str]:
    def fits(text: str) -> bool:
        return options.regex is None or bool(options.regex.search(text))

    if options.tail is not None:
        back = (text for _, text in read_back(path) if fits(text))
        return [*itertools.islice(back, max(0, options.tail))][::-1]
    return filter(fits, (text for _, text in _whole(path)))


def _whole(path: Path) -> Iterator[tuple[int, str]]:
    at = 0
    while (found := read_lines(path, at, final=True))[0]:
        lines, at = found
        yield from lines
