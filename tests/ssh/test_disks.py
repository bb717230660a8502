"""Full disks where replicas and workers are on other hosts."""

import contextlib
import os
import threading
import time

import pytest

import phalanx
from phalanx.runner import get_runner
from phalanx.specs import AppDef, AppState, Role
from tests.conftest import phalanx_processes, wait_until
from tests.process.disks import Disk
from tests.ssh.cluster import Cluster


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path / "disk", "64k")
    yield made
    made.close()


@pytest.fixture
def run(cluster, disk):
    """Run a shell command on a host, its logs on the disk; gives how it stands when it ended."""
    options = {"hosts": cluster.names[:1], "ssh_config_file": str(cluster.ssh_config)}
    with get_runner() as runner:

        def go(command, **given):
            app = AppDef("job", [Role("role", entrypoint="sh", args=["-c", command])])
            handle = runner.run(app, "ssh", {**options, **given})
            return handle, runner

        yield go
        for app in runner.list("ssh"):
            runner.delete(app.app_handle)


@pytest.mark.parametrize("code", [0, 3])
def test_output_that_does_not_fit_is_no_success(code, run, disk):
    """The program has noticed nothing: its output was on another host. Its code is kept."""
    command = f"seq 20000; exit {code}"
    handle, runner = run(command, log_dir=str(disk.path))
    status = runner.wait(handle)
    assert status.state is AppState.FAILED
    assert status.exit_code == (code or 1)
    (replica,) = status.roles[0].replicas
    assert "output could not be written: " in replica.error
    assert "stdout.log (No space left on device)" in replica.error


def test_how_a_replica_ended_is_not_lost(run, disk, tmp_path, monkeypatch):
    """Written as soon as there is room."""
    monkeypatch.setenv("XDG_STATE_HOME", str(disk.path))
    handle, runner = run("echo begun; sleep 2; exit 3", log_dir=str(tmp_path / "logs"))
    wait_until(lambda: any("begun" in p.read_text() for p in tmp_path.glob("logs/**/stdout.log")))
    (place,) = (disk / "phalanx" / "apps").iterdir()
    (place / "status.reserve").unlink()
    disk.fill()
    wait_until(lambda: _is_over(place), timeout=60)
    disk.repair()
    status = runner.wait(handle)
    assert (status.state, status.exit_code) == (AppState.FAILED, 3)
    wait_until(lambda: not phalanx_processes())
    assert not list(disk.path.glob("**/*.new"))


def _is_over(place):
    """The supervisor has nothing left to do but to write."""
    import json

    keeper = json.loads((place / "app.json").read_text())["owner"]["pid"]
    with open(f"/proc/{keeper}/task/{keeper}/children") as file:
        (supervisor,) = file.read().split()
    with open(f"/proc/{supervisor}/task/{supervisor}/children") as file:
        return not file.read().split()


def test_a_file_of_the_project_is_whole_or_an_error(launcher, cluster):
    """However much of the last piece fits."""
    host = cluster.hosts[0]
    assert launcher(1).run(os.getpid)
    size = 700_000
    with open("data.bin", "wb") as file:
        file.write(os.urandom(size))
    host.enter("sh", "-c", "rm -rf /root/keep; cp -r /root/.cache /root/keep")
    (used,) = host.enter("sh", "-c", "du -sk /root/keep | cut -f1").split()
    outcomes = set()
    for spare in (800, 1000, 1200, 1400, 1600):
        host.enter(
            *("mount", "-t", "tmpfs", "-o", f"size={int(used) + spare}k", "full", "/root/.cache")
        )
        host.enter("sh", "-c", "cp -r /root/keep/. /root/.cache/")
        try:
            assert list(launcher(1).run(os.path.getsize, args=("data.bin",))) == [size]
            outcomes.add("whole")
        except phalanx.LaunchError as error:
            assert "No space left on device" in str(error)
            outcomes.add("error")
            new = host.enter("sh", "-c", "find /root/.cache -name '*.new'")
            assert new.strip() == ""
        finally:
            host.enter("umount", "-l", "/root/.cache")
    host.enter("rm", "-r", "/root/keep")
    assert outcomes


# ── the table of docs/files.md, as far as other hosts are concerned ───────────


@pytest.fixture
def host(cluster):
    """The first host, whose disk is as it was afterwards."""
    (made,) = cluster.hosts[:1]
    yield made
    left = "/root/began /root/go /tmp/phalanx-cache-* /root/.cache/phalanx/trees/*"
    made.enter("sh", "-c", f"rm -rf {left}")


@contextlib.contextmanager
def harmed(host, place, trouble):
    """A directory of a host: full, read-only, or gone."""
    if trouble == "gone":
        host.enter("rm", "-rf", f"{place}/phalanx")
        yield
        return
    if trouble == "full":
        host.enter("mount", "-t", "tmpfs", "-o", "size=16k", "full", place)
    else:
        host.enter("mount", "--bind", place, place)
        host.enter("mount", "-o", "remount,bind,ro", place)
    try:
        yield
    finally:
        host.enter("umount", "-l", place)


def write_and_wait():
    """In the directory that is the project's there, until somebody says so."""
    os.makedirs("ckpt", exist_ok=True)
    with open("ckpt/last.txt", "w") as file:
        file.write("new")
    with open("/root/began", "w"):
        pass
    while not os.path.exists("/root/go"):
        time.sleep(0.01)
    return 7


def is_waiting(host):
    return host.enter("sh", "-c", "ls /root/began 2>/dev/null", check=False)


def code_and_project(launcher, host, disk, caplog, trouble):
    """Before a launch, and while one runs."""
    with open("data.bin", "wb") as file:
        file.write(os.urandom(100_000))
    assert list(launcher(1).run(os.path.getsize, args=("data.bin",))) == [100_000]
    with harmed(host, "/root/.cache", trouble):
        if trouble == "full":  # there is room for a directory, and not for what is in it
            with pytest.raises(phalanx.LaunchError, match="No space left on device"):
                launcher(1).run(os.getcwd)
            with harmed(host, "/tmp", trouble), pytest.raises(phalanx.StartFailed) as caught:
                launcher(1).run(os.getcwd)
            assert str(caught.value).count("No space left on device") == 2
        else:
            (place,) = launcher(1).run(os.getcwd)
            cache = "/tmp/phalanx-cache-0" if trouble == "read-only" else "/root/.cache/phalanx"
            assert place.startswith(f"{cache}/trees/")
    app = launcher(1).start(write_and_wait)
    wait_until(lambda: is_waiting(host))
    with harmed(host, "/root/.cache", trouble):
        host.write("/root/go", "")
        assert list(app.result()) == [7]
    told = "workers wrote 1 file (3 bytes) below /root/.cache/phalanx/trees/" in caplog.text
    assert told == (trouble == "read-only")  # of the others, none can be seen


def fetched_files(launcher, host, disk, caplog, trouble):
    """What was here stays, and nothing half-written; the values are there."""
    work = disk / "work"
    (work / "ckpt").mkdir(parents=True)
    (work / "ckpt" / "last.txt").write_text("old")
    os.chdir(work)
    logs = phalanx.DefaultLogSpec.nothing()  # log files would make the directory anew
    app = launcher(1, fetch=["ckpt/*"], log_spec=logs).start(write_and_wait)
    wait_until(lambda: is_waiting(host))
    disk.harm(trouble)
    host.write("/root/go", "")
    reason = {"full": "No space left", "read-only": "Read-only", "gone": "No such file"}[trouble]
    with pytest.raises(phalanx.FetchError, match=rf"ckpt/last.txt from box1: .*{reason}") as caught:
        app.result()
    assert list(caught.value.result) == [7]
    disk.repair()
    if trouble == "gone":
        assert not work.exists()
    else:
        assert (work / "ckpt" / "last.txt").read_text() == "old"
        assert os.listdir(work / "ckpt") == ["last.txt"]


def tokens_of_directories(launcher, host, disk, caplog, trouble):
    """A directory that hosts share is not seen to be the same: what is in it is sent."""
    cluster = Cluster(1, shared=str(disk.path))
    try:
        os.chdir(disk.path)
        options = {
            "ssh_config_file": str(cluster.ssh_config),
            "log_spec": phalanx.DefaultLogSpec.nothing(),
        }
        run = phalanx.Launcher(cluster.names, 1, **options)
        assert list(run.run(os.getcwd)) == [str(disk.path)]
        if trouble == "gone":
            removing = threading.Thread(target=_remove_token, args=(disk,))
            removing.start()
        else:
            disk.harm(trouble)
        (place,) = run.run(os.getcwd)
        assert place.startswith("/root/.cache/phalanx/trees/")
        if trouble == "gone":
            removing.join()
        disk.repair()
        assert not list(disk.path.glob(".phalanx-*"))
        assert list(run.run(os.getcwd)) == [str(disk.path)]
    finally:
        cluster.close()


def _remove_token(disk):
    """As soon as it is there: a host that has yet to be reached does not see it."""
    (token,) = wait_until(lambda: list(disk.path.glob(".phalanx-*")))
    token.unlink()


TABLE = {
    "the agent's code and the project on a host": code_and_project,
    "files that `fetch` names": fetched_files,
    "shared-directory markers": tokens_of_directories,
}


@pytest.mark.parametrize("trouble", ["full", "read-only", "gone"])
@pytest.mark.parametrize("name", TABLE)
def test_what_a_disk_does_to_a_file(name, trouble, launcher, host, disk, caplog):
    """As the table has it."""
    TABLE[name](launcher, host, disk, caplog, trouble)
