"""`phalanx status`: how an app stands."""

from __future__ import annotations

import sys
from typing import Any

from phalanx.cli import parsing
from phalanx.registry.recorded import RecordedApp, find
from phalanx.specs import AppState


def main(arguments: list[str]) -> int:
    """Print how an app stands; exit code 0 unless it is unknown."""
    parser = parsing.make("status", "How an app stands, and how its workers ended.")
    parsing.add_app(parser)
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    try:
        app = find(options.app)
    except LookupError as error:
        print(f"phalanx status: {error}", file=sys.stderr)
        return 1
    status = app.status()
    if options.json:
        parsing.print_json({**app.facts, "status": status})
        return 0
    _print(app, status)
    return 0


def _print(app: RecordedApp, status: dict[str, Any]) -> None:
    final = AppState(status["state"]).is_final
    seconds = status.get("seconds")
    count = "1 worker" if app.workers == 1 else f"{app.workers} workers"
    time_ = "" if seconds is None else f" {'after' if final else 'for'} {parsing.ago(seconds)}"
    print(f"{app.id}: {status['state']}{time_}")
    print(f"  {count} on {', '.join(app.hosts)}")
    print(f"  command: {app.command}")
    owner = app.facts["owner"]
    print(f"  launcher: pid {owner['pid']} on {owner['host']}, in {app.facts['cwd']}")
    if status.get("message"):
        print(f"  {status['message']}")
    for worker in status.get("workers", ()):
        if worker["ended"] != "returned":
            print(f"  rank {worker['rank']} {worker['message']}")
    returned = [w["rank"] for w in status.get("workers", ()) if w["ended"] == "returned"]
    if returned:
        print(f"  {len(returned)} of {count} returned")
    files = app.log_files()
    if files:
        print(f"  logs: {min(files.values())} …  (phalanx log {app.id})")
