"""A call that was submitted, as users have it: a future with an id."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

from phalanx._launcher.result import LaunchResult
from phalanx._specs import AppState
from phalanx.errors import Cancelled, PhalanxError

if TYPE_CHECKING:
    from phalanx._launcher.calls.jobs.scheduler_jobs import SchedulerJob
    from phalanx._launcher.session.app import Run

R = TypeVar("R")

_FINISHING = threading.Lock()


class Job(Future[LaunchResult[R]]):
    """A call that was submitted: a `concurrent.futures.Future` of its `LaunchResult`, with an id.

    Made by `Launcher.submit`, or from the id of one that runs on a scheduler, in any process.
    `concurrent.futures.wait` and `as_completed` take jobs. `result` and `exception` block until
    it has ended, `done` does not. A job on a scheduler outlives the program that has submitted it;
    on this machine and over SSH it ends with the program.
    """

    id: str
    """Names it: on a scheduler, `slurm://SESSION/APP`, as for `phalanx status` and `log`."""

    def __init__(self, id: str) -> None:  # noqa: A002 the name that users know
        """Find a job that was submitted to a scheduler.

        Args:
            id: Its id.

        Raises:
            ConfigError: There is no such job, or it was not submitted as a function.
        """
        from phalanx._launcher.calls.jobs.scheduler_jobs import find_job

        super().__init__()
        self._follow_scheduler(find_job(id))

    @classmethod
    def of_run(cls, run: Run[R]) -> Self:
        """The job of an app that this process runs."""
        job = cls.__new__(cls)
        Future.__init__(job)
        job.id, job._run, job._on_scheduler = run.id, run, None
        threading.Thread(target=job._follow, name=f"phalanx-job-{job.id}", daemon=True).start()
        return job

    @classmethod
    def of_scheduler(cls, found: SchedulerJob) -> Self:
        """The job of a call on a scheduler."""
        job = cls.__new__(cls)
        Future.__init__(job)
        job._follow_scheduler(found)
        return job

    def _follow_scheduler(self, found: SchedulerJob) -> None:
        from phalanx._launcher.calls.jobs.scheduler_jobs import WATCH

        self.id, self._run, self._on_scheduler = found.id, None, found
        self.look(asks=False)
        if not self.done():
            # Those who wait for many would ask for one after the other.
            found.scheduler.expect(found.app_id)
            WATCH.add(self)

    _is_finished = False
    _run: Run[R] | None
    _on_scheduler: SchedulerJob | None

    def __repr__(self) -> str:
        """The id, and how it stands."""
        state = "done" if self.done() else "not done"
        return f"<Job {self.id} {state}>"

    def running(self) -> bool:
        """Whether it has begun and not ended; one that waits in a queue has not begun.

        Asks the scheduler, which may take a second.

        Raises:
            SchedulerError: It does not answer.
        """
        if self.done():
            return False
        if self._on_scheduler is not None:
            return self._on_scheduler.is_running()
        return self._run is not None and self._run.status().state is AppState.RUNNING

    def cancel(self) -> bool:
        """Stop it, running or not; does not wait. False if it has ended already.

        `result` then raises `concurrent.futures.CancelledError`.
        """
        if self.done():
            return self.cancelled()
        if self._run is not None:
            self._run.cancel()
        if self._on_scheduler is not None:
            target = self._cancel_on_scheduler
            threading.Thread(target=target, name=f"phalanx-cancel-{self.id}", daemon=True).start()
        return True

    def _cancel_on_scheduler(self) -> None:
        assert self._on_scheduler is not None
        try:
            self._on_scheduler.cancel()
            self.look(asks=True)
        except PhalanxError as error:
            from phalanx._logs import logger

            logger.warning("phalanx: cannot cancel %s: %s", self.id, error)

    def look(self, *, asks: bool) -> None:
        """See whether a call on a scheduler has ended. Raises `SchedulerError`.

        `asks`: the scheduler may be asked; otherwise only what the call has left is looked at.
        """
        found = self._on_scheduler
        if found is None or self.done():
            return
        outcome = found.outcome()
        if outcome is None and asks:
            outcome = found.end()
        if outcome is not None:
            self._finish(outcome.result, outcome.error)

    def _follow(self) -> None:
        assert self._run is not None
        try:
            result = self._run.result()
        except BaseException as error:  # noqa: BLE001 whoever asks for the result gets it
            self._finish(None, error)
        else:
            self._finish(result, None)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        """Tell whoever waits; once, by whoever comes first."""
        with _FINISHING:
            if self._is_finished:
                return
            self._is_finished = True
        if isinstance(error, Cancelled):
            Future.cancel(self)  # possible, since it was never marked as running
            self.set_running_or_notify_cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(result)
