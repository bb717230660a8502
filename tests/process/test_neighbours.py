"""The neighbours of every requirement: what strangers did to it, and what must hold all the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import phalanx
from phalanx import AgentLost, ConfigError, LaunchError, WorkerFailed
from tests.conftest import is_alive, phalanx_processes, wait_until
from tests.process.test_cleanup import agents, find


# ── reports ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", ["漢" * 300_000, "a\ud800b", "x" * 1_000_000, "\0"])
def test_any_message_arrives(text):
    """Long, wide, not encodable: the exception is the user's own."""

    def fail():
        raise ValueError(text)

    with pytest.raises(ValueError) as caught:
        phalanx.launch(fail, workers_per_host=1)
    assert caught.value.args == (text,)
    assert "in fail" in caught.value.__notes__[0]


@pytest.mark.parametrize("hook", [None, lambda *_: 1 / 0])
def test_a_broken_excepthook_hides_nothing(hook):
    """Python's own takes its place."""

    def fail():
        sys.excepthook = hook
        raise LookupError("seen")

    with pytest.raises(LookupError, match="seen"):
        phalanx.launch(fail, workers_per_host=1)


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_closes_all_descriptors_still_reports(fails):
    """The report is left in a file."""

    def f():
        os.closerange(3, 1000)
        if fails:
            raise KeyError("closed")
        return 5

    if fails:
        with pytest.raises(KeyError, match="closed"):
            phalanx.launch(f, workers_per_host=1)
    else:
        assert phalanx.launch(f, workers_per_host=1).rank(0) == 5


@pytest.mark.parametrize("end", ["return", "raise", "exit"])
def test_a_forked_child_of_the_function_is_not_the_rank(end):
    """However the child ends, the value is the parent's."""

    def f():
        child = os.fork()
        if child == 0:
            if end == "raise":
                raise ValueError("child")
            if end == "exit":
                sys.exit(3)
            return "child"
        os.waitpid(child, 0)
        return "parent"

    assert phalanx.launch(f, workers_per_host=1).rank(0) == "parent"


def test_exceptions_keep_slots_and_special_fields(script):
    """What is not in __dict__ comes home as well."""
    done = script("""
        import phalanx

        class Slotted(Exception):
            __slots__ = ("code",)
            def __init__(self, code):
                super().__init__("slotted")
                self.code = code

        class Refuses(ValueError):
            def add_note(self, note):
                raise RuntimeError("no notes")

        def fail(which):
            if which == 0:
                raise Slotted(7)
            if which == 1:
                raise Refuses("r")
            import no_such_module_anywhere

        for which in range(3):
            try:
                phalanx.launch(fail, {"which": which}, workers_per_host=1)
            except Exception as error:
                print("got", type(error).__name__, getattr(error, "code", None),
                      getattr(error, "name", None), len(error.__notes__))
    """)
    assert [line for line in done.stdout.splitlines() if line.startswith("got")] == [
        "got Slotted 7 None 1",
        "got Refuses None None 1",
        "got ModuleNotFoundError None no_such_module_anywhere 1",
    ], done.stderr


def test_values_with_slots_of_main_come_back(script):
    """Dataclasses, enums and named tuples of __main__, equal to the caller's own."""
    done = script("""
        import dataclasses, enum, typing, phalanx

        @dataclasses.dataclass(slots=True)
        class Slots:
            a: int

        @dataclasses.dataclass(frozen=True, slots=True)
        class Frozen:
            a: int

        class Plain:
            __slots__ = ("a", "b")

        class Color(enum.Enum):
            RED = 1

        class Pair(typing.NamedTuple):
            a: int

        def f():
            plain = Plain()
            plain.a = 3
            return Slots(1), Frozen(2), plain, Color.RED, Pair(4)

        slots, frozen, plain, color, pair = phalanx.launch(f, workers_per_host=1).rank(0)
        print(slots == Slots(1), frozen == Frozen(2), plain.a, type(plain) is Plain,
              color is Color.RED, pair == Pair(4))
    """)
    assert done.stdout.strip() == "True True 3 True True True", done.stderr


class _Loop(Exception):
    def __init__(self, shape):
        super().__init__("looped")
        if shape == "itself":
            self.me = self
        elif shape == "each other":
            self.other = _Loop("plain")
            self.other.other = self
        elif shape == "with a lock":
            self.me = [self]
            self.lock = __import__("threading").Lock()
        elif shape == "deep":
            inner = self
            for _ in range(40):
                inner.inner = inner = _Loop("plain")


@pytest.mark.parametrize("shape", ["itself", "each other", "with a lock", "deep"])
def test_exceptions_that_refer_to_themselves_arrive_at_once(shape):
    """Cycles are kept, or cut where something cannot be pickled."""

    def fail():
        raise _Loop(shape)

    with pytest.raises(_Loop) as caught:
        phalanx.launch(fail, workers_per_host=1)
    if shape == "itself":
        assert caught.value.me is caught.value


def test_an_exception_that_refuses_attributes_keeps_its_type(script):
    """A frozen dataclass, with its notes."""
    done = script("""
        import dataclasses, phalanx

        @dataclasses.dataclass(frozen=True)
        class E(Exception):
            code: int

        def fail():
            raise E(7)

        try:
            phalanx.launch(fail, workers_per_host=1)
        except E as error:
            print("got", error.code, "in fail" in error.__notes__[0])
    """)
    assert "got 7 True" in done.stdout, done.stderr


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_that_raises_hides_neither_value_nor_exception(fails):
    """The function has replaced it."""

    def f():
        class Gone:
            def write(self, text):
                raise RuntimeError("sink is gone")

            flush = write

        sys.stdout = sys.stderr = Gone()
        if fails:
            raise KeyError("mine")
        return 1

    if fails:
        with pytest.raises(KeyError, match="mine"):
            phalanx.launch(f, workers_per_host=1)
    else:
        assert phalanx.launch(f, workers_per_host=1).rank(0) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_worker_that_gives_up_its_rights_still_returns(fails):
    """Its payload file is open already."""
    if os.geteuid() != 0:
        pytest.skip("only root has rights to give up")

    def f():
        os.setgid(65534)
        os.setuid(65534)
        if fails:
            raise KeyError("nobody")
        return os.getuid()

    if fails:
        with pytest.raises(KeyError, match="nobody"):
            phalanx.launch(f, workers_per_host=1)
    else:
        assert phalanx.launch(f, workers_per_host=1).rank(0) == 65534


# ── ends ──────────────────────────────────────────────────────────────────────


def test_ranks_that_had_returned_explain_a_missed_peer(script):
    """Rank 0 has gone home while the others still talk to it."""
    done = script("""
        import torch, torch.distributed as dist, phalanx

        def f():
            if dist.get_rank() == 0:
                return
            import time
            time.sleep(1)
            dist.all_reduce(torch.ones(1))

        phalanx.launch(f, workers_per_host=3)
    """)
    assert "had already returned, and answer nobody: 0" in done.stderr


def test_a_grace_beyond_all_bounds_is_still_only_a_grace():
    """No overflow anywhere."""

    def f():
        if os.environ["RANK"] == "1":
            raise ValueError("x")
        time.sleep(300)

    with pytest.raises(ValueError):
        phalanx.launch(f, workers_per_host=2, stop_grace=1e9)


@pytest.mark.parametrize("grace", [-1, float("nan"), float("inf"), "x"])
def test_cancel_refuses_what_is_no_grace(grace):
    """And the app goes on."""
    app = phalanx.Launcher(workers_per_host=1).start(time.sleep, args=(300,))
    with pytest.raises(ConfigError, match="grace"):
        app.cancel(grace)
    app.cancel(0)
    app.wait()


def test_a_dead_zygote_is_not_waited_for(script):
    """Not for the grace of workers that are gone."""

    def f():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(300)

    with pytest.raises(AgentLost, match="the zygote died"):
        phalanx.launch(f, workers_per_host=1, stop_grace=100)


def test_a_killed_store_ends_the_app(script, tmp_path):
    """Workers would otherwise wait for it."""
    process = script.start("""
        import os, time, phalanx

        def f():
            import torch.distributed as dist
            open("up-" + os.environ["RANK"], "w").close()
            time.sleep(300)

        phalanx.launch(f, workers_per_host=2)
    """)
    wait_until(lambda: len(list(tmp_path.glob("up-*"))) == 2, timeout=30)
    (store,) = find("store")
    os.kill(store, signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert "the process that carries the store ended" in errors


def test_agent_and_zygote_killed_at_once_leave_nothing(script, tmp_path):
    """The launcher sweeps up: what workers had started carries the app's id."""
    process = script.start("""
        import os, subprocess, time, phalanx

        def f():
            child = subprocess.Popen(["sleep", "300"], start_new_session=True)
            with open("child.tmp", "w") as file:
                file.write(str(child.pid))
            os.rename("child.tmp", "child")
            time.sleep(300)

        phalanx.launch(f, workers_per_host=1)
    """)
    wait_until((tmp_path / "child").exists)
    pids = [*agents(), *find("zygote")]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    _, errors = process.communicate(timeout=20)
    assert "AgentLost" in errors
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_alive(child))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR2])
def test_signals_to_an_agent_that_is_still_warming(script, tmp_path, number):
    """SIGUSR2 ends nothing; SIGKILL leaves nothing, not even its directory."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "slow.py").write_text(
        "import time, os\nopen('warming', 'w').close()\n"
        "while not os.path.exists('go'): time.sleep(0.01)\n"
    )
    process = script.start("""
        import sys, phalanx
        sys.path.append("lib")
        print(phalanx.launch(lambda: 5, workers_per_host=1, preload=["slow"]).rank(0))
    """)
    wait_until((tmp_path / "warming").exists)
    (agent,) = agents()
    os.kill(agent, number)
    time.sleep(0.2)
    (tmp_path / "go").touch()
    out, errors = process.communicate(timeout=20)
    if number == signal.SIGUSR2:
        assert out == "5\n", errors
    else:
        assert "StartFailed" in errors or "AgentLost" in errors


def test_ctrl_c_while_nobody_reads_the_output(script, tmp_path):
    """C1 while stopping: a stuck reader does not keep us."""
    process = script.start("""
        import phalanx

        def f():
            for i in range(30_000):
                print("x" * 1000)
            open("printed", "w").close()

        phalanx.launch(f, workers_per_host=1)
    """)
    wait_until((tmp_path / "printed").exists, timeout=30)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == -signal.SIGINT
    process.communicate()


def test_ctrl_c_in_an_asyncio_program(script, tmp_path):
    """Its own handler would cancel a task that cannot run."""
    process = script.start("""
        import asyncio, time, phalanx

        def f():
            open("up-0", "w").close()
            time.sleep(300)

        async def main():
            phalanx.launch(f, workers_per_host=1)

        asyncio.run(main())
    """)
    wait_until((tmp_path / "up-0").exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT


def test_a_child_that_the_program_forks_ends_at_once(script):
    """It has the handle and none of the threads."""
    done = script("""
        import os, sys, time, phalanx
        app = phalanx.Launcher(workers_per_host=1).start(time.sleep, args=(300,))
        began = time.monotonic()
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        print(time.monotonic() - began < 5)
    """)
    assert done.stdout.strip() == "True", done.stderr


def test_a_launcher_stopped_while_it_starts_goes_on(script, tmp_path):
    """C9: the time does not count for `start_timeout` either."""
    process = script.start("""
        import time, phalanx
        print(phalanx.launch(lambda: time.sleep(1) or 1, workers_per_host=1, start_timeout=2).rank(0))
    """)
    wait_until(agents)
    process.send_signal(signal.SIGSTOP)
    time.sleep(3.5)
    process.send_signal(signal.SIGCONT)
    out, errors = process.communicate(timeout=20)
    assert out == "1\n", errors


# ── output ────────────────────────────────────────────────────────────────────


def test_opening_dev_stdout_anew_loses_nothing_that_follows(capfd):
    """It empties the file that is the rank's stdout."""

    def f():
        for i in range(100):
            print("line", i)
        time.sleep(0.3)
        subprocess.run("echo x > /dev/stdout", shell=True)
        print("after")

    phalanx.launch(f, workers_per_host=1)
    assert capfd.readouterr().out.endswith("x\nafter\n")


def test_a_stream_of_the_programs_own_that_raises_disturbs_nobody(script, tmp_path):
    """The log file has everything."""
    done = script("""
        import sys, phalanx

        class Tee:
            def write(self, text):
                return len(text)

        sys.stdout = Tee()

        def f():
            for i in range(30_000):
                print("x" * 1000)

        phalanx.launch(f, workers_per_host=1)
        sys.stdout = sys.__stdout__
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot show the workers' output any more") == 1
    (log,) = (tmp_path / "logs").glob("*].log")
    assert log.stat().st_size == 30_000 * 1001


def test_a_non_blocking_stdout_gets_every_line(script, tmp_path):
    """As a program that shares it with an event loop leaves it."""
    path = script.write("""
        import os, phalanx
        os.set_blocking(1, False)

        def f():
            for i in range(100_000):
                print("line", i)

        phalanx.launch(f, workers_per_host=1)
    """)
    command = f"{sys.executable} {path} | (sleep 1; cat)"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout.splitlines() == [f"line {i}" for i in range(100_000)], done.stderr


def test_lines_longer_than_any_buffer_stay_whole(tmp_path):
    """Two streams of one rank, in one file."""

    def f():
        for _ in range(20):
            sys.stdout.write("A" * 700_000 + "\n")
            sys.stderr.write("B" * 700_000 + "\n")

    phalanx.launch(f, workers_per_host=1)
    (log,) = (tmp_path / "logs").glob("*].log")
    lines = log.read_text().splitlines()
    assert sorted(set(lines)) == ["A" * 700_000, "B" * 700_000]
    assert len(lines) == 40


def test_a_log_spec_gets_whole_lines():
    """Of any length, in any characters."""
    import logging

    got = []

    class Take(logging.Handler):
        def emit(self, record):
            got.append(record.getMessage())

    class Spec(phalanx.LogSpec):
        def get_map(self):
            return {"localhost[0]": [Take()]}

    def f():
        print("x" + "é" * 300_000)
        print("a\x0bb\u2028c")
        print("no end", end="")

    phalanx.launch(f, workers_per_host=1, log_spec=Spec())
    assert got == ["x" + "é" * 300_000, "a\x0bb\u2028c", "no end"]


def test_a_text_stream_gets_whole_characters(script):
    """However the bytes are cut."""
    done = script("""
        import io, sys, phalanx
        real, sys.stdout = sys.stdout, io.StringIO()
        phalanx.launch(lambda: print("x" + "é" * 300_000), workers_per_host=1)
        print(sys.stdout.getvalue() == "x" + "é" * 300_000 + "\\n", file=real)
    """)
    assert done.stdout.strip() == "True", done.stderr


def test_a_line_that_is_not_ended_shows_after_a_while(script, tmp_path):
    """Dots and prompts."""
    process = script.start("""
        import os, time, phalanx

        def f():
            print("...", end="", flush=True)
            while not os.path.exists("go"):
                time.sleep(0.01)

        phalanx.launch(f, workers_per_host=1)
    """)
    assert process.stdout.read(3) == "..."
    (tmp_path / "go").touch()
    process.communicate(timeout=20)


def test_what_is_printed_while_packages_load_is_in_every_rank_s_log(script, tmp_path):
    """As if each had imported them; and the package sees the program's own arguments."""
    site = tmp_path / "lib"
    site.mkdir()
    (site / "noisy.py").write_text(
        "import sys\nprint('imported', sys.argv[1:])\nprint('warned', file=sys.stderr)\n"
    )
    done = script(
        """
        import sys, phalanx
        sys.path.append("lib")
        phalanx.launch(lambda: print("ran"), workers_per_host=2, preload=["noisy"])
    """,
        "one",
    )
    assert done.returncode == 0, done.stderr
    for log in (tmp_path / "logs").glob("*].log"):
        assert sorted(log.read_text().splitlines()) == ["imported ['one']", "ran", "warned"]


def test_a_small_disk_carries_much_output(script, tmp_path):
    """What was handed on is freed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    path = script.write("""
        import time, phalanx

        def f():
            for i in range(60):
                print("x" * 100_000)
                time.sleep(0.02)

        phalanx.launch(f, workers_per_host=1)
    """)
    small = tmp_path / "small"
    small.mkdir()
    command = f"mount -t tmpfs -o size=3m small {small} && TMPDIR={small} {sys.executable} {path}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, cwd=tmp_path, timeout=60
    )
    if b"unshare" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr!r}")
    assert len(done.stdout) == 60 * 100_001, done.stderr


# ── surroundings ──────────────────────────────────────────────────────────────


def test_too_few_descriptors_is_an_error_not_a_hang(script):
    """Named, within seconds."""
    path = script.write("""
        import phalanx
        try:
            print(len(phalanx.launch(lambda: 1, workers_per_host=40)))
        except (phalanx.LaunchError, OSError) as error:
            print("Too many open files" in str(error))
    """)
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 64; exec {sys.executable} {path}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() in ("True", "40"), done.stdout + done.stderr


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
    """E5 for the other start method; and a value may be larger than a command line."""

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


# ── the command line ──────────────────────────────────────────────────────────


def cli(*args, cwd):
    return subprocess.run(
        [sys.executable, "-m", "phalanx", "launch", *args],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["my.train.py", "p/m.py", "with-dash.py"])
def test_any_file_can_be_launched(tmp_path, name):
    """Names that cannot be imported, are taken, or are parts of a package."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    code = "def fn():\n    return 4\n"
    if name == "p/m.py":
        (tmp_path / "p" / "__init__.py").write_text("")
        (tmp_path / "p" / "other.py").write_text("VALUE = 4\n")
        code = "from .other import VALUE\ndef fn():\n    return VALUE\n"
    path.write_text(code)
    done = cli(f"{name}:fn", "--workers-per-host", "2", cwd=tmp_path)
    assert done.stdout == "rank 0: 4\nrank 1: 4\n", done.stderr


@pytest.mark.parametrize(
    "code", ["import os\n1 / 0\n", "def broken(:\n", "import no_such_module_q\n"]
)
def test_a_file_that_does_not_load_shows_the_users_frames_only(tmp_path, code):
    """Soon, although agents were warming already."""
    (tmp_path / "bad.py").write_text(code)
    done = cli("bad.py:f", cwd=tmp_path)
    assert done.returncode == 1
    assert "bad.py" in done.stderr
    assert "phalanx/" not in done.stderr
    assert "importlib" not in done.stderr


def test_values_and_functions_of_odd_kinds_on_the_command_line(tmp_path):
    """A repr that raises, a coroutine."""
    (tmp_path / "odd.py").write_text(
        "class Bad:\n    def __repr__(self):\n        raise ValueError\n"
        "def bad():\n    return Bad()\nasync def co():\n    pass\n"
    )
    done = cli("odd.py:bad", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "rank 0: <Bad whose repr raises ValueError>\n")
    done = cli("odd.py:co", cwd=tmp_path)
    assert done.returncode == 2
    assert "is async" in done.stderr


def test_ctrl_c_while_the_file_loads(tmp_path):
    """Nothing of the function runs afterwards."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nopen('loading', 'w').close()\ntime.sleep(300)\n"
        "def fn():\n    open('ran', 'w').close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "launch", "slow.py:fn"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    wait_until((tmp_path / "loading").exists)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in errors
    wait_until(lambda: not phalanx_processes())
    assert not (tmp_path / "ran").exists()


def test_a_missing_bash_is_a_clear_error(tmp_path, monkeypatch):
    """It is needed for env_file only."""
    (tmp_path / "env.sh").write_text("true\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="could not be started.*bash"):
        phalanx.launch(print, workers_per_host=1, env_file="env.sh")
