"""Odd interpreters, directories, packages and env files, and what workers find there."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import AgentLost, ConfigError, LaunchError, WorkerFailed
from tests.conftest import is_alive, phalanx_processes, wait_until
from tests.process.commands import phalanx as command
from tests.process.test_cleanup import agents, find


def launch_forty(script, descriptors):
    """40 workers that print a line each, with so many descriptors for each process."""
    path = script.write("""
        import phalanx
        try:
            spec = phalanx.DefaultLogSpec.all_ranks()
            values = phalanx.launch(lambda: print("line") or 1, workers_per_host=40, log_spec=spec)
            print(sum(values), "values")
        except (phalanx.LaunchError, OSError) as error:
            print(error)
    """)
    command = f"ulimit -n {descriptors}; exec {sys.executable} {path}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)


def test_few_descriptors_are_enough(script):
    """More workers than the agent has descriptors: no value is lost, and no line."""
    done = launch_forty(script, 64)
    assert "40 values" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("line") == 40, done.stdout + done.stderr


def test_too_few_descriptors_is_an_error_not_a_hang(script):
    """Named, within seconds."""
    done = launch_forty(script, 12)
    assert "too many open files. Raise the limit, which is 12" in done.stdout, (
        done.stdout + done.stderr
    )


def test_a_sitecustomize_that_prints_breaks_nothing(script, tmp_path):
    """The channel has descriptors of its own."""
    (tmp_path / "sitecustomize.py").write_text("print('hello from site')\n")
    done = script(
        """
        import phalanx
        print(list(phalanx.launch(lambda: 1, workers_per_host=2)))
    """,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.stdout.splitlines()[-1] == "[1, 1]", done.stderr


@pytest.mark.parametrize("name", ["tempfile", "asyncio", "msgpack", "phalanx"])
def test_files_in_the_working_directory_shadow_nothing_of_ours(script, tmp_path, name):
    """Agent and zygote are not run from a script there."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / f"{name}.py").write_text("raise RuntimeError('shadowed')\n")
    path = script.write(
        "import phalanx\nprint(phalanx.launch(lambda: 1, workers_per_host=1).rank(0))\n"
    )
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, cwd=elsewhere, timeout=60
    )
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("flags", [["-I"], ["-O"], ["-X", "dev"], ["-W", "error"]])
@pytest.mark.parametrize("method", ["zygote", "spawn"])
def test_interpreter_flags_are_passed_on(script, tmp_path, flags, method):
    """And break nothing."""
    path = script.write(f"""
        import sys, phalanx
        f = lambda: (sys.flags.isolated, sys.flags.optimize, sys.flags.dev_mode, sys.warnoptions)
        here = f()
        print(phalanx.launch(f, workers_per_host=1, start_method={method!r}).rank(0) == here)
    """)
    done = subprocess.run(
        [sys.executable, *flags, str(path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.stdout == "True\n", done.stderr


def test_an_env_file_may_take_longer_than_host_timeout(tmp_path):
    """Silence counts from the agent's first word."""
    (tmp_path / "env.sh").write_text("sleep 2\n")
    assert (
        phalanx.launch(lambda: 1, workers_per_host=1, env_file="env.sh", host_timeout=1).rank(0)
        == 1
    )


def test_an_env_file_may_close_its_streams(tmp_path):
    """Nothing of ours lands on their numbers."""
    (tmp_path / "env.sh").write_text("exec 0<&- 1>&- 2>&-; export A=1\n")
    result = phalanx.launch(
        lambda: (print("x"), os.environ["A"])[1], workers_per_host=2, env_file="env.sh"
    )
    assert list(result) == ["1", "1"]


def test_the_users_own_interface_wins():
    """Over what an agent would choose."""
    extra = {"GLOO_SOCKET_IFNAME": "eth7", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    seen = phalanx.launch(
        lambda: {n: os.environ[n] for n in extra}, workers_per_host=1, extra_env_vars=extra
    )
    assert seen.rank(0) == extra


def test_spawned_workers_do_not_show_their_values_either():
    """For the other start method; and a value may be larger than a command line."""

    def f():
        with open("/proc/self/environ", "rb") as file:
            return b"s3cret" in file.read(), len(os.environ["TOKEN"])

    token = "s3cret" * 500_000
    assert phalanx.launch(
        f, workers_per_host=1, start_method="spawn", extra_env_vars={"TOKEN": token}
    ).rank(0) == (False, len(token))


def test_a_package_that_looks_for_its_own_variables_is_preloaded(script, tmp_path):
    """tqdm, which torch imports, goes through the whole environment: that is no question of rank."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "looks.py").write_text(
        "import os\nPID = os.getpid()\n"
        "MINE = {k: v for k, v in os.environ.items() if k.startswith('LOOKS_')}\n"
    )
    done = script("""
        import os, sys, phalanx
        sys.path.append("lib")

        def f():
            import looks
            return looks.PID == os.getpid()

        print(list(phalanx.launch(f, workers_per_host=2, preload=["looks"])))
    """)
    assert done.stdout.strip() == "[False, False]", done.stderr


@pytest.mark.parametrize("code", ["import os; os._exit(3)", "import os; os.abort()"])
def test_a_package_that_ends_the_process_is_named(script, tmp_path, code):
    """The zygote cannot say it any more, so it said it before."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "deadly.py").write_text(code + "\n")
    done = script("""
        import sys, phalanx
        sys.path.append("lib")
        phalanx.launch(print, workers_per_host=1, preload=["deadly"])
    """)
    assert "while importing deadly" in done.stderr


def test_a_package_that_replaces_stdout_breaks_nothing(script, tmp_path):
    """Its stream is kept."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "replaces.py").write_text("import io, sys\nsys.stdout = io.StringIO()\n")
    done = script("""
        import sys, phalanx
        sys.path.append("lib")
        print(phalanx.launch(lambda: 1, workers_per_host=1, preload=["replaces"]).rank(0))
    """)
    assert done.stdout == "1\n", done.stderr


def test_a_preload_that_fails_is_said_when_it_was_asked_for(caplog):
    """By name, with the reason."""
    phalanx.launch(lambda: 1, workers_per_host=1, preload=["no_such_package_x"])
    assert "could not preload no_such_package_x" in caplog.text


def test_a_daemon_thread_does_not_see_its_module_vanish(script, tmp_path):
    """It may outlive the function."""
    (tmp_path / "mine.py").write_text(
        "import threading, time\nVALUE = 1\n"
        "def loop():\n    while True:\n        VALUE + 1\n"
        "def f():\n    threading.Thread(target=loop, daemon=True).start()\n"
    )
    done = script("""
        import mine, phalanx
        for _ in range(3):
            phalanx.launch(mine.f, workers_per_host=1)
    """)
    assert "TypeError" not in done.stdout + done.stderr


def test_modules_by_value_from_several_threads(script, tmp_path):
    """cloudpickle's registry is one for all."""
    done = script("""
        import importlib.util, threading, phalanx
        path = "loose_module.py"
        open(path, "w").write("def f():\\n    return helper()\\ndef helper():\\n    return 7\\n")
        spec = importlib.util.spec_from_file_location("not_on_the_path", path)
        import sys
        module = sys.modules["not_on_the_path"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        got = []
        threads = [threading.Thread(target=lambda: got.append(phalanx.launch(module.f).rank(0)))
                   for _ in range(6)]
        [t.start() for t in threads]; [t.join() for t in threads]
        print(got)
    """)
    assert done.stdout.strip() == "[7, 7, 7, 7, 7, 7]", done.stderr


LIMITED = "def f():\n    return 1\n\nif __name__ == '__main__':\n    f()\n"


def limited(path, limit, *words):
    """A command of an ordinary user, who may have only so much; root has no limit of processes."""
    home = path / "home"
    home.mkdir()
    user = 100_000 + os.getpid()  # one that has no other processes
    os.chown(home, user, user)
    path.chmod(0o755)
    (path / "program.py").write_text(LIMITED)
    as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    # Where this Python is, an ordinary user may not be able to look.
    as_user += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return subprocess.run(
        [*as_user, "prlimit", limit, sys.executable, "-m", "phalanx", *words],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "HOME": str(home), "XDG_STATE_HOME": str(home), "TMPDIR": str(home)},
        timeout=120,
    )


WORDS = {
    "torchrun": ["torchrun", "--nproc-per-node", "2", "../program.py"],
    "launch": ["launch", "../program.py:f", "--workers-per-host", "2"],
    "run": ["run", "--wait", "utils.echo"],
}


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming an ordinary user needs root")
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("command", ["torchrun", "launch"])
def test_too_few_processes_are_one_sentence(command, number, tmp_path):
    """Wherever the limit is met: in the command, the agent or the zygote."""
    done = limited(tmp_path, f"--nproc={number}", *WORDS[command])
    limit = f"too many processes and threads. Raise the user's limit, which is {number}: ulimit -u"
    assert (done.returncode, limit in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr
    assert "can't start new thread" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming an ordinary user needs root")
@pytest.mark.parametrize("limit", ["--nofile=6", "--nofile=8", "--nofile=10", "--nproc=1"])
@pytest.mark.parametrize("command", WORDS)
def test_too_little_of_anything_is_one_sentence(command, limit, tmp_path):
    """Likewise, and for an app on this machine."""
    done = limited(tmp_path, limit, *WORDS[command])
    assert done.returncode == (127 if "exited with code 127" in done.stderr else 1), done.stderr
    assert "Traceback" not in done.stderr
    words = r"too many (open files|processes and threads)\. Raise|its supervisor ended"
    assert re.search(words, done.stderr), done.stderr


@pytest.mark.parametrize(
    "mode, group, safe",
    [
        (0o700, None, True),
        (0o1777, None, True),
        (0o777, None, False),
        (0o775, None, True),
        (0o775, 2**16, False),
    ],
)
def test_temporary_files_are_where_other_users_cannot_replace_them(
    script, tmp_path, mode, group, safe
):
    """The files of a launch name the code that its workers run."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(mode)
    if group is not None:
        if os.geteuid():
            pytest.skip("only root gives a file to a group that it is not in")
        os.chown(place, -1, group)
    done = script(
        """
            import os, phalanx

            def f():
                return os.readlink("/proc/self/fd/1")

            print(phalanx.launch(f, workers_per_host=1).rank(0))
        """,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert (str(place) in done.stdout) == safe, done.stderr
    said = f"{place} is open to other users: temporary files are in /tmp"
    assert (said in done.stderr) != safe


def test_a_torchrun_log_directory_is_where_other_users_cannot_replace_it(tmp_path):
    """Whoever can rename it has us append to files behind links of theirs."""
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o777)
    (tmp_path / "program.py").write_text("print('hi')")
    done = command(
        *("torchrun", "--redirects", "3", "program.py"),
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(place)},
    )
    (directory,) = re.findall(r"worker logs are in (.*)", done.stderr)
    assert os.path.dirname(directory) == "/tmp"
    assert not list(place.iterdir())
    shutil.rmtree(directory)


def test_a_relative_temporary_directory(script, tmp_path):
    """As for everybody else, from where the program was started."""
    done = script(
        """
            import os, phalanx

            def f():
                return os.readlink("/proc/self/fd/1")

            print(phalanx.launch(f, workers_per_host=1).rank(0))
        """,
        env={**os.environ, "TMPDIR": "."},
    )
    assert done.stdout.startswith(f"{tmp_path}{os.sep}phalanx-"), done.stderr


def test_a_home_that_is_no_directory(tmp_path):
    """Daemons have `/dev/null`: it is said what stands in the way."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
    done = command("run", "utils.echo", env={**environ, "HOME": os.devnull})
    assert done.returncode == 1
    assert done.stderr == (
        "phalanx run: cannot record apps: [Errno 20] Not a directory: '/dev/null'\n"
    )
