"""The data of a round."""

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


def test_outcomes_describe_themselves():
    """In a few words each."""
    say = lambda kind, **f: Outcome(0, kind, 0.0, **f).describe()
    assert say(Ended.KILLED, signal=11) == "was killed by SIGSEGV"
    killed = say(Ended.KILLED, signal=9, detail="out of memory")
    assert killed == "was killed by SIGKILL: out of memory"
    assert say(Ended.KILLED, signal=15) == "was killed by SIGTERM"
    assert say(Ended.KILLED, signal=15, stopped=True) == "was stopped"
    assert say(Ended.KILLED, signal=9, stopped=True) == "was stopped with SIGKILL"
    assert say(Ended.EXITED, code=3) == "exited with code 3"
    assert say(Ended.LOST, detail="silence") == "was lost: silence"
    assert say(Ended.RAISED, exception=ExceptionInfo("E", "one\ntwo", "")) == "raised E: one"
    assert say(Ended.RAISED, exception=ExceptionInfo("E", "", "")) == "raised E"
    assert signal_name(40).startswith("SIGRTMIN+")
