"""Every file that we write, on a disk that is full, read-only, or whose files are removed.

The table is docs/files.md, row by row: a row has a case here, or in tests/ssh/test_disks.py.
"""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

import phalanx
from phalanx import _wire as wire, events
from phalanx.errors import OutputLost
from phalanx._core.rounds import Ended, Outcome
from phalanx._launcher.payload import Inboxes
from phalanx._logs.losses import Loss, describe
from phalanx._registry import append, recorded_app, replace, reserve
from phalanx._remote import slurm_replica
from phalanx._system.network import free_port
from tests.conftest import phalanx_processes, wait_until
from tests.process.commands import phalanx as command
from tests.process.disks import Disk
from tests.ssh.test_disks import TABLE as TABLE_OF_HOSTS

LINES = [f"line {i}" for i in range(20_000)]
DOCS = Path(__file__).parents[2] / "docs" / "files.md"
PROGRAM = """
    import os, sys, time

    def main():
        print("begun", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        for i in range(20_000):
            print("line", i)
        return 7

    def twice():
        main()
        while not os.path.exists("again"):
            time.sleep(0.01)
        print("last")

    def quiet():
        print("begun", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        return 7

    def large():
        return "x" * 100_000 + str(quiet())

    def deep(frames=90):
        return deep(frames - 1) if frames else quiet()

    if __name__ == "__main__":
        main()
        sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture
def disk(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        made = Disk(tmp_path / "disk")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    yield made
    made.close()


class Case:
    """A command that waits in the middle, and how it ended."""

    def __init__(self, place):
        self.place = place
        self.environ = {**os.environ, "XDG_STATE_HOME": str(place / "state")}
        self.environ.pop("PYTHONUNBUFFERED", None)
        self.out = self.err = ""
        self.code = None

    def start(self, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", *map(str, words)],
            stdout=stdout,
            stderr=stderr,
            text=True,
            cwd=self.place,
            env=self.environ,
        )

    def go(self):
        (self.place / "go").touch()

    def finish(self):
        self.go()
        self.out, self.err = self.process.communicate(timeout=100)
        self.code = self.process.returncode
        assert not (self.err or "").startswith("Traceback")
        return self

    def ask(self, *words):
        done = command(*words, cwd=self.place, env=self.environ)
        return done

    def status(self):
        done = self.ask("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["status"]


@pytest.fixture
def case(tmp_path, script):
    script.write(PROGRAM, name="program.py")
    made = Case(tmp_path)
    yield made
    made.go()
    (tmp_path / "again").touch()
    if hasattr(made, "process"):
        made.process.kill()
        made.process.communicate()


def has_begun(place, pattern="**/*.log"):
    """A worker's first line is in some file below."""
    return any("begun" in path.read_text() for path in place.glob(pattern))


# ── the table ─────────────────────────────────────────────────────────────────


def standard_output(disk, case, trouble):
    """Of a launch."""
    with open(disk / "train.log", "wb") as file:
        case.start("launch", "program.py:main", stdout=file)
    wait_until(lambda: has_begun(disk.path))
    disk.harm(trouble)
    case.finish()
    (log,) = (case.place / "logs").glob("*].log")
    assert log.read_text().splitlines() == ["begun", *LINES]
    if trouble == "full":
        assert case.code == 1
        assert case.err.count("cannot write to stdout: No space left on device") == 1
        assert case.status()["state"] == "FAILED"
    else:  # it is open: it can be written, and whoever has removed it does not want it
        assert case.code == 0


def log_files_of_a_launch(disk, case, trouble):
    case.start("launch", "program.py:main", "--log-dir", disk / "logs")
    wait_until(lambda: has_begun(disk.path))
    disk.harm(trouble)
    case.finish()
    shown = case.out.splitlines()
    assert shown == ["begun", *LINES, "rank 0: 7"]
    if trouble == "full":
        assert case.code == 1
        assert case.err.count("phalanx: cannot write to") == 1
        assert "].log: No space left on device. The launch continues" in case.err
        assert "OutputLost: output could not be written: " in case.err
        disk.repair()
        (log,) = (disk / "logs").glob("*].log")
        kept = log.read_text().splitlines()
        assert kept[:-1] == ["begun", *LINES][: len(kept) - 1]
    else:
        assert case.code == 0
        (log,) = (disk / "logs").glob("*].log")
        assert log.read_text().splitlines()[-len(LINES) :] == LINES


def log_files_of_torchrun(disk, case, trouble):
    case.start("torchrun", "--log-dir", disk / "logs", "--tee", "3", "program.py")
    wait_until(lambda: has_begun(disk.path))
    disk.harm(trouble)
    case.finish()
    assert case.out.splitlines() == [f"[default0]:{line}" for line in ["begun", *LINES]]
    if trouble == "gone":
        (log,) = (disk / "logs").glob("**/stdout.log")
        assert (case.code, log.read_text().splitlines()) == (0, LINES)
    else:
        reason = {"full": "No space left on device", "read-only": "Read-only file system"}[trouble]
        assert case.code == 1
        assert case.err.count("stdout.log: " + reason) == 1


def record_of_a_launch(disk, case, trouble):
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    case.start("launch", "program.py:quiet")
    wait_until(lambda: has_begun(case.place / "logs"))
    wait_until(lambda: case.status()["state"] == "RUNNING")
    disk.harm(trouble)
    case.finish()
    disk.repair()
    if trouble == "full":
        assert case.code == 0
        assert case.status()["state"] == "SUCCEEDED"
    elif trouble == "read-only":
        assert case.code == 1
        assert "status.json (Read-only file system)" in case.err
    else:
        assert case.code == 0
        assert "no apps yet" in case.ask("status").stderr
    assert not list(disk.path.glob("**/*.new"))


def record_of_an_app(disk, case, trouble):
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    logs = f"log_dir={case.place / 'logs'}"
    handle = case.ask("run", "-cfg", logs, "utils.python", "--script", "program.py", "--", "3")
    assert handle.returncode == 0, handle.stderr
    wait_until(lambda: has_begun(case.place / "logs"))
    (place,) = (disk / "phalanx" / "apps").iterdir()
    disk.harm(trouble)
    case.go()
    if trouble == "full":
        # Room for the end was reserved.
        wait_until(lambda: case.status()["state"] == "FAILED")
    elif trouble == "read-only":
        wait_until(lambda: "cannot write" in (place / "supervisor.log").read_text())
        assert case.status()["state"] == "RUNNING"
    disk.repair()
    wait_until(lambda: not phalanx_processes())
    assert not list(disk.path.glob("**/*.new"))
    if trouble == "gone":
        assert not place.exists()
        return
    status = case.status()
    assert (status["state"], status["exit_code"]) == ("FAILED", 3)
    assert status["message"] == "python/0 exited with code 3"


def logs_of_a_replica(disk, case, trouble):
    logs = f"log_dir={disk.path}"
    done = case.ask("run", "-cfg", logs, "utils.python", "--script", "program.py")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: has_begun(disk.path))
    disk.harm(trouble)
    case.go()
    wait_until(lambda: not phalanx_processes())
    # It is the program that writes: what it makes of that is its own.
    state = case.status()["state"]
    assert state == ("FAILED" if trouble == "full" else "SUCCEEDED")


def temporary_files_of_workers(disk, case, trouble):
    case.environ["TMPDIR"] = str(disk.path)
    case.start("launch", "program.py:main")
    wait_until(lambda: has_begun(case.place / "logs"))
    disk.harm(trouble)
    case.finish()
    if trouble == "full":
        assert case.code == 1
        assert "No space left on device" in case.err
        assert list(os.listdir(disk.path)) == ["fill"]
    else:
        assert case.code == 0
        assert case.out.splitlines() == ["begun", *LINES, "rank 0: 7"]


def test_a_large_result_whose_temporary_file_is_gone(disk, case):
    """Is none; a small one is in no file."""
    case.environ["TMPDIR"] = str(disk.path)
    case.start("launch", "program.py:large")
    wait_until(lambda: has_begun(case.place / "logs"))
    disk.harm("gone")
    case.finish()
    assert case.code == 1
    assert case.err.startswith("phalanx.errors.ResultError: ")
    assert case.out == "begun\n"


def agents_that_are_kept(disk, case, trouble):
    case.environ["XDG_RUNTIME_DIR"] = str(disk.path)
    case.start("launch", "program.py:quiet", "--keep-warm", "60")
    wait_until(lambda: has_begun(case.place / "logs"))
    disk.harm(trouble)
    case.finish()
    assert (case.code, case.out) == (0, "begun\nrank 0: 7\n")
    wait_until(lambda: not phalanx_processes())
    assert not list(disk.path.glob("phalanx/warm/*"))


def configuration(disk, case, trouble):
    case.place = disk.path
    disk.harm(trouble)
    done = case.ask("configure")
    assert done.returncode == 1
    assert done.stderr.startswith("phalanx configure: [Errno")
    assert "Traceback" not in done.stderr
    disk.repair()
    assert os.listdir(disk.path) == []
    assert case.ask("configure").returncode == 0


def cancellation(disk, case, trouble):
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    logs = f"log_dir={case.place / 'logs'}"
    done = case.ask("run", "-cfg", logs, "utils.sh", "echo begun; sleep 1000")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: has_begun(case.place / "logs"))
    (place,) = (disk / "phalanx" / "apps").iterdir()
    if trouble == "gone":
        pid = json.loads((place / "app.json").read_text())["owner"]["pid"]
        disk.harm(trouble)
        assert "no such app" in case.ask("cancel", place.name).stderr
        os.kill(pid, signal.SIGTERM)
    else:
        disk.harm(trouble)
        # The supervisor is told by a signal: nothing has to be written for that.
        cancelling = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "cancel", place.name],
            env=case.environ,
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: "SIGTERM" in _pid_ended(case, place) or trouble == "full")
        disk.repair()
        assert cancelling.wait(60) == 0
    wait_until(lambda: not phalanx_processes())
    if trouble != "gone":
        assert case.status()["state"] == "CANCELLED"


def _pid_ended(case, place):
    """The supervisor has something to say that it cannot write down."""
    return "SIGTERM" if (place / "supervisor.log").stat().st_size else ""


def supervisor_log(disk, case, trouble):
    """Of a supervisor that is killed. One that does not say anything is not pointed at."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    logs = f"log_dir={case.place / 'logs'}"
    case.ask("run", "-cfg", logs, "utils.sh", "echo begun; sleep 1000")
    wait_until(lambda: has_begun(case.place / "logs"))
    (place,) = (disk / "phalanx" / "apps").iterdir()
    log = place / "supervisor.log"
    keeper = json.loads((place / "app.json").read_text())["owner"]["pid"]
    (supervisor,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    if trouble == "gone":
        log.unlink()
    elif trouble:
        disk.harm(trouble)
    os.kill(int(supervisor), signal.SIGKILL)
    if trouble == "read-only":  # it is open, and has more to say
        wait_until(lambda: "status.json: Read-only file system" in log.read_text())
        disk.repair()
    wait_until(lambda: not phalanx_processes())
    message = case.status()["message"]
    assert message.startswith("its supervisor ended: killed by SIGKILL")
    says_something = log.exists() and log.stat().st_size > 0
    assert (str(log) in message) == says_something == (trouble in (None, "read-only"))


def questions_for_stacks(disk, case, trouble):
    """Those that cannot be asked, and those that cannot be answered; the app goes on."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    case.start("launch", "program.py:deep")
    wait_until(lambda: has_begun(case.place / "logs"))
    (place,) = (disk / "phalanx" / "apps").iterdir()
    reason = {
        "full": "No space left on device",
        "read-only": "Read-only file system",
        "gone": f"{place.name} is no longer recorded",
    }[trouble]
    case.process.send_signal(signal.SIGSTOP)
    asking = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "stacks", "--timeout", "1"],
        env=case.environ,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: list(place.glob("stacks/*.ask")))
    disk.harm(trouble)
    case.process.send_signal(signal.SIGCONT)
    _, said = asking.communicate(timeout=60)
    assert (asking.returncode, said.count("\n"), reason in said) == (1, 1, True), said
    done = case.ask("stacks")
    reason = "no app is running" if trouble == "gone" else reason
    assert (done.returncode, done.stderr.count("\n"), reason in done.stderr) == (1, 1, True)
    disk.repair()
    assert "rank 0: 7" in case.finish().out
    assert case.code == 0, case.err


WAITING = """
    echo begun; until [ -e go ]; do sleep 0.01; done
    echo middle; until [ -e again ]; do sleep 0.01; done
    echo last
"""


def times_of_lines(disk, case, trouble):
    """Of an app, and of a launch: no line is left out because it is not known when it came."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    logs = case.place / "logs"
    words = ["launch", "program.py:twice", "--log-dir", logs / "launch"]
    case.start(*words, stdout=subprocess.DEVNULL)
    assert case.ask("run", "-cfg", f"log_dir={logs / 'app'}", "utils.sh", WAITING).returncode == 0
    wait_until(lambda: has_begun(logs / "launch") and has_begun(logs / "app"))
    places = {path.name.rpartition("-")[0]: path for path in (disk / "phalanx/apps").iterdir()}
    app, launch = places.pop("sh"), next(iter(places.values()))
    times = launch / "times-0", app / "times" / "sh-0-stdout"
    wait_until(lambda: all(path.exists() and path.read_text() for path in times))
    if trouble == "gone":
        for path in times:
            path.unlink()
        times[1].parent.rmdir()
    else:
        disk.harm(trouble)
    case.go()
    read = lambda: "".join(path.read_text() for path in logs.rglob("*.log"))
    wait_until(lambda: "line 15000\n" in read() and "middle\n" in read())
    disk.repair()
    (case.place / "again").touch()
    assert case.finish().code == 0, case.err
    wait_until(lambda: not phalanx_processes())
    for path, lines in ((launch, ["begun", *LINES, "last"]), (app, ["begun", "middle", "last"])):
        done = case.ask("log", "--since", "1h", path.name)
        shown = [line.removeprefix("sh/0 ") for line in done.stdout.splitlines()]
        assert shown == lines
    assert all(path.read_text() for path in times[trouble == "gone" :])


def gpus_that_are_given(disk, case, trouble):
    """To an app that waits for one: there is one, as far as the machine's tool says."""
    tool = case.place / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU 0: one'\n")
    tool.chmod(0o755)
    case.environ |= {
        "XDG_STATE_HOME": str(disk.path),
        "PATH": f"{tool.parent}:{os.environ['PATH']}",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    logs = case.place / "logs"
    app = ["run", "-cfg", f"log_dir={logs}", "utils.sh", "--gpu", "1", WAITING]
    first, second = (case.ask(*app).stdout.strip() for _ in "ab")
    wait_until(lambda: has_begun(logs))
    status = lambda handle: json.loads(case.ask("status", "--json", handle).stdout)["status"]
    wait_until(lambda: "waiting for 1 GPU" in status(second)["message"])
    keeper = json.loads((_place(disk, second) / "app.json").read_text())["owner"]["pid"]
    (supervisor,) = map(int, _children_of(keeper))
    for pid in (keeper, supervisor):  # the keeper would continue it
        os.kill(pid, signal.SIGSTOP)
    disk.harm(trouble)
    if trouble == "full":
        (case.place / "go").touch()
        (case.place / "again").touch()
        wait_until(lambda: status(first)["state"] == "SUCCEEDED")
        disk.fill()  # once more: it has left some room
    for pid in (supervisor, keeper):
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not _children_of(keeper) or trouble == "read-only")
    if trouble == "read-only":
        wait_until(lambda: (_place(disk, second) / "supervisor.log").stat().st_size)
    disk.repair()
    wait_until(lambda: not os.path.exists(f"/proc/{keeper}"))
    if trouble != "gone":
        reason = {"full": "No space left on device", "read-only": "Read-only file system"}[trouble]
        ended = status(second)
        assert ended["state"] == "FAILED"
        assert ended["message"].startswith("cannot record its GPUs: ")
        assert reason in ended["message"]
    assert len(list(logs.rglob("stdout.log"))) == 1  # it was not started
    case.go()
    (case.place / "again").touch()
    wait_until(lambda: not phalanx_processes())


def _place(disk, handle):
    return disk / "phalanx" / "apps" / handle.rpartition("/")[2]


def _children_of(pid):
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []


def error_files(disk, case, trouble):
    (case.place / "failing.py").write_text(
        textwrap.dedent("""
            import os, sys, time
            import phalanx

            @phalanx.record
            def main():
                for stream in (sys.stdout, sys.stderr):
                    print("begun", file=stream, flush=True)
                while not os.path.exists("go"):
                    time.sleep(0.01)
                raise ValueError("in the file " + "x" * 5000)

            try:
                main()
            except ValueError:
                sys.exit("on stderr")
        """)
    )
    case.ask("run", "-cfg", f"log_dir={disk.path}", "utils.python", "--script", "failing.py")
    wait_until(lambda: has_begun(disk.path, "**/stderr.log"))
    (log,) = disk.path.glob("**/stderr.log")
    disk.harm(trouble)
    case.go()
    wait_until(lambda: not phalanx_processes())
    status = case.status()
    assert status["state"] == "FAILED"
    shown = status["roles"][0]["replicas"][0]["error"]
    if trouble == "gone":  # whoever writes it makes the directory
        assert shown.startswith("ValueError: in the file")
    else:
        assert shown == "on stderr"
        disk.repair()
        assert not log.with_name("error.json").exists()


def values_on_their_way_in(disk, case, trouble):
    """Of another host: the launcher has another place for them than the workers."""
    (disk / "tmp").mkdir()
    ssh = case.place / "bin" / "ssh"  # an agent as another host's, with a disk of its own
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec /bin/sh -c "$last"\n')
    ssh.chmod(0o755)
    case.environ["PATH"] = f"{ssh.parent}:{os.environ['PATH']}"
    (case.place / "large.py").write_text(
        textwrap.dedent("""
            import os, sys, tempfile, time
            import phalanx

            def large():
                print("begun", flush=True)
                while not os.path.exists("go"):
                    time.sleep(0.01)
                return bytes(5 << 20)

            if __name__ == "__main__":
                tempfile.tempdir = sys.argv[1]
                try:
                    phalanx.launch(large, hostnames=["other"], workers_per_host=1)
                except phalanx.LaunchError as error:
                    print(type(error).__name__, error)
        """)
    )
    case.process = subprocess.Popen(
        [sys.executable, "large.py", disk / "tmp"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=case.place,
        env=case.environ,
    )
    wait_until(lambda: has_begun(case.place / "logs"))
    disk.harm(trouble)
    case.finish()
    reason = {
        "full": "No space left on device",
        "read-only": "No space left on device|Read-only file system",
        "gone": "No such file or directory",
    }[trouble]
    assert case.code == 0, case.err
    assert re.search(rf"ResultError rank 0 .*cannot store it: ({reason})", case.out), case.out


def token_of_hosts_that_meet_here(disk, case, trouble):
    """Without one they meet all the same, which each of them says."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    case.go()
    (disk / "phalanx").mkdir()
    disk.harm(trouble)
    words = [sys.executable, "-m", "phalanx", "torchrun", "--nnodes", "2"]
    words += ["--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-backend", "c10d"]
    hosts = [
        subprocess.Popen(
            [*words, "program.py"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=case.place,
            env=case.environ,
        )
        for _ in range(2)
    ]
    said = [host.communicate(timeout=60)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    warned = ["can join the rendezvous" in text for text in said]
    assert warned == [trouble != "gone"] * 2, said
    disk.repair()
    tokens = [path.name for path in disk.path.rglob("*token*")]
    assert tokens == (["loopback.token"] if trouble == "gone" else [])


def events_as_lines(disk, case, trouble):
    """Whole lines, or none; what could not be written is said once."""
    path = disk / "events" / "all.jsonl"
    warnings = []
    said = logging.Handler()
    said.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("phalanx").addHandler(said)
    record = lambda name: events.record(events.Event(name, events.EventSource.AGENT))
    try:
        events.configure(events.JSONLinesEventHandler(path))
        record("first")
        assert events.flush()
        path.write_text(path.read_text() + " " * (4096 - path.stat().st_size - 51) + "\n")
        disk.harm(trouble)
        for name in ("second", "third"):
            record(name)
        assert events.flush()
        disk.repair()
        record("last")
        assert events.flush()
    finally:
        events.configure()
        logging.getLogger("phalanx").removeHandler(said)
    names = [line["name"] for line in map(_as_json, path.read_text().splitlines()) if line]
    if trouble == "gone":
        assert (names, warnings) == (["second", "third", "last"], [])
    else:
        assert names == ["first", "last"]
        reason = {"full": "only partly written|No space left", "read-only": "Read-only file system"}
        (warning,) = warnings
        assert re.search(reason[trouble], warning)


def checkpoint_of_a_map(disk, case, trouble):
    """What could not be kept is said once, and is done again the next time."""
    (case.place / "items.jsonl").write_text("{}\n")
    words = ["map", "program.py:quiet", "items.jsonl", "--checkpoint", disk / "done" / "all"]
    case.start(*words)
    wait_until(lambda: has_begun(case.place / "logs"))
    disk.harm(trouble)
    case.finish()
    assert case.code == 0, case.err
    reason = {"full": "No space left", "read-only": "Read-only file system"}
    assert case.err.count("cannot save a result") == (trouble != "gone")
    assert reason.get(trouble, "") in case.err
    disk.repair()
    kept = [path.name for path in disk.path.glob("done/all/*")]
    assert [name.endswith(".result") for name in kept] == [True] * (trouble == "gone")


def result_of_a_detached_launch(disk, case, trouble):
    """Who hosts it stays until it is written."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    done = case.ask("launch", "program.py:large", "--detach", "--log-dir", str(case.place / "logs"))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: has_begun(case.place / "logs"))
    (record,) = (disk / "phalanx" / "apps").iterdir()
    host = json.loads((record / "app.json").read_text())["owner"]["pid"]
    children = Path(f"/proc/{host}/task/{host}/children")
    disk.harm(trouble)
    case.go()
    if trouble == "gone":
        wait_until(lambda: not children.exists())
        return
    wait_until(lambda: not children.read_text())
    assert not (record / "result.pickle").exists()
    disk.repair()
    code = f"""if True:
        import phalanx
        try:
            result = phalanx.app({record.name!r}).result(60)
        except phalanx.OutputLost as error:
            print(error)
            result = error.result
        print(result.rank(0)[-2:])
    """
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, env=case.environ, capture_output=True, text=True, timeout=90)
    *lost, value = found.stdout.splitlines() or [found.stderr]
    assert value == "x7"
    if trouble == "full":
        assert not lost
    assert all(line.endswith("status.json (Read-only file system)") for line in lost)
    assert not list(record.glob("*.new"))


def files_of_slurm(disk, case, trouble):
    """One replica's, with nothing of Slurm but the variables."""
    job = disk / "job"
    job.mkdir()
    (job / "control").write_text("try 0\n")
    (job / "token").write_text("token")
    case.environ |= {"SLURM_PROCID": "0", "SLURMD_NODENAME": "here", "PHALANX_ROLE": "python"}
    program = [sys.executable, slurm_replica.__file__, job, "0", "--"]
    words = ["echo begun; while [ ! -e go ]; do sleep 0.01; done; echo last; exit 3"]
    one = subprocess.Popen(
        [*map(str, program), "sh", "-c", *words],
        cwd=case.place,
        env=case.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    status = job / "replicas" / "0-0.json"
    wait_until(lambda: status.exists() and has_begun(disk.path))
    if trouble == "full":  # and no room in what there is of it: that of a line may be enough
        (job / "control").write_text("try 0\n" + "\n" * 4090)
    disk.harm(trouble)
    case.go()
    if trouble == "full":
        wait_until(lambda: json.loads(status.read_text())["state"] == "ENDED")
        assert "failed" not in (job / "control").read_text()
        assert one.poll() is None
        disk.repair()
    said, _ = one.communicate(timeout=100)
    assert "Traceback" not in said
    if trouble == "gone":
        assert (one.returncode, list(disk.path.iterdir())) == (0, [])
    elif trouble == "read-only":  # Slurm has the job's exit code
        assert one.returncode == 3
        assert f"phalanx: cannot write to {job} how the program ended (3)" in said
        assert json.loads(status.read_text())["state"] == "RUNNING"
    else:
        assert one.returncode == 0
        assert json.loads(status.read_text())["code"] == 3
        assert (job / "control").read_text().split() == ["try", "0", "failed", "0", "0", "3"]
    if trouble != "read-only":
        assert not [*disk.path.rglob("*.new"), *disk.path.rglob("*.reserve")]


def call_that_was_submitted(disk, case, trouble):
    """The job stays until its result is written."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    logs = case.place / "logs"
    code = f"""if True:
        import phalanx, program
        options = dict(scheduler="local_cwd", scheduler_options=dict(log_dir={str(logs)!r}))
        job = phalanx.Launcher(workers_per_host=1, **options).submit(program.large)
        print(job.id, flush=True)
        try:
            print(job.result(90).rank(0)[-2:])
        except phalanx.LaunchError as error:
            print(error)
    """
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=case.environ,
        cwd=case.place,
        stdout=subprocess.PIPE,
        text=True,
    ) as caller:
        assert caller.stdout.readline().startswith("local_cwd://")
        wait_until(lambda: has_begun(logs, "**/stdout.log"))
        disk.harm(trouble)
        case.go()
        said = lambda: "".join(path.read_text() for path in logs.glob("**/stderr.log"))
        if trouble != "gone":
            wait_until(lambda: "The job waits until it can be written" in said())
            disk.repair()
        came = caller.communicate(timeout=100)[0]
    if trouble == "gone":
        assert came.endswith("was deleted before it had ended\n")
        wait_until(lambda: "the result is lost" in said())
    else:
        assert came == "x7\n"
    wait_until(lambda: not phalanx_processes())
    assert not list(disk.path.rglob("*.new"))


def _as_json(line):
    try:
        return json.loads(line)
    except ValueError:
        return None


TABLE = {
    "standard output": standard_output,
    "log files of a launch": log_files_of_a_launch,
    "log files of `phalanx torchrun`": log_files_of_torchrun,
    "record of a launch": record_of_a_launch,
    "record of an app": record_of_an_app,
    "logs of a replica": logs_of_a_replica,
    "temporary files of workers": temporary_files_of_workers,
    "warm agents": agents_that_are_kept,
    "`.phalanxconfig`": configuration,
    "cancellation": cancellation,
    "`supervisor.log`": supervisor_log,
    "stack requests and answers": questions_for_stacks,
    "times of lines": times_of_lines,
    "GPU assignments": gpus_that_are_given,
    "error files": error_files,
    "results over 4 MiB of other hosts, in transit": values_on_their_way_in,
    "rendezvous token of this machine": token_of_hosts_that_meet_here,
    "events": events_as_lines,
    "checkpoint of `map`": checkpoint_of_a_map,
    "result of a detached launch": result_of_a_detached_launch,
    "files of an app on Slurm": files_of_slurm,
    "call and result of `submit`": call_that_was_submitted,
}


CASES = [
    (name, trouble)
    for name in TABLE
    for trouble in ("full", "read-only", "gone")
    if (name, trouble) != ("`.phalanxconfig`", "gone")  # it is written at once
]


@pytest.mark.parametrize(("name", "trouble"), CASES)
def test_what_a_disk_does_to_a_file(name, trouble, disk, case):
    """As the table has it."""
    TABLE[name](disk, case, trouble)


CHILD = """
    import subprocess, sys

    NOISE = "for i in $(seq 20000); do echo line $i; done"

    def main(seconds=0.0):
        print("begun", flush=True)
        subprocess.run(["sh", "-c", f"while [ ! -e go ]; do sleep 0.01; done; {NOISE}"], check=True)
        subprocess.run(["sh", "-c", "while [ ! -e room ]; do sleep 0.01; done; echo last"], check=True)
        return 7
"""


@pytest.mark.parametrize("how", ["launch", "map"])
def test_what_a_workers_child_could_not_print_is_missed(disk, case, how):
    """Shells and many programs pass over a full disk; the app does not succeed."""
    (case.place / "child.py").write_text(textwrap.dedent(CHILD))
    (case.place / "items.jsonl").write_text("{}\n")
    case.environ["TMPDIR"] = str(disk.path)
    case.start(how, "child.py:main", *(["items.jsonl"] if how == "map" else []))
    wait_until(lambda: has_begun(case.place / "logs"))
    disk.harm("full")
    case.go()
    logs = case.place / "logs"
    wait_until(lambda: any("output missing" in p.read_text() for p in logs.glob("**/*0*.log")))
    disk.repair()
    (case.place / "room").touch()
    case.finish()
    assert case.code == 1
    assert "the temporary files of rank 0 on localhost (No space left on device)" in case.err
    log = "".join(p.read_text() for p in logs.glob("**/*0*.log"))
    assert log.count("\nline ") < 20_000
    assert "\nlast\n" in log


def test_the_table_in_the_docs_has_every_row():
    """And no other: those of other hosts are tried on some."""
    rows = re.findall(r"^\| ([^|]+?) \|", DOCS.read_text(), re.MULTILINE)
    rows = [row for row in rows if not row.startswith("-") and row != "file"]
    names = [re.sub(r" \(.*\)$", "", row) for row in rows]
    assert sorted(names) == sorted([*TABLE, *TABLE_OF_HOSTS])


# ── standard output of every command ──────────────────────────────────────────


COMMANDS = [
    ["--help"],
    ["version"],
    ["builtins"],
    ["runopts"],
    ["list"],
    ["status"],
    ["status", "--json"],
    ["describe"],
    ["log"],
    ["log", "--follow"],
    ["clean", "--dry-run"],
    ["configure", "--print"],
    ["config"],
    ["warm", "status", "--json"],
    ["completion", "bash"],
    ["run", "--help"],
    ["launch", "--help"],
    ["torchrun", "--help"],
    ["run", "--dryrun", "utils.echo"],
    ["run", "utils.echo"],
    ["run", "--wait", "utils.echo"],
]


@pytest.fixture(scope="module")
def an_app(tmp_path_factory):
    """Something to show."""
    place = tmp_path_factory.mktemp("shown")
    environ = {**os.environ, "XDG_STATE_HOME": str(place)}
    done = command("run", "--wait", "utils.echo", env=environ)
    assert done.returncode == 0, done.stderr
    return environ


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_whose_output_cannot_be_written(words, buffered, an_app, tmp_path):
    """One sentence, and exit code 1; nobody is disturbed by a reader that has left."""
    environ = {**an_app, "PYTHONUNBUFFERED": "" if buffered else "1"}
    line = f'"{sys.executable}" -m phalanx {" ".join(words)}'

    def shell(text):
        return subprocess.run(
            ["bash", "-c", text],
            capture_output=True,
            text=True,
            env=environ,
            cwd=tmp_path,
            timeout=60,
        )

    done = shell(f"{line} >/dev/full")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("No space left on device") == 1
    assert ("stdout: No space left on device" in done.stderr, "Traceback" in done.stderr) == (
        True,
        False,
    )
    assert shell(f"{line} >/dev/full 2>&1").returncode == 1
    done = shell(f"{line} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    "words", [["launch", "program.py:main"], ["torchrun", "program.py"]], ids=lambda words: words[0]
)
def test_a_launch_whose_output_cannot_be_written(words, case):
    """Said once; also when nobody can be told."""
    case.go()
    with open("/dev/full", "wb") as full:
        case.start(*words, stdout=full)
        case.finish()
        assert case.code == 1
        assert case.err.count("phalanx: cannot write to stdout: No space left on device") == 1
        assert re.search(r"output could not be written: \d+ bytes to stdout", case.err)
        case.start(*words, stdout=full, stderr=full)
        assert case.finish().code == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "words",
    [
        ["launch", "program.py:main"],
        ["torchrun", "--nproc-per-node", "2", "program.py"],  # has a note on OMP_NUM_THREADS
        ["torchrun", "--nnodes", "1:2", "--rdzv-backend", "c10d", "program.py"],  # on the token
    ],
    ids=["launch", "torchrun", "hosts"],
)
def test_what_we_say_ourselves_may_find_no_room(words, unbuffered, case):
    """The program runs, and its end is the command's."""
    case.go()
    if "c10d" in words:
        endpoint = f"localhost:{free_port()}"
        words[-1:-1] = ["--rdzv-endpoint", endpoint, "--rdzv-conf", "last_call_timeout=0.1"]
    case.environ.pop("OMP_NUM_THREADS", None)
    case.environ["PYTHONUNBUFFERED"] = unbuffered
    (case.place / "program.py").write_text(
        "def main():\n    print('runs')\n\nif __name__ == '__main__':\n    main()\n"
    )
    with open("/dev/full", "wb") as full:
        case.start(*words, stderr=full)
        case.finish()
    assert (case.code, "runs" in case.out) == (0, True)


@pytest.mark.parametrize(
    "words", [["launch", "program.py:main"], ["torchrun", "program.py"]], ids=lambda words: words[0]
)
def test_a_reader_that_leaves_is_no_error(words, case):
    """`| head`."""
    case.go()
    line = f'"{sys.executable}" -m phalanx {" ".join(words)} | head -1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        cwd=case.place,
        env=case.environ,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "begun\n"), done.stderr
    assert "cannot write" not in done.stderr


def test_a_disk_that_has_room_again_takes_the_rest(disk, case):
    """How much is missing is said in the very place."""
    with open(disk / "train.log", "wb") as file:
        case.start("launch", "program.py:twice", "--log-dir", disk / "logs", stdout=file)
    wait_until(lambda: has_begun(disk / "logs") and has_begun(disk.path, "train.log"))
    (log,) = (disk / "logs").glob("*].log")
    disk.fill()
    case.go()
    assert "cannot write to" in case.process.stderr.readline()
    disk.repair()
    (case.place / "again").touch()
    assert case.finish().code == 1
    whole = sum(len(line) + 1 for line in ["begun", *LINES, "last"])
    for path in (log, disk / "train.log"):
        text = path.read_text()
        assert "\nlast\n" in text
        marks = re.findall(r"\n\[phalanx: (\d+) bytes missing: No space left.*\]\n", text)
        there = len(re.sub(r"\n\[phalanx: .*\]\n", "", text))
        assert there + sum(map(int, marks)) == whole


def test_an_exception_has_the_values(script):
    """From Python, nothing of what was computed is lost."""
    done = script("""
        import phalanx

        def f():
            print("x" * 10_000)
            return 7

        if __name__ == "__main__":
            try:
                phalanx.launch(f, workers_per_host=2, log_spec=phalanx.DefaultLogSpec(
                    {"localhost[0]": [phalanx._logs.spec.RankFile("/dev/full")]}
                ))
            except phalanx.OutputLost as error:
                print(list(error.result), error.places, isinstance(error, phalanx.LaunchError))
    """)
    assert done.stdout == "[7, 7] ('/dev/full',) True\n", done.stderr
    assert done.stderr.count("cannot write to /dev/full: No space left on device") == 1


def test_a_workers_failure_comes_before_what_it_printed(script):
    """What it raised is raised."""
    done = script("""
        import phalanx

        def f():
            print("x" * 10_000)
            raise KeyError("mine")

        if __name__ == "__main__":
            try:
                phalanx.launch(f, workers_per_host=1, log_spec=phalanx.DefaultLogSpec(
                    {"localhost[0]": [phalanx._logs.spec.RankFile("/dev/full")]}
                ))
            except KeyError as error:
                print("mine")
    """)
    assert done.stdout == "mine\n", done.stderr


def test_lines_that_a_slow_handler_does_not_get_are_not_passed_over(script):
    """Said while it happens, not at the end."""
    done = script("""
        import logging, threading, phalanx

        said = threading.Event()

        class Slow(logging.Handler):
            def emit(self, record):
                assert said.wait(60)

        class Watch(logging.Handler):
            def emit(self, record):
                if "is too slow: dropping lines" in record.getMessage():
                    said.set()

        def f():
            for _ in range(80):
                print("x" * (1 << 20))

        if __name__ == "__main__":
            logging.getLogger("phalanx").addHandler(Watch())
            phalanx.launch(f, workers_per_host=1, log_spec=phalanx.DefaultLogSpec(
                {"localhost[0]": [Slow()]}
            ))
            print(said.is_set())
    """)
    assert done.stdout == "True\n", done.stderr


# ── the supervisor ────────────────────────────────────────────────────────────


def test_how_an_app_ended_is_written_once_there_is_room(disk, case):
    """Also where no room was reserved, however long it takes."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    logs = f"log_dir={case.place / 'logs'}"
    case.ask("run", "-cfg", logs, "utils.python", "--script", "program.py", "--", "3")
    wait_until(lambda: has_begun(case.place / "logs"))
    (place,) = (disk / "phalanx" / "apps").iterdir()
    (place / "status.reserve").unlink()
    disk.fill()
    case.go()
    app = recorded_app.RecordedApp(place, json.loads((place / "app.json").read_text()))
    wait_until(lambda: not _replicas_of(app))
    assert app.state.value == "RUNNING"
    disk.repair()
    wait_until(lambda: not phalanx_processes())
    assert case.status()["exit_code"] == 3
    assert sorted(p.name for p in place.iterdir()) == [
        "app.json",
        "definition.json",
        "request.json",
        "status.json",
        "supervisor.log",
        "times",
    ]


def _replicas_of(app):
    pids = [r["pid"] for role in app.status()["roles"] for r in role["replicas"]]
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_log_that_is_pointed_at_says_something(disk, case):
    """Of a supervisor that was killed."""
    supervisor_log(disk, case, None)


# ── parts ─────────────────────────────────────────────────────────────────────


def test_nothing_half_written_stays(disk):
    """The old one is there, and nothing besides."""
    path = disk / "status.json"
    replace(path, {"state": "RUNNING"})
    reserve(path, 1)
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        replace(path, {"state": "FAILED", "message": "x" * 2000})
    assert sorted(os.listdir(disk.path)) == ["fill", "status.json", "status.reserve"]
    replace(path, {"state": "FAILED", "message": "x" * 2000}, last=True)
    assert json.loads(path.read_text())["message"] == "x" * 2000
    assert sorted(os.listdir(disk.path)) == ["fill", "status.json"]


@pytest.mark.parametrize("room", [0, 1, 5, 10])
def test_a_line_is_added_as_a_whole_or_not_at_all(disk, room):
    """One that is cut would be continued by the next."""
    path = disk / "times-0"
    path.write_text("x" * (4095 - room) + "\n")
    disk.fill()
    before = path.read_text()
    with pytest.raises(OSError, match="No space left"):
        append(path, "123 4567.890\n")
    assert path.read_text() == before
    disk.repair()
    append(path, "124 4567.890\n")
    assert path.read_text() == before + "124 4567.890\n"


def test_a_gap_is_marked():
    """With how much is missing, and once."""
    loss = Loss("here")
    assert (bool(loss), loss.mark()) == (False, b"")
    loss.add(3, OSError(28, "No space left on device"))
    loss.add(4, OSError(28, "No space left on device"))
    assert loss.mark() == b"\n[phalanx: 7 bytes missing: No space left on device]\n"
    loss.close_gap()
    assert (bool(loss), loss.mark()) == (True, b"")
    assert describe([loss] * 5).endswith("and to 2 other places")
    loss.forget()
    assert not loss


def test_the_error_pickles():
    """With its fields."""
    import pickle

    error = pickle.loads(pickle.dumps(OutputLost("text", places=("a",), result=[1])))  # noqa: S301
    assert (str(error), error.places, error.result) == ("text", ("a",), [1])
    assert phalanx.OutputLost is OutputLost


@pytest.mark.parametrize("pages", range(6))
def test_a_launch_is_recorded_to_its_end_or_not_at_all(disk, script, pages):
    """However little room is left when it begins: what has none for its end is refused first."""
    disk.fill()
    os.truncate(disk / "fill", (disk / "fill").stat().st_size - 4096 * pages)
    code = "import phalanx; phalanx.launch(int)"
    done = script(code, env={**os.environ, "XDG_STATE_HOME": str(disk.path)})
    assert done.returncode == 0, done.stderr
    disk.repair()
    states = [app.state.value for app in recorded_app.apps(disk / "phalanx" / "apps")]
    assert states == ([] if "cannot record" in done.stderr else ["SUCCEEDED"])
    assert not list(disk.path.rglob("*.new"))


@pytest.mark.parametrize("rest", [1, 4096, 1 << 20])
def test_a_value_for_which_room_was_there_and_is_not_any_more(disk, monkeypatch, rest):
    """Found out when its last bytes come, however few they are, and nowhere else."""
    large = Disk(disk / "large", "8m")
    try:
        monkeypatch.setattr(tempfile, "tempdir", str(large.path))
        inboxes, total = Inboxes(), (5 << 20) + rest
        piece = {"key": "payload", "total": total, "rank": 0}
        inboxes.collect(wire.Piece(**piece, offset=0, data=bytes(5 << 20)), 0)
        large.fill()
        inboxes.collect(wire.Piece(**piece, offset=5 << 20, data=bytes(rest)), 0)
        ended = inboxes.complete(Outcome(0, Ended.RETURNED, 0.0, 1))
        text = "cannot store it: No space left on device"
        assert (ended.kind, ended.exception.message) == (Ended.RAISED, text)
        inboxes.forget(None)
    finally:
        large.close()
