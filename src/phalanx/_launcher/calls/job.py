"""A call that was submitted, as users have it: a future with an id."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from phalanx._launcher.result import LaunchResult
from phalanx.errors import Cancelled

if TYPE_CHECKING:
    from phalanx._launcher.session.app import Run

R = TypeVar("R")


class Job(Future[LaunchResult[R]]):
    """A call that was submitted: a `concurrent.futures.Future` of its `LaunchResult`, with an id.

    `concurrent.futures.wait` and `as_completed` take jobs. `result` and `exception` block until
    it has ended, `done` does not. Made by `Launcher.submit`. It ends with the program that has
    submitted it.
    """

    id: str
    """Names it."""

    def __init__(self, run: Run[R]) -> None:
        super().__init__()
        self.id = run.id
        self._run = run
        thread = threading.Thread(target=self._follow, name=f"phalanx-job-{self.id}", daemon=True)
        thread.start()

    def __repr__(self) -> str:
        """The id, and how it stands."""
        state = "done" if self.done() else "running"
        return f"<Job {self.id} {state}>"

    def running(self) -> bool:
        """Whether it has not ended."""
        return not self.done()

    def cancel(self) -> bool:
        """Stop it, running or not; does not wait. False if it has ended already.

        `result` then raises `concurrent.futures.CancelledError`.
        """
        if self.done():
            return self.cancelled()
        self._run.cancel()
        return True

    def _follow(self) -> None:
        try:
            result = self._run.result()
        except Cancelled:
            _end_cancelled(self)
        except BaseException as error:  # noqa: BLE001 whoever asks for the result gets it
            self.set_exception(error)
        else:
            self.set_result(result)


def _end_cancelled(job: Future[Any]) -> None:
    """Tell whoever waits; it was never marked as running, so that this is possible."""
    Future.cancel(job)
    job.set_running_or_notify_cancel()
