"""`phalanx torchrun`: a script on every worker of this host, together with other hosts.

Flags, variables and what workers see are torchrun's. Prints a report of a failure, and where log
files are that nobody has named a directory for, last.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from types import FrameType
from typing import Any

from phalanx._core import environment
from phalanx._core.last_words import last_words
from phalanx._core.rounds import Ended
from phalanx._elastic import file_timers, torchrun_logs
from phalanx._elastic.command.torchrun_options import TorchrunOptions, parse
from phalanx._launcher.reporting.report import (
    describe_failure,
    describe_missed_ranks,
    describe_remote_cause,
)
from phalanx._launcher.session.app_run import AppRun
from phalanx._rendezvous.causes import Failure
from phalanx._rendezvous.protocol import Reason
from phalanx._worker import error_file
from phalanx.errors import LaunchError, StartFailed


def main(arguments: list[str]) -> int:
    """Run; gives the exit code: 0, 1 for a failure, 128 and a signal's number."""
    options = parse(arguments, environment.users(os.environ))
    for note in options.notes:
        print(f"phalanx torchrun: {note}", file=sys.stderr)
    if options.event_log_handler == "console":
        _print_events()
    own = ""
    if options.log_dir is None and (any(options.redirects) or any(options.tee)):
        own = torchrun_logs.default_directory(os.environ, redirects=any(options.redirects))
        options = dataclasses.replace(options, log_dir=own or None)
    try:
        with file_timers.served(os.environ) as variables:
            os.environ.update(variables)
            return _run(options)
    finally:
        if own and torchrun_logs.tidy(own):
            print(f"phalanx torchrun: worker logs are in {own}", file=sys.stderr)


def _run(options: TorchrunOptions) -> int:
    signals = _Signals(options)
    app: AppRun[Any] | None = None
    try:
        from phalanx._elastic import torchrun

        try:
            app = torchrun.start(options)
        except StartFailed as error:
            print(f"phalanx torchrun: {error}", file=sys.stderr)
            return 1
        app.tell_failure()
        signals.attach(app)
        app.show_status(line=False)
        app.wait()
        # A signal that comes now must not end us before it is said what went wrong.
        return _report(app, signals)
    finally:
        signals.restore()


def _report(app: AppRun[Any], signals: _Signals) -> int:
    error = app.error
    if error is not None:
        if not isinstance(error, LaunchError | OSError):
            raise error
        print(f"phalanx torchrun: {error}", file=sys.stderr)
        return 1
    verdict = app.verdict
    if signals.received is not None and verdict.reason is not Reason.FAILED:
        name = signal.Signals(signals.received).name
        print(f"phalanx torchrun: {name}: {app.describe_left()}", file=sys.stderr)
        return 128 + signals.received
    if verdict.reason is Reason.SUCCEEDED:
        lost = app.lost_output(None)
        if lost is not None:
            print(f"phalanx torchrun: {lost}", file=sys.stderr)
        return 0 if lost is None else 1
    sys.stdout.flush()
    print(f"phalanx torchrun: {_describe(app)}", file=sys.stderr)
    if verdict.reason is Reason.START_TIMEOUT and not verdict.note:
        # With a note, others were awaited: this host has done its part.
        for host, wait in app.waits.items():
            print(f"  {host}: {wait}", file=sys.stderr)
    if verdict.cause is not None:
        missed = describe_missed_ranks(verdict, app.stopped_at)
        _write_error(verdict.cause, is_remote=app.is_cause_remote, missed=missed)
    return 1


def _describe(app: AppRun[Any]) -> str:
    if app.is_cause_remote:
        return describe_remote_cause(app.verdict, app.stopped_at)
    return describe_failure(app.verdict, app.stopped_at, shown=app.is_cause_shown)


def _write_error(cause: Failure, *, is_remote: bool, missed: str) -> None:
    """For whoever started us: all of it on every host, and where it happened."""
    outcome, exception = cause.outcome, cause.outcome.exception
    said = _how_it_ended(cause)
    if not is_remote and exception is not None:
        said = f"{exception.type_name}: {exception.message}"
    error_file.write(
        f"stopped: {said}" if is_remote else said,
        outcome.stderr if exception is None else exception.traceback,
        where=error_file.ErrorOrigin(outcome.rank, cause.hostname, is_remote=is_remote),
        missed=missed,
    )


def _how_it_ended(cause: Failure) -> str:
    """In one line, with what its stderr says of why, where it has told nothing itself."""
    outcome = cause.outcome
    said = cause.describe()
    if outcome.exception is None and not outcome.detail:
        words = last_words(outcome.stderr, killed=outcome.kind is not Ended.EXITED)
        said += words and f": {words}"
    return said


def _print_events() -> None:
    from phalanx import events

    events.configure(events.JSONLinesEventHandler(sys.stderr))


class _Signals:
    """The signals that end it in order: once with the grace, then without."""

    def __init__(self, options: TorchrunOptions) -> None:
        self.received: int | None = None
        self._app: AppRun[Any] | None = None
        self._previous = {
            number: signal.signal(number, self._handle) for number in options.signals_to_handle
        }
        for number in {signal.SIGUSR1, signal.SIGUSR2} - self._previous.keys():
            self._previous[number] = signal.signal(number, self._pass_on)

    def attach(self, app: AppRun[Any]) -> None:
        self._app = app
        if self.received is not None:
            app.cancel(number=self.received)

    def restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._app is not None:
            self._app.signal(number)

    def _handle(self, number: int, _: FrameType | None) -> None:
        again, self.received = self.received is not None, self.received or number
        if self._app is not None:
            self._app.cancel(0.0 if again else None, number)
