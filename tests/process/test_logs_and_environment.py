"""Logs, environment, start, on one host."""

import os
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

import phalanx
from phalanx import ConfigError, StartFailed
from tests.conftest import wait_until


def log_of(tmp_path, local_rank, host="localhost"):
    (path,) = (tmp_path / "logs").glob(f"*-{host}[[]{local_rank}].log")
    return path.read_bytes()


def test_a_million_lines_arrive_whole(tmp_path):
    """As fast as a rank can print, none lost, none broken."""

    def f():
        for i in range(1_000_000):
            print(i)

    phalanx.launch(f, workers_per_host=1)
    assert log_of(tmp_path, 0) == b"".join(b"%d\n" % i for i in range(1_000_000))


def test_a_reader_that_does_not_read_does_not_stall_the_workers(script, tmp_path):
    """The launcher's stdout is a pipe that nobody empties until the worker is done."""
    process = script.start("""
        import phalanx

        def f():
            for i in range(300_000):
                print("some text", i)
            open("printed", "w").close()

        phalanx.launch(f, workers_per_host=1)
    """)
    wait_until((tmp_path / "printed").exists)
    assert process.poll() is None
    out, errors = process.communicate(timeout=60)
    assert out.splitlines() == [f"some text {i}" for i in range(300_000)], errors


def test_stdout_and_stderr_of_many_writers_keep_their_lines(tmp_path):
    """Two streams in one file, no line within another."""

    def f():
        import sys

        for i in range(20_000):
            print(f"out {i}")
            print(f"err {i}", file=sys.stderr)

    phalanx.launch(f, workers_per_host=2)
    for rank in range(2):
        lines = log_of(tmp_path, rank).decode().splitlines()
        assert [x for x in lines if x.startswith("out")] == [f"out {i}" for i in range(20_000)]
        assert [x for x in lines if x.startswith("err")] == [f"err {i}" for i in range(20_000)]


def test_bytes_progress_bars_and_an_unfinished_line_survive(script, tmp_path):
    """To the byte, in the file and on stdout."""
    raw = b"\xff\xfe not utf-8\n" + b"10%\r20%\r100%\r\n" + b"\x00nul\n" + b"no end"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"""
import os, phalanx
phalanx.launch(lambda: os.write(1, {raw!r}) and None, workers_per_host=1)
""",
        ],
        capture_output=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.stdout == raw, done.stderr
    assert log_of(tmp_path, 0) == raw


def test_output_of_children_and_of_c_code_is_kept(tmp_path):
    """Not only what Python prints."""

    def f():
        import subprocess

        subprocess.run(["sh", "-c", "echo from sh; echo to stderr >&2"])
        os.write(2, b"direct\n")

    phalanx.launch(f, workers_per_host=1)
    assert sorted(log_of(tmp_path, 0).splitlines()) == [b"direct", b"from sh", b"to stderr"]


def test_what_was_printed_before_a_crash_is_kept(tmp_path):
    """The last lines are the ones that matter."""

    def f():
        for i in range(1000):
            print("line", i)
        os.kill(os.getpid(), 9)

    with pytest.raises(phalanx.WorkerFailed):
        phalanx.launch(f, workers_per_host=1)
    assert log_of(tmp_path, 0).splitlines()[-1] == b"line 999"


def test_one_file_per_rank_rank_0_on_stdout_and_lines_with_a_prefix(tmp_path, capfd):
    """A prefix with host and global rank, a filter on global ranks."""

    def f():
        print("hello from", os.environ["RANK"])

    app = phalanx.Launcher(hostnames=["localhost", "localhost"], workers_per_host=[1, 2]).start(f)
    app.wait()
    assert capfd.readouterr().out == "hello from 0\n"
    names = [path.name.partition("-localhost")[2] for path in (tmp_path / "logs").iterdir()]
    assert sorted(names) == ["#2.log", "#2[0].log", "#2[1].log", ".log", "[0].log"]
    assert [str(line) for line in app.logs()] == [
        f"[localhost rank {r}] hello from {r}" for r in range(3)
    ]
    assert [line.text for line in app.logs(ranks=[2])] == ["hello from 2"]
    assert app.log_files[2].read_text() == "hello from 2\n"


def test_a_log_spec_takes_the_lines_instead(tmp_path, capfd):
    """The seed's interface; a handler that raises disturbs nobody."""
    import logging

    got = []

    class Take(logging.Handler):
        def emit(self, record):
            got.append((record.name, record.getMessage()))

    class Raise(logging.Handler):
        def handle(self, record):
            raise RuntimeError("broken handler")

        def handleError(self, record):
            got.append(("error", record.name))

    class Mine(phalanx.LogSpec):
        def get_map(self):
            return {"localhost[1]": [Raise(), Take()]}

    def f():
        print("one\ntwo")

    phalanx.launch(f, workers_per_host=2, log_spec=Mine())
    assert [g for g in got if g[0] != "error"] == [("localhost[1]", "one"), ("localhost[1]", "two")]
    assert got.count(("error", "localhost[1]")) == 2
    assert capfd.readouterr().out == ""
    assert not (tmp_path / "logs").exists()


def test_logs_can_be_followed_while_the_app_runs(tmp_path):
    """Lines come as they are printed."""

    def f():
        import time

        print("first")
        while not os.path.exists("seen"):
            time.sleep(0.01)
        print("second", end="")

    app = phalanx.Launcher(workers_per_host=1).start(f)
    got = []
    for line in app.logs(follow=True):
        got.append(line.text)
        (tmp_path / "seen").touch()
    assert got == ["first", "second"]
    app.result()


@pytest.mark.parametrize("obstacle", ["a file", "no permission"])
def test_a_log_directory_that_cannot_be_written_is_one_warning(tmp_path, caplog, obstacle):
    """And the launch goes on."""
    if obstacle == "a file":
        (tmp_path / "logs").write_text("in the way")
        where = {}
    else:
        os.chdir("/proc")
    try:
        result = phalanx.launch(lambda: int(os.environ["RANK"]), workers_per_host=2)
    finally:
        os.chdir(tmp_path)
    assert list(result) == [0, 1]
    assert [r for r in caplog.records if "log files" in r.message].__len__() == 1


def test_env_file_is_sourced_by_bash_whatever_sh_is(tmp_path):
    """Bash syntax, output on its stdout, and `source` itself."""
    (tmp_path / "more.sh").write_text("export DEEPER='x y'\n")
    (tmp_path / "env.sh").write_text(
        "echo noise on stdout\nread -t 0.1 line || true\narray=(a b)\n"
        'export FROM_FILE="${array[1]}"\nsource more.sh\nexport OVERRIDDEN=file\n'
    )
    result = phalanx.launch(
        lambda: [os.environ.get(n) for n in ("FROM_FILE", "DEEPER", "OVERRIDDEN")],
        workers_per_host=1,
        env_file="env.sh",
        extra_env_vars={"OVERRIDDEN": "dict"},
    )
    assert result.rank(0) == ["b", "x y", "dict"]


@pytest.mark.parametrize("text", ['[ -n "$NOTHING" ] && export X=1', "set -- a b c", "set -eu"])
def test_an_env_file_may_end_as_such_files_do(tmp_path, text):
    """Nothing of this is a failure."""
    (tmp_path / "env.sh").write_text(f"export HERE=yes\n{text}\n")
    result = phalanx.launch(lambda: os.environ["HERE"], workers_per_host=1, env_file="env.sh")
    assert result.rank(0) == "yes"


@pytest.mark.parametrize(
    "text",
    [
        "echo oh no >&2; exit 3",
        "echo oh no >&2; exit 0",
        "echo oh no >&2; false",
        "echo oh no >&2; if then",
        "echo oh no >&2; set -e; false; true",
        "f() { echo oh no >&2; ls /nowhere; }; f",
    ],
)
def test_an_env_file_that_fails_says_so_with_its_stderr(tmp_path, text, caplog):
    """Within seconds."""
    (tmp_path / "env.sh").write_text(text + "\n")
    with pytest.raises(
        StartFailed, match=r"(?s)cannot start the agent on localhost.*oh no"
    ) as caught:
        phalanx.launch(print, workers_per_host=1, env_file="env.sh")
    assert caught.value.hostname == "localhost"
    assert not caplog.records


def test_extra_values_do_not_show_in_ps_and_survive_whole():
    """In no process's arguments or initial environment, and to the character."""
    secret = "s3cret-\n'\"$HOME`ls`\\ üñí €"

    def f():
        shown = b""
        for pid in filter(str.isdigit, os.listdir("/proc")):
            for name in ("cmdline", "environ"):
                try:
                    with open(f"/proc/{pid}/{name}", "rb") as file:
                        shown += file.read()
                except OSError:
                    pass
        assert b"phalanx" in shown
        return os.environ["TOKEN"], b"s3cret" in shown

    assert (
        list(phalanx.launch(f, workers_per_host=2, extra_env_vars={"TOKEN": secret}))
        == [(secret, False)] * 2
    )


def test_workers_inherit_the_launchers_environment(monkeypatch):
    """On this machine; also what has no valid encoding, and without rank variables of others."""
    monkeypatch.setenv("INHERITED", "yes")
    os.environb[b"RAW"] = b"\xff\xfe"
    monkeypatch.setenv("RANK", "77")
    try:
        result = phalanx.launch(
            lambda: (os.environ["INHERITED"], os.environb[b"RAW"], os.environ["RANK"]),
            workers_per_host=1,
        )
    finally:
        del os.environb[b"RAW"]
    assert result.rank(0) == ("yes", b"\xff\xfe", "0")


@pytest.mark.parametrize("method", ["zygote", "spawn"])
def test_variables_that_act_at_start_do_act(method):
    """PYTHON* and TZ are there when the interpreter starts; OMP_NUM_THREADS when torch is imported."""

    def f():
        import sys
        import time

        return sys.flags.utf8_mode, time.tzname[0], os.environ["OMP_NUM_THREADS"]

    extra = {"PYTHONUTF8": "1", "TZ": "XYZ3", "OMP_NUM_THREADS": "2"}
    assert phalanx.launch(f, workers_per_host=2, extra_env_vars=extra, start_method=method).rank(
        1
    ) == (1, "XYZ", "2")


def test_twenty_apps_at_once_do_not_collide(script):
    """Each has a port of its own, while all of them run."""
    done = script(
        """
        import os, threading, time, phalanx

        def f(directory):
            app, port = phalanx.context().app, os.environ["MASTER_PORT"]
            open(os.path.join(directory, app), "w").close()
            while len(os.listdir(directory)) < 20:
                time.sleep(0.05)
            return port

        results = []
        def go():
            results.append(list(phalanx.launch(f, {"directory": "here"}, workers_per_host=2)))
        os.mkdir("here")
        threads = [threading.Thread(target=go) for _ in range(20)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert all(a == b for a, b in results)
        print(len({a for a, b in results}))
    """,
        timeout=115,
    )
    assert done.stdout.splitlines()[-1] == "20", done.stderr


def test_a_full_disk_is_an_error_within_seconds(script, tmp_path):
    """On one machine: the value, then the function, do not fit where the spool is."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    path = script.write("""
        import phalanx
        size = 4 << 20
        try:
            phalanx.launch(lambda: b"x" * size, workers_per_host=1)
        except phalanx.ResultError as error:
            print("value:", "No space left" in str(error))
        data = b"y" * size
        try:
            phalanx.launch(lambda: len(data), workers_per_host=1)
        except phalanx.LaunchError as error:
            print("function:", "No space left" in str(error))
    """)
    small = tmp_path / "small"
    small.mkdir()
    command = f"mount -t tmpfs -o size=2m small {small} && TMPDIR={small} {sys.executable} {path}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=30,
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr.strip()}")
    assert done.stdout == "value: True\nfunction: True\n", done.stderr


def test_it_runs_from_cron(tmp_path):
    """No home, no terminal, no streams, an almost empty environment."""
    (tmp_path / "job.py").write_text(
        "import os, phalanx\n"
        "r = phalanx.launch(lambda: (print('x'), int(os.environ['RANK']))[1], workers_per_host=2)\n"
        "open('result', 'w').write(str(list(r)))\n"
    )
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} job.py <&- >&- 2>&-"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]},
        timeout=60,
        start_new_session=True,
    )
    assert done.returncode == 0
    assert (tmp_path / "result").read_text() == "[0, 1]"


def test_it_runs_where_sigchld_is_ignored_and_signals_are_blocked(script):
    """What a parent may have left behind for us."""
    done = script("""
        import signal, phalanx
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD})
        def f():
            import subprocess
            return subprocess.run(["true"]).returncode, signal.pthread_sigmask(signal.SIG_BLOCK, [])
        print(list(phalanx.launch(f, workers_per_host=2)))
    """)
    assert done.stdout.strip() == "[(0, set()), (0, set())]", done.stderr


def test_the_working_directory_may_be_gone(script, tmp_path):
    """Then the workers are where the launcher is."""
    done = script("""
        import os, phalanx
        os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
        def work():
            import json.tool  # nor does the search for modules fail there
            return 1
        print(list(phalanx.launch(work, workers_per_host=1)))
    """)
    assert "[1]" in done.stdout, done.stderr
    code = textwrap.dedent("""
        import os, phalanx
        def work():
            import json.tool
            return 2
        os.mkdir("gone"); os.chdir("gone"); os.rmdir("../gone")
        print(list(phalanx.launch(work, workers_per_host=1)))
    """)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert "[2]" in done.stdout, done.stderr


def test_every_name_of_this_machine_is_this_machine():
    """None of them needs ssh."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    assert len(phalanx.launch(lambda: 0, hostnames=names, workers_per_host=1)) == 4


def test_a_package_that_reads_its_rank_when_imported_is_not_preloaded(script, tmp_path):
    """The zygote starts afresh without it."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "frozen_rank.py").write_text("import os\nRANK = os.environ.get('LOCAL_RANK')\n")
    (site / "harmless.py").write_text("import os\nPID = os.getpid()\n")
    done = script("""
        import os, sys, phalanx
        sys.path.append("lib")

        def f():
            import frozen_rank, harmless
            return frozen_rank.RANK, harmless.PID == os.getpid()

        print(list(phalanx.launch(f, workers_per_host=2, preload=["harmless", "frozen_rank"])))
    """)
    assert done.stdout.strip() == "[('0', False), ('1', False)]", done.stderr


def test_a_package_that_starts_a_thread_makes_the_workers_spawn(script, tmp_path):
    """Forking would lose the thread: it says so once, and works."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "threaded.py").write_text(
        "import threading, time, os\nPID = os.getpid()\n"
        "threading.Thread(target=time.sleep, args=(300,), daemon=True, name='bg').start()\n"
    )
    done = script("""
        import os, sys, phalanx
        sys.path.append("lib")

        def f():
            import threaded
            return threaded.PID == os.getpid()

        print(list(phalanx.launch(f, workers_per_host=2, preload=["threaded"])))
    """)
    assert done.stdout.strip() == "[True, True]", done.stderr
    assert done.stderr.count("started a thread when it was imported (bg): workers are spawned") == 1


def test_a_package_that_cannot_be_imported_is_the_workers_business():
    """Preloading it fails quietly; the function may never need it."""
    assert phalanx.launch(lambda: 1, workers_per_host=1, preload=["no_such_package_x"]).rank(0) == 1


def test_concurrent_launches_have_log_files_of_their_own(tmp_path):
    """Same second, same function."""

    def go():
        phalanx.launch(lambda: print("x"), workers_per_host=1)

    threads = [threading.Thread(target=go) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    files = list((tmp_path / "logs").glob("*].log"))
    assert len(files) == 4
    assert all(f.read_text() == "x\n" for f in files)
