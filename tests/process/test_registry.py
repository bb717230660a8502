"""Apps, asked about from another terminal: list, status, log, cancel, clean."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import phalanx
from phalanx._registry import recorded_app, submission
from tests.conftest import phalanx_processes, wait_until


@pytest.fixture(autouse=True)
def own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "phalanx" / "apps"


def command(*arguments, **kwargs):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        **kwargs,
    )


def ask(*arguments):
    done = command(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def talk(go, stop):
    """Print until a file is there."""
    rank = os.environ["RANK"]
    print(f"rank {rank} is up", flush=True)
    while not os.path.exists(go):
        time.sleep(0.01)
    print(f"rank {rank} goes on", flush=True)
    while not os.path.exists(stop):
        time.sleep(0.01)


def test_a_running_app_is_seen_and_its_log_followed_from_another_process(tmp_path):
    """Then it ends, and both know."""
    paths = str(tmp_path / "go"), str(tmp_path / "stop")
    app = phalanx.Launcher(workers_per_host=2, name="talker").start(talk, args=paths)
    wait_until(lambda: all(path.stat().st_size for path in app.log_files.values()))
    (seen,) = ask("list")
    assert (seen["id"], seen["status"]["state"]) == (app.id, "RUNNING")
    assert seen["roles"][0]["replicas"][0]["ranks"] == [0, 1]
    assert command("log", "talker").stdout.count("is up") == 2, "returns at once without --follow"
    following = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "log", app.id, "--follow", "-r", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout.readline() == "rank 1 is up\n"
    (tmp_path / "go").touch()
    assert following.stdout.readline() == "rank 1 goes on\n"
    (tmp_path / "stop").touch()
    app.result()
    assert following.communicate(timeout=60)[0] == ""
    status = ask("status", app.id)["status"]
    assert status["state"] == "SUCCEEDED"
    assert [worker["ended"] for worker in status["workers"]] == ["returned", "returned"]
    assert ask("list", "--running") == []


def test_cancel_from_another_terminal(tmp_path):
    """Workers are stopped; asked again it may be sooner, and a finished app is left alone."""

    def stubborn():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(100)

    app = phalanx.Launcher(workers_per_host=1, stop_grace=60).start(stubborn)
    wait_until(lambda: app.log_files[0].stat().st_size)
    first = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "cancel", app.id], stdout=subprocess.PIPE, text=True
    )
    wait_until(lambda: "stopping" in command("log", app.id, "--agents").stdout)
    done = command("cancel", app.id, "--grace", "0")
    assert done.stdout == f"{app.id}: CANCELLED\n", done.stderr
    assert first.communicate(timeout=60)[0] == f"{app.id}: CANCELLED\n"
    with pytest.raises(phalanx.Cancelled):
        app.result()
    again = command("cancel", app.id)
    assert again.returncode == 0
    assert "has already ended: CANCELLED" in again.stdout


def test_a_launcher_that_was_killed_is_not_running(script):
    """Its record says so, whenever it is asked."""
    process = script.start(
        "import phalanx, time\nphalanx.launch(time.sleep, args=(100,), workers_per_host=1)"
    )
    wait_until(lambda: phalanx_processes())
    wait_until(lambda: recorded_app.apps() and recorded_app.apps()[0].state.value == "RUNNING")
    process.kill()
    process.communicate()
    (app,) = ask("list")
    assert app["status"]["state"] == "FAILED"
    assert "no longer exists" in app["status"]["message"]
    assert "FAILED" in command("status").stdout
    assert "FAILED" in command("list").stdout
    wait_until(lambda: not phalanx_processes())


def test_a_failure_is_told_with_its_rank():
    """And the exit code of another."""

    def fail():
        if os.environ["RANK"] == "1":
            raise ValueError("no")
        time.sleep(100)

    with pytest.raises(ValueError):
        phalanx.launch(fail, workers_per_host=2)
    shown = command("status").stdout
    assert "FAILED" in shown
    assert "rank 1 on localhost raised ValueError: no" in shown


def test_log_by_rank_regex_and_time(tmp_path):
    """Times are those at which lines came, to about a tenth of a second."""

    def speak():
        rank = os.environ["RANK"]
        print(f"early {rank}", flush=True)
        time.sleep(1.0)
        print(f"late {rank}", flush=True)

    phalanx.launch(speak, workers_per_host=2)
    assert command("log").stdout.splitlines()[0].startswith("[localhost rank ")
    assert command("log", "-r", "1").stdout == "early 1\nlate 1\n"
    assert command("log", "-r", "1", "-e", "^late").stdout == "late 1\n"
    assert command("log", "-r", "0", "-n", "1").stdout == "late 0\n"
    lines = [json.loads(line) for line in command("log", "--json").stdout.splitlines()]
    assert [line["text"][:4] for line in lines] == ["earl", "earl", "late", "late"]
    early, late = lines[0]["time"], lines[-1]["time"]
    assert 0.5 < late - early < 5
    from datetime import datetime

    middle = datetime.fromtimestamp((early + late) / 2).isoformat()
    assert "early" not in command("log", "--since", middle).stdout
    assert "late" not in command("log", "--until", middle).stdout
    assert command("log", "--until", "1h").stdout == ""


def test_mistakes_are_one_sentence():
    """Unknown apps and ranks, several that are meant, options that are none."""
    unknown = command("status", "nothing-here")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no apps" not in unknown.stderr
    assert "no such app: 'nothing-here'" in unknown.stderr
    assert "no apps yet" in command("log").stderr
    for _ in range(2):
        phalanx.launch(int, workers_per_host=1)
    assert "is ambiguous: it matches 2 apps" in command("status", "int").stderr
    app = recorded_app.apps()[-1].id
    assert f"Did you mean '{app}'?" in command("log", app[:-1] + "x").stderr
    assert "has no rank 7; its ranks are 0 to 0" in command("log", app, "-r", "7").stderr
    for wrong in (
        ["log", "--since", "soon"],
        ["log", "-r", "x"],
        ["log", "-e", "("],
        ["list", "-q"],
    ):
        done = command(*wrong)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1, done.stderr


def test_clean_removes_what_has_ended(tmp_path):
    """With the logs if asked for; what runs stays."""
    phalanx.launch(print, args=("x",), workers_per_host=1)
    app = phalanx.Launcher(workers_per_host=1).start(time.sleep, args=(100,))
    assert "0 apps" in command("clean").stdout
    assert "1 app would be" in command("clean", "--older-than", "0", "--dry-run").stdout
    logs = set((tmp_path / "logs").iterdir())
    assert len(ask("clean", "--older-than", "0", "--logs")) == 1
    assert [a.id for a in recorded_app.apps()] == [app.id]
    assert len(logs - set((tmp_path / "logs").iterdir())) == 2
    app.cancel(0.0)
    app.wait()


def test_rubbish_in_the_registry_hinders_nothing(own_registry):
    """Files that someone else wrote, or a crash left."""
    phalanx.launch(int, workers_per_host=1)
    (mine,) = recorded_app.apps()
    for name, text in [("a", "{"), ("b", '{"version": 1}'), ("c", "[]"), ("d", '{"version": 9}')]:
        (own_registry / name).mkdir()
        (own_registry / name / "app.json").write_text(text)
    (mine.path / "status.json").write_text('{"state": "XYZ"}')
    assert [app["id"] for app in ask("list")] == [mine.id]
    phalanx.launch(int, workers_per_host=1)
    command("clean", "--older-than", "0")
    assert not (own_registry / "a").exists()


def _pipe(path):
    os.mkfifo(path)


def _sparse(path):
    with open(path, "wb") as file:
        file.truncate(1 << 42)


def _device(path):
    path.symlink_to("/dev/zero")


def _brackets(path):
    path.write_text("[" * 200_000)


def _of_nobody(path):
    path.write_text((path.parent.parent / "copy.json").read_text())
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        path.unlink()


@pytest.mark.parametrize("plant", [_pipe, _sparse, _device, _brackets, _of_nobody])
def test_what_others_left_in_the_registry_hinders_nothing(own_registry, plant):
    """What they could put there while they could write it stays when it is closed to them."""
    phalanx.launch(int, workers_per_host=1)
    (mine,) = recorded_app.apps()
    (own_registry / "copy.json").write_text((mine.path / "app.json").read_text())
    (own_registry / "trap-12345678").mkdir()
    plant(own_registry / "trap-12345678" / "app.json")
    assert [app["id"] for app in ask("list", "--all")] == [mine.id]
    assert "no such app: 'trap-12345678'" in command("status", "trap-12345678").stderr
    (mine.path / "status.json").unlink()
    plant(mine.path / "status.json")
    assert [app["id"] for app in ask("list")] == [mine.id]


def test_a_registry_is_the_users_alone_whatever_the_umask(own_registry, tmp_path):
    """The next command would not use one that others can write."""
    ran = command("run", "--wait", "utils.echo", "--msg", "hi", cwd=tmp_path, umask=0)
    assert (ran.returncode, ran.stderr) == (0, ""), ran
    for path in (own_registry, own_registry.parent, own_registry.parent.parent):
        assert path.stat().st_mode & 0o77 == 0, path


def test_a_home_that_cannot_be_written_is_no_obstacle(monkeypatch, caplog):
    """The launch goes on, unrecorded, which is said once."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    for _ in range(2):
        assert list(phalanx.launch(int, workers_per_host=1)) == [0]
    assert recorded_app.apps() == []
    (said,) = [record.getMessage() for record in caplog.records if record.name == "phalanx"]
    assert "([Errno 2] No such file or directory: '/proc/nowhere')" in said


def _of_another(apps):
    if os.geteuid() != 0:
        pytest.skip("only root can make another user's directory")
    os.chown(apps, 65534, 65534)
    return "belongs to another user"


def _for_all_to_write(apps):
    apps.chmod(0o777)
    return "is writable by others. Run: chmod 700"


def _for_the_group_to_write(apps):
    apps.chmod(0o770)
    return "is writable by others. Run: chmod 700"


@pytest.mark.parametrize("spoil", [_of_another, _for_all_to_write, _for_the_group_to_write])
def test_a_registry_that_others_can_write_is_not_used(own_registry, tmp_path, spoil):
    """Whoever could put files there could end the app, or hold up whoever reads them."""
    own_registry.mkdir(parents=True)
    reason = spoil(own_registry)
    trap = own_registry / "trap-12345678"
    trap.mkdir()
    os.mkfifo(trap / "app.json")  # whoever opens it waits for a writer
    (tmp_path / "hello.py").write_text("def hello():\n    print('hello')\n")
    done = command("launch", "hello.py:hello", "--workers-per-host", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    assert f"({own_registry} {reason}" in done.stderr
    assert os.listdir(own_registry) == [trap.name]
    listed = command("list")
    assert (listed.returncode, listed.stderr.count(reason)) == (0, 1), listed
    refused = command("run", "utils.echo", "--msg", "hi", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, ""), refused
    assert refused.stderr.startswith(f"phalanx run: cannot record apps: {own_registry} ")


def test_many_apps_are_pruned(own_registry, monkeypatch):
    """The oldest that have ended go first."""
    from phalanx import _registry as registry

    monkeypatch.setattr(submission, "_KEPT", 6)
    monkeypatch.setattr(submission, "_PRUNED_TO", 4)
    with phalanx.Launcher(workers_per_host=1) as launcher:
        for _ in range(12):
            launcher.run(int)
    assert len(recorded_app.apps()) <= 7


def test_output_into_a_pipe_that_closes():
    """`| head` is no failure."""
    for _ in range(3):
        phalanx.launch(int, workers_per_host=1)
    done = subprocess.run(
        f"{sys.executable} -m phalanx list --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr


def test_warm_status_and_stop(tmp_path, monkeypatch, script):
    """In every state."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert command("warm", "status").stdout == "no warm agents\n"
    script(
        "import phalanx\nphalanx.launch(int, workers_per_host=1, keep_warm=60, preload=['wave'])"
    )
    wait_until(lambda: ask("warm", "status"))
    shown = command("warm", "status").stdout
    assert "wave" in shown
    assert "MiB" in shown
    assert command("warm", "stop").stdout == "1 agent stopped\n"
    assert not phalanx_processes()
    assert ask("warm", "stop") == []
    assert command("warm").returncode == 2
