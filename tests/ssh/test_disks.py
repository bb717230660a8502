"""Full disks where replicas and workers are on other hosts."""

import os

import pytest

import phalanx
from phalanx.runner import get_runner
from phalanx.specs import AppDef, AppState, Role
from tests.conftest import phalanx_processes, wait_until
from tests.process.disks import Disk


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
