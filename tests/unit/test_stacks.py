"""Stacks: what faulthandler writes is read, equal ones are found, the rank elsewhere is named."""

import faulthandler
import tempfile
import threading

import pytest

from phalanx._agent.stacks.native_frames import without_interpreters
from phalanx._core import stacks
from phalanx._core.clock import Interval
from phalanx._rendezvous.causes import Failure, first_cause, gave_up_waiting, misses_others
from phalanx._core.rounds import Ended, ExceptionInfo, Outcome

TORCH = "/v/lib/python3.11/site-packages/torch/distributed"
IN_COLLECTIVE = f"""\
Current thread 0x00007f0000000001 (most recent call first):
  File "{TORCH}/distributed_c10d.py", line 3252 in all_reduce
  File "{TORCH}/c10d_logger.py", line 83 in wrapper
  File "/home/u/train.py", line 30 in step
  File "/x/src/phalanx/_worker/worker.py", line 120 in _call
  File "/x/src/phalanx/_worker/zygote.py", line 394 in main
  File "<string>", line 1 in <module>
"""
ELSEWHERE = """\
Thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/home/u/train.py", line 42 in load_batch
  File "/home/u/train.py", line 29 in step
  File "/x/src/phalanx/_worker/worker.py", line 120 in _call
"""
ENDING = """\
Current thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/traceback.py", line 139 in format_exception
  File "/x/src/phalanx/_worker/outcome.py", line 58 in raised
  File "/x/src/phalanx/_worker/worker.py", line 130 in _call
"""


def of(rank, text, problem=""):
    return stacks.RankStacks(rank, "box", 10 + rank, stacks.parse(text), problem)


def test_what_faulthandler_of_this_python_writes_is_read():
    """All threads, the one that took it first, the outermost call first."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait, name="side")
    thread.start()
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            main, *others = stacks.parse(file.read())
    finally:
        go.set()
        thread.join()
    assert main.is_main
    assert not any(other.is_main for other in others)
    assert main.frames[-1].function == "test_what_faulthandler_of_this_python_writes_is_read"
    assert main.frames[-1].file == __file__
    assert "wait" in [frame.function for other in others for frame in other.frames]


def test_what_is_ours_comes_off_the_outside():
    """A worker's stack begins in the user's code."""
    (thread,) = stacks.parse(IN_COLLECTIVE)
    assert [frame.function for frame in thread.frames] == ["step", "wrapper", "all_reduce"]
    assert thread.location.describe() == "train.py:30 in step"
    assert thread.in_collective


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Fatal Python error: none\n",
        '  File "x", line 1 in f\n',
        "Current thread 0x00 (most recent call first):\n  <no Python frame>\n",
        'Thread 0x0a [a name] (most recent call first):\n  File "???", line ??? in ???\n  ...\n',
        "\x00\ufffd" * 100,
    ],
)
def test_nonsense_is_read_as_far_as_it_goes(text):
    """Half a dump, none, or another program's text."""
    found = stacks.parse(text)
    assert stacks.describe([of(0, text, "" if found else "no answer")])
    plain = stacks.to_dict(of(0, text))
    assert stacks.from_dict(plain) == of(0, text)


def test_equal_stacks_are_shown_together_and_the_odd_one_first():
    """Thread by thread: a difference in one does not tear the others apart."""
    known = [of(rank, IN_COLLECTIVE) for rank in (0, 1, 2, 5)] + [of(3, ELSEWHERE)]
    known.append(of(4, "", "it is stopped"))
    text = stacks.describe(known)
    heads = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert heads == [
        "ranks 3-4 are not in the collective that ranks 0-2, 5 wait in.",
        "rank 3, in train.py:42 in load_batch:",
        "ranks 0-2, 5, in train.py:30 in step:",
        "rank 3, another thread:",
        "rank 4: it is stopped",
    ]


def test_of_two_that_are_alone_the_one_outside_the_collective_comes_first():
    """And is named, with its host."""
    text = stacks.describe([of(0, IN_COLLECTIVE), of(1, ELSEWHERE)])
    heads = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert heads[0] == "rank 1 on box is not in the collective that rank 0 waits in."
    assert heads[1:3] == [
        "rank 1, in train.py:42 in load_batch:",
        "rank 0, in train.py:30 in step:",
    ]


def test_what_is_said_of_one_that_hangs():
    """Where it is, and what else is the matter; without a stack, why there is none."""
    assert stacks.describe_hung("hangs", of(0, ELSEWHERE)) == (
        "hangs; it is in train.py:42 in load_batch"
    )
    assert stacks.describe_hung("hangs", of(0, ELSEWHERE, "it is stopped (state T)")) == (
        "hangs; it is stopped (state T), in train.py:42 in load_batch"
    )
    assert stacks.describe_hung("hangs", of(0, IN_COLLECTIVE)) == (
        "hangs; it is waiting in a collective, in train.py:30 in step"
    )
    assert stacks.describe_hung("hangs", of(0, "", "it is stuck")) == "hangs; it is stuck"


def test_one_that_is_stopped_in_a_collective_does_not_wait_for_others():
    """They wait for it."""
    assert of(0, IN_COLLECTIVE).waits_for_others
    assert not of(0, IN_COLLECTIVE, "it is stopped (state T)").waits_for_others
    assert not of(0, ELSEWHERE).waits_for_others


def test_a_rank_that_hangs_in_a_collective_yields_to_one_that_hangs_elsewhere():
    """Both stop at the same time; on other hosts even later. Alone, it has waited for somebody."""

    def hung(rank, when, *, waits):
        exception = ExceptionInfo("Hang", "has not called", "", communication=waits, reraise=False)
        outcome = Outcome(rank, Ended.HUNG, when, exception=exception)
        return Failure(rank, "box", outcome, Interval(when, when))

    waiting, culprit = hung(0, 1.0, waits=True), hung(1, 1.5, waits=False)
    assert first_cause([waiting, culprit]) is culprit
    assert gave_up_waiting(waiting.outcome)
    assert not misses_others(culprit.outcome)


def test_the_rank_that_was_elsewhere_is_named_with_its_own_calls():
    """Those in the collective, those that end, and those without an answer are told apart."""
    texts = {1: IN_COLLECTIVE, 2: IN_COLLECTIVE, 3: ELSEWHERE, 4: ENDING}
    known = {rank: of(rank, text) for rank, text in texts.items()}
    known[5] = of(5, "", "no answer in 1.0 s (D (disk sleep))")
    lines = stacks.describe_stopped(known)
    assert lines[0] == (
        "rank 3 on box was not in the collective: it was in train.py:42 in load_batch"
    )
    assert '  File "/home/u/train.py", line 42, in load_batch' in lines
    assert "ranks 1-2 were in a collective, in train.py:30 in step." in lines
    assert "rank 5 returned no stack: no answer in 1.0 s (D (disk sleep))." in lines
    assert "rank 4 had just ended, too." in lines
    assert not any("threading.py" in line for line in lines)


def outcome(rank, message, *, kind="RuntimeError", communication=True, clock=1.0):
    exception = ExceptionInfo(kind, message, "", communication=communication)
    return Outcome(rank, Ended.RAISED, clock, exception=exception)


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (outcome(0, "[gloo/unbound_buffer.cc:78] Timed out waiting 4000ms for recv"), True),
        (outcome(0, "wait timeout after 500ms, keys: /a", kind="torch.DistStoreError"), True),
        (outcome(0, "Rank 1 failed to pass monitoredBarrier in 2000 ms, gloo"), True),
        (outcome(0, "timed out", kind="TimeoutError", communication=False), True),
        (outcome(0, "Connection closed by peer, gloo"), False),
        (outcome(0, "the timeout is wrong", kind="ValueError", communication=False), False),
        (Outcome(0, Ended.KILLED, 1.0, signal=6, stderr="Watchdog caught collective op"), True),
        (Outcome(0, Ended.KILLED, 1.0, signal=6, stderr="Aborted"), False),
        (Outcome(0, Ended.KILLED, 1.0, signal=9), False),
    ],
)
def test_giving_up_is_told_from_other_ends(ended, expected):
    """By type and message, or the last words of NCCL's watchdog."""
    assert gave_up_waiting(ended) is expected


def test_the_one_that_gave_up_is_the_cause_not_the_peer_that_noticed():
    """It closes its connections before it says why; and may say so after everybody was stopped."""
    closed = outcome(0, "Connection closed by peer, gloo", clock=1.0)
    waited = outcome(1, "Timed out waiting 4000ms, gloo", clock=1.02)
    first = Failure(0, "a", closed, Interval(1.0, 1.0))
    second = Failure(0, "a", waited, Interval(1.02, 1.02), consequence=True)
    assert misses_others(closed)
    assert first_cause([first, second]) is second
    assert first_cause([second, first]) is second
    killed = Failure(0, "a", Outcome(2, Ended.KILLED, 1.1, signal=9), Interval(1.1, 1.1))
    assert first_cause([first, second, killed]) is killed


def test_the_interpreters_own_frames_are_left_out_of_native_ones():
    """The Python stack says the same; what a C function does is kept, and whoever calls Python."""
    shown = [
        "Thread 1 (Thread 0x7f):",
        "#0  0x00007f1 in clock_nanosleep () from /lib/libc.so.6",
        "#1  0x00007f2 in time_sleep () from /lib/libpython3.11.so.1.0",
        "#2  0x00007f3 in cfunction_vectorcall_O () from /lib/libpython3.11.so.1.0",
        "#3  PyObject_Vectorcall () from /lib/libpython3.11.so.1.0",
        "#4  0x00007f5 in _PyEval_EvalFrameDefault () from /lib/libpython3.11.so.1.0",
        "#5  0x00007f6 in torch::autograd::PyNode::apply (this=0x1) from /lib/libtorch.so",
        "#6  0x00007f7 in Py_BytesMain () from /lib/libpython3.11.so.1.0",
    ]
    kept = without_interpreters(shown)
    assert kept == [shown[0], shown[1], shown[2], shown[6]]
    assert without_interpreters(shown[3:6]) == shown[3:6]
