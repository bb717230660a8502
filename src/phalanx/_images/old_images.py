"""Images of projects that are there no longer for anybody: who builds often has many."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from phalanx._images.builder import PROJECT_LABEL, USER_LABEL, find_image, user_name
from phalanx._images.engine_errors import engine_errors

if TYPE_CHECKING:
    from docker import APIClient

_SECONDS = re.compile(r"(\.\d{6})\d+")


def old_images(engine: APIClient, before: float) -> list[str]:
    """The images of this user's projects that were built before a moment, by name.

    Those that a container has, running or not, are not among them. Raises `SchedulerError`.
    """
    wanted = {"label": [PROJECT_LABEL, f"{USER_LABEL}={user_name()}"]}
    with engine_errors("list images"):
        images = engine.images(filters=wanted)
        used = {container["ImageID"] for container in engine.containers(all=True)}
    free = [image["Id"] for image in images if image["Id"] not in used]
    found = filter(None, (find_image(engine, image) for image in free))
    return sorted(
        name for image in found if _built(image) <= before for name in image["RepoTags"] or ()
    )


def remove_images(engine: APIClient, names: list[str]) -> list[str]:
    """Remove images; gives those that are gone, which one that is used by now is not."""
    from docker.errors import APIError, NotFound

    gone = []
    for name in names:
        with engine_errors(f"remove the image {name}"):
            try:
                engine.remove_image(name)
            except NotFound:
                pass
            except APIError as error:
                if error.status_code == 409:
                    continue
                raise
        gone.append(name)
    return gone


def _built(image: dict[str, Any]) -> float:
    """When it got its name: one that was built from what the engine kept is not as old as that."""
    for text in ((image.get("Metadata") or {}).get("LastTagTime"), image.get("Created")):
        with contextlib.suppress(ValueError):
            # Of the engine's nanoseconds Python takes six digits.
            moment = datetime.fromisoformat(_SECONDS.sub(r"\1", str(text)))
            if moment.year > 1:
                return moment.timestamp()
    return 0.0
