"""TorchX's functions behind `torchx log`, for programs that call them; the command is ours."""

from __future__ import annotations

import logging
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TextIO

from phalanx._specs import AppDef, is_started
from phalanx.compat.torchx.cli.colors import ENDC, GREEN
from phalanx.compat.torchx.runner import Runner, get_runner
from phalanx.compat.torchx.schedulers.api import Stream

__all__ = ["ENDC", "GREEN", "find_role_replicas", "get_logs", "get_runner", "validate"]

logger = logging.getLogger(__name__)

_FORM = "SCHEDULER://[SESSION_NAME]/APP_ID/[ROLE_NAME]/[REPLICA_IDS,...]"
_ASKED_EVERY = 1.0
"""Seconds between two looks at whether an app has started."""


def validate(job_identifier: str) -> None:
    """Check that a text names an app, and perhaps a role and replicas of it.

    Args:
        job_identifier: The text.

    Raises:
        SystemExit: It does not.
    """
    if not re.fullmatch(r"\w+://[^/]*/[^/]+(/[^/]+(/(\d+,?)+)?)?", job_identifier):
        logger.error("%s is not of the form %s", job_identifier, _FORM)
        sys.exit(1)


def find_role_replicas(app: AppDef, role_name: str | None) -> list[tuple[str, int]]:
    """The replicas of a role, or of all roles: each as its role's name and its number.

    Args:
        app: The app.
        role_name: The role's name; by default all.
    """
    roles = [role for role in app.roles if role_name in (None, role.name)]
    return [(role.name, i) for role in roles for i in range(role.num_replicas)]


def get_logs(
    file: TextIO,
    identifier: str,
    regex: str | None,
    should_tail: bool = False,  # noqa: FBT001, FBT002 as it is there
    runner: Runner | None = None,
    streams: Stream | None = None,
) -> None:
    """Print what replicas of an app have printed, each line with whose it is.

    Args:
        file: Where to.
        identifier: The app, and perhaps a role and replicas: `SCHEDULER://SESSION/APP/ROLE/0,2`.
        regex: Only lines that it is found in.
        should_tail: Also new lines, until the replicas have ended.
        runner: Who is asked; by default a new one.
        streams: Which stream; by default both.

    Raises:
        SystemExit: The identifier is none, or there is no such role.
        ValueError: There is no such app.
    """
    validate(identifier)
    scheduler, _, path = identifier.partition("://")
    session, app_id, *chosen = path.split("/")
    asked = get_runner(name=session or None) if runner is None else runner
    handle = f"{scheduler}://{session}/{app_id}"
    said = False
    while not ((status := asked.status(handle)) and is_started(status.state)):
        if status is None:
            raise ValueError(f"no such app: {handle}")
        if not said:
            logger.info("Waiting for app to start before logging...")
        said = True
        time.sleep(_ASKED_EVERY)
    app = asked.describe(handle)
    found = [] if app is None else find_role_replicas(app, chosen[0] if chosen else None)
    if not found:
        roles = ", ".join(role.name for role in app.roles) if app is not None else "none"
        logger.error("%s has no role %s; it has: %s", handle, chosen[:1], roles)
        sys.exit(1)
    if len(chosen) > 1:
        found = [(found[0][0], int(number)) for number in chosen[1].split(",") if number]

    def show(replica: tuple[str, int]) -> None:
        role, number = replica
        prefix = f"{GREEN}{role}/{number}{ENDC} "
        for line in asked.log_lines(
            handle, role, number, regex, should_tail=should_tail, streams=streams
        ):
            print(_prefix_line(prefix, line), file=file, end="", flush=True)

    with ThreadPoolExecutor(len(found)) as pool:
        list(pool.map(show, found))


def _prefix_line(prefix: str, line: str) -> str:
    """A text with a prefix before each of its lines, also those that overwrite one another."""
    body, end = (line[:-1], "\n") if line.endswith("\n") else (line, "")
    begin = "" if body.startswith("\r") else prefix
    return begin + re.sub(r"[\r\n]", lambda found: found[0] + prefix, body) + end
