"""Where output goes, by a log spec."""

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


def test_a_log_file_is_not_written_where_a_link_leads(tmp_path):
    """Who may write to the directory, too, could name any file of the user's."""
    victim = tmp_path / "profile"
    victim.write_text("mine")
    link = tmp_path / "rank.log"
    link.symlink_to(victim)
    file = spec.RankFile(link)
    assert file.take(None, "stdout", b"others'\n") is None
    (loss,) = file.losses()
    assert loss and victim.read_text() == "mine"
