"""Fixtures for all tests; above all, nothing may be left behind."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import hypothesis
import pytest

from phalanx._system.processes import descendants


_PATIENCE = 3
"""A machine that is busy with other tests takes so many times as long."""


def wait_until(condition, timeout=60.0, message="the condition never held"):
    """Wait for a condition, not for a number of seconds: the machine may be busy.

    A `message` that is a function is asked when it is needed.
    """
    begun = time.monotonic()
    while not (value := condition()):
        waited = time.monotonic() - begun
        if waited > _PATIENCE * timeout:
            raise AssertionError(message() if callable(message) else message)
        time.sleep(min(max(0.01, waited / 20), 0.25))  # looking, too, takes processor time
    return value


def is_alive(pid):
    """The process runs; a zombie that nobody has buried yet does not count."""
    try:
        with open(f"/proc/{pid}/status") as file:
            return "State:\tZ" not in file.read()
    except OSError:
        return False


def is_ours(pid):
    """The process runs, and on this host: those in other networks are hosts of tests/ssh."""
    try:
        same = os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False
    return same and is_alive(pid)


# How long one example takes depends on what else the machine does.
hypothesis.settings.register_profile(
    "phalanx", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("phalanx")

os.environ["PHALANX_TESTS"] = MARK = f"tests-of-{os.getpid()}"

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell has it for what it starts in the background: Ctrl-C is to be tried all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # As nohup has it: these processes stay, and what they start is to be hung up on all the same.
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory):
    """What the tests launch is recorded apart from what the user has launched."""
    place = os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))
    return Path(place) / "phalanx" / "apps"


def phalanx_processes(but=()):
    """Processes of ours anywhere on the machine, by their titles, that these tests have started.

    Without those that are listed: reading about every process, after every test, takes its time.
    """
    found = set()
    for entry in set(filter(str.isdigit, os.listdir("/proc"))) - set(but):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes()
            ours = (
                b"phalanx._agent" in line
                or b"phalanx._worker" in line
                or line.startswith(b"phalanx: ")
            )
            if ours and MARK.encode() in Path(f"/proc/{entry}/environ").read_bytes():
                found.add(int(entry))
        except OSError:
            continue
    return {pid for pid in found if is_alive(pid)} - {os.getpid()}


def _descriptors():
    return {
        fd: os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    }


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a process, a thread, a descriptor or a spool directory."""
    others = os.listdir("/proc")
    children = set(descendants(os.getpid()))
    threads = set(threading.enumerate())
    descriptors = len(os.listdir("/proc/self/fd"))
    spools = set(Path(os.environ.get("TMPDIR", "/tmp")).glob("phalanx-*"))
    yield
    left = lambda: [p for p in descendants(os.getpid()) if p not in children and is_ours(p)]
    wait_until(lambda: not left(), message="child processes are left")
    wait_until(lambda: not phalanx_processes(but=others), message="processes are left")
    wait_until(lambda: not set(threading.enumerate()) - threads, message="threads are left")
    wait_until(
        lambda: len(os.listdir("/proc/self/fd")) <= descriptors,
        timeout=2,
        message=lambda: f"descriptors are left: {_descriptors()}",
    )
    new = lambda: set(Path(os.environ.get("TMPDIR", "/tmp")).glob("phalanx-*")) - spools
    wait_until(lambda: not new(), message="spool directories are left")


@pytest.fixture(autouse=True)
def own_directory(tmp_path, monkeypatch):
    """Every test runs in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def script(tmp_path):
    """Write a script and run it, or start it, as a user would."""

    def write(code, name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(code))
        return path

    def run(code, *args, timeout=200, **kwargs):
        return subprocess.run(
            [sys.executable, str(write(code)), *args],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
            **kwargs,
        )

    def start(code, *args, **kwargs):
        return subprocess.Popen(
            [sys.executable, str(write(code)), *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            **kwargs,
        )

    run.start = start
    run.write = write
    return run


def service_of(nodeid):
    """The costly service that a test uses, of which there is one for all; None: no such."""
    for service in ("kubernetes", "ray"):
        file, _, case = nodeid.removeprefix("tests/cluster/test_").partition("::")
        if file != nodeid and (file.startswith(service) or case.endswith(f"[{service}]")):
            return service
    return None


_KINDS = ("tests/cluster", "tests/ssh", "tests/docs", "tests/process")
"""Those that take longest come first: no process is to begin with one when others have ended."""


def pytest_configure(config):
    """Have xdist keep the order of `pytest_collection_modifyitems`, and a place for what is left.

    Whoever runs tests looks for what is left behind in a place of its own: others run tests too.
    """
    config.option.loadscopereorder = False
    if not config.getoption("numprocesses", None):
        # What tests have written is found where pytest has it, afterwards too.
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ["TMPDIR"] = tempfile.tempdir = place = tempfile.mkdtemp(prefix="tests-")
        config.add_cleanup(lambda: shutil.rmtree(place, ignore_errors=True))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Those of a costly service first, then by their kind."""

    def rank(item):
        if service_of(item.nodeid):
            return -1
        return next((i for i, k in enumerate(_KINDS) if item.nodeid.startswith(k)), len(_KINDS))

    items.sort(key=rank)


def pytest_xdist_make_scheduler(config, log):
    """Tests go by files; those of a service go together, so that it is there no longer than they."""
    from xdist.scheduler import LoadFileScheduling

    class ByService(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return service_of(nodeid) or super()._split_scope(nodeid)

    return ByService(config, log)
