"""The program that makes a submitted call: a replica of an app on a scheduler.

`python -m phalanx._launcher.calls.jobs.job_program DIRECTORY`. It launches on this host, or on all
hosts of the allocation.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx._core.ranks import STOP_FILE
from phalanx._launcher.calls.jobs.call_directory import CallDirectory, CallOutcome
from phalanx._worker import error_file
from phalanx._worker.outcome import type_name
from phalanx.errors import Cancelled, PhalanxError

if TYPE_CHECKING:
    from phalanx._launcher.session.app_run import AppRun

_LOOK = 1.0
"""Seconds between looks whether the host will be taken away."""
_AGAIN = 1.0
"""Seconds until a result is tried to be written again, on a disk that is full."""
_SIGNALLED = 1.0
"""Seconds in which a signal to all processes of a job has reached all of them."""


def main() -> int:
    """Make the call, and write down what came of it."""
    (directory,) = sys.argv[1:]
    call_directory = CallDirectory(Path(directory))
    try:
        work = call_directory.work()
    except (OSError, ValueError) as error:
        print(f"phalanx: there is no call to make: {error}", file=sys.stderr)
        return 1
    from phalanx._launcher.planning.listed_hosts import ListedHost
    from phalanx._launcher.start import Work, prepare_app

    sys.path[:] = work.python_path
    stop_file = os.environ.pop(STOP_FILE, "")
    call_directory.forget()  # what came of an earlier try
    outcome, stopped = CallOutcome(), threading.Event()
    try:
        call = Work.of(work.function, work.needs, work.title)
        node = os.environ.get("SLURMD_NODENAME")
        # A call on one host is made right here; the host has the name that its scheduler gives it.
        hosts = [ListedHost(node)] if node and work.options.hostnames == ["localhost"] else None
        app = prepare_app(work.options, call, directory=work.cwd, hosts=hosts)
        run = app.start(is_recorded=False)
        run.tell_failure()
        _pass_on(run, stopped, stop_file, signal.Signals[work.options.preempt_signal])
        outcome = CallOutcome(result=run.result())
    except PhalanxError as error:
        # A scheduler may signal every process of a job, the workers perhaps before this one.
        if isinstance(error, Cancelled) or stopped.wait(_SIGNALLED):
            # Why, the scheduler knows: it was cancelled, its time is over, it is to run again.
            print("phalanx: the call was stopped", file=sys.stderr)
            return 1
        outcome = CallOutcome(error=error)
    except Exception as error:  # noqa: BLE001 the user's: raised where the result is asked for
        outcome = CallOutcome(error=error)
    if not _finish(call_directory, outcome, stopped):
        return 1
    if outcome.error is not None:
        _report(outcome.error)
    return int(outcome.error is not None)


def _finish(directory: CallDirectory, outcome: CallOutcome, stopped: threading.Event) -> bool:
    """Write down what came of it, as soon as that can be done: nobody else has it.

    Blocks until then, until the job is stopped or the directory is gone.
    """
    is_said = False
    while True:
        try:
            directory.finish(outcome)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or stopped.is_set():
                print(f"phalanx: the result is lost: {error}", file=sys.stderr)
                return False
            if not is_said:
                text = f"cannot write the result: {error}. The job waits until it can be written"
                print(f"phalanx: {text}", file=sys.stderr, flush=True)
                is_said = True
            stopped.wait(_AGAIN)
        else:
            return True


def _report(error: BaseException) -> None:
    """Say what went wrong: to who reads the output, and to `phalanx status`."""
    import traceback

    text = "".join(traceback.format_exception_only(error)).rstrip()
    print(text, file=sys.stderr)
    error_file.write(f"{type_name(error)}: {error}", text)


def _pass_on(
    run: AppRun[Any], stopped: threading.Event, stop_file: str, preempt: signal.Signals
) -> None:
    """Have the workers hear of the end that comes: of being stopped, and of preemption."""

    def stop(*_: object) -> None:
        stopped.set()
        run.cancel()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with contextlib.suppress(ValueError, OSError):
        signal.signal(preempt, lambda *_: run.signal(preempt))

    def watch() -> None:
        while not os.path.exists(stop_file):
            time.sleep(_LOOK)
        run.signal(preempt)

    if stop_file:
        threading.Thread(target=watch, name="phalanx-preemption", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
