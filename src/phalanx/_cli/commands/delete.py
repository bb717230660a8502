"""`phalanx delete`: forget an app, with its logs."""

from __future__ import annotations

import sys

from phalanx._cli import parsing
from phalanx._cli.app_argument import FoundApp, find_app
from phalanx._cli.long_waits import say_if_long
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._registry.recorded_app import RecordedApp
from phalanx._runner.runner import get_runner
from phalanx.errors import PhalanxError


def main(arguments: list[str]) -> int:
    """Delete one or more apps."""
    parser = parsing.make(
        "delete", "Delete apps and their logs. Apps running on a scheduler are cancelled first."
    )
    parser.add_argument(
        "apps", nargs="+", metavar="APP", help="handle or id, or a unique prefix of it"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    deleted: list[str] = []
    code = 0
    for text in options.apps:
        try:
            found = find_app(text)
            _delete(found)
            deleted.append(found.handle)
        except (LookupError, PhalanxError, OSError) as error:
            print(f"phalanx delete: {error}", file=sys.stderr)
            code = 1
    if options.json:
        parsing.print_json(deleted)
    else:
        for handle in deleted:
            print(f"deleted {handle}")
    return code


def _delete(found: FoundApp) -> None:
    if found.is_launch:
        assert found.record is not None
        _delete_launch(found.record)
        return
    with stdout_to_stderr(), get_runner() as runner:
        if found.record is None and runner.status(found.handle) is None:
            raise LookupError(f"no such app: {found.handle}")
        with say_if_long("delete", f"{found.scheduler} to delete {found.handle}"):
            runner.delete(found.handle)


def _delete_launch(app: RecordedApp) -> None:
    if not app.state.is_final:
        raise LookupError(f"{app.id} is still running. Cancel it first: phalanx cancel {app.id}")
    app.remove(logs=True)
