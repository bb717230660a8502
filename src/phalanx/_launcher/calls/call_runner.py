"""What makes calls, as seen by whoever has them made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from phalanx._launcher.payload import Function
    from phalanx._launcher.result import LaunchResult
    from phalanx._logs.spec import LogSpec


class CallLost(Exception):
    """A call did not end by its own doing; `error` says how, `hosts` who is to blame.

    `gone` are those of its hosts that will not come back.
    """

    def __init__(
        self,
        error: BaseException,
        hosts: tuple[int, ...] = (),
        gone: tuple[int, ...] = (),
        *,
        has_begun: bool = True,
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.hosts = hosts
        self.gone = gone
        self.has_begun = has_begun


class CallRunner(Protocol):
    """Runs calls. `run` is called from several threads at once, the rest from any."""

    def prepare(self, tell: Callable[[str], None]) -> None:
        """Have the hosts there; block until they are. `tell` is told what is waited for.

        Raises what there is to say if they will not be.
        """

    def run(
        self, call: Function, hosts: Sequence[int], log_spec: LogSpec | None
    ) -> LaunchResult[Any]:
        """Make a call on these of the hosts; block until its end.

        Raises what the function raised, `CallLost`, or `Cancelled`.
        """

    def replace(self, host: int, is_over: Callable[[], bool]) -> bool:
        """Have another host in the place of a lent one that is lost; False if none is to be had.

        Blocks until it is there, or until it is of no use any more. Raises `PhalanxError`.
        """

    def cancel(self, grace: float | None) -> None:
        """End what runs, and start nothing more; does not wait."""

    def close(self) -> None:
        """Let go of what is kept between calls; nothing runs any more."""
