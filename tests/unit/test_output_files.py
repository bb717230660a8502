"""Following the files that workers print into."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx._core import ranks
from phalanx._agent.rounds import output_files
from phalanx.errors import PhalanxError
from phalanx._launcher.result import LaunchResult
from phalanx._logs import spec
from phalanx._core.rounds import Ended, ExceptionInfo, Outcome
from phalanx._core.signals import signal_name

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


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_stream_past_its_cap_is_counted_and_freed(tmp_path, is_taken):
    """The marker says how much was left out; the disk does not keep it, whether read or not."""
    path = tmp_path / "stdout"
    stream = output_files.OutputFile(str(path), 0, "stdout", cap=8192)
    path.write_bytes(b"x" * 8191 + b"\n" + b"y" * 1_000_000)
    if not is_taken:
        stream.limit()
        assert path.stat().st_blocks * 512 < 100_000
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
