"""Launching from a notebook, a REPL, a thread, an asyncio program, inside pytest."""

import asyncio
import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest

import phalanx
from tests.conftest import phalanx_processes, wait_until
from tests.process.kernel import CellFailed, Kernel


@pytest.fixture(scope="module")
def kernel():
    with Kernel() as running:
        yield running


@pytest.fixture
def notebook(kernel, tmp_path):
    kernel.run(f"import os; os.chdir({str(tmp_path)!r})")
    return kernel


def test_a_function_and_a_class_of_a_cell(notebook):
    """No importable file; the value is usable, and rank 0's output is in the cell."""
    notebook.run("import phalanx\nclass Point:\n    def __init__(self, x): self.x = x")
    shown = notebook.run(
        "def make():\n"
        "    rank = int(os.environ['RANK'])\n"
        "    print('hello from', rank)\n"
        "    return Point(rank)\n"
        "print([point.x for point in phalanx.launch(make, workers_per_host=3)])"
    )
    assert shown == "hello from 0\n[0, 1, 2]\n"


def test_an_exception_in_a_notebook_is_readable_there(notebook):
    """Its type, and the worker's traceback with the cell's line."""
    notebook.run(
        "import phalanx\nclass Own(Exception): pass\ndef fail(): raise Own('no such thing')"
    )
    with pytest.raises(CellFailed) as caught:
        notebook.run("phalanx.launch(fail, workers_per_host=2)")
    text = re.sub(r"\x1b\[[0-9;]*m", "", caught.value.args[0])
    assert "Own" in text
    assert "no such thing" in text
    assert re.search("raised by rank [01] on localhost", text)
    assert "in fail\n      def fail(): raise Own" in text


def test_all_ranks_in_a_notebook_have_coloured_prefixes(notebook):
    """Readable there too."""
    shown = notebook.run(
        "import phalanx\n"
        "r = phalanx.launch(lambda: print('hi'), workers_per_host=2,\n"
        "                   log_spec=phalanx.DefaultLogSpec.all_ranks())"
    )
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert shown != plain
    assert sorted(plain.splitlines()) == ["[localhost rank 0] hi", "[localhost rank 1] hi"]


def test_interrupting_a_notebook_ends_the_launch(notebook):
    """The kernel lives on, nothing is left, and the next cell works."""
    notebook.run("import phalanx, time")
    cell = notebook.start("phalanx.launch(time.sleep, args=(100,), workers_per_host=2)")
    wait_until(lambda: len(phalanx_processes()) >= 4)
    notebook.interrupt()
    with pytest.raises(CellFailed, match="KeyboardInterrupt"):
        notebook.finish(cell)
    wait_until(lambda: not phalanx_processes())
    assert notebook.run("print(phalanx.launch(int, workers_per_host=1).rank(0))") == "0\n"


def test_await_in_a_notebook(notebook):
    """Its loop runs already."""
    shown = notebook.run(
        "import phalanx\nprint(list(await phalanx.Launcher(workers_per_host=2).start(int)))"
    )
    assert shown == "[0, 0]\n"


# ── asyncio ───────────────────────────────────────────────────────────────────


def test_an_asyncio_program_awaits_and_goes_on_meanwhile():
    """Several at once; the loop is never held up for long."""

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        launcher = phalanx.Launcher(workers_per_host=1)
        both = await asyncio.gather(
            launcher.start(time.sleep, args=(0.5,)), launcher.start(lambda: "two")
        )
        ticking.cancel()
        return [result.rank(0) for result in both], ticks

    results, ticks = asyncio.run(main())
    assert results == [None, "two"]
    assert ticks > 10


def test_an_awaited_app_raises_what_its_worker_raised():
    """And can be awaited again."""

    async def main():
        app = phalanx.Launcher(workers_per_host=1).start(lambda: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await app

    asyncio.run(main())


def test_cancelling_the_task_cancels_the_app():
    """When the timeout is heard of, nothing is left."""

    async def main():
        app = phalanx.Launcher(workers_per_host=2).start(time.sleep, args=(100,))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await app
        return app

    app = asyncio.run(main())
    assert app.status().state.value == "CANCELLED"
    assert not phalanx_processes()


def test_ctrl_c_in_an_asyncio_program(script):
    """It ends as Python ends it, and nothing is left."""
    import signal

    process = script.start(
        """
        import asyncio, phalanx, time
        def hang(): print("up", flush=True); time.sleep(100)
        async def main(): await phalanx.Launcher(workers_per_host=2).start(hang)
        asyncio.run(main())
        """
    )
    wait_until(lambda: "up" in process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    wait_until(lambda: not phalanx_processes())


# ── elsewhere ─────────────────────────────────────────────────────────────────


def test_a_repl():
    """Typed line by line at a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-i", "-q"], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    lines = "import phalanx\ndef f(x):\n    return x + 1\n\nlist(phalanx.launch(f, {'x': 1}, workers_per_host=2))\nexit()\n"
    os.write(ours, lines.encode())
    shown = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
    os.close(ours)
    assert process.wait(timeout=60) == 0
    assert b"[2, 2]" in shown, shown


def test_a_thread():
    """Not the main one."""
    found = []
    thread = threading.Thread(
        target=lambda: found.append(list(phalanx.launch(int, workers_per_host=2)))
    )
    thread.start()
    thread.join()
    assert found == [[0, 0]]


def test_inside_pytest(tmp_path):
    """Functions of a test module, with and without captured output, in a warm fixture."""
    (tmp_path / "test_it.py").write_text(
        """
import os
import phalanx
import pytest

@pytest.fixture(scope="module")
def launcher():
    with phalanx.Launcher(workers_per_host=2) as launcher:
        yield launcher

def double(x):
    print("doubling")
    return 2 * x, os.getppid()

@pytest.mark.parametrize("x", [1, 2, 3])
def test_double(launcher, capsys, x):
    assert [value for value, _ in launcher.run(double, {"x": x})] == [2 * x] * 2
    assert capsys.readouterr().out == "doubling\\n"

def test_warm(launcher):
    runs = [launcher.run(double, {"x": x}).rank(0)[1] for x in range(3)]
    assert len(set(runs)) == 1
"""
    )
    for flags in ([], ["-s"]):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, "test_it.py"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=100,
        )
        assert "4 passed" in done.stdout, done.stdout


def test_a_file_that_launches_when_it_is_loaded_is_refused(tmp_path):
    """Each worker would load it, and launch again."""
    (tmp_path / "unguarded.py").write_text(
        "import phalanx\ndef f(): return 1\nprint(list(phalanx.launch(f, workers_per_host=2)))\n"
    )
    (tmp_path / "uses.py").write_text("import unguarded\n")
    for command in (["-m", "phalanx", "launch", "unguarded.py:f"], ["uses.py"]):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        assert done.returncode != 0
        assert "calls launch when it is imported" in done.stderr, done.stderr
    as_script = subprocess.run(
        [sys.executable, "unguarded.py"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert as_script.stdout == "[1, 1]\n"


def test_a_function_that_launches_itself_ends():
    """Launches within launches work; one that never ends is refused."""

    def nest(left):
        return phalanx.launch(nest, {"left": left - 1}, workers_per_host=1).rank(0) if left else 0

    assert phalanx.launch(nest, {"left": 2}, workers_per_host=1).rank(0) == 0
    with pytest.raises(phalanx.ConfigError, match="does the function launch itself"):
        phalanx.launch(nest, {"left": 50}, workers_per_host=1)
