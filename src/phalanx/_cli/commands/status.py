"""`phalanx status`: show an app's status."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from datetime import datetime
from typing import Any

from phalanx._cli import parsing
from phalanx._cli.app_argument import FoundApp, find_app
from phalanx._cli.long_waits import say_if_long
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._core.ranks import ranges
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._registry.recorded_app import RecordedApp
from phalanx._runner.runner import get_runner
from phalanx._specs import AppState, AppStatus, HostState, RankState, ReplicaStatus, StepStatus
from phalanx.errors import PhalanxError, UnknownApp

_ROUNDS_SHOWN = 10


def main(arguments: list[str]) -> int:
    """Print an app's status; exit code 0 unless it is unknown."""
    parser = parsing.make("status", "Show an app's status, and how its workers or replicas ended.")
    parsing.add_app(parser)
    parser.add_argument(
        "--roles", metavar="NAMES", help="show only replicas of these roles, comma-separated"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    roles = [name.strip() for name in (options.roles or "").split(",") if name.strip()]
    try:
        found = find_app(options.app)
        if not found.is_launch:
            return _of_scheduler(found, roles, as_json=options.json)
    except (LookupError, PhalanxError) as error:
        print(f"phalanx status: {error}", file=sys.stderr)
        return 1
    assert found.record is not None
    app = found.record
    status = app.status()
    if options.json:
        parsing.print_json({**app.facts, "handle": app.handle, "status": status})
        return 0
    _print(app, status)
    return 0


def _of_scheduler(found: FoundApp, roles: list[str], *, as_json: bool) -> int:
    asked = say_if_long("status", f"an answer from {found.scheduler}")
    with stdout_to_stderr(), get_runner() as runner, asked:
        status = runner.status(found.handle)
    if status is None:
        raise UnknownApp(f"no such app: {found.handle}")
    if roles:
        names = [role.role for role in status.roles]
        if unknown := [name for name in roles if name not in names]:
            hint = did_you_mean(closest(unknown[0], names), f"It has {', '.join(names)}.")
            raise LookupError(f"{status.app} has no role {unknown[0]!r}.{hint}")
        chosen = tuple(role for role in status.roles if role.role in roles)
        status = dataclasses.replace(status, roles=chosen)
    if as_json:
        facts = {} if found.record is None else found.record.facts
        parsing.print_json({**facts, "handle": found.handle, "status": _as_json(status)})
        return 0
    time_ = ""
    if status.seconds is not None:
        time_ = f" {'after' if status.state.is_final else 'for'} {parsing.ago(status.seconds)}"
    print(f"{status.app}: {parsing.coloured(status.state.value)}{time_}")
    print(f"  handle: {found.handle}")
    if found.record is not None:
        print(f"  command: {found.record.command}")
    if status.num_restarts:
        print(f"  restarts: {status.num_restarts}")
    if status.ui_url:
        print(f"  {status.ui_url}")
    if status.message:
        print(f"  {status.message}")
    for text in status.warnings:
        print(f"  warning: {text}")
    rows = [_row(replica) for role in status.roles for replica in role.replicas]
    if rows:
        parsing.print_table(("  REPLICA", "STATE", "HOST", "ENDED", "ERROR"), rows)
    print(f"  logs: phalanx log {status.app}")
    return 0


def _row(replica: ReplicaStatus) -> tuple[str, ...]:
    ended = ""
    if replica.signal is not None:
        ended = replica.signal
    elif replica.exit_code is not None:
        ended = f"exit code {replica.exit_code}"
    name = f"  {replica.role}/{replica.id}"
    return name, replica.state.value, replica.hostname, ended, replica.error


def _as_json(status: AppStatus) -> dict[str, Any]:
    plain = dataclasses.asdict(status)
    plain["state"] = status.state.value
    for role in plain["roles"]:
        for replica in role["replicas"]:
            replica["state"] = replica["state"].value
    return plain


def _print(app: RecordedApp, status: dict[str, Any]) -> None:
    final = AppState(status["state"]).is_final
    seconds = status.get("seconds")
    count = "1 worker" if app.workers == 1 else f"{app.workers} workers"
    time_ = "" if seconds is None else f" {'after' if final else 'for'} {parsing.ago(seconds)}"
    round_ = f", round {status['round']}" if status["round"] > 1 else ""
    print(f"{app.id}: {parsing.coloured(status['state'])}{time_}")
    print(f"  {count} on {', '.join(app.hosts)}{round_}")
    print(f"  command: {app.command}")
    owner = app.facts["owner"]
    print(f"  launcher: pid {owner['pid']} on {owner['host']}, in {app.facts['cwd']}")
    if status["message"]:
        print(f"  {status['message']}")
    workers = status["workers"]
    if status["hosts"]:
        rows = [_host_row(host, workers, final=final) for host in status["hosts"]]
        heads = ("  HOST", "STATE", "RANKS", "PIDS", "REASON")
        known = len(heads) if any(row[-1] for row in rows) else -1
        parsing.print_table(heads[:known], [row[:known] for row in rows])
    _print_rounds(status["rounds"], app.facts.get("max_restarts"))
    if (steps := status.get("steps")) is not None:
        print(f"  steps: {StepStatus(**steps).describe()}")
    for worker in workers:
        if worker["ended"] not in (None, "returned"):
            print(f"  rank {worker['rank']} {worker['message']}")
    # Torchrun's workers on other hosts: how they ended is known here by how the app did.
    returned = [w for w in workers if w["state"] == RankState.RETURNED]
    if returned:
        unknown = sum(w["state"] == RankState.UNKNOWN for w in workers)
        more = f"; how {unknown} ended is not known here" if unknown else ""
        print(f"  {len(returned)} of {count} returned{more}")
    files = app.log_files()
    if files:
        print(f"  logs: {min(files.values())} …  (phalanx log {app.id})")


def _host_row(
    host: dict[str, Any], workers: list[dict[str, Any]], *, final: bool
) -> tuple[str, ...]:
    ranks = [rank for rank in host["ranks"] if isinstance(rank, int)]
    pids = {worker["rank"]: worker["pid"] for worker in workers}
    shown = " ".join(str(pids.get(rank) or "-") for rank in ranks)
    state = host["state"]
    if final and state not in (HostState.LOST, HostState.SET_ASIDE, HostState.EXCLUDED):
        state = "released"
    return f"  {host['hostname']}", state, ranges(ranks) or "-", shown or "-", host["reason"]


def _print_rounds(rounds: list[dict[str, Any]], max_restarts: object) -> None:
    """Why each round but the first began."""
    lines = []
    for before, round_ in itertools.pairwise(rounds):
        when = datetime.fromtimestamp(round_["began"]).astimezone().strftime("%H:%M:%S")
        restarts = round_["restarts"]
        most = f" of {max_restarts}" if isinstance(max_restarts, int) else ""
        again = f"restart {restarts}{most}: " if restarts > before["restarts"] else ""
        lines.append(f"  round {round_['number']} at {when}: {again}{round_['cause']}")
    if len(lines) > _ROUNDS_SHOWN:
        print(f"  ({len(lines) - _ROUNDS_SHOWN} earlier rounds not shown; use --json)")
    for line in lines[-_ROUNDS_SHOWN:]:
        print(line)
