"""What is to be built: a project over an image. Reads the project, changes nothing, asks nobody.

The image's name is made of its content, so that an unchanged project has one already: files,
Dockerfile, and the images that it stands on, which only the engine knows.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx._images import dockerfile
from phalanx._images.context import list_files
from phalanx.errors import ConfigError

_FORMAT = 1
"""Counts changes to what images are made of."""
_TAG = 20
_REPOSITORY = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
)


@dataclass(frozen=True)
class ImagePlan:
    """An image that is built unless there is one; `--dryrun` shows it."""

    base: str
    """The image that the project is laid over."""
    project: str
    """The directory."""
    dockerfile: str | None
    """The project's own; None: it is copied into the `WORKDIR` of the base image."""
    num_files: int
    size: int
    """Bytes of the files."""
    digest: str
    """Of the files."""
    repository: str
    """The name of the image, but for its tag."""
    is_pushed: bool
    """It is pushed there, for hosts that pull it."""

    def own_dockerfile(self) -> str | None:
        """The text of the project's own. Raises `ConfigError`."""
        if self.dockerfile is None:
            return None
        path = os.path.join(self.project, self.dockerfile)
        try:
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                return file.read()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}.") from None

    def name(self, text: str, parents: Mapping[str, str]) -> str:
        """The image's name, by the Dockerfile's text and the ids of images that it stands on."""
        arguments = dockerfile.arguments(text, self.base, self.project)
        parts = (_FORMAT, self.digest, text, sorted(parents.items()), sorted(arguments.items()))
        whole = hashlib.sha256(repr(parts).encode("utf-8", "surrogateescape"))
        return f"{self.repository}:{whole.hexdigest()[:_TAG]}"


def plan_image(base: str, project: str, *, image_repo: str | None = None) -> ImagePlan:
    """Plan the image of a project.

    Nothing is built, and no engine is asked; `builder.provide` does that.

    Args:
        base: The role's image.
        project: The role's workspace, a directory.
        image_repo: Where hosts pull the image from, such as `registry.example.com/team/app`; by
            default it stays on this machine.

    Raises:
        ConfigError: There is no base image, a file cannot be read, or `image_repo` is no name.
        LaunchError: The project has too many files.
    """
    if not base:
        raise ConfigError("the role has no image: name one with --image, or in its component.")
    if image_repo is not None and not _REPOSITORY.fullmatch(image_repo):
        raise ConfigError(
            f"image_repo={image_repo!r} must be a repository without a tag, such as "
            "registry.example.com/team/app."
        )
    project = os.path.abspath(project)
    own = next((n for n in dockerfile.NAMES if os.path.exists(os.path.join(project, n))), None)
    context = list_files(project, own)
    return ImagePlan(
        base=base,
        project=project,
        dockerfile=own,
        num_files=len(context.files),
        size=context.size,
        digest=context.digest(),
        repository=image_repo or f"phalanx/{project_name(project)}",
        is_pushed=image_repo is not None,
    )


def project_name(project: str) -> str:
    """A directory's name, as images may be called."""
    word = re.sub(r"[^a-z0-9]+", "-", os.path.basename(project).lower()).strip("-")
    return word[:60].rstrip("-") or "project"
