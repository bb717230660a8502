"""What agents, hosts and workers say: what can be true, and what is shown of it."""

import dataclasses
import itertools
import json
import logging
import math
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx import _wire as wire
from phalanx._agent.rounds import output_files
from phalanx._core.clock import Interval
from phalanx.errors import WireError
from phalanx._launcher.host_check import read_facts
from phalanx._launcher.payload import Inboxes
from phalanx._launcher.agents.frame_checks import FrameChecker
from phalanx._logs.lines import Source
from phalanx._logs.records import pack_message, unpack
from phalanx._core.sanitize import sanitize, sanitize_line
from phalanx._core.rounds import Ended, Member, Outcome, RankSteps
from phalanx._worker import error_file
from phalanx._worker.outcome import open_regular

MEMBER = Member(1, "box2", 2, 2)


def member_of(number):
    return MEMBER if number == 1 else None


def hello(**changes):
    fields = {"version": "1", "python": "3", "hostname": "h", "pid": 5, "port": 1}
    return wire.Hello(**{**fields, "spool": "/tmp/phalanx-1", **changes})


@pytest.fixture
def agent():
    checker = FrameChecker(shipped=False, began=0.0)
    checker.check(hello(), member_of, 0.0)
    return checker


@pytest.mark.parametrize("spool", ["", "/", "/root", "/tmp", "phalanx-1", "/tmp/phalanx-1/..", "~"])
def test_a_spool_is_a_directory_of_ours(spool):
    """It is removed when the agent is lost, and what has it in its environment is ended."""
    with pytest.raises(WireError, match="phalanx|spool|as its own"):
        FrameChecker(shipped=False, began=0.0).check(hello(spool=spool), member_of, 0.0)


def log(size=100, **fields):
    return wire.LogData(
        **{"round": 1, "rank": 2, "stream": "stdout", "data": b"x" * size, **fields}
    )


def test_an_honest_agent_keeps_to_the_window(agent):
    """In chunks of any size, however late it is told that they are written."""
    window, sent = wire.LOG_WINDOW, []
    for size in itertools.islice(itertools.cycle((1, wire.LOG_CHUNK, 77)), 3000):
        while window <= 0:
            first = sent.pop(0)
            agent.written(first)
            window += wire.cost_of(first)
        frame = log(size)
        window -= wire.cost_of(frame)
        sent.append(agent.check(frame, member_of, 0.0))
    assert agent.unwritten == sum(map(wire.cost_of, sent))


@pytest.mark.parametrize("size", [1, 1000, wire.PIECE])
def test_more_than_the_window_is_a_lie(agent, size):
    """Whatever the size of the frames: what they cost here is bounded."""
    with pytest.raises(WireError, match="more output than it was told"):
        for _ in range(100_000):
            agent.check(log(size), member_of, 0.0)
    assert agent.unwritten < 12 << 20


def test_an_agents_own_output_has_one_window_for_all_rounds(agent):
    """Their numbers are its own to choose."""
    with pytest.raises(WireError, match="more output"):
        for number in range(100_000):
            agent.check(log(rank=None, round=number), member_of, 0.0)


def test_heartbeats_may_come_for_years(agent):
    """As many as the time that has passed allows."""
    for second in range(100_000):
        agent.check(wire.Pong(sent=0.0, clock=0.0), member_of, float(second))


def test_frames_of_a_round_that_is_over_are_nobodys(agent):
    """They are late, not a lie; output is kept of every round that there was."""
    agent.check(
        wire.WorkerEnded(round=9, rank=0, outcome=Outcome(0, Ended.EXITED, 0.0)), member_of, 0.0
    )
    with pytest.raises(WireError, match="output of round 9"):
        agent.check(log(round=9), member_of, 0.0)


def test_pieces_come_in_order_or_not_at_all():
    """And a value is only there when all of it is."""
    inboxes = Inboxes()
    piece = lambda at, data: wire.Piece(key="payload", offset=at, total=4, data=data)
    inboxes.collect(piece(0, b"ab"), 0)
    ended = Outcome(0, Ended.RETURNED, 0.0)
    assert inboxes.complete(ended).exception.result
    for wrong in (piece(0, b"ab"), piece(3, b"d"), piece(2, b"cde"), piece(2, b"")):
        with pytest.raises(WireError):
            inboxes.collect(wrong, 0)
    inboxes.collect(piece(2, b"cd"), 0)
    assert inboxes.complete(ended) is ended
    assert inboxes.complete(Outcome(1, Ended.RETURNED, 0.0)).kind is Ended.RAISED
    inboxes.forget(None)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd"])
def test_a_payload_file_is_one_of_the_spool(name):
    """It is removed when it is taken."""
    checker = FrameChecker(shipped=False, began=0.0, local=True)
    checker.check(hello(), member_of, 0.0)
    good = wire.PayloadFile(round=1, rank=2, name="app-1-payload-2", total=1)
    assert checker.check(good, member_of, 0.0) is good
    with pytest.raises(WireError, match="as a file of its spool"):
        checker.check(dataclasses.replace(good, name=name), member_of, 0.0)


def test_another_host_has_no_files_here(agent):
    """Whatever it names, nothing on this machine is opened, or removed."""
    file = wire.PayloadFile(round=1, rank=2, name="app-1-payload-2", total=1)
    with pytest.raises(WireError, match="on another host"):
        agent.check(file, member_of, 0.0)


def test_a_payload_file_is_taken_whole_or_not_at_all(tmp_path):
    """Shorter than was said, a link, or not there: the value is missing, and nothing else."""
    ended = Outcome(0, Ended.RETURNED, 0.0)
    inboxes = Inboxes()
    file = wire.PayloadFile(name="payload", total=10)
    path = tmp_path / "payload"
    target = tmp_path / "target"
    for prepare in (
        lambda: None,
        lambda: path.write_bytes(b"short"),
        lambda: path.symlink_to(target),
        lambda: os.mkfifo(path),
    ):
        target.write_bytes(b"0123456789")
        prepare()
        inboxes.adopt(file, 0, str(tmp_path))
        assert inboxes.complete(ended).exception.result
        assert target.read_bytes() == b"0123456789"
        path.unlink(missing_ok=True)
        inboxes.forget(None)
    path.write_bytes(pickle.dumps(1) + b"written later by a process of the worker's")
    inboxes.adopt(file, 0, str(tmp_path))
    assert not path.exists()
    assert inboxes.complete(ended) is ended
    assert inboxes[0].load() == 1
    inboxes.forget(None)


def test_moments_lie_between_what_is_known():
    """Whatever a host's clock says."""
    for low, high in itertools.product((-math.inf, -5.0, 5.0, 50.0, math.inf), repeat=2):
        found = Interval(low, max(low, high)).within(0.0, 10.0)
        assert 0.0 <= found.earliest <= found.latest <= 10.0


# ── texts ─────────────────────────────────────────────────────────────────────


@given(st.text(st.characters() | st.sampled_from("\x1b[;m2JK\r\x9b\x07")), st.integers(10, 300))
def test_plain_text_moves_no_cursor(text, limit):
    """Of what a terminal acts on, colours are left, and they end."""
    shown = sanitize(text, limit)
    shown.encode()
    bare = __import__("re").sub(r"\x1b\[[0-9;:]*m", "", shown)
    assert all(c in "\n\t" or c.isprintable() or ord(c) > 0x9F for c in bare), bare
    assert shown.count("\x1b[") == 0 or shown.endswith("m")
    assert "\x1b" not in sanitize_line(text)
    assert "\n" not in sanitize_line(text)


def test_what_is_plain_stays_as_it_is():
    """Umlauts, tabs, lines and colours among it."""
    text = 'Träceback:\n\tFile "x"\n\x1b[31mred\x1b[0m'
    assert sanitize(text) == text
    assert sanitize("\x1b[31mred") == "\x1b[31mred\x1b[0m"
    assert sanitize("a\r\nb\x1b[2K") == "a\nb\\x1b[2K"
    assert len(sanitize("x" * 10**6, 100)) < 200


# ── records ───────────────────────────────────────────────────────────────────

SOURCE = Source(3, "box2[1]", "box2", 3, 1)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
names = st.sampled_from(
    [*vars(logging.makeLogRecord({})), "getMessage", "__class__", "__dict__", "printed", "rank"]
)


@given(st.dictionaries(names | st.text(max_size=8), values))
def test_any_record_can_be_handled(fields):
    """Whatever its fields are: a formatter that uses all of them takes it."""
    try:
        record, _ = unpack(json.dumps(fields).encode(), SOURCE)
    except ValueError:
        return
    logging.Formatter("%(asctime)s %(name)s %(levelname)s %(lineno)s %(message)s").format(record)
    assert (record.rank, record.hostname, record.worker) == (3, "box2", "box2[1]")
    assert record.levelno >= -1


def test_records_arrive_as_they_were_sent():
    """The usual ones."""
    record, printed = unpack(pack_message("all is well", logging.ERROR), SOURCE)
    assert (record.getMessage(), record.levelname) == ("all is well", "ERROR")
    assert printed.endswith(b"ERROR all is well\n")


@pytest.mark.parametrize("line", [b"[" * 200_000, b'{"a":' * 100_000, b"1", b'{"printed": 1}'])
def test_what_is_no_record_is_told(line):
    """By one error."""
    with pytest.raises(ValueError):
        unpack(line, SOURCE)


# ── hosts that are asked, and workers' files ──────────────────────────────────

FACTS = {
    "name": "box2",
    "address": "10.0.0.2",
    "python": "3.11.7",
    "executable": "/usr/bin/python3",
    "torch": None,
    "cuda": None,
    "gpus": ["H200"],
    "processors": 8,
    "memory": 1,
    "memory_free": 1,
    "disk_free": 1,
    "memlock": -1,
    "port": 5,
}


def test_facts_are_read():
    """What `examination` tells, and nothing else."""
    known, peer = read_facts({**FACTS, "hostname": "box1", "problem": "forged"}, "box2")
    assert peer == ("box2", "10.0.0.2", 5)
    assert known["gpus"] == ("H200",)
    assert "hostname" not in known and "problem" not in known


@given(st.dictionaries(st.sampled_from(list(FACTS)), values, min_size=1))
def test_facts_are_of_their_types_or_refused(changes):
    """Nothing else reaches a report."""
    try:
        known, (_, address, port) = read_facts({**FACTS, **changes}, "box2")
    except ValueError:
        return
    assert isinstance(address, str) and 0 < port < 65536
    json.dumps(known)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"message": ' + "[" * 5000, "3", "{}", '{"message": []}']
)
def test_an_error_file_that_is_none_is_none(tmp_path, text):
    """Deep, wrong or empty."""
    (tmp_path / "error.json").write_text(text)
    found = error_file.read(str(tmp_path / "error.json"))
    assert found is None or found.message == "[]"


def test_files_that_are_none_do_not_block(tmp_path):
    """A pipe, a directory, a link to something endless."""
    import os

    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "directory", "link"):
        path = str(tmp_path / name)
        assert output_files.tail(path) == ""
        assert error_file.read(path) is None
        assert output_files.OutputFile(path, 0, "stdout").read(final=True) == b""
        with pytest.raises(OSError):
            open_regular(path)


def test_stacks_of_launches_below_its_workers_are_an_agent_s_to_tell(agent):
    """Their ranks are not the app's; what is shown of them is plain, and they are not without end."""
    dump = wire.RankDump(0, 5, text="\x1b[2J", problem="\x07")
    said = wire.WorkerStacks(round=1, request=1, ranks=(dump, dump), below=True)
    checked = agent.check(said, member_of, 0.0)
    assert "\x1b" not in checked.ranks[0].text
    assert "\x07" not in checked.ranks[0].problem
    with pytest.raises(WireError, match="5000 workers"):
        agent.check(
            wire.WorkerStacks(round=1, request=1, ranks=(dump,) * 5000, below=True), member_of, 0
        )
    with pytest.raises(WireError, match="not one of its own"):
        agent.check(wire.WorkerStacks(round=1, request=1, ranks=(dump,)), member_of, 0.0)


def test_steps_are_those_of_its_own_workers(agent):
    """Each once; of a round that is over nobody heeds them."""
    own, other = RankSteps(2, 3, 0.5), RankSteps(7, 3, 0.5)
    said = wire.WorkerSteps(round=1, ranks=(own,))
    assert agent.check(said, member_of, 0.0) == said
    for ranks, problem in (((own, other), "rank 7, which is not"), ((own, own), "twice")):
        with pytest.raises(WireError, match=problem):
            agent.check(wire.WorkerSteps(round=1, ranks=ranks), member_of, 0.0)
    agent.check(wire.WorkerSteps(round=9, ranks=(other,)), member_of, 0.0)
