"""Every file that we write, on a disk that is full, read-only, or whose files are removed.

The table is docs/files.md, row by row: a row has a test here, or names the one that it has.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx.errors import OutputLost
from phalanx._logs.losses import Loss, describe
from phalanx._registry import recorded_app, replace, reserve
from tests.conftest import phalanx_processes, wait_until
from tests.process.commands import phalanx as command
from tests.process.disks import Disk

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
    elif trouble == "read-only":
        assert case.code == 0
        assert case.out.splitlines() == ["begun", *LINES, "rank 0: 7"]
    else:
        assert case.code == 1
        assert case.err.startswith("phalanx.errors.ResultError: ")
        assert case.out.splitlines() == ["begun", *LINES]


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


def test_the_table_in_the_docs_has_every_row():
    """And no other, but those that name their own test."""
    rows = re.findall(r"^\| ([^|]+?) \|", DOCS.read_text(), re.MULTILINE)
    rows = [row for row in rows if not row.startswith("-") and row != "file"]
    own = [row for row in rows if "ᵗ" not in row]
    assert sorted(re.sub(r" \(.*\)$", "", row) for row in own) == sorted(TABLE)


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
                if "too slow: lines are left out" in record.getMessage():
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


@pytest.mark.parametrize("full", [False, True])
def test_a_log_that_is_pointed_at_says_something(full, disk, case):
    """Of a supervisor that was killed."""
    case.environ["XDG_STATE_HOME"] = str(disk.path)
    logs = f"log_dir={case.place / 'logs'}"
    case.ask("run", "-cfg", logs, "utils.sh", "echo begun; sleep 1000")
    wait_until(lambda: has_begun(case.place / "logs"))
    (place,) = (disk / "phalanx" / "apps").iterdir()
    keeper = json.loads((place / "app.json").read_text())["owner"]["pid"]
    (supervisor,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
    if full:
        disk.fill()
    os.kill(int(supervisor), signal.SIGKILL)
    wait_until(lambda: not phalanx_processes())
    message = case.status()["message"]
    assert message.startswith("its supervisor ended: killed by SIGKILL")
    log = place / "supervisor.log"
    assert (str(log) in message) == bool(log.stat().st_size) == (not full)


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
