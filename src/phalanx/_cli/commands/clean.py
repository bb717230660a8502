"""`phalanx clean`: forget old apps."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress

from phalanx._cli import parsing
from phalanx._cli.long_waits import say_if_long
from phalanx._registry import LAUNCH
from phalanx._registry.recorded_app import RecordedApp, apps, unreadable
from phalanx.errors import PhalanxError, UnknownScheduler

_PATIENCE = 10.0
"""Seconds for an engine to answer whose leftovers nobody has asked for."""


def main(arguments: list[str]) -> int:
    """Remove the records of apps that ended long ago."""
    parser = parsing.make(
        "clean",
        "Delete the records of apps that have ended, and what their scheduler keeps of them, such\n"
        "as containers. Log files of launches and those in a log_dir are kept unless --logs is\n"
        "given.",
    )
    parser.add_argument(
        "--older-than",
        type=parsing.age,
        default=7 * 86400.0,
        metavar="TIME",
        help="only apps started longer ago than this; 0 for all (default: 7d)",
    )
    parser.add_argument("--logs", action="store_true", help="delete their log files, too")
    parser.add_argument(
        "--images",
        action="store_true",
        help="also delete images of your projects that no container uses",
    )
    parser.add_argument(
        *parsing.DRY_RUN, action="store_true", help="only print what would be deleted"
    )
    parsing.add_json(parser)
    options = parser.parse_args(arguments)
    limit = time.time() - options.older_than
    old = [app for app in apps(parts=True) if app.created <= limit]
    old = [app for app in old if app.facts["owner"] is None or app.state.is_final]
    with say_if_long("clean", "answers from the schedulers of your apps"):
        kept, staying, failed = _asked(old)
    old = [app for app in old if app.id not in staying]
    rubbish = [path for path in unreadable() if path.lstat().st_mtime <= limit]
    if not options.dryrun:
        for app in list(old):
            try:
                if app.id in kept:
                    _delete(app)
                app.remove(logs=options.logs)
            except (OSError, PhalanxError) as error:
                print(f"phalanx clean: cannot delete {app.id}: {error}", file=sys.stderr)
                old.remove(app)
                failed = True
        _clean_engine()
        for path in rubbish:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    images: list[str] = []
    if options.images:
        try:
            images = _clean_images(limit, dry_run=options.dryrun)
        except PhalanxError as error:
            print(f"phalanx clean: {error}", file=sys.stderr)
            failed = True
    if options.json:
        parsing.print_json([*(app.id for app in old), *images])
    else:
        count = "1 app" if len(old) == 1 else f"{len(old)} apps"
        if options.images:
            count += ", 1 image" if len(images) == 1 else f", {len(images)} images"
        print(f"{count} {'would be deleted' if options.dryrun else 'deleted'}")
    return int(failed)


def _clean_engine() -> None:
    """Remove what programs that were killed have left in the Docker engine, where there is one."""
    from phalanx._schedulers.docker.engine import Engine
    from phalanx._schedulers.docker.leftovers import remove_leftovers

    asked = say_if_long("clean", "the container engine")
    with asked, suppress(PhalanxError), Engine(timeout=_PATIENCE) as engine:
        remove_leftovers(engine)


def _clean_images(limit: float, *, dry_run: bool) -> list[str]:
    """Delete images that were built before then; gives their names. Raises `PhalanxError`."""
    from phalanx._images.old_images import old_images, remove_images
    from phalanx._schedulers.docker.engine import Engine

    with Engine() as engine:
        found = old_images(engine.api, limit)
        return found if dry_run else remove_images(engine.api, found)


def _asked(old: list[RecordedApp]) -> tuple[set[str], set[str], bool]:
    """The ids of apps that a scheduler keeps something of, and of those that stay, since they have
    not ended; and whether a scheduler could not be asked, which is said.
    """
    asked = [app for app in old if app.facts["owner"] is None and app.scheduler != LAUNCH]
    kept: set[str] = set()
    staying: set[str] = set()
    failed = False
    if not asked:
        return kept, staying, failed
    from phalanx._runner.overview import has_ended, is_kept
    from phalanx._runner.runner import get_runner

    with get_runner() as runner:
        for app in asked:
            try:
                if is_kept(runner, app):
                    (kept if has_ended(runner, app) else staying).add(app.id)
            except UnknownScheduler:
                continue  # it is not installed any more: the record is all there is
            except PhalanxError as error:
                print(f"phalanx clean: {app.id} is not deleted: {error}", file=sys.stderr)
                staying.add(app.id)
                failed = True
    return kept, staying, failed


def _delete(app: RecordedApp) -> None:
    from phalanx._runner.runner import get_runner

    deleted = say_if_long("clean", f"{app.scheduler} to delete {app.id}")
    with get_runner() as runner, deleted:
        runner.delete(app.handle)
