"""`phalanx clean`: forget old apps."""

from __future__ import annotations

import shutil
import sys
import time

from phalanx._cli import parsing
from phalanx._registry.recorded_app import apps, unreadable


def main(arguments: list[str]) -> int:
    """Remove the records of apps that ended long ago."""
    parser = parsing.make(
        "clean",
        "Delete the records of apps that have ended. Log files of launches and those in a\n"
        "log_dir are kept unless --logs is given.",
    )
    parser.add_argument(
        "--older-than",
        type=parsing.duration,
        default=7 * 86400.0,
        metavar="TIME",
        help="only apps started longer ago than this; 0 for all; default: 7d",
    )
    parser.add_argument("--logs", action="store_true", help="delete their log files, too")
    parser.add_argument("--dry-run", action="store_true", help="only print what would be deleted")
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    limit = time.time() - options.older_than
    old = [app for app in apps(parts=True) if app.created <= limit]
    old = [app for app in old if app.facts["owner"] is None or app.state.is_final]
    rubbish = [path for path in unreadable() if path.lstat().st_mtime <= limit]
    failed = False
    if not options.dry_run:
        for app in list(old):
            try:
                app.remove(logs=options.logs)
            except OSError as error:
                print(f"phalanx clean: cannot delete {app.id}: {error}", file=sys.stderr)
                old.remove(app)
                failed = True
        for path in rubbish:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    if options.json:
        parsing.print_json([app.id for app in old])
    else:
        count = "1 app" if len(old) == 1 else f"{len(old)} apps"
        print(f"{count} {'would be deleted' if options.dry_run else 'deleted'}")
    return int(failed)
