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
    recipe = _recipe(plan, engine, pull)
    name = plan.name(recipe.text, recipe.parents)
    if plan.is_pushed and registry.has_image(engine, name):
        return name
    if find_image(engine, name) is None:
        _build(plan, engine, name, recipe)
    if plan.is_pushed:
        registry.push(engine, name)
    return name


@dataclass(frozen=True)
class _Recipe:
    """How an image is made."""

    text: str
    """The Dockerfile, as far as it is the content."""
    parents: dict[str, str]
    """The ids of the images that it stands on."""
    sent: str
    """The Dockerfile that the engine gets."""
    labels: dict[str, str]
    """What the engine adds at its end."""


def _recipe(plan: ImagePlan, engine: APIClient, pull: Pull) -> _Recipe:
    own = plan.own_dockerfile()
    if own is not None:
        given = dockerfile.arguments(own, plan.base, plan.project)
        names = dockerfile.parents(own, given)
        parents = {name: ensure_image(engine, name, pull) for name in names}
        return _Recipe(own, parents, own, labels(plan))
    base = ensure_image(engine, plan.base, pull)
    config = (find_image(engine, base) or {}).get("Config") or {}
    below = plan.base, config.get("WorkingDir") or "", config.get("User") or ""
    text = dockerfile.overlay(*below)
    return _Recipe(text, {plan.base: base}, dockerfile.overlay(*below, labels(plan)), {})


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


def labels(plan: ImagePlan) -> dict[str, str]:
    """What says that an image is ours, and of which project. No path: images are pushed."""
    return {PROJECT_LABEL: project_name(plan.project), USER_LABEL: user_name()}


def user_name() -> str:
    """Who builds, as it can stand in a Dockerfile."""
    try:
        return re.sub(r"[^\w.@-]", "_", getpass.getuser())
    except (KeyError, OSError):  # no such user, as in many containers
        return str(os.getuid())


def _build(plan: ImagePlan, engine: APIClient, name: str, recipe: _Recipe) -> None:
    context = list_files(plan.project, plan.dockerfile)
    total = context.size / _MIB
    count = "1 file" if len(context.files) == 1 else f"{len(context.files)} files"
    title = f"building the image {name} ({count}, {total:.1f} MiB)"
    what = f"build the image of {plan.project}"
    with ImageProgress(title) as progress, engine_errors(what):
        sent = _counted(context.tar(recipe.sent, plan.digest), progress, total)
        steps = _Steps(what)
        events = engine.build(
            fileobj=sent,
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=name,
            buildargs=dockerfile.arguments(recipe.sent, plan.base, plan.project),
            labels=recipe.labels,
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
