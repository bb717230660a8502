"""Control groups of an ordinary user, where one was delegated to it: made, entered, ended."""

import os
import signal
import subprocess
import traceback
from pathlib import Path

import pytest

from phalanx._system import cgroup
from tests.conftest import is_alive, wait_until

NOBODY = 65534


@pytest.fixture
def delegated():
    """A group that belongs to another user, as a service manager makes it for a login."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to delegate a control group")
    path = cgroup.make(f"phalanx-delegated-{os.getpid()}", environ={})
    if path is None:
        pytest.skip("no control group of version 2 can be made here")
    group = Path(path)
    for place in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
        os.chown(place, NOBODY, NOBODY)
    yield group
    assert cgroup.end(path)


def as_nobody(group, work):
    """Run something as that user, in its group; gives what it printed of itself."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            cgroup.enter(str(group), 0)
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(write, work().encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write)
    with open(read) as file:
        said = file.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return said


def test_a_user_makes_groups_in_one_that_was_delegated(delegated):
    """What is put in one is killed with it, though it has a session and an environment of its own."""

    def work():
        group = cgroup.make("phalanx-inner", environ={})
        assert group == str(delegated / "phalanx-inner")
        hidden = subprocess.Popen(["sleep", "300"], env={}, start_new_session=True)
        cgroup.enter(group, hidden.pid)
        assert cgroup.end(group)
        assert hidden.wait(10) == -signal.SIGKILL
        return group

    group = as_nobody(delegated, work)
    assert not os.path.exists(group)


def test_a_later_process_of_the_user_ends_what_is_left(delegated):
    """It finds the group by its name."""

    def leave():
        group = cgroup.make("phalanx-inner", environ={})
        hidden = subprocess.Popen(
            ["sleep", "300"], env={}, start_new_session=True, stdout=subprocess.DEVNULL
        )
        cgroup.enter(group, hidden.pid)
        return f"{group} {hidden.pid}"

    group, pid = as_nobody(delegated, leave).split()
    assert is_alive(pid)
    as_nobody(delegated, lambda: str(cgroup.end(group)))
    wait_until(lambda: not is_alive(pid))
    assert not os.path.exists(group)


def test_no_group_is_made_where_none_was_delegated(delegated):
    """And nobody is told of it: there is none, that is all."""
    os.chown(delegated, 0, 0)
    assert as_nobody(delegated, lambda: str(cgroup.make("phalanx-inner", environ={}))) == "None"
