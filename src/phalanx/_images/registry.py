"""Images from and to registries, with the credentials of the user's own Docker configuration.

The client finds them: `config.json`, and the credential helpers that it names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from phalanx._images.engine_errors import engine_errors, reason
from phalanx._images.progress import ImageProgress
from phalanx.errors import SchedulerError

if TYPE_CHECKING:
    from docker import APIClient

_MIB = 1 << 20
_LOGIN = ("unauthorized", "denied", "no basic auth", "authentication required")


def has_image(engine: APIClient, name: str) -> bool:
    """A registry has an image of that name; False also where it does not say."""
    from docker.errors import APIError

    with engine_errors(f"ask for the image {name}"):
        try:
            engine.inspect_distribution(name)
        except APIError:  # who may not ask may push, and pushing says what is wrong
            return False
    return True


@contextlib.contextmanager
def _unhurried(engine: APIClient) -> Iterator[None]:
    """Let a registry be silent for as long as it likes: the client has no other way to say so."""
    before, engine.timeout = engine.timeout, None
    try:
        yield
    finally:
        engine.timeout = before


def push(engine: APIClient, name: str) -> None:
    """Push an image. Raises `SchedulerError`, with the registry's reason."""
    repository, _, tag = name.rpartition(":")
    progress = ImageProgress(f"pushing the image {name}")
    with progress, engine_errors(f"push {name}"), _unhurried(engine):
        events = engine.push(repository, tag=tag, stream=True, decode=True)
        problem = _follow(events, progress)
    if problem:
        raise SchedulerError(f"cannot push {name}: {problem}.{_login(problem, repository)}")


def pull(engine: APIClient, name: str) -> None:
    """Pull an image. Raises `SchedulerError`, with the registry's reason."""
    from docker.errors import APIError

    progress = ImageProgress(f"pulling the image {name}")
    with progress, engine_errors(f"pull {name}"), _unhurried(engine):
        try:
            problem = _follow(engine.pull(name, stream=True, decode=True), progress)
        except APIError as error:
            problem = reason(error)
    if problem:
        raise SchedulerError(
            f"the Docker engine has no image {name!r} and cannot pull it: {problem}. Try: "
            f"docker pull {name}"
        )


def _login(problem: str, repository: str) -> str:
    """The next command, where the registry wants to know who asks."""
    first, _, rest = repository.partition("/")
    host = f" {first}" if rest and ({".", ":"} & set(first) or first == "localhost") else ""
    is_denied = any(word in problem.lower() for word in _LOGIN)
    return f" Log in first: docker login{host}" if is_denied else ""


def _follow(events: Iterable[dict[str, Any]], progress: ImageProgress) -> str:
    """Say how far it is; gives the reason where it has failed."""
    problem = ""
    layers: dict[str, tuple[int, int]] = {}
    for event in events:  # to the end, where the connection is let go
        if "error" in event:
            problem = reason(Exception(event["error"]))
        detail = event.get("progressDetail") or {}
        if "current" in detail:
            current = int(detail["current"])
            layers[str(event.get("id"))] = current, max(current, int(detail.get("total") or 0))
            done = sum(current for current, _ in layers.values()) / _MIB
            total = sum(total for _, total in layers.values()) / _MIB
            progress.how_far(f"{done:.0f} of {total:.0f} MiB")
    return problem
