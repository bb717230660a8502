"""What was killed with everybody who would have cleaned up is swept by the user's next command."""

import json
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._registry import recorded_app
from phalanx._system import cgroup, processes
from phalanx._worker import leftovers
from phalanx._system.identity import identity
from tests.conftest import is_alive, phalanx_processes, wait_until
from tests.process.test_cleanup import SLEEPING, agents, find, wait_up


def spools():
    return set(Path(tempfile.gettempdir()).glob("phalanx-*"))


def a_command():
    """Any command of the same user."""
    done = subprocess.run([sys.executable, "-m", "phalanx", "version"], capture_output=True)
    assert done.returncode == 0


def a_launch():
    phalanx.launch(os.getpid, workers_per_host=1)


ORPHANS = SLEEPING.replace(
    'name = "up-"',
    "pid = os.fork()\n        if pid == 0:\n            os.setsid()\n            time.sleep(300)\n"
    '        with open("forked-" + os.environ["RANK"], "w") as file:\n'
    "            file.write(str(pid))\n"
    '        name = "up-"',
)


@pytest.mark.parametrize("next_one", [a_command, a_launch])
def test_all_of_ours_killed_at_once(script, tmp_path, next_one):
    """Workers' children are orphans then, those in sessions of their own too, and no agent is left."""
    before = spools()
    process = script.start(ORPHANS)
    pids = wait_up(tmp_path)
    pids += [int(path.read_text()) for path in tmp_path.glob("forked-*")]
    ours = [process.pid, *agents(), *find("zygote")]
    for pid in ours:  # so that none sees the other's end
        os.kill(pid, signal.SIGSTOP)
    for pid in reversed(ours):  # the end of the one above would wake a stopped one
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert len(spools() - before) == 1
    assert all(map(is_alive, pids))  # or there would be nothing to sweep
    next_one()
    wait_until(lambda: not any(map(is_alive, pids)), message="orphans are left")
    wait_until(lambda: not phalanx_processes())
    wait_until(lambda: spools() <= before)


def test_an_agent_killed_before_its_first_word(script, tmp_path):
    """With its launcher: nobody else knows of its spool."""
    before = spools()
    site = tmp_path / "lib"
    site.mkdir()
    (site / "killing.py").write_text(
        "import os, signal\nfor pid in (os.getppid(), os.getpid()):\n    os.kill(pid, 9)\n"
    )
    process = script.start("""
        import os, sys, phalanx
        sys.path.append("lib")
        app = phalanx.Launcher(workers_per_host=1, preload=["killing"]).start(print)
        os.kill(os.getpid(), 9)
    """)
    process.communicate(timeout=60)
    wait_until(lambda: not phalanx_processes())
    a_command()
    assert spools() <= before


def test_a_launcher_that_lives_clears_what_it_was_not_told_of(script, tmp_path):
    """Agent and zygote are killed while packages load, perhaps before the first word."""
    before = spools()
    site = tmp_path / "lib"
    site.mkdir()
    (site / "killing.py").write_text(
        "import os, signal\nfor pid in (os.getppid(), os.getpid()):\n    os.kill(pid, 9)\n"
    )
    done = script("""
        import sys, phalanx
        sys.path.append("lib")
        phalanx.launch(print, workers_per_host=1, preload=["killing"])
    """)
    assert "killed by SIGKILL" in done.stderr
    assert spools() == before


HANGING = """
import os, signal, sys
def hang(event, args):
    if event == "shutil.rmtree" and os.path.basename(args[0]).startswith("phalanx-"):
        open("FILE", "w").close()
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
if "phalanx._agent.process" in " ".join(sys.orig_argv):
    sys.addaudithook(hang)
"""
"""Agents that get no further at their end than to where they remove their directories."""


def end_of_an_app():
    phalanx.launch(os.getpid, workers_per_host=1, host_timeout=1)


def end_of_a_pool():
    with phalanx.Launcher(workers_per_host=1) as launcher:
        launcher.run(os.getpid)


def end_of_a_lane():
    assert len(list(phalanx.Launcher(workers_per_host=1).map(dict, [{"a": 1}]))) == 1


@pytest.mark.parametrize("end", [end_of_an_app, end_of_a_pool, end_of_a_lane])
def test_the_directory_of_an_agent_that_hangs_in_an_orderly_end(tmp_path, monkeypatch, end):
    """It is killed, and what it could not remove goes as well, before its launcher goes on."""
    (tmp_path / "sitecustomize.py").write_text(HANGING.replace("FILE", str(tmp_path / "hangs")))
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    before = spools()
    end()
    assert (tmp_path / "hangs").exists()  # or nothing was tried
    assert spools() <= before


def make_spool(**differences):
    """As an agent that is gone has left it, with differences."""
    ended = subprocess.Popen(["sleep", "60"])
    facts = identity(ended.pid)
    ended.kill()
    ended.wait()
    spool = Path(leftovers.make_spool("app-1"))
    (spool / "owner.json").write_text(json.dumps({"app": "app-1", **facts, **differences}))
    return spool


@pytest.mark.parametrize(
    "differences",
    [
        {"host": "another"},
        {"space": "pid:[1]"},
        {"pid": os.getpid(), "start": identity()["start"]},
        {"pid": "1"},
        {"start": None, "host": None},
    ],
)
def test_what_may_be_somebodys_is_left_alone(differences):
    """Of another host, another container, a process that runs; or what makes no sense."""
    spool = make_spool(**differences)
    try:
        a_command()
        assert spool.exists()
    finally:
        (spool / "owner.json").unlink()
        spool.rmdir()


def test_what_is_not_a_spool_is_left_alone():
    """Files, links, directories that others may enter, directories with something in them."""
    place = Path(tempfile.gettempdir())
    made = make_spool()
    made.chmod(0o755)
    link, file = place / "phalanx-link", place / "phalanx-file"
    link.symlink_to(made)
    file.write_text("")
    full = Path(tempfile.mkdtemp(prefix="phalanx-"))
    (full / "mine").write_text("")
    os.utime(full, (0, 0))
    try:
        a_command()
        assert made.exists() and link.exists() and file.exists() and (full / "mine").exists()
    finally:
        link.unlink()
        file.unlink()
        made.chmod(0o700)
        (full / "mine").unlink()
        os.utime(full, (0, 0))
    a_command()
    assert not made.exists()
    assert not full.exists()  # nobody has written down an owner, long ago


@pytest.mark.parametrize(
    ("file", "written"),
    [
        (None, None),
        ("owner.json", ""),
        ("owner.json", '{"app": "a'),
        ("owner.json", "[" * 200_000),
        ("0/stdout", "a line"),
    ],
    ids=["nothing written", "nothing in it", "half of it", "brackets", "swept, but for this"],
)
def test_a_spool_that_does_not_say_whose_it_is(file, written):
    """Its agent was killed while it made it, or who swept it was: its name says whose it was. That
    of one that runs, or is elsewhere, stays.
    """
    place, own = Path(tempfile.gettempdir()), identity()
    ended = subprocess.Popen(["sleep", "60"])
    facts = identity(ended.pid)
    ended.kill()
    ended.wait()
    here = leftovers._process_table(own)
    names = [
        f"phalanx-{here}-{facts['pid']}-{facts['start']}-abc",
        f"phalanx-{here}-{own['pid']}-{own['start']}-abc",
        f"phalanx-00000000-{facts['pid']}-{facts['start']}-abc",
    ]
    for name in names:
        (place / name).mkdir(mode=0o700)
        if file is not None:
            (place / name / file).parent.mkdir(exist_ok=True)
            (place / name / file).write_text(written)
    try:
        a_command()
        assert [(place / name).exists() for name in names] == [False, True, True]
    finally:
        for name in names[1:]:
            shutil.rmtree(place / name)


def test_after_a_restart_of_the_machine_spools_are_removed():
    """Their processes are gone, whatever has their numbers now."""
    spool = make_spool(boot="another", space="pid:[1]", pid=os.getpid())
    a_command()
    assert not spool.exists()
    assert is_alive(os.getpid())


def test_apps_that_run_are_not_touched(script, tmp_path):
    """While others sweep."""
    process = script.start("""
        import os, time, phalanx

        def f():
            open("up-" + os.environ["RANK"], "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
            return 1

        print(sum(phalanx.launch(f, workers_per_host=2)))
    """)
    wait_up(tmp_path)
    for _ in range(3):
        a_command()
        a_launch()
    (tmp_path / "go").touch()
    out, errors = process.communicate(timeout=60)
    assert out == "2\n", errors


def ours_by_name(process):
    return {"launcher": [process.pid], "agent": agents(), "zygote": find("zygote")}


@pytest.mark.parametrize(
    ("stopped", "killed"),
    [
        (["agent"], ["launcher"]),
        (["agent", "zygote"], ["launcher"]),
        (["agent"], ["launcher", "zygote"]),
        (["zygote"], ["agent"]),
        (["zygote"], ["launcher", "agent"]),
        (["launcher", "agent", "zygote", "workers"], ["launcher"]),
    ],
    ids=lambda names: "+".join(names),
)
def test_what_was_stopped_is_woken_by_the_end_of_who_started_it(script, tmp_path, stopped, killed):
    """Nobody else would ever continue it, and it holds all that is below it."""
    before = spools()
    process = script.start(SLEEPING)
    pids = wait_up(tmp_path)
    ours = {**ours_by_name(process), "workers": pids}
    for name in {*stopped, *killed}:  # all of them: none may see the other's end first
        for pid in ours[name]:
            os.kill(pid, signal.SIGSTOP)
    for name in killed:
        for pid in ours[name]:
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    everybody = [pid for pids in ours.values() for pid in pids]
    wait_until(lambda: not any(map(is_alive, everybody)), message="something is left")
    wait_until(lambda: spools() <= before)


def below(pid, mask, number):
    """A child of the process, once it ignores, catches or holds back a signal."""
    for child in processes.children(pid):
        if processes.in_mask(f"/proc/{child}/status", mask, number):
            return child
    return None


def test_an_agent_stopped_before_its_first_word_does_not_outlive_its_launcher(script):
    """Nor does it wait for ever for one."""
    process = script.start("""
        import subprocess, time
        from phalanx._system import machine

        pipe = subprocess.PIPE
        agent = subprocess.Popen(machine.agent_command("0", "1"), stdin=pipe, stdout=pipe)
        time.sleep(300)
    """)
    agent = wait_until(lambda: below(process.pid, "SigIgn", signal.SIGUSR1))
    os.kill(agent, signal.SIGSTOP)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not is_alive(agent))


def test_an_app_whose_supervisor_is_stopped_goes_on_when_its_command_is_killed(tmp_path):
    """It is submitted: neither lost, nor left where nothing would ever continue it."""
    before = {app.id for app in recorded_app.apps()}
    wait = f"until test -e {tmp_path}/go; do sleep 0.1; done; exit 3"
    command = [sys.executable, "-m", "phalanx", "run", "--wait", "utils.sh", wait]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    keeper = wait_until(lambda: below(process.pid, "SigCgt", signal.SIGTERM))
    os.kill(keeper, signal.SIGSTOP)
    process.kill()
    process.wait(timeout=60)
    (tmp_path / "go").touch()
    wait_until(lambda: not is_alive(keeper))
    (app,) = (app for app in recorded_app.apps() if app.id not in before)
    assert app.status()["state"] == "FAILED"


def test_an_app_whose_supervisor_is_stopped_can_be_cancelled(tmp_path):
    """It hears nothing before it is continued."""
    before = {app.id for app in recorded_app.apps()}
    command = [sys.executable, "-m", "phalanx", "run", "utils.sh", "touch up; sleep 300"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    wait_until((tmp_path / "up").exists)
    (app,) = (app for app in recorded_app.apps() if app.id not in before)
    os.kill(app.facts["owner"]["pid"], signal.SIGSTOP)
    assert app.cancel().value == "CANCELLED"


STOPPING = """
import os, signal, sys
if sys.argv[0] == "-c" and "MODULE" in " ".join(sys.orig_argv) and not os.path.exists("FILE"):
    open("FILE", "w").close()
    os.kill(os.getpid(), signal.SIGSTOP)
"""


@pytest.mark.parametrize(
    ("module", "command", "next_one"),
    [
        # Within a worker it is a new process; elsewhere a fork, whose first words take no time.
        ("phalanx._schedulers.supervised.supervisor", ["run", "--wait", "utils.echo"], None),
        ("phalanx._agent.process", ["launch", "fn.py:f"], None),
        ("phalanx._agent.process", ["launch", "fn.py:f"], ["list"]),
    ],
    ids=["supervisor", "agent", "agent-list"],
)
def test_what_was_stopped_before_its_first_words_is_woken_by_the_next(
    tmp_path, module, command, next_one
):
    """It cannot ask to be woken with its parent yet; by any command, wherever directories are."""
    (tmp_path / "fn.py").write_text("def f(): pass\n")
    text = STOPPING.replace("MODULE", module).replace("FILE", str(tmp_path / "stopped"))
    (tmp_path / "sitecustomize.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", *command],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "ROLE_NAME": "trainer"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stopped = lambda: [p for p in processes.children(process.pid) if processes.is_stopped(p)]
    (pid,) = wait_until(stopped)
    process.kill()
    process.wait(timeout=60)
    assert processes.is_stopped(pid)  # or nobody would have to wake it
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *(next_one or command)],
        env={**os.environ, "TMPDIR": str(tmp_path / "empty")},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not is_alive(pid))


def can_make_groups():
    group = cgroup.make("phalanx-tests-of-groups")
    return group is not None and cgroup.end(group)


def test_what_hides_its_environment_is_found_by_its_control_group(script, tmp_path):
    """Where one can be made: all of ours are killed at once, and the orphan is known by nothing else."""
    if not can_make_groups():
        pytest.skip("no control group of version 2 can be made here")
    process = script.start("""
        import os, subprocess, time, phalanx

        def f():
            hidden = subprocess.Popen(["env", "-i", "sleep", "300"], start_new_session=True)
            with open("up-0.tmp", "w") as file:
                file.write(str(hidden.pid))
            os.rename("up-0.tmp", "up-0")
            time.sleep(300)

        phalanx.launch(f, workers_per_host=1)
    """)
    before = set(groups())
    pids = wait_up(tmp_path, 1)
    ours = [process.pid, *agents(), *find("zygote")]
    for pid in ours:
        os.kill(pid, signal.SIGSTOP)
    for pid in ours:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert all(map(is_alive, pids))
    a_command()
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: not left_since(before))


def groups():
    """Directories of control groups of these tests."""
    own = cgroup._own()
    return [] if own is None else list(Path(own).glob("phalanx-*"))


def left_since(before):
    """Groups that came since then and in which nobody is; in others' groups somebody is."""
    left = []
    for group in set(groups()) - before:
        with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
            if not cgroup._is_populated(str(group)):
                left.append(group)
    return left


def test_control_groups_do_not_stay(script, tmp_path):
    """However the app ends: in order, by a killed agent, by a killed launcher; within another."""
    before = set(groups())
    a_launch()

    def nested():
        return list(phalanx.launch(os.getpid, workers_per_host=1))

    phalanx.launch(nested, workers_per_host=1)
    for who in (agents, lambda: find("zygote"), None):
        process = script.start(SLEEPING)
        wait_up(tmp_path)
        for pid in [process.pid] if who is None else who():
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
        for path in tmp_path.glob("up-*"):
            path.unlink()
    wait_until(lambda: not phalanx_processes())
    wait_until(lambda: not left_since(before))
