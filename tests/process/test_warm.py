"""Agents that outlast an app: within a launcher, in a program, from one command to the next."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.warm import pool
from phalanx._system import identity, processes
from tests.conftest import is_alive, phalanx_processes, wait_until


def parents():
    """The zygote that this worker was forked from, and itself."""
    return os.getppid(), os.getpid()


def zygotes(result):
    return {zygote for zygote, _ in result}


def test_a_warm_launcher_forks_from_the_same_zygote():
    """Run after run; the workers are new each time."""
    with phalanx.Launcher(workers_per_host=2) as launcher:
        runs = [list(launcher.run(parents)) for _ in range(3)]
    assert len({zygote for run in runs for zygote, _ in run}) == 1
    assert len({worker for run in runs for _, worker in run}) == 6


def test_a_failed_run_leaves_the_launcher_usable():
    """Whatever the failure was."""

    def fail(how):
        if os.environ["RANK"] == "1":
            how()
        time.sleep(60)

    with phalanx.Launcher(workers_per_host=2) as launcher:
        before = zygotes(launcher.run(parents))
        for how, expected in [
            (lambda: 1 / 0, ZeroDivisionError),
            (lambda: os._exit(3), phalanx.WorkerFailed),
            (lambda: os.kill(os.getpid(), signal.SIGKILL), phalanx.WorkerFailed),
        ]:
            with pytest.raises(expected):
                launcher.run(fail, {"how": how})
            assert zygotes(launcher.run(parents)) == before
        app = launcher.start(time.sleep, args=(60,))
        app.cancel()
        assert app.wait().state.value == "CANCELLED"
        assert zygotes(launcher.run(parents)) == before


def test_a_lost_agent_is_replaced_at_the_next_run():
    """Killed while it was idle, or its zygote was."""
    with phalanx.Launcher(workers_per_host=1) as launcher:
        ((zygote, _),) = launcher.run(parents)
        os.kill(zygote, signal.SIGKILL)
        ((other, _),) = launcher.run(parents)
        assert other != zygote
        agent = int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent, signal.SIGKILL)
        ((third, _),) = launcher.run(parents)
        assert third not in (zygote, other)


def test_a_lost_agent_ends_one_run_and_not_the_next():
    """The zygote dies under a run: that run says so."""
    with phalanx.Launcher(workers_per_host=1) as launcher:
        with pytest.raises(phalanx.AgentLost, match="the zygote died"):
            launcher.run(lambda: os.kill(os.getppid(), signal.SIGKILL) or time.sleep(60))
        launcher.run(parents)


def test_two_runs_at_once_on_a_warm_launcher_are_two_apps():
    """Each has its agent, and both stay."""

    def meet(directory, name, other):
        Path(directory, name).touch()
        limit = time.monotonic() + 30
        while not Path(directory, other).exists():
            assert time.monotonic() < limit
            time.sleep(0.01)
        return os.getppid()

    with phalanx.Launcher(workers_per_host=1) as launcher:
        found = {}
        threads = [
            threading.Thread(
                target=lambda a=a, b=b: found.update(
                    {a: launcher.run(meet, {"directory": os.getcwd(), "name": a, "other": b})}
                )
            )
            for a, b in [("one", "two"), ("two", "one")]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        both = {found["one"].rank(0), found["two"].rank(0)}
        assert len(both) == 2
        assert launcher.run(parents).rank(0)[0] in both


def test_a_changed_environment_gets_another_zygote(monkeypatch):
    """What a process takes over when it starts cannot be changed later."""

    def look():
        return os.getppid(), os.environ.get("MINE"), os.getcwd(), os.umask(0o22)

    with phalanx.Launcher(workers_per_host=1) as launcher:
        first = launcher.run(look).rank(0)
        monkeypatch.setenv("MINE", "now")
        second = launcher.run(look).rank(0)
        assert second[0] != first[0]
        assert second[1] == "now"
        os.mkdir("elsewhere")
        os.chdir("elsewhere")
        third = launcher.run(look).rank(0)
        assert third[0] == second[0], "the working directory is taken on"
        assert third[2].endswith("elsewhere")
        before = os.umask(0o077)
        try:
            assert launcher.run(look).rank(0)[3] == 0o077
        finally:
            os.umask(before)
        launcher.extra_env_vars = {"MINE": "other"}
        assert launcher.run(look).rank(0)[1] == "other"
        monkeypatch.setenv("PWD", "/nowhere")
        assert launcher.run(lambda: os.environ["PWD"]).rank(0) == "/nowhere"


def test_a_package_that_changes_on_disk_is_loaded_anew(tmp_path, monkeypatch):
    """What is loaded is checked against what is there."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "tested_package.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(place))

    def value():
        import tested_package

        return tested_package.VALUE, os.getppid()

    with phalanx.Launcher(workers_per_host=1, preload=["tested_package"]) as launcher:
        one, zygote = launcher.run(value).rank(0)
        assert launcher.run(value).rank(0)[1] == zygote
        (place / "tested_package.py").write_text("VALUE = 22\n")
        two, other = launcher.run(value).rank(0)
    assert (one, two) == (1, 22)
    assert zygote != other


def test_more_packages_are_loaded_into_the_same_zygote():
    """A second function that needs more does not start over."""

    def look():
        import sys

        return os.getppid(), "colorsys" in sys.modules, "wave" in sys.modules

    with phalanx.Launcher(workers_per_host=1, preload=["colorsys"]) as launcher:
        zygote, first, second = launcher.run(look).rank(0)
        assert (first, second) == (True, False)
        launcher.preload = ["colorsys", "wave"]
        assert launcher.run(look).rank(0) == (zygote, True, True)


def test_room_is_not_made_with_an_agent_that_the_same_launch_takes():
    """A host that needs a new agent comes first, one that has its own later."""
    launcher = phalanx.Launcher(hostnames=["localhost"], workers_per_host=1)
    with launcher:
        first = launcher.run(os.getppid).rank(0)
        launcher.hostnames, launcher.workers_per_host = ["localhost"] * 2, [2, 1]
        assert launcher.run(os.getppid).rank(2) == first


def test_a_function_without_torch_gets_no_group_from_a_zygote_that_has_it():
    """What an earlier run loaded decides nothing for this one."""

    def with_torch():
        import torch.distributed as dist

        return dist.is_initialized()

    def without():
        import sys

        loaded = sys.modules.get("torch.distributed")
        return loaded is not None and loaded.is_initialized()

    with phalanx.Launcher(workers_per_host=2) as launcher:
        assert list(launcher.run(with_torch)) == [True, True]
        assert list(launcher.run(without)) == [False, False]
        assert list(launcher.run(with_torch)) == [True, True]


def test_a_launcher_pickles_while_it_is_warm_and_nests():
    """Live state is left out, and the outermost `with` ends it."""
    import pickle

    with phalanx.Launcher(workers_per_host=1) as launcher:
        with launcher:
            zygote = launcher.run(parents).rank(0)[0]
        assert launcher.run(parents).rank(0)[0] == zygote
        copy = pickle.loads(pickle.dumps(launcher))
        assert copy == launcher
        assert vars(copy) == vars(launcher)  # nothing else is in it
    assert not phalanx_processes()
    assert launcher.run(parents).rank(0)[0] != zygote


def test_an_app_that_runs_on_when_its_launcher_is_left_ends_with_its_agent():
    """Nothing stays for it."""
    with phalanx.Launcher(workers_per_host=1) as launcher:
        app = launcher.start(time.sleep, args=(0.5,))
    app.result()
    assert not phalanx_processes()


def test_many_runs_leak_nothing(tmp_path):
    """Neither here nor in agent and zygote: descriptors, memory, children, files."""

    def used(pid):
        return len(os.listdir(f"/proc/{pid}/fd"))

    with phalanx.Launcher(workers_per_host=2) as launcher:
        zygote = launcher.run(parents).rank(0)[0]
        agent = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(")")[2].split()[1])
        links = [os.readlink(f"/proc/{zygote}/fd/{n}") for n in (1, 2)]
        spool = Path(links[0]).parent

        def state():
            files = sum(1 for _ in spool.rglob("*"))
            return used(os.getpid()), used(agent), used(zygote), threading.active_count(), files

        for i in range(6):
            launcher.run(lambda i=i: i)
        before = state()
        for i in range(60):
            assert list(launcher.run(lambda i=i: i)) == [i, i]
        wait_until(lambda: state() <= before, message=f"{before} → {state()}")
    assert not phalanx_processes()


def test_a_program_that_dies_within_a_warm_launcher_leaves_nothing(script):
    """By SIGKILL, between two runs."""
    process = script.start(
        """
        import phalanx, time
        with phalanx.Launcher(workers_per_host=2) as launcher:
            launcher.run(print, args=("up",))
            print("idle", flush=True)
            time.sleep(60)
        """
    )
    wait_until(lambda: "idle" in process.stdout.readline())
    process.kill()
    process.communicate()
    wait_until(lambda: not phalanx_processes())


def test_a_fork_of_the_program_does_not_keep_idle_agents(script):
    """Its copy of the streams is let go of."""
    process = script.start(
        """
        import os, phalanx, signal, time
        with phalanx.Launcher(workers_per_host=1) as launcher:
            launcher.run(int)
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            print(child, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    child = int(process.stdout.readline())
    try:
        wait_until(lambda: not phalanx_processes())
        assert is_alive(child)
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate()


# ── phalanx.warm ──────────────────────────────────────────────────────────────


def test_warm_starts_a_zygote_that_launches_use():
    """One after the other, until it is closed."""
    with phalanx.warm("colorsys"):
        look = lambda: (os.getppid(), "colorsys" in __import__("sys").modules)
        first = list(phalanx.launch(look, workers_per_host=2))
        second = list(phalanx.launch(look, workers_per_host=3))
    assert len({*first, *second}) == 1
    assert first[0][1]
    assert not phalanx_processes()


def test_warm_that_is_not_used_ends_with_the_program(script):
    """Nothing is left, nothing is printed."""
    done = script("import phalanx; phalanx.warm('torch')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    wait_until(lambda: not phalanx_processes())


def test_warm_that_does_not_fit_says_why(monkeypatch, caplog):
    """And the launch starts its own."""
    with phalanx.warm():
        monkeypatch.setenv("MINE", "1")
        phalanx.launch(int, workers_per_host=2)
    assert "cannot be used" in caplog.text
    assert "MINE" in caplog.text
    caplog.clear()
    with phalanx.warm():
        phalanx.launch(int, workers_per_host=1)
    assert "workers_per_host=1" in caplog.text


def test_warm_refuses_what_is_not_a_package_or_option():
    """Before anything starts."""
    with pytest.raises(phalanx.ConfigError, match="not a package name"):
        phalanx.warm(3)
    with pytest.raises(phalanx.ConfigError, match="warm has no option 'worker_per_host'"):
        phalanx.warm("torch", worker_per_host=2)
    assert not phalanx_processes()


# ── keep_warm ─────────────────────────────────────────────────────────────────


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A runtime directory of our own; what waits there is stopped in the end."""
    place = tmp_path / ("run" + "x" * 100)  # longer than a socket's path may be
    place.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    yield place / "phalanx" / "warm"
    for agent in pool.warm_agents(place / "phalanx" / "warm"):
        agent.stop()


KEEP = """
import os, sys, phalanx
print(phalanx.launch(os.getppid, workers_per_host=2, keep_warm=60).rank(0))
"""


def kept(runtime):
    return list(pool.warm_agents(runtime))


def test_the_next_command_finds_the_agent_of_the_last(script, runtime):
    """The same zygote, in another process; afterwards it waits again."""
    first = script(KEEP)
    assert first.returncode == 0, first.stderr
    wait_until(lambda: kept(runtime))
    second = script(KEEP)
    assert second.stdout == first.stdout, second.stderr
    wait_until(lambda: kept(runtime))
    assert len(phalanx_processes()) == 2


def test_another_environment_or_interpreter_flag_does_not(script, runtime):
    """Each has its own."""
    first = script(KEEP)
    wait_until(lambda: kept(runtime))
    second = script(KEEP, env={**os.environ, "MINE": "1"})
    assert second.stdout != first.stdout
    third = subprocess.run(
        [sys.executable, "-O", "script.py"], capture_output=True, text=True, timeout=60
    )
    assert third.stdout not in (first.stdout, second.stdout)
    wait_until(lambda: len(kept(runtime)) == 3)


def test_a_kept_agent_takes_a_failure_and_stays(script, runtime):
    """The worker's exception is the command's, the agent goes on."""
    code = """
    import os, phalanx
    def fail(): raise ValueError(os.getppid())
    phalanx.launch(fail, workers_per_host=2, keep_warm=60)
    """
    first, second = script(code), script(code)
    assert first.returncode == second.returncode == 1
    lines = [line for out in (first, second) for line in out.stderr.splitlines()]
    assert len({line for line in lines if line.startswith("ValueError: ")}) == 1


def test_a_kept_agent_ends_by_itself(script, runtime):
    """After the seconds that were asked for; its traces are gone."""
    assert script(KEEP.replace("60", "0.2")).returncode == 0
    wait_until(lambda: not phalanx_processes())
    assert not list(runtime.iterdir())


def test_a_command_killed_while_it_uses_a_kept_agent_ends_it(script, runtime):
    """Nobody knows what state that would be."""
    script(KEEP)
    wait_until(lambda: kept(runtime))
    process = script.start(
        """
        import phalanx, time
        def hang(): print("up", flush=True); time.sleep(60)
        phalanx.launch(hang, workers_per_host=2, keep_warm=60)
        """
    )
    wait_until(lambda: "up" in process.stdout.readline())
    process.kill()
    process.communicate()
    wait_until(lambda: not phalanx_processes())


def test_commands_at_once_have_an_agent_each(script, runtime):
    """Whoever finds one busy starts another; all stay."""
    path = script.write(KEEP)
    commands = [
        subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    found = {command.communicate(timeout=60)[0] for command in commands}
    assert all(command.returncode == 0 for command in commands)
    assert all(found)
    wait_until(lambda: len(kept(runtime)) == len(found))


def test_a_kept_agent_that_was_killed_is_no_obstacle(script, runtime):
    """Its socket lies there still."""
    first = script(KEEP)
    (agent,) = wait_until(lambda: kept(runtime))
    os.kill(agent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(agent.pid))
    second = script(KEEP)
    assert second.returncode == 0
    assert second.stdout != first.stdout
    wait_until(lambda: len(kept(runtime)) == 1)


def test_only_the_owner_can_enter(script, runtime):
    """The directory and the socket; one that others may enter is not used."""
    script(KEEP)
    (agent,) = wait_until(lambda: kept(runtime))
    assert runtime.stat().st_mode & 0o777 == 0o700
    assert agent.path.with_suffix(".sock").stat().st_mode & 0o777 == 0o600
    assert agent.path.stat().st_mode & 0o777 == 0o600
    agent.stop()
    runtime.chmod(0o755)
    done = script(KEEP)
    assert done.returncode == 0
    assert "other users can write to it" in done.stderr
    assert not phalanx_processes()
    runtime.chmod(0o700)


NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files of another user need root")


def _of_another(place, elsewhere):
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)


def _link_to_another(place, elsewhere):
    elsewhere.mkdir()
    os.chown(elsewhere, NOBODY, NOBODY)
    place.symlink_to(elsewhere)


def _link_to_own(place, elsewhere):
    elsewhere.mkdir(mode=0o700)
    place.symlink_to(elsewhere)


def _file(place, elsewhere):
    place.write_text("")


@as_root
@pytest.mark.parametrize("plant", [_of_another, _link_to_another, _link_to_own, _file])
@pytest.mark.parametrize("level", ["phalanx", "warm", "tmp"])
def test_a_place_that_others_have_planted_is_not_used(level, plant, script, tmp_path, monkeypatch):
    """Neither for agents to wait in nor to look for them; without a runtime directory, in /tmp."""
    base = tmp_path / "run"
    base.mkdir(mode=0o777)
    if level == "tmp":
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        monkeypatch.setenv("TMPDIR", str(base))
        place = base / f"phalanx-{os.geteuid()}"
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
        place = base / "phalanx"
    if level == "warm":
        place.mkdir(mode=0o700)
        place /= "warm"
    plant(place, tmp_path / "elsewhere")
    done = script(KEEP)
    assert done.returncode == 0, done.stderr
    assert "phalanx: " in done.stderr
    wait_until(lambda: not phalanx_processes())
    assert not place.is_dir() or os.listdir(place) == []
    shown = subprocess.run(
        [sys.executable, "-m", "phalanx", "warm", "status", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (shown.returncode, json.loads(shown.stdout)) == (0, [])


@as_root
def test_an_agent_of_another_users_is_neither_visited_nor_stopped(script, runtime):
    """What they have left while they could: a description that names a process, and a socket."""
    script(KEEP)
    (real,) = wait_until(lambda: kept(runtime))
    real.stop()
    wait_until(lambda: not phalanx_processes())
    code = "import os, socket, sys, time; os.setuid(int(sys.argv[2])); s = socket.socket(1); "
    code += "s.bind(sys.argv[1]); s.listen(); print(flush=True); time.sleep(1000)"
    runtime.chmod(0o777)
    for above in (runtime.parent, runtime.parent.parent):
        above.chmod(0o755)
    os.chdir(runtime)
    name = f"{real.path.stem.rpartition('-')[0]}-1"
    words = [sys.executable, "-c", code, f"{name}.sock", str(NOBODY)]
    other = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"\n"
        description = {
            **dataclasses.asdict(real),
            "pid": other.pid,
            "start": processes.start_time(other.pid),
            "space": identity.space("pid"),
        }
        del description["path"]
        (runtime / f"{name}.json").write_text(json.dumps(description))
        runtime.chmod(0o700)
        assert [agent.visit() for agent in kept(runtime)] == [None]  # its socket is not ours
        os.chown(runtime / f"{name}.json", NOBODY, NOBODY)
        assert kept(runtime) == []
        runtime.parent.chmod(0o700)
        assert script(KEEP).returncode == 0
        (mine,) = wait_until(lambda: kept(runtime))
        mine.stop()
        assert other.poll() is None
    finally:
        other.kill()
        other.communicate()


def test_a_visitor_that_wants_nothing_is_forgotten(script, runtime):
    """Someone connects, and leaves again: it waits on."""
    first = script(KEEP)
    (agent,) = wait_until(lambda: kept(runtime))
    agent.visit().close()
    wait_until(lambda: kept(runtime))
    assert script(KEEP).stdout == first.stdout
    wait_until(lambda: kept(runtime))


def test_a_warm_launcher_leaves_its_agents_to_the_next_command(script, runtime):
    """With both: warm within, kept afterwards."""
    code = """
    import os, phalanx
    with phalanx.Launcher(workers_per_host=2, keep_warm=60) as launcher:
        print(launcher.run(os.getppid).rank(0))
        print(launcher.run(os.getppid).rank(0))
    """
    one, two = script(code).stdout.split()
    wait_until(lambda: kept(runtime))
    assert one == two == script(code).stdout.split()[0]
    wait_until(lambda: kept(runtime))
    assert json.loads(kept(runtime)[0].path.read_text())["python"] == sys.executable


# ── what an earlier run must not decide ───────────────────────────────────────


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A directory of installed packages, as far as anyone can tell."""
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    return place


def test_an_environment_that_changes_during_a_run_counts_for_the_next(monkeypatch):
    """An agent is remembered for what it was started with."""
    monkeypatch.delenv("MINE", raising=False)
    with phalanx.Launcher(workers_per_host=1) as launcher:
        app = launcher.start(os.getenv, args=("MINE",))
        monkeypatch.setenv("MINE", "now")
        assert app.result().rank(0) is None
        assert launcher.run(os.getenv, args=("MINE",)).rank(0) == "now"


def test_modules_are_found_in_the_directory_of_the_run(tmp_path, script):
    """`sys.path` may begin with wherever one is."""
    for name in "AB":
        (tmp_path / name).mkdir()
        (tmp_path / name / "usermod.py").write_text(f"VALUE = {name!r}\n")
    code = """
import os, phalanx
def look():
    import usermod
    return usermod.VALUE
with phalanx.Launcher(workers_per_host=1, preload=["wave"]) as launcher:
    for name in "AB":
        os.chdir(os.path.join(os.environ["PLACE"], name))
        print(launcher.run(look).rank(0))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PLACE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == ["A", "B"], done.stderr


def test_a_package_that_is_prepared_for_is_not_loaded_before(packages):
    """Though an earlier run has loaded it."""
    (packages / "reads_env.py").write_text("import os\nMODE = os.environ.get('MODE', 'plain')\n")

    def plain():
        import reads_env

        return reads_env.MODE

    def prepared():
        os.environ["MODE"] = "fast"
        import reads_env

        return reads_env.MODE

    with phalanx.Launcher(workers_per_host=1) as launcher:
        for _ in range(2):
            assert launcher.run(plain).rank(0) == "plain"
            assert launcher.run(prepared).rank(0) == "fast"


def test_what_a_package_prints_is_shown_to_those_that_import_it(packages, capfd):
    """And to nobody else."""
    (packages / "talks.py").write_text("print('banner')\n")
    (packages / "quiet.py").write_text("")

    def loud():
        import talks

        return talks.__name__

    def silent():
        import quiet

        return quiet.__name__

    with phalanx.Launcher(workers_per_host=1) as launcher:
        for function, shown in [(loud, "banner\n"), (silent, ""), (loud, "banner\n")]:
            launcher.run(function)
            assert capfd.readouterr().out == shown


def test_torch_that_an_earlier_run_has_loaded_forms_no_group_for_others(packages):
    """Even for one that loads more packages; but for one whose package uses torch."""
    (packages / "plain_package.py").write_text("import wave\n")
    (packages / "with_torch.py").write_text("import plain_package, torch\n")
    (packages / "above.py").write_text("import with_torch\n")

    def has_group():
        import sys

        loaded = sys.modules.get("torch.distributed")
        return loaded is not None and loaded.is_initialized()

    def first():
        import torch

        return torch.__name__ and has_group()

    def second():
        import plain_package

        return plain_package.__name__ and has_group()

    def third():
        import above

        return above.__name__ and has_group()

    with phalanx.Launcher(workers_per_host=2) as launcher:
        for function, group in [(first, True), (second, False), (third, True), (second, False)]:
            assert list(launcher.run(function)) == [group, group], function.__name__


def test_an_import_that_hangs_is_not_left_to_the_next_run(packages):
    """The run that was cancelled takes it along."""
    (packages / "hangs.py").write_text("import time\ntime.sleep(1000)\n")

    def stuck():
        import hangs

        return hangs

    with phalanx.Launcher(workers_per_host=1, start_timeout=60) as launcher:
        app = launcher.start(stuck)
        wait_until(lambda: len(phalanx_processes()) == 2)
        time.sleep(0.5)
        app.cancel()
        app.wait()
        assert launcher.run(lambda: 1).rank(0) == 1


def test_a_function_whose_transfer_was_cancelled_is_sent_anew():
    """Whatever part of it had come."""
    blob = os.urandom(24 << 20)
    with phalanx.Launcher(workers_per_host=1) as launcher:
        for i in range(6):
            app = launcher.start(len, args=(blob,))
            time.sleep(0.004 + i * 0.008)
            app.cancel(0.0)
            app.wait()
            assert launcher.run(len, args=(blob,)).rank(0) == len(blob)
            for k in range(5):
                launcher.run(len, args=(b"%d" % k,))


def test_a_package_that_appears_meanwhile_is_found(packages):
    """One that was looked for in vain."""
    (packages / "needs.py").write_text(
        "try:\n    import optional\n    HAVE = True\nexcept ImportError:\n    HAVE = False\n"
    )

    def look():
        import needs

        return needs.HAVE

    with phalanx.Launcher(workers_per_host=1) as launcher:
        assert launcher.run(look).rank(0) is False
        (packages / "optional.py").write_text("")
        assert launcher.run(look).rank(0) is True


def test_warm_within_a_worker_is_nothing(script):
    """A file that warms at its top is loaded in each worker as well."""
    (Path.cwd() / "job.py").write_text(
        "import os, phalanx\nphalanx.warm('wave')\n"
        "def count():\n"
        "    import time; time.sleep(0.3)\n"
        "    children = open(f'/proc/self/task/{os.getpid()}/children').read()\n"
        "    return len(children.split())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", "job.py:count", "--workers-per-host", "2"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "rank 0: 0\nrank 1: 0\n" in done.stdout, done.stderr


def test_warm_of_what_is_not_there_is_said(caplog):
    """When it is used."""
    with phalanx.warm("no_such_package"):
        phalanx.launch(int, workers_per_host=2)
    assert "could not preload no_such_package" in caplog.text


def test_a_zygote_killed_a_moment_before_the_next_run():
    """The run gets another."""
    with phalanx.Launcher(workers_per_host=1) as launcher:
        for pause in (0.0, 0.0, 0.0005, 0.001, 0.002, 0.005):
            zygote = launcher.run(parents).rank(0)[0]
            os.kill(zygote, signal.SIGKILL)
            time.sleep(pause)
            assert launcher.run(parents).rank(0)[0] != zygote


def test_a_crowd_of_commands_takes_no_agent_from_another(script, runtime):
    """Each is the only one that has it, or has its own."""
    path = script.write("""
        import os, pathlib, sys, time
        import phalanx
        def work(crowd):
            (pathlib.Path(crowd) / str(os.getpid())).touch()
            while len(os.listdir(crowd)) < 6:  # all of them at once
                time.sleep(0.02)
            return os.getppid()
        launch = phalanx.launch(work, args=(sys.argv[1],), workers_per_host=1, keep_warm=60)
        print(launch.rank(0))
    """)
    for round_ in range(2):
        crowd = path.parent / f"crowd-{round_}"
        crowd.mkdir()
        commands = [
            subprocess.Popen(
                [sys.executable, str(path), str(crowd)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(6)
        ]
        outputs = [command.communicate(timeout=60) for command in commands]
        assert [command.returncode for command in commands] == [0] * 6, outputs
        assert len({out for out, _ in outputs}) == 6


def test_a_killed_command_whose_output_nobody_reads_leaves_no_agent(script, runtime):
    """Though it was to be kept."""
    process = script.start(
        """
        import phalanx
        def loud():
            for _ in range(400_000): print("x" * 120)
        phalanx.launch(loud, workers_per_host=1, keep_warm=60)
        """
    )
    time.sleep(3)
    process.kill()
    wait_until(lambda: not phalanx_processes())
    process.communicate()


def test_a_rank_that_returns_at_once_breaks_nobodys_group():
    """It waits with taking its own down until all have formed theirs."""

    def quick(x):
        import torch

        return int(torch.tensor(x) + 1)

    with phalanx.Launcher(workers_per_host=6) as launcher:
        for i in range(10):
            assert list(launcher.run(quick, {"x": i})) == [i + 1] * 6


def test_what_a_package_changes_when_it_is_imported(packages):
    """It is there for those that import it, every time, and for nobody else."""
    (packages / "vendored").mkdir()
    (packages / "vendored" / "inner_part.py").write_text("VALUE = 1\n")
    (packages / "extends.py").write_text(
        "import os, sys\nsys.path.append(os.path.join(os.path.dirname(__file__), 'vendored'))\n"
    )
    (packages / "configures.py").write_text(
        "import logging, os\nos.environ['LEFT'] = 'behind'\nlogging.basicConfig()\n"
    )

    def extended():
        import extends
        import inner_part

        return extends.__name__, inner_part.VALUE

    def configured():
        import logging

        import configures

        return configures.__name__, os.environ.get("LEFT"), len(logging.root.handlers)

    def other():
        import logging

        return os.environ.get("LEFT"), len(logging.root.handlers)

    with phalanx.Launcher(workers_per_host=1) as launcher:
        for _ in range(2):
            assert launcher.run(extended).rank(0) == ("extends", 1)
            assert launcher.run(configured).rank(0) == ("configures", "behind", 1)
            assert launcher.run(other).rank(0) == (None, 0)


def test_an_env_file_may_set_what_changes_from_command_to_command():
    """Its values win over the launcher's."""
    Path("env.sh").write_text("export SSH_AUTH_SOCK=/from/the/file\n")
    seen = phalanx.launch(os.getenv, args=("SSH_AUTH_SOCK",), workers_per_host=1, env_file="env.sh")
    assert seen.rank(0) == "/from/the/file"


def test_a_second_pool_that_fits_leaves_the_first_alone(caplog):
    """Nothing is ended, and nothing is said."""
    with phalanx.warm("wave") as first, phalanx.warm("colorsys", workers_per_host=1):
        phalanx.launch(int, workers_per_host=1)
        assert len(first._warm) == 1
    assert caplog.text == ""


def test_a_fork_of_the_program_leaves_its_parents_agents_alone(script, runtime):
    """Also those that were found."""
    script(KEEP)
    wait_until(lambda: kept(runtime))
    done = script(
        """
        import os, phalanx
        with phalanx.Launcher(workers_per_host=2, keep_warm=60) as launcher:
            first = launcher.run(os.getppid).rank(0)
            child = os.fork()
            if child == 0:
                code = launcher.run(os.getppid).rank(0) == first
                os._exit(code)
            print(os.waitpid(child, 0)[1], launcher.run(os.getppid).rank(0) == first)
        """
    )
    assert done.stdout == "0 True\n", done.stderr
    assert "Traceback" not in done.stderr
    wait_until(lambda: len(kept(runtime)) >= 1)


def test_a_kept_agent_that_hangs_is_ended_by_force(script, runtime):
    """And the next command does without it."""
    script(KEEP)
    (agent,) = wait_until(lambda: kept(runtime))
    os.kill(agent.pid, signal.SIGSTOP)
    agent.stop()
    assert not is_alive(agent.pid)
    wait_until(lambda: not phalanx_processes())
