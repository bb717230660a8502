"""A worker that is stopped in the moment in which it is made."""

import time

import phalanx
from tests.conftest import wait_until


def test_a_signal_that_comes_before_a_worker_is_one_still_ends_it(tmp_path, monkeypatch):
    """Between its fork and its first own step: it must not wait for the end of the grace."""
    (tmp_path / "slow_fork.py").write_text(
        "import os, pathlib, time\n"
        "def pause():\n"
        f"    pathlib.Path({str(tmp_path)!r}, f'forked-{{os.getpid()}}').touch()\n"
        "    time.sleep(2)\n"
        "os.register_at_fork(after_in_child=pause)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    launcher = phalanx.Launcher(workers_per_host=2, preload=["slow_fork"], stop_grace=1e6)
    app = launcher.start(time.sleep, args=(300,))
    wait_until(lambda: len(list(tmp_path.glob("forked-*"))) == 2)
    app.cancel()
    wait_until(lambda: app.status().state.is_final)
