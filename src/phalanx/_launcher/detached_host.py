"""The process that hosts a detached app: starts it, outlives who asked, keeps what came of it.

It is alone in a session, and nobody's child. SIGTERM cancels the app; whoever asks by the registry
is answered as by any launcher.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
from typing import Any

from phalanx import _aliases
from phalanx._launcher.detached import result_file
from phalanx._launcher.detached.detached_launch import DetachedLaunch
from phalanx._launcher.launcher import Launcher, start_work
from phalanx._launcher.session.app import Run
from phalanx._launcher.start import Work
from phalanx._logs.spec import DefaultLogSpec
from phalanx._registry import directory
from phalanx._system import processes
from phalanx.errors import ConfigError

_RETRY = 1.0
"""Seconds between two attempts to write down what came of an app."""


def main() -> None:
    """Run it. Arguments: descriptors of what is to be run, and of the answer."""
    if os.fork():
        os._exit(0)  # the rest is nobody's child, and not the leader of its session
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reply = int(sys.argv[2])
    os.set_inheritable(reply, False)
    with open(int(sys.argv[1]), "rb") as file:
        detached: DetachedLaunch = pickle.load(file)  # noqa: S301 of who has started us
    try:
        run = _start(detached)
        record = directory() / run.id
        if not record.is_dir():
            run.cancel(0.0)
            run.wait()
            raise ConfigError("a detached app needs a record: set HOME or XDG_STATE_HOME.")
    except BaseException as error:  # noqa: BLE001 whoever waits gets it
        _answer(reply, ("raised", error))
        os._exit(1)
    log = os.open(record / result_file.LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(log)
    signal.signal(signal.SIGTERM, lambda *_: run.cancel())
    processes.set_title(f"phalanx: {run.id} supervisor")
    _answer(reply, ("started", run.id))
    _keep(run)


def _start(detached: DetachedLaunch) -> Run[Any]:
    sys.argv, sys.orig_argv = detached.argv, detached.orig_argv
    sys.path[:] = detached.path
    if detached.main_file is not None:
        vars(sys.modules["__main__"])["__file__"] = detached.main_file
    _aliases.install_from(os.environ)
    launcher: Launcher
    launcher, function, needs, title = pickle.loads(detached.launch)  # noqa: S301 the same
    if launcher.log_spec is None:
        launcher.log_spec = DefaultLogSpec.files_only()
    return start_work(launcher, Work.of(function, needs, title))


def _answer(reply: int, answer: tuple[str, Any]) -> None:
    import cloudpickle

    with contextlib.suppress(OSError), open(reply, "wb") as file:
        file.write(cloudpickle.dumps(answer))


def _keep(run: Run[Any]) -> None:
    """Wait for the end, and keep what came of it."""
    run.wait()
    try:
        kept = run.result()
    except BaseException as error:  # noqa: BLE001 it is kept, to be raised by who asks
        kept = error  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    record = directory() / run.id
    while True:
        try:
            result_file.keep(record, kept)
        except FileNotFoundError:  # somebody has removed the record
            return
        except OSError:  # a full disk may have room again: nobody else has the values
            time.sleep(_RETRY)
        else:
            return


if __name__ == "__main__":
    main()
