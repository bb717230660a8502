"""What a launch returns: values by rank, host and local rank."""

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


def test_lookups_that_fail_say_what_there_is():
    """By rank, by host, by local rank."""
    result = LaunchResult((1, 2), ranks.members(["a", "b"], [1, 1]))
    assert repr(result) == "LaunchResult(values=(1, 2))"
    assert result.index("b", 0) == 2
    with pytest.raises(IndexError, match="0 to 1"):
        result.rank(2)
    with pytest.raises(IndexError, match="0 to 1"):
        result.rank(-1)
    with pytest.raises(KeyError, match="choose one of a, b"):
        result.index("c", 0)
    with pytest.raises(IndexError, match="0 to 0"):
        result.index("a", 1)
