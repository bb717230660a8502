"""What a host answers before frames begin: a program in the place of ssh."""

import sys
import textwrap
import threading

import pytest

from phalanx.errors import StartFailed
from phalanx._launcher.transport.bundle import make_bundle
from phalanx._launcher.host_check import HostCheck
from phalanx._launcher.transport.dial import Dial, RemoteSetup
from phalanx._launcher.planning.listed_hosts import ListedHost
from phalanx._launcher.transport.targets import Target

# What it is given last: /bin/sh -c STUB phalanx MARKER PROGRAM VERSION PYTHON.
HEAD = """
import json, os, sys, time
marker = sys.argv[-4]

def say(data):
    view = memoryview(data if isinstance(data, bytes) else data.encode())
    while view:
        view = view[os.write(1, view):]

def begin():
    say(marker + "\\n")
    incoming = open(0, "rb", closefd=False)
    incoming.read(int(incoming.readline()))
    return incoming

def ready(**changes):
    facts = {"state": "ready", "changed": [], "processors": 2, "gpus": 0, "pid": 2, "start": 3}
    facts.update(changes)
    incoming = begin()
    incoming.readline()
    say(json.dumps(facts) + "\\n")
    incoming.read()
"""

ARRIVALS = {
    "noise without end": ("while True: say(b'x' * 65536)", "prints endlessly|sends endlessly"),
    "errors without end": (
        "for _ in range(2000): os.write(2, b'e' * 65536)\nsys.exit(3)",
        ": e{100,}",
    ),
    "escapes": ("os.write(2, b'no \\x1b[2J\\x1b]0;owned\\x07 way'); sys.exit(3)", r"no \\x1b\[2J"),
    "a line without end": ("begin()\nwhile True: say(b'x' * 65536)", "it sent b'xxx"),
    "deep": ("begin(); say('[' * 100000 + '\\n'); time.sleep(60)", r"it sent b'\[\["),
    "deep enough": (
        "ready(message=json.loads('[' * 400 + ']' * 400), state='refused')",
        "it sent b'",
    ),
    "no object": ("begin(); say('17\\n'); time.sleep(60)", "it sent b'17'"),
    "a long number": ("begin(); say('9' * 9000 + '\\n'); time.sleep(60)", "it sent b'999"),
    "another state": ("ready(state='fine')", "it sent "),
    "a refusal that is none": ("ready(state='refused', message=5)", "it sent "),
    "a long refusal": (
        "ready(state='refused', message='no\\x1b[2J' + 'x' * 900000)",
        r"no\\x1b\[2J",
    ),
    "variables that are none": ("ready(changed=[[], {}])", "it sent "),
    "many GPUs": ("ready(gpus=10**9)", "it claims 2 CPUs and 1000000000 GPUs"),
    "fewer than no GPUs": ("ready(gpus=-1)", "it claims 2 CPUs and -1 GPUs"),
    "many processors": ("ready(processors=10**9)", "it claims 1000000000 CPUs"),
    "half a processor": ("ready(processors=0.5)", "it sent "),
    "a closed channel": ("begin(); os.close(1); time.sleep(60)", "closed its channel"),
    "deaf, and without end": (
        "begin_again = say(marker + '\\n')\nwhile True: say(b'x' * 65536)",
        "sends endlessly|it sent b'xxx",
    ),
}


def target(tmp_path, code):
    path = tmp_path / "login.py"
    path.write_text(textwrap.dedent(HEAD) + code)
    return Target("box2", ("python3",), (sys.executable, str(path)), through_shell=False)


@pytest.mark.parametrize("said", ARRIVALS)
def test_a_host_that_lies_when_it_is_dialled_is_one_that_cannot_be_used(tmp_path, said):
    """One error, bounded and plain; nothing waits for more."""
    code, why = ARRIVALS[said]
    remote_setup = RemoteSetup(make_bundle(), None, 20.0)
    dial = Dial(target(tmp_path, code), remote_setup, threading.Semaphore())
    with pytest.raises(StartFailed, match=why) as failed:
        dial.future.result(60)
    assert len(str(failed.value)) < 20_000
    assert "\x1b" not in str(failed.value)


VISITS = {
    "nothing": "begin(); say('{}\\n' * 99)",
    "numbers": 'begin(); say(\'{"clock": "now"}\\n\' * 99)',
    "deep": "begin(); say('[' * 100000 + '\\n'); time.sleep(60)",
    "other fields": "begin(); say(json.dumps(dict(hostname='box1', problem=None)) + '\\n')",
    "a clock that is none": """
from phalanx._remote import probe
begin()
say(json.dumps({**probe.facts(), "port": 5}) + "\\n" + '{"clock": [1]}\\n' * 9)
time.sleep(60)
""",
}


@pytest.mark.parametrize("said", VISITS)
def test_a_host_that_lies_when_it_is_checked_is_not_usable(tmp_path, said):
    """Its own report says so, under its own name."""
    place = ListedHost("box2", target(tmp_path, VISITS[said]))
    visit = HostCheck(place, threading.Semaphore(), 20.0)
    visit.arrive()
    visit.leave()
    assert visit.report.hostname == "box2"
    assert visit.report.problem
    assert visit.peer is None


def test_what_it_reaches_is_said_of_its_peers_alone(tmp_path):
    """Names that nobody has asked for are left out; one that is not mentioned was not reached."""
    code = """
from phalanx._remote import probe
begin()
say(json.dumps({**probe.facts(), "port": 5}) + "\\n" + '{"clock": 1.5}\\n' * 5)
say('{"reached": {"nobody": "x", "box3": "", "box4": "no \\\\u001b[2J"}}\\n')
time.sleep(60)
"""
    visit = HostCheck(ListedHost("box2", target(tmp_path, code)), threading.Semaphore(), 20.0)
    visit.arrive()
    visit.try_peers([("box3", "a", 1), ("box4", "b", 1), ("box5", "c", 1)])
    visit.leave()
    assert visit.report.unreached == {"box4": r"no \x1b[2J", "box5": "no answer"}
