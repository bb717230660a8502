"""Failures: the real cause, with its traceback, at once."""

import os
import pickle
import signal
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import WorkerFailed

LONG = 300  # what the other ranks sleep: if nobody stops them, the test times out


def others_sleep(action, failing=1):
    """A function in which one rank does something and the others would go on for long."""

    def f():
        if int(os.environ["RANK"]) == failing:
            action()
        time.sleep(LONG)

    return f


def test_an_exception_is_raised_with_its_type_and_the_workers_traceback():
    """File and line of the worker, rank, host and log file; the others are stopped."""

    def action():
        raise KeyError("missing thing")

    with pytest.raises(KeyError) as caught:
        phalanx.launch(others_sleep(action), workers_per_host=3)
    assert caught.value.args == ("missing thing",)
    note = "\n".join(caught.value.__notes__)
    line = action.__code__.co_firstlineno + 1
    assert f'{os.path.basename(__file__)}", line {line}, in action' in note
    assert "rank 1 on localhost" in note
    assert "localhost[1].log" in note
    assert "phalanx/_worker" not in note
    assert "2 other workers were stopped" in note


CLASSES = """
    import threading, phalanx

    class Plain(Exception):
        pass

    class TwoArguments(Exception):
        def __init__(self, code, text):
            super().__init__(f"{code}: {text}")
            self.code = code

    class HoldsALock(Exception):
        def __init__(self, message):
            super().__init__(message)
            self.lock = threading.Lock()

    class OwnRules(Exception):
        def __init__(self, a):
            self.a = a
        def __reduce__(self):
            return (OwnRules, (self.a,))

    class BrokenRules(Exception):
        def __reduce__(self):
            raise RuntimeError("never")

    class BrokenText(Exception):
        def __str__(self):
            raise RuntimeError("never")

    def fail(make):
        raise make()

    makers = [lambda: Plain("p"), lambda: TwoArguments(3, "t"), lambda: HoldsALock("h"),
              lambda: OwnRules(5), lambda: BrokenRules("b"), lambda: BrokenText("x")]
    results = open("results.txt", "w")
    for make in makers:
        try:
            phalanx.launch(fail, {"make": make}, workers_per_host=1)
        except Exception as error:
            text = "?" if isinstance(error, BrokenText) else str(error)
            print(type(error).__name__, text, getattr(error, "code", ""), getattr(error, "a", ""),
                  "line" in error.__notes__[0], file=results)
            same = type(error) in (Plain, TwoArguments, HoldsALock, OwnRules, BrokenRules, BrokenText)
            assert same, type(error)
"""


def test_exceptions_that_do_not_pickle_by_themselves_arrive(script):
    """Classes of __main__, odd constructors, locks, broken methods."""
    done = script(CLASSES)
    assert Path("results.txt").read_text().splitlines() == [
        "Plain p   True",
        "TwoArguments 3: t 3  True",
        "HoldsALock h   True",
        "OwnRules 5  5 True",
        "BrokenRules b   True",
        "BrokenText ?   True",
    ], done.stderr


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileNotFoundError(2, "No such file", "/nowhere"),
        lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        lambda: StopIteration(3),
        lambda: ExceptionGroup("several", [ValueError(1), OSError(2, "x")]),
        lambda: AssertionError(),
        lambda: MemoryError("none left"),
        lambda: NotImplementedError("later"),
    ],
)
def test_builtin_exceptions_keep_their_fields(make):
    """Their own arguments and attributes."""

    def fail():
        raise make()

    expected = make()
    with pytest.raises(type(expected)) as caught:
        phalanx.launch(fail, workers_per_host=1)
    assert str(caught.value) == str(expected)
    for field in ("filename", "errno", "reason", "value"):
        assert getattr(caught.value, field, None) == getattr(expected, field, None)


def test_notes_of_the_user_stay():
    """Ours are added behind."""

    def fail():
        error = ValueError("v")
        error.add_note("mine")
        raise error from KeyError("the cause")

    with pytest.raises(ValueError) as caught:
        phalanx.launch(fail, workers_per_host=1)
    assert caught.value.__notes__[0] == "mine"
    assert "KeyError: 'the cause'" in caught.value.__notes__[1]


@pytest.mark.parametrize("method", ["zygote", "spawn"])
@pytest.mark.parametrize(
    ("action", "code"),
    [
        pytest.param(lambda: os._exit(0), 0, id="_exit 0"),
        pytest.param(lambda: os._exit(3), 3, id="_exit 3"),
        pytest.param(lambda: __import__("sys").exit(3), 3, id="exit 3"),
        pytest.param(lambda: __import__("sys").exit("a message"), 1, id="exit with a message"),
    ],
)
def test_exits_fail_the_launch_at_once_with_their_code(action, code, method):
    """With both ways to start workers."""
    with pytest.raises(
        WorkerFailed, match=f"rank 1 on localhost .*exited with code {code}"
    ) as caught:
        phalanx.launch(others_sleep(action), workers_per_host=2, start_method=method)
    assert caught.value.exit_code == code
    assert caught.value.rank == 1


def test_exit_0_is_a_return_of_none():
    """`sys.exit(0)` and `sys.exit()` end a rank on purpose and in order."""

    def f():
        import sys

        if int(os.environ["RANK"]) == 0:
            sys.exit(0)
        if int(os.environ["RANK"]) == 1:
            sys.exit()
        return "value"

    assert list(phalanx.launch(f, workers_per_host=3)) == [None, None, "value"]


@pytest.mark.parametrize(
    ("action", "name"),
    [
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL", id="kill"),
        pytest.param(lambda: __import__("ctypes").string_at(0), "SIGSEGV", id="segfault"),
        pytest.param(os.abort, "SIGABRT", id="abort"),
    ],
)
def test_signals_are_named(action, name):
    """Signal, rank, host and pid."""
    with pytest.raises(
        WorkerFailed, match=rf"rank 1 on localhost \(pid \d+\) was killed by {name}"
    ) as e:
        phalanx.launch(others_sleep(action), workers_per_host=2)
    assert e.value.signal == name
    assert e.value.pid > 0


def test_last_words_on_stderr_are_in_the_message():
    """What the process said before it died."""

    def f():
        os.write(2, b"about to die\n")
        os._exit(9)

    with pytest.raises(WorkerFailed, match="about to die"):
        phalanx.launch(f, workers_per_host=1)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_an_interrupt_inside_a_worker_ends_the_launch(kind):
    """It is the worker's, and does not interrupt the caller."""

    def action():
        raise kind

    with pytest.raises(WorkerFailed, match=f"rank 1 on localhost raised {kind.__name__}") as caught:
        phalanx.launch(others_sleep(action), workers_per_host=2)
    assert "in action" in caught.value.worker_traceback


def test_the_earlier_of_two_failures_is_the_cause_and_the_other_is_listed(tmp_path):
    """50 ms apart on two hosts; listed if it came before all were stopped."""

    def f(name):
        import time

        rank = int(os.environ["RANK"])
        if rank == 1:
            open(name, "w").close()
            raise ValueError("from 1")
        while not os.path.exists(name):
            time.sleep(0.001)
        time.sleep(0.05)
        raise ValueError("from 0")

    for attempt in range(5):  # a busy machine may take longer to report than is waited for
        with pytest.raises(ValueError, match="from 1") as caught:
            phalanx.launch(
                f,
                args=(str(tmp_path / f"{attempt}"),),
                hostnames=["localhost"] * 2,
                workers_per_host=1,
            )
        if "rank 0 on localhost raised ValueError: from 0" in "\n".join(caught.value.__notes__):
            return
    pytest.fail("the other failure was never listed")


def test_a_failure_on_one_host_stops_the_others():
    """They communicate with nobody."""

    def action():
        raise ValueError("stop it")

    with pytest.raises(ValueError, match="stop it"):
        phalanx.launch(
            others_sleep(action, failing=2), hostnames=["localhost"] * 3, workers_per_host=1
        )


def test_a_killed_peer_is_the_cause_not_the_connection_errors_it_leaves(script):
    """First cause: the echo of a death may be heard before the death."""
    done = script("""
        import os, signal, torch, torch.distributed as dist, phalanx

        def f():
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(torch.ones(1))

        try:
            phalanx.launch(f, workers_per_host=4)
        except phalanx.WorkerFailed as error:
            print(error.rank, error.signal)
    """)
    assert done.stdout.splitlines()[-1] == "1 SIGKILL", done.stderr


def test_an_error_while_the_function_is_loaded_shows_its_traceback(script, tmp_path):
    """Its module raises only in the worker."""
    (tmp_path / "mine.py").write_text(
        "import os\nif 'RANK' in os.environ:\n    raise ImportError('only in a worker')\n"
        "def f():\n    pass\n"
    )
    done = script("""
        import mine, phalanx
        phalanx.launch(mine.f, workers_per_host=2)
    """)
    assert "ImportError: only in a worker" in done.stderr
    assert 'mine.py", line 3' in done.stderr


def test_an_argument_that_cannot_be_unpickled_shows_its_traceback():
    """From the worker that tried."""

    class Bad:
        def __reduce__(self):
            return (exec, ("raise LookupError('while unpickling')",))

    with pytest.raises(LookupError, match="while unpickling"):
        phalanx.launch(lambda x: x, {"x": Bad()}, workers_per_host=2)


def test_a_failing_rank_may_still_leave_in_order(tmp_path):
    """Its atexit runs although the others are being stopped."""

    def f():
        import atexit

        if int(os.environ["RANK"]) == 0:
            atexit.register(lambda: (time.sleep(0.3), open("left.txt", "w").write("yes")))
            raise ValueError("x")
        time.sleep(LONG)

    with pytest.raises(ValueError):
        phalanx.launch(f, workers_per_host=2)
    assert (tmp_path / "left.txt").read_text() == "yes"


def test_the_traceback_is_in_the_workers_log_as_well(tmp_path):
    """As a script would have printed it."""

    def fail():
        raise ValueError("logged")

    with pytest.raises(ValueError):
        phalanx.launch(fail, workers_per_host=1)
    (log,) = (tmp_path / "logs").glob("*localhost[[]0].log")
    assert "ValueError: logged" in log.read_text()
    assert "phalanx/_worker" not in log.read_text()


def test_errors_of_ours_pickle_with_their_fields():
    """They travel through process pools and nested launches."""

    def nested():
        import phalanx

        phalanx.launch(lambda: os._exit(4), workers_per_host=1)

    with pytest.raises(WorkerFailed) as caught:
        phalanx.launch(nested, workers_per_host=1)
    assert caught.value.exit_code == 4
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.exit_code, again.rank, str(again)) == (4, 0, str(caught.value))


def test_a_handle_waits_without_raising_and_then_raises():
    """`wait` gives the status, `result` the exception, every time."""

    def fail():
        raise ValueError("later")

    app = phalanx.Launcher(workers_per_host=1).start(fail)
    status = app.wait()
    assert status.state.name == "FAILED"
    assert "rank 0 on localhost raised ValueError: later" in status.message
    for _ in range(2):
        with pytest.raises(ValueError, match="later"):
            app.result()


def test_a_handle_can_be_cancelled_and_asked():
    """`cancel` is idempotent; `result` then raises `Cancelled`; a timeout leaves the app alone."""
    app = phalanx.Launcher(workers_per_host=2).start(time.sleep, args=(LONG,))
    with pytest.raises(TimeoutError):
        app.result(timeout=0.01)
    assert not app.status().state.is_final
    app.cancel()
    app.cancel()
    assert app.wait().state.name == "CANCELLED"
    with pytest.raises(phalanx.Cancelled):
        app.result()
    app.cancel()
