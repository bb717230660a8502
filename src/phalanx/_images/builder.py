"""An image of a project, built by an engine unless it has one already."""

from __future__ import annotations

import getpass
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from phalanx._core.sanitize import sanitize, sanitize_line
from phalanx._images import dockerfile, registry
from phalanx._images.context import DOCKERFILE, list_files
from phalanx._images.engine_errors import engine_errors, reason
from phalanx._images.plan import ImagePlan, project_name
from phalanx._images.progress import ImageProgress
from phalanx.errors import SchedulerError

if TYPE_CHECKING:
    from docker import APIClient

Pull = Literal["always", "missing", "never"]

PROJECT_LABEL = "phalanx.project"
"""The name of the project's directory: an image that has this label is ours."""
USER_LABEL = "phalanx.user"
"""Who built it."""

_STEP = re.compile(r"Step (\d+)/\d+ : (.*)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
"""What engines put around a step's stderr."""
_SHOWN = 20
"""Lines of a failed step's output."""
_MIB = 1 << 20


def provide(plan: ImagePlan, engine: APIClient, *, pull: Pull = "missing") -> str:
    """See to it that a planned image is there, and pushed if it is to be.

    Builds nothing where there is an image of that content. Blocks; says on stderr what takes long.

    Args:
        plan: What `plan_image` gave.
        engine: A client of the engine.
        pull: When the images that it stands on are pulled.

    Returns:
        The image's name, with its tag; for a project without files, the base image's.

    Raises:
        ConfigError: A file of the project cannot be read.
        SchedulerError: The image cannot be built or pushed; the message has the engine's reason.
    """
    if plan.dockerfile is None and not plan.num_files:
        if not plan.is_pushed:
            ensure_image(engine, plan.base, pull)
        return plan.base  # as it is
    base, text = _dockerfile(plan, engine, pull)
    given = dockerfile.arguments(text, plan.base, plan.project)
    parents = {name: ensure_image(engine, name, pull) for name in _parents(plan, text, given)}
    if base is not None:
        parents[plan.base] = base
    name = plan.name(text, parents)
    if plan.is_pushed and registry.has_image(engine, name):
        return name
    if find_image(engine, name) is None:
        _build(plan, engine, name, text, given)
    if plan.is_pushed:
        registry.push(engine, name)
    return name


def find_image(engine: APIClient, name: str) -> dict[str, Any] | None:
    """What the engine knows of an image; None if it has none of that name."""
    from docker.errors import ImageNotFound, NotFound

    with engine_errors(f"look for the image {name}"):
        try:
            found: dict[str, Any] = engine.inspect_image(name)
        except (ImageNotFound, NotFound):
            return None
    return found


def ensure_image(engine: APIClient, name: str, pull: Pull = "missing") -> str:
    """See to it that the engine has an image, and give its id. Raises `SchedulerError`."""
    found = None if pull == "always" else find_image(engine, name)
    if found is None:
        if pull == "never":
            raise SchedulerError(
                f"the Docker engine has no image {name!r}, and pull=never. Try: docker pull {name}"
            )
        registry.pull(engine, name)
        found = find_image(engine, name)
    if found is None:
        raise SchedulerError(f"the Docker engine has pulled {name!r}, and has no such image.")
    return str(found["Id"])


def _dockerfile(plan: ImagePlan, engine: APIClient, pull: Pull) -> tuple[str | None, str]:
    """The text of the Dockerfile; where it is ours, the id of the image that it stands on, too."""
    own = plan.own_dockerfile()
    if own is not None:
        return None, own
    base = ensure_image(engine, plan.base, pull)
    found = find_image(engine, base) or {}
    config = found.get("Config") or {}
    text = dockerfile.overlay(plan.base, config.get("WorkingDir") or "", config.get("User") or "")
    return base, text


def _parents(plan: ImagePlan, text: str, given: dict[str, str]) -> list[str]:
    return [] if plan.dockerfile is None else dockerfile.parents(text, given)


def labels(plan: ImagePlan) -> dict[str, str]:
    """What says that an image is ours, and of which project. No path: images are pushed."""
    return {PROJECT_LABEL: project_name(plan.project), USER_LABEL: user_name()}


def user_name() -> str:
    """Who builds."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user, as in many containers
        return str(os.getuid())


def _build(plan: ImagePlan, engine: APIClient, name: str, text: str, given: dict[str, str]) -> None:
    context = list_files(plan.project, plan.dockerfile)
    total = context.size / _MIB
    count = "1 file" if len(context.files) == 1 else f"{len(context.files)} files"
    title = f"building the image {name} ({count}, {total:.1f} MiB)"
    what = f"build the image of {plan.project}"
    with ImageProgress(title) as progress, engine_errors(what):
        sent = _counted(context.tar(text, plan.digest), progress, total)
        steps = _Steps(what)
        events = engine.build(
            fileobj=sent,
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=name,
            buildargs=given,
            labels=labels(plan),
            rm=True,
            forcerm=True,
            decode=True,
        )
        for event in events:  # to the end, where the connection is let go
            for step in steps.add(event):
                progress.step(step)
    if steps.failure is not None:
        raise SchedulerError(steps.failure)


def _counted(pieces: Iterator[bytes], progress: ImageProgress, total: float) -> Iterator[bytes]:
    count = 0
    for piece in pieces:
        count += len(piece)
        progress.how_far(f"sent {count / _MIB:.0f} of {total:.0f} MiB")
        if piece:  # an empty one would end the request
            yield piece


@dataclass
class _Steps:
    """What the engine says of a build."""

    what: str
    failure: str | None = None

    def __post_init__(self) -> None:
        self._step = ""
        self._output: deque[str] = deque(maxlen=_SHOWN)

    def add(self, event: dict[str, Any]) -> list[str]:
        """The steps that begin with it."""
        if "error" in event:
            self.failure = self._failure(str(event["error"]))
        begun = []
        for line in _COLOUR.sub("", str(event.get("stream", ""))).splitlines():
            if match := _STEP.fullmatch(line.strip()):
                self._step = sanitize_line(f"step {match[1]}, {match[2]}")
                self._output.clear()
                if not match[2].startswith("LABEL phalanx."):  # ours
                    begun.append(self._step)
            elif line.strip():
                self._output.append(line)
        return begun

    def _failure(self, error: str) -> str:
        where = f" in {self._step}" if self._step else ""
        shown = [line for line in self._output if not line.startswith((" ---> ", "Removing "))]
        output = sanitize("\n".join(f"  {line}" for line in shown))
        said = reason(Exception(error))
        needs = ""
        if "BuildKit" in error:
            needs = (
                " The engine's API has no BuildKit: build the image with docker build, and name it "
                "with --image."
            )
        return f"cannot {self.what}: it failed{where}: {said}.{needs}" + (
            f" The output of that step:\n{output}" if shown else ""
        )
