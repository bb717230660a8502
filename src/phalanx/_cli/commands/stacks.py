"""`phalanx stacks`: where the workers of an app are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from phalanx._cli import parsing
from phalanx._cli.app_argument import find_app, launches_below, only_running
from phalanx._core.stacks import RankStacks, describe, from_dict
from phalanx._registry import stack_requests as asking
from phalanx._registry.recorded_app import RecordedApp
from phalanx.errors import PhalanxError

_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)


def main(arguments: list[str]) -> int:
    """Print the Python stacks of every rank; exit code 1 if there are none."""
    parser = parsing.make(
        "stacks",
        "Show the Python stacks of all ranks and threads of a running app, identical ones\n"
        "grouped, the rarest first. The workers keep running.",
    )
    parser.add_argument(
        "app",
        nargs="?",
        help="handle or id, or a unique prefix of it (default: the running app)",
    )
    parser.add_argument(
        "--timeout",
        type=parsing.duration,
        default=5.0,
        metavar="TIME",
        help="time to wait for the workers to answer (default: 5s)",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="show native frames as well; needs py-spy, eu-stack or gdb on the hosts",
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    try:
        found, launches = _find(options.app)
        seconds, native = min(options.timeout, 60.0), options.native
        told = [(app, asking.ask(app, seconds, native=native)) for app in launches]
    except (LookupError, PhalanxError, OSError, asking.StacksUnanswered) as error:
        print(f"phalanx stacks: {error}", file=sys.stderr)
        return 1
    if options.json:
        answers = [{"app": a.id, "handle": a.handle, **answer} for a, answer in told]
        parsing.print_json(answers)
        return 0
    try:
        for app, answer in told:
            # Of an app on a scheduler by its own id: that of a launch within it is not listed.
            several = f", {app.id}" if len(told) > 1 else ""
            _print(f"{found.id}{several}", answer)
    except _MALFORMED as error:
        print(f"phalanx stacks: {app.id} sent an invalid answer: {error!r}", file=sys.stderr)
        return 1
    return 0


def _print(title: str, answer: Mapping[str, Any]) -> None:
    by_replica: dict[str, list[RankStacks]] = {}
    without: list[str] = []
    for one in answer["ranks"]:
        replica, stacks = one.get("replica", ""), from_dict(one)
        if replica and stacks.pid is None:
            without.append(f"{replica} on {stacks.hostname}: {stacks.problem}")
        else:
            by_replica.setdefault(replica, []).append(stacks)
    ranks = [one for some in by_replica.values() for one in some]
    if len({one.rank for one in ranks}) == len(ranks):
        parts = [describe(ranks)] if ranks else []
    else:  # each has ranks of its own
        parts = [f"{name}\n{describe(some)}" for name, some in by_replica.items()]
    round_ = f", round {answer['round']}" if answer["round"] > 1 else ""
    print(f"{title}{round_}")
    print("\n\n".join([*parts, *without]) or "no worker is running")
    print()


def _find(text: str | None) -> tuple[RecordedApp, list[RecordedApp]]:
    """An app, and the launches that it is: itself, or those that its replicas here have started."""
    if text is None:
        text = only_running().handle
    found = find_app(text)
    app = found.record
    if app is None or (not app.is_launch and app.facts["owner"] is None):
        raise LookupError(
            f"cannot get the stacks of {found.handle}: it does not run on this machine"
        )
    if app.is_launch:
        return app, [app]
    if app.state.is_final:
        raise LookupError(f"{app.id} has ended: {app.state.value}")
    if app.scheduler != "local_cwd":
        return app, [app]  # its supervisor asks the hosts
    launches = launches_below(app)
    if not launches:
        raise LookupError(
            f"{app.id} has no workers of 'phalanx torchrun' or a launch on this host. On the host "
            "that runs them, try: phalanx stacks, or py-spy dump --pid PID"
        )
    return app, launches
