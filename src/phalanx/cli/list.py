"""`phalanx list`: what was launched."""

from __future__ import annotations

from datetime import datetime

from phalanx.cli import parsing
from phalanx.registry.recorded import apps
from phalanx.specs import AppState

_SHOWN = 20


def main(arguments: list[str]) -> int:
    """Print one line for each app, the latest last."""
    parser = parsing.make("list", "What was launched, the latest last.")
    parser.add_argument("--all", action="store_true", help=f"not only the last {_SHOWN}")
    parser.add_argument("--running", action="store_true", help="only those that have not ended")
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    found = [(app, app.status()) for app in apps()]
    if options.running:
        found = [(app, status) for app, status in found if not AppState(status["state"]).is_final]
    left_out = 0 if options.all or options.json else max(0, len(found) - _SHOWN)
    found = found[left_out:]
    if options.json:
        parsing.print_json([{**app.facts, "status": status} for app, status in found])
        return 0
    if not found:
        print("no app is recorded" if not options.running else "no app is running")
        return 0
    rows = []
    for app, status in found:
        seconds = status.get("seconds")
        rows.append(
            (
                app.id,
                status["state"],
                str(app.workers),
                ",".join(app.hosts),
                datetime.fromtimestamp(app.created).astimezone().strftime("%Y-%m-%d %H:%M:%S"),
                "?" if seconds is None else parsing.ago(seconds),
                _cut(app.command),
            )
        )
    parsing.print_table(("APP", "STATE", "WORKERS", "HOSTS", "STARTED", "TIME", "COMMAND"), rows)
    if left_out:
        print(f"({left_out} older ones: phalanx list --all)")
    return 0


def _cut(text: str, width: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
