"""Files that workers write on hosts that share no directory: home, and to where training goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import events, _registry as registry
from phalanx.runner import get_runner
from phalanx.specs import AppDef, AppState, Role
from tests.conftest import wait_until
from tests.ssh.cluster import Cluster


@pytest.fixture(autouse=True)
def in_path(monkeypatch, own_directory):
    """Each test has a directory of its own; nothing that it writes on hosts stays there."""


@pytest.fixture(autouse=True)
def clean_trees(cluster):
    yield
    for host in cluster.hosts:
        if host.pid is not None:
            host.enter("sh", "-c", "rm -rf /root/.cache/phalanx/trees/*")


def trees(cluster):
    """What is left in the trees of all hosts."""
    command = "cd /root/.cache/phalanx/trees 2>/dev/null && find . -type f"
    return [host.enter("sh", "-c", command, check=False).split() for host in cluster.hosts]


def save(path, text):
    """As training does it: whole, or not at all."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(f"{path}.tmp").write_text(text)
    os.replace(f"{path}.tmp", path)


def test_files_come_home_at_the_end(launcher, cluster, caplog):
    """Those that are named, and no others; nothing is left of them on the host."""
    Path("ckpt").mkdir()
    Path("ckpt/old.pt").write_text("was here")

    def work():
        rank = os.environ["RANK"]
        save(f"ckpt/{rank}.pt", f"of rank {rank}")
        save("ckpt/deep/er/.metadata", "same")
        os.symlink(f"{rank}.pt", f"ckpt/latest{rank}")
        save("notes.txt", "not requested")
        return int(rank)

    assert list(launcher(2, fetch=["ckpt/*"]).run(work)) == [0, 1]
    found = {str(p): p.read_text() for p in sorted(Path("ckpt").rglob("*")) if p.is_file()}
    assert found == {
        "ckpt/0.pt": "of rank 0",
        "ckpt/1.pt": "of rank 1",
        "ckpt/deep/er/.metadata": "same",
        "ckpt/latest0": "of rank 0",
        "ckpt/latest1": "of rank 1",
        "ckpt/old.pt": "was here",
    }
    assert not Path("notes.txt").exists()
    left = [name for some in trees(cluster) for name in some]
    assert all(name.endswith(("notes.txt", ".phalanx-built")) for name in left), left
    assert not [m for m in caplog.messages if "different" in m or "cannot" in m]


def test_files_come_home_to_a_command(cluster):
    """As it is typed; a function in a file of the project."""
    Path("train.py").write_text(
        "import os\ndef f():\n    os.makedirs('ckpt')\n"
        "    with open('ckpt/' + os.environ['RANK'], 'w') as file:\n        file.write('saved')\n"
        "    open('notes.txt', 'w').close()\n"
    )
    hosts = ("--hostnames", *cluster.names[:2], "--ssh-config-file", str(cluster.ssh_config))
    words = ("launch", "train.py:f", *hosts, "--workers-per-host", "1", "--fetch", "ckpt/*")
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *words], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert {p.name: p.read_text() for p in Path("ckpt").iterdir()} == {"0": "saved", "1": "saved"}
    assert not Path("notes.txt").exists()


def test_a_large_file_comes_as_it_is(launcher, tmp_path):
    """In pieces; an empty one too, and one that was sent with the project and is changed."""
    Path("model.bin").write_bytes(b"old" * 100)

    def work():
        import hashlib

        Path("empty.bin").touch()
        digest = hashlib.sha256()
        with open("model.bin", "wb") as file:
            for _ in range(70):
                block = os.urandom(1 << 20)
                digest.update(block)
                file.write(block)
            file.write(b"tail")
            digest.update(b"tail")
        return digest.hexdigest()

    import hashlib

    (digest,) = launcher(1, fetch=["*.bin"]).run(work)
    assert hashlib.sha256(Path("model.bin").read_bytes()).hexdigest() == digest
    assert Path("empty.bin").read_bytes() == b""
    assert not [name for name in os.listdir() if name.startswith(".phalanx-")]


def test_training_goes_on_from_the_checkpoint_on_other_hosts(launcher, cluster):
    """Rank 0's host is taken away: the next one has what it wrote in the round before."""

    def work():
        context = phalanx.context()
        place = Path("ckpt/last.txt")
        begun = int(place.read_text()) if place.exists() else 0
        if context.round == 1:
            if context.rank == 0:
                save("ckpt/last.txt", "7")
                raise RuntimeError("the first time it fails")
            time.sleep(600)
        return context.host, begun

    result = launcher(3, fetch=["ckpt/*"], max_restarts=1).run(work)
    assert list(result) == [("box1", 7), ("box2", 7), ("box3", 7)]
    assert Path("ckpt/last.txt").read_text() == "7"


def test_a_host_that_comes_later_has_what_a_lost_one_wrote(launcher, cluster):
    """It came home after the first round; the host that wrote it is killed in the second."""

    class Rounds(events.EventHandler):
        def __init__(self):
            self.running = 0

        def record(self, event):
            self.running += event.name == "running"

    rounds = Rounds()
    events.configure(rounds)
    try:

        def work():
            context = phalanx.context()
            place = Path("ckpt/last.txt")
            begun = int(place.read_text()) if place.exists() else 0
            if context.round == 1 and context.rank == 0:
                save("ckpt/last.txt", "7")
                raise RuntimeError("the first time it fails")
            if context.round < 3:
                time.sleep(600)
            return context.host, begun

        app = launcher(3, fetch=["ckpt/*"], max_restarts=1, min_hosts=2, max_hosts=2).start(work)
        wait_until(lambda: rounds.running >= 2, timeout=60)
        cluster.hosts[0].kill()
        assert list(app.result(60)) == [("box2", 7), ("box3", 7)]
    finally:
        events.configure()
    assert Path("ckpt/last.txt").read_text() == "7"


def test_files_of_a_failed_app_come_home(launcher):
    """And the failure is what is raised."""

    def work():
        save("ckpt/last.txt", "before the failure")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        launcher(1, fetch=["ckpt/*"]).run(work)
    assert Path("ckpt/last.txt").read_text() == "before the failure"


def test_files_of_a_cancelled_app_come_home(launcher):
    """What was saved until then."""

    def work():
        save("ckpt/last.txt", "saved")
        save("ckpt/more.txt", "saved")
        print("saved", flush=True)
        time.sleep(600)

    app = launcher(1, fetch=["ckpt/*"]).start(work)
    wait_until(lambda: any(line.text == "saved" for line in app.logs()), timeout=40)
    app.cancel()
    app.wait(30)
    assert Path("ckpt/last.txt").read_text() == "saved"
    Path("ckpt/last.txt").unlink()
    app = launcher(1, fetch=["ckpt/*"]).start(work)
    wait_until(lambda: any(line.text == "saved" for line in app.logs()), timeout=40)
    app.cancel(0.0)  # at once: not for files either, and that is said
    app.wait(30)
    assert not Path("ckpt/last.txt").exists()
    with pytest.raises(phalanx.Cancelled) as caught:
        app.result()
    assert any("given up" in note for note in caught.value.__notes__)


def test_the_lowest_rank_wins_and_that_is_said(launcher, cluster, caplog):
    """Everybody has its version in the next round; what only an older round wrote does not count."""

    def work():
        context = phalanx.context()
        if context.round == 1:
            save("ckpt/both.txt", f"rank {context.rank}")
            save("ckpt/one.txt", "first") if context.rank == 0 else None
            Path(f"ckpt/ready{context.rank}").touch()
            time.sleep(1 if context.rank == 1 else 600)
            raise RuntimeError("the first time it fails")
        seen = Path("ckpt/both.txt").read_text(), Path("ckpt/one.txt").read_text()
        if context.rank == 1:
            save("ckpt/one.txt", "second")  # rank 0 has an older one
        return seen

    result = launcher(2, fetch=["ckpt/*"], max_restarts=1).run(work)
    assert not any(name.endswith(".txt") for some in trees(cluster) for name in some)
    assert list(result) == [("rank 0", "first")] * 2
    assert Path("ckpt/both.txt").read_text() == "rank 0"
    assert Path("ckpt/one.txt").read_text() == "second"
    (said,) = [m for m in caplog.messages if "different" in m]
    assert "box1 and box2 wrote different ckpt/both.txt: keeping that of box1" in said


def test_what_workers_remove_does_not_come_back(launcher):
    """Training that keeps its last two checkpoints; at home the old one stays."""

    def work():
        context = phalanx.context()
        if context.round == 1:
            save("ckpt/1", "") if context.rank == 0 else time.sleep(600)
            raise RuntimeError("again")
        if context.round == 2:
            if context.rank == 0:
                assert Path("ckpt/1").exists()
                os.unlink("ckpt/1")
                save("ckpt/2", "")
                raise RuntimeError("and again")
            time.sleep(600)
        return sorted(os.listdir("ckpt"))

    result = launcher(2, fetch=["ckpt"], max_restarts=2, restart_backoff=0.1).run(work)
    assert result.rank(0) == ["2"]
    assert sorted(os.listdir("ckpt")) == ["1", "2"]


def test_a_file_that_cannot_be_written_here_is_an_error_and_values_are_kept(
    launcher, tmp_path, caplog
):
    """A link in its way leads out: nothing goes through it."""
    (tmp_path / "outside").mkdir()
    Path("work").mkdir()
    os.chdir("work")
    Path("ckpt").symlink_to(tmp_path / "outside")
    Path(".phalanxignore").write_text("ckpt\n")

    def work():
        save("ckpt/last.txt", "x")
        return 7

    with pytest.raises(phalanx.FetchError, match=r"ckpt/last.txt from box1.*is a link") as caught:
        launcher(1, fetch=["ckpt/*"]).run(work)
    assert list(caught.value.result) == [7]
    assert not list((tmp_path / "outside").iterdir())
    assert not [message for message in caplog.messages if "no file that matches" in message]


def test_a_disk_that_is_full_here_is_said(launcher, caplog):
    """With the file and its host; the file that was there stays as it was."""
    Path("ckpt").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", "ckpt"], check=True)
    try:
        Path("ckpt/last.bin").write_text("old")

        def work():
            Path("ckpt").mkdir(exist_ok=True)
            Path("ckpt/last.bin").write_bytes(bytes(3 << 20))

        with pytest.raises(phalanx.FetchError, match=r"ckpt/last.bin from box1: .*No space left"):
            launcher(1, fetch=["ckpt/*"]).run(work)
        assert os.listdir("ckpt") == ["last.bin"]
        assert Path("ckpt/last.bin").read_text() == "old"
        assert any("No space left" in message for message in caplog.messages)
    finally:
        subprocess.run(["umount", "ckpt"], check=True)


def test_a_pattern_that_nothing_fits_is_said(launcher, caplog):
    """It may be a mistake."""
    launcher(1, fetch=["chkpt/*"]).run(os.getpid)
    assert any("no file that matches 'chkpt/*'" in message for message in caplog.messages)


def test_without_fetch_the_first_restart_warns_and_names_the_file(launcher, caplog):
    """Once; and not of what all hosts have."""

    def work():
        context = phalanx.context()
        save("everywhere.txt", "x")
        if context.round < 3:
            if context.rank == 0:
                save("ckpt/last.pt", "x")
                time.sleep(1)
                raise RuntimeError("it fails")
            time.sleep(600)

    launcher(2, max_restarts=2, restart_backoff=0.1).run(work)
    (said,) = [m for m in caplog.messages if "share no directory" in m]
    assert "box1: workers wrote ckpt/last.pt, which box2 cannot see" in said
    assert "fetch=['ckpt/*']" in said


def test_one_host_alone_is_not_warned_about(launcher, caplog):
    """What was written is where the next round looks for it."""

    def work():
        place = Path("ckpt/last.pt")
        if not place.exists():
            save(place, "x")
            raise RuntimeError("the first time it fails")

    launcher(1, max_restarts=1).run(work)
    assert not [m for m in caplog.messages if "share no directory" in m]


def test_this_machine_among_the_hosts(launcher, cluster):
    """Its workers are in the launcher's own directory: what they write there goes to the others."""

    def work():
        context = phalanx.context()
        if context.round == 1:
            if context.rank == 0:
                save("ckpt/last.txt", "of this machine")
                raise RuntimeError("the first time it fails")
            save("ckpt/other.txt", "of box1")
            time.sleep(600)
        return Path("ckpt/last.txt").read_text()

    Path("ckpt").mkdir()
    Path("ckpt/last.txt").write_text("an old one")
    hosts = ["localhost", "box1"]
    result = launcher(hostnames=hosts, fetch=["ckpt/*"], max_restarts=1).run(work)
    assert list(result) == ["of this machine"] * 2
    assert Path("ckpt/last.txt").read_text() == "of this machine"


def test_a_host_that_is_lost_while_it_sends_ends_the_transfer_alone(launcher, cluster, caplog):
    """The values are there; what did not come is said, and nothing half-written stays."""

    def work():
        context = phalanx.context()
        if context.rank == 1:
            with open("large.bin", "wb") as file:
                file.truncate(2 << 30)
        return context.rank

    host = cluster.hosts[1]
    host.slow_down("40mbit")
    app = launcher(2, fetch=["*.bin"], host_timeout=3).start(work)
    wait_until(lambda: any(n.startswith(".phalanx-new") for n in os.listdir()), timeout=60)
    host.kill()
    with pytest.raises(phalanx.FetchError, match=r"large.bin from box2: .*lost") as caught:
        app.result(60)
    assert list(caught.value.result) == [0, 1]
    assert not [n for n in os.listdir() if n.startswith(".phalanx-new") or n == "large.bin"]
    assert app.status().state is phalanx.AppState.FAILED


def test_asking_twice_gives_up(remote_script):
    """Ctrl-C once more while files are on their way: it ends at once, and says what is left."""
    running = remote_script.start(
        """
def work():
    with open("large.bin", "wb") as file:
        file.truncate(4 << 30)

launcher.run(work)
""",
        hostnames=["box1"],
        fetch=["*.bin"],
    )
    wait_until(lambda: any(n.startswith(".phalanx-new") for n in os.listdir()), timeout=60)

    def ends_when_asked():
        running.send_signal(signal.SIGINT)
        time.sleep(0.5)  # one that comes at once is the same to a process that has not looked yet
        return running.poll() is not None

    wait_until(ends_when_asked, timeout=30)
    _, stderr = running.communicate(timeout=30)
    assert not Path("large.bin").exists()
    assert "given up" in stderr


def test_a_directory_that_hosts_share_is_left_alone(tmp_path, monkeypatch, caplog):
    """Files are here already: nothing is looked at, moved or warned about."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.chdir(shared)
    cluster = Cluster(2, shared=str(shared))
    try:

        def work():
            context = phalanx.context()
            if context.round == 1:
                if context.rank == 0:
                    save("ckpt/last.txt", "rank 0")
                    raise RuntimeError("the first time it fails")
                time.sleep(600)
            return Path("ckpt/last.txt").stat().st_ino

        config = str(cluster.ssh_config)
        run = phalanx.Launcher(
            cluster.names, 1, ssh_config_file=config, fetch=["ckpt/*", "none"], max_restarts=1
        )
        first, second = run.run(work)
        assert first == second == Path("ckpt/last.txt").stat().st_ino
        assert not [m for m in caplog.messages if "fits" in m or "share no" in m or "wrote" in m]
    finally:
        cluster.close()


def test_a_checkpoint_that_the_project_has_can_be_replaced_and_still_be_sent(launcher, cluster):
    """A host that comes after the first round is sent the project as it was, then what is new."""
    Path("ckpt.txt").write_text("old " * 10_000)
    os.utime("ckpt.txt", (0, 0))  # not just being written: it is read again when it is sent

    def work():
        context = phalanx.context()
        if context.round == 1 and context.rank == 0:
            save("ckpt.txt", "new")
            raise RuntimeError("the first time it fails")
        if context.world_size == 1 or context.round == 1:
            time.sleep(600)
        return Path("ckpt.txt").read_text()

    app = launcher(1, fetch=["ckpt.txt"], max_restarts=1, max_hosts=2).start(work)
    wait_until(lambda: Path("ckpt.txt").read_text() == "new", timeout=60)
    app.add_host("box2")
    assert list(app.result(60)) == ["new", "new"]


def test_files_of_replicas_come_home(cluster):
    """`-s ssh -cfg fetch=...`: when each has ended; a failure to fetch is the replica's."""
    config = str(cluster.ssh_config)
    command = "mkdir -p out; echo written > out/$(hostname); echo x > other"
    role = Role("role", entrypoint="sh", args=["-c", command], num_replicas=2)
    cfg = {"hosts": cluster.names[:2], "ssh_config_file": config, "fetch": ["out/*"]}
    with get_runner() as runner:
        handle = runner.run(AppDef("job", [role]), "ssh", cfg)
        status = runner.wait(handle)
        assert status.state is AppState.SUCCEEDED, status
        runner.delete(handle)
        assert {p.name: p.read_text() for p in Path("out").iterdir()} == {
            "box1": "written\n",
            "box2": "written\n",
        }
        assert not Path("other").exists()
        late = "[ $(hostname) = box1 ] || sleep 5; hostname > same"
        role = Role("role", entrypoint="sh", args=["-c", late], num_replicas=2)
        handle = runner.run(AppDef("job", [role]), "ssh", {**cfg, "fetch": ["same"]})
        assert runner.wait(handle).state is AppState.SUCCEEDED
        log = registry.directory() / handle.rpartition("/")[2] / "supervisor.log"
        assert (
            "same was written here while the app ran: replaced by that of box2" in log.read_text()
        )
        assert Path("same").read_text() == "box2\n"
        runner.delete(handle)
        with pytest.raises(phalanx.ConfigError, match="below the working directory"):
            runner.run(AppDef("job", [role]), "ssh", {**cfg, "fetch": ["../x"]})


def test_a_deep_file_comes_and_one_that_is_too_deep_is_the_only_one_that_does_not(launcher):
    """Its true reason is said; a directory that cannot be looked into has one of its own."""
    deep = "/".join(["ckpt", *("d" * 300), "x"])

    def work():
        save("ckpt/plain", "plain")
        save(deep, "deep")
        here = os.getcwd()
        os.makedirs("ckpt/far")
        os.chdir("ckpt/far")
        for _ in range(20):
            os.mkdir("n" * 250)
            os.chdir("n" * 250)
        save("too-far", "far")
        os.chdir(here)

    with pytest.raises(phalanx.FetchError) as caught:
        launcher(1, fetch=["ckpt/*"]).run(work)
    assert Path("ckpt/plain").read_text() == "plain"
    assert Path(deep).read_text() == "deep"
    (problem,) = caught.value.problems
    assert problem.startswith("cannot fetch ckpt/far/nnn")
    assert "from box1: its path has" in problem
    assert "at most 4000 are possible" in problem


def test_many_small_files_go_home_and_to_the_next_round(launcher, cluster):
    """Both ways; what they count is files, since their bytes are next to nothing."""
    count = 3000

    def work():
        context = phalanx.context()
        if context.round == 1:
            if context.rank == 0:
                for i in range(count):
                    save(f"ckpt/{i % 7}/{i}", f"file {i}")
                raise RuntimeError("the first time it fails")
            time.sleep(600)
        return sum(Path(f"ckpt/{i % 7}/{i}").read_text() == f"file {i}" for i in range(count))

    assert list(launcher(2, fetch=["ckpt/*"], max_restarts=1).run(work)) == [count] * 2
    assert all(Path(f"ckpt/{i % 7}/{i}").read_text() == f"file {i}" for i in range(count))
    assert not any("ckpt" in name for some in trees(cluster) for name in some)
