"""What an engine or its client complains of, as a sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from phalanx._core.sanitize import sanitize
from phalanx.errors import SchedulerError


def reason(error: BaseException) -> str:
    """The engine's own words, without what the client adds around them."""
    explanation = getattr(error, "explanation", None)
    if isinstance(explanation, bytes):
        explanation = explanation.decode("utf-8", "replace")
    return sanitize(str(explanation or error)).strip().rstrip(".")


@contextlib.contextmanager
def engine_errors(what: str) -> Iterator[None]:
    """Errors of the engine, and of the way to it, as `SchedulerError`: "cannot WHAT: reason."."""
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    try:
        yield
    except DockerException as error:
        raise SchedulerError(f"cannot {what}: {reason(error)}.") from error
    except (RequestException, OSError) as error:
        raise SchedulerError(
            f"cannot {what}: the connection to the Docker engine broke ({reason(error)}). Look at "
            "it: docker info"
        ) from error
