"""Small pure parts: following files, names, results, reports, the public face."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx._core import ranks
from phalanx._agent import output_files
from phalanx.errors import PhalanxError
from phalanx._launcher.result import LaunchResult
from phalanx._logs import spec
from phalanx._core.rounds import Ended, Fault, Outcome, signal_name

SOURCE = Path(phalanx.__file__).parent


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\n", b"\r", b"line\n"]), max_size=30))
def test_a_stream_is_read_to_the_byte_in_whole_lines(tmp_path_factory, writes):
    """Whatever is appended between two looks."""
    path = tmp_path_factory.mktemp("s") / "stdout"
    stream = output_files.OutputFile(str(path), 0, "stdout")
    got = []
    with open(path, "ab", buffering=0) as file:
        for data in writes:
            file.write(data)
            got.append(stream.read(final=False))
    assert all(not part or part[-1:] in (b"\n", b"\r") for part in got)
    while part := stream.read(final=True):
        got.append(part)
    stream.close()
    assert b"".join(got) == b"".join(writes)


def test_a_stream_past_its_cap_is_counted_and_freed(tmp_path):
    """The marker says how much was left out; the disk does not keep it."""
    path = tmp_path / "stdout"
    stream = output_files.OutputFile(str(path), 0, "stdout", cap=8192)
    path.write_bytes(b"x" * 8191 + b"\n" + b"y" * 1_000_000)
    assert stream.read(final=False) == b"x" * 8191 + b"\n"
    assert stream.read(final=False) == b""
    assert b"1000000 bytes left out" in stream.read(final=True)
    assert stream.read(final=True) == b""
    assert path.stat().st_blocks * 512 < 100_000
    stream.close()


def test_a_stream_of_a_file_that_never_came(tmp_path):
    """A worker that died before it opened its files."""
    stream = output_files.OutputFile(str(tmp_path / "none"), 0, "stdout")
    assert stream.read(final=True) == b""
    assert output_files.tail(str(tmp_path / "none")) == ""


def test_log_files_are_named_by_host_and_local_rank():
    """A host that is listed twice is told apart."""
    table = ranks.members(["a", "b", "a"], [2, 1, 1])
    assert spec.file_names(table, "T") == {
        -1: "T-a.log",
        0: "T-a[0].log",
        1: "T-a[1].log",
        -2: "T-b.log",
        2: "T-b[0].log",
        -3: "T-a#2.log",
        3: "T-a#2[0].log",
    }


def test_lookups_that_fail_say_what_there_is():
    """By rank, by host, by local rank."""
    result = LaunchResult((1, 2), ranks.members(["a", "b"], [1, 1]))
    assert result.index("b", 0) == 2
    with pytest.raises(IndexError, match="0 to 1"):
        result.rank(2)
    with pytest.raises(IndexError, match="0 to 1"):
        result.rank(-1)
    with pytest.raises(KeyError, match="there were: a, b"):
        result.index("c", 0)
    with pytest.raises(IndexError, match="0 to 0"):
        result.index("a", 1)


def test_outcomes_describe_themselves():
    """In a few words each."""
    say = lambda kind, **f: Outcome(0, kind, 0.0, **f).describe()
    assert say(Ended.KILLED, signal=11) == "was killed by SIGSEGV"
    assert say(Ended.EXITED, code=3) == "exited with code 3"
    assert say(Ended.LOST, detail="silence") == "was lost: silence"
    assert say(Ended.RAISED, fault=Fault("E", "one\ntwo", "")) == "raised E: one"
    assert say(Ended.RAISED, fault=Fault("E", "", "")) == "raised E"
    assert signal_name(40).startswith("SIGRTMIN+")
