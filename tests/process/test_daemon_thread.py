"""Calls that may block for ever."""

import asyncio
import subprocess
import sys
import threading

import pytest

from phalanx._system.daemon_thread import in_daemon_thread, start


def test_what_a_call_gives_or_raises_is_the_futures():
    """On a thread that nobody waits for at the end."""
    assert start(threading.current_thread).result(5).daemon
    with pytest.raises(SystemExit):
        start(sys.exit).result(5)


def test_a_call_is_awaited_no_longer_than_its_limit():
    """It goes on by itself."""
    go_on, went_on = threading.Event(), threading.Event()

    def block():
        go_on.wait()
        went_on.set()

    async def work():
        assert await in_daemon_thread(lambda: 7) == 7
        with pytest.raises(TimeoutError):
            await in_daemon_thread(block, 0.01)

    asyncio.run(work())
    assert not went_on.is_set()
    go_on.set()
    assert went_on.wait(5)


def test_a_call_that_never_returns_does_not_hold_the_program_up():
    """Nor does it say anything."""
    text = (
        "import asyncio, time\n"
        "from phalanx._system.daemon_thread import in_daemon_thread\n"
        "async def work():\n"
        "    task = asyncio.create_task(in_daemon_thread(lambda: time.sleep(600)))\n"
        "    await asyncio.sleep(0.05)\n"
        "asyncio.run(work())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
