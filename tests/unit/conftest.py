"""What is tested here is pure: a test that starts a process fails, and belongs to tests/process."""

import sys

import pytest

_STARTS = ("os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen")
_running = []


def _is_importing():
    """A package that looks for its libraries when it is first imported is not the test's doing."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _refuse(event, arguments):
    if _running and event in _STARTS and not _is_importing():
        raise AssertionError(f"a unit test starts a process ({event}): move it to tests/process")


sys.addaudithook(_refuse)


@pytest.fixture(autouse=True)
def _no_process():
    _running.append(True)
    yield
    _running.clear()
