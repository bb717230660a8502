"""`phalanx torchrun`: a script that runs under torchrun runs unchanged, and worker for worker as
under `python script.py`.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import phalanx
from phalanx._system import machine
from phalanx._worker import script
from phalanx._system.processes import descendants
from tests.conftest import is_alive, wait_until
from tests.process.terminal import Terminal

COMMAND = [sys.executable, "-m", "phalanx", "torchrun"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def torchrun(tmp_path):
    """Write a script and run it on two workers, or as the flags say."""

    def write(code, name="train.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return path

    def command(*flags):
        return [*COMMAND, *map(str, flags)]

    def run(code, *flags, args=(), name="train.py", env=None, timeout=200, **options):
        write(code, name)
        flags = flags or ("--nproc-per-node", "2")
        return subprocess.run(
            command(*flags, name, *args),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            **options,
        )

    def start(code, *flags, args=(), name="train.py", env=None, **options):
        write(code, name)
        return subprocess.Popen(
            command(*(flags or ("--nproc-per-node", "2")), name, *args),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **(env or {})},
            **options,
        )

    run.start, run.write, run.command = start, write, command
    return run


GROUP = """
    import os, sys, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {int(total)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
"""


def test_a_script_written_for_torchrun_runs_unchanged(torchrun):
    """It forms its own group; output is shown as it is."""
    done = torchrun(f"{GROUP}    assert os.environ['TORCHELASTIC_USE_AGENT_STORE'] == 'True'\n")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2: 2", "rank 1 of 2: 2"]


def test_the_environment_is_torchruns(torchrun):
    """Every name, with its meaning."""
    code = """
        import json, os
        names = [n for n in os.environ if n.endswith("RANK") or n.endswith("WORLD_SIZE")]
        names += [n for n in os.environ if n.startswith(("TORCH", "MASTER", "ROLE_NAME", "OMP"))]
        print(json.dumps({n: os.environ[n] for n in names} | {"hash": hash("text")}), flush=True)
    """
    port = free_port()
    done = torchrun(code, "--nproc-per-node", "2", "--master-port", port, "--role", "trainer")
    assert done.returncode == 0, done.stderr
    first, second = sorted(map(json.loads, done.stdout.splitlines()), key=lambda e: e["RANK"])
    assert (first["RANK"], second["RANK"], second["LOCAL_RANK"]) == ("0", "1", "1")
    assert {first[n] for n in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")} == {"2"}
    assert (first["GROUP_RANK"], first["GROUP_WORLD_SIZE"]) == ("0", "1")
    assert (first["MASTER_ADDR"], first["MASTER_PORT"]) == ("127.0.0.1", str(port))
    assert first["ROLE_NAME"] == "trainer"
    assert first["OMP_NUM_THREADS"] == "1"
    assert first["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert first["TORCHELASTIC_RUN_ID"] == "none"
    assert first["TORCHELASTIC_USE_AGENT_STORE"] == "True"  # it is at the port that was given
    assert first["hash"] == second["hash"]  # forked from one process
    assert "OMP_NUM_THREADS" in done.stderr


FRESH = """
    import atexit, dataclasses, multiprocessing, os, pickle, sys, threading, typing

    @dataclasses.dataclass
    class Point:
        x: int

    def double(n):
        return 2 * n

    def late():
        # From a thread that outlives the script: __main__ must still be there.
        threading.main_thread().join(0.3)
        print("pickled", pickle.loads(pickle.dumps(Point(3))), flush=True)

    if __name__ == "__main__":
        atexit.register(lambda: print("atexit ran", flush=True))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print("spawned", pool.map(double, [1, 2]))
        with multiprocessing.get_context("fork").Pool(1) as pool:
            print("forked", pool.map(double, [3]))
        print("hints", typing.get_type_hints(Point))
        print("file", __file__, "argv", sys.argv, "path0", sys.path[0] == os.getcwd())
        print("main", sys.modules["__main__"].Point is Point, __spec__, __package__)
        threading.Thread(target=late).start()
"""


def test_a_worker_is_a_fresh_interpreter_to_the_script(torchrun, tmp_path):
    """What it prints is what it prints under `python script.py`: spawn, fork, atexit, pickles."""
    torchrun.write(FRESH)
    plain = subprocess.run(
        [sys.executable, "train.py", "a", "--b"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    done = torchrun(FRESH, "--nproc-per-node", "1", args=("a", "--b"))
    assert done.returncode == plain.returncode == 0, done.stderr + plain.stderr
    assert done.stdout == plain.stdout
    assert "atexit ran" in done.stdout


def test_data_loaders_have_workers(torchrun):
    """Forked and spawned, from a class of the script's own."""
    code = """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return i * i

        if __name__ == "__main__":
            for context in ("fork", "spawn"):
                loader = DataLoader(
                    Squares(), num_workers=2, multiprocessing_context=context, batch_size=4
                )
                print(context, [batch.tolist() for batch in loader], flush=True)
    """
    done = torchrun(code, "--nproc-per-node", "1")
    expected = "[[0, 1, 4, 9], [16, 25, 36, 49]]"
    assert done.stdout.splitlines() == [f"fork {expected}", f"spawn {expected}"], done.stderr


def test_coverage_sees_the_script(torchrun, tmp_path):
    """Started as its documentation says for subprocesses; one file for each worker."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import coverage; coverage.process_startup()"
    )
    (tmp_path / ".coveragerc").write_text("[run]\nparallel = true\nsource = .\n")
    environ = {
        "COVERAGE_PROCESS_START": str(tmp_path / ".coveragerc"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path[1:]]),
    }
    code = """
        import os

        def used():
            print("used", os.environ["RANK"], flush=True)

        used()
    """
    done = torchrun(code, env=environ)
    assert done.returncode == 0, done.stderr
    coverage = [sys.executable, "-m", "coverage"]
    subprocess.run([*coverage, "combine", "-q"], cwd=tmp_path, check=True, timeout=60)
    shown = subprocess.run(
        [*coverage, "report", "--include=train.py", "-m"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert re.search(r"train\.py\s+4\s+0\s+100%", shown.stdout), shown.stdout + shown.stderr


def test_modules_packages_and_relative_imports(torchrun, tmp_path):
    """`-m`, as python has it."""
    torchrun.write("VALUE = 7", "app/values.py")
    torchrun.write("", "app/__init__.py")
    code = """
        import sys
        from .values import VALUE
        print(VALUE, __name__, __package__, sys.argv[0].endswith("app/__main__.py"), sys.argv[1:])
    """
    torchrun.write(code, "app/__main__.py")
    done = subprocess.run(
        torchrun.command("--nproc-per-node", 1, "-m", "app", "--x"),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.stdout == "7 __main__ app True ['--x']\n", done.stderr


def test_other_programs(torchrun, tmp_path):
    """--no-python: the exit code counts, and ${local_rank} is put in."""
    command = ["--nproc-per-node", 2, "--no-python", "sh", "-c"]
    run = lambda text: subprocess.run(
        torchrun.command(*command, text), capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    done = run("echo ${local_rank} $$RANK")
    assert sorted(done.stdout.split("\n")) == ["", "0 0", "1 1"], done.stderr
    failed = run("test $$RANK = 0 || exit 3")
    assert failed.returncode == 1
    assert "exited with code 3" in failed.stderr


def test_a_failure_is_reported_with_its_traceback(torchrun):
    """Though the script has no decorator; once, at the end."""
    code = """
        import os, time

        def step():
            if os.environ["RANK"] == "1":
                raise ValueError("the loss is nan")
            time.sleep(60)

        step()
    """
    done = torchrun(code)
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("phalanx torchrun: rank 1") :]
    assert "raised ValueError: the loss is nan" in report
    assert 'train.py", line 6, in step' in report
    assert "1 other worker was stopped" in report
    assert "runpy" not in report
    assert "worker/script.py" not in report


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("sys.exit(7)", "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("1 +", "SyntaxError"),
        ("import nowhere", "No module named 'nowhere'"),
    ],
)
def test_every_end_is_told(torchrun, end, said):
    """By code, signal or exception; torchrun's own exit code is 1."""
    done = torchrun(f"import os, sys, signal\n{end}\n", "--nproc-per-node", "1")
    assert done.returncode == 1
    assert said in done.stderr


def test_restarts_come_back_every_time(torchrun):
    """With gloo, and one count for all; the last round's success is the command's."""
    code = f"""{GROUP}
    if int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < 3:
        sys.exit(dist.is_initialized() or int(os.environ["RANK"]))
    """
    done = torchrun(code, "--nproc-per-node", "2", "--max-restarts", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of 2: 2") == 8
    failed = torchrun(code, "--nproc-per-node", "2", "--max-restarts", "1")
    assert failed.returncode == 1
    assert "Restarted once" in failed.stderr


def test_error_files_are_written_and_read(torchrun, tmp_path):
    """Torch's @record and ours; and what a program of another kind writes; and our own for whoever
    started us.
    """
    outer = tmp_path / "outer.json"
    code = """
        import phalanx
        from torch.distributed.elastic.multiprocessing.errors import record

        @record
        def main():
            raise KeyError("gone")

        main()
    """
    done = torchrun(code, "--nproc-per-node", "1", env={"TORCHELASTIC_ERROR_FILE": str(outer)})
    assert "raised KeyError: 'gone'" in done.stderr
    said = json.loads(outer.read_text())["message"]
    assert said["message"].startswith("KeyError")
    assert "in main" in said["extraInfo"]["py_callstack"]
    text = (
        '{"message": {"message": "RuntimeError: no fuel", "extraInfo": {"py_callstack": "here"}}}'
    )
    command = f"echo '{text}' >$$TORCHELASTIC_ERROR_FILE; exit 4"
    other = subprocess.run(
        torchrun.command("--no-python", "sh", "-c", command),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert "exited with code 4" in other.stderr
    assert "no fuel" in other.stderr


def test_files_and_prefixes(torchrun, tmp_path):
    """--tee and --redirects, with the layout that torchrun has."""
    code = """
        import os, sys
        print("out", os.environ["RANK"], flush=True)
        print("err", os.environ["RANK"], file=sys.stderr, flush=True)
    """
    flags = ("--nproc-per-node", "2", "--log-dir", "logs", "--tee", "0:3", "--redirects", "1:1")
    done = torchrun(code, *flags, "--rdzv-id", "job", "--rdzv-backend", "c10d")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[default0]:out 0\n"
    assert "[default0]:err 0" in done.stderr
    assert "err 1" in done.stderr.splitlines()
    (run,) = (tmp_path / "logs").iterdir()
    assert run.name.startswith("job_")
    files = {str(path.relative_to(run)): path.read_text() for path in run.rglob("*.log")}
    assert files == {
        "attempt_0/0/stdout.log": "out 0\n",
        "attempt_0/0/stderr.log": "err 0\n",
        "attempt_0/1/stdout.log": "out 1\n",
    }
    log = subprocess.run(
        [sys.executable, "-m", "phalanx", "log"], capture_output=True, text=True, check=False
    )
    assert log.returncode == 1
    assert f"what its workers print is in {run}" in log.stderr


def test_a_directory_alone_has_what_torchrun_puts_there(torchrun, tmp_path):
    """A directory for each local rank, and nothing in them: all is on the terminal."""
    done = torchrun("print('shown')", "--nproc-per-node", "2", "--log-dir", "logs")
    assert done.stdout.splitlines() == ["shown"] * 2
    (run,) = (tmp_path / "logs").iterdir()
    assert {str(path.relative_to(run)) for path in run.rglob("*")} == {
        "attempt_0",
        "attempt_0/0",
        "attempt_0/1",
    }
    log = subprocess.run(
        [sys.executable, "-m", "phalanx", "log"], capture_output=True, text=True, check=False
    )
    assert "or phalanx torchrun with --tee 3 --log-dir DIR" in log.stderr


def test_files_without_a_directory_are_said_to_be_where_they_are(torchrun, tmp_path):
    """As torchrun has it, they stay under the temporary directory; empty ones do not."""
    place = tmp_path / "temporary"
    place.mkdir()
    env = {"TMPDIR": str(place)}
    flags = ("--nproc-per-node", "2", "--redirects", "3")
    done = torchrun("import os; print('rank', os.environ['RANK'])", *flags, env=env)
    assert done.returncode == 0, done.stderr
    (logs,) = place.glob("phalanx_logs_*")
    assert f"worker logs are in {logs}" in done.stderr
    files = sorted(str(path.relative_to(logs)) for path in logs.rglob("*.log"))
    assert [file.partition("/")[2] for file in files] == [
        "attempt_0/0/stdout.log",
        "attempt_0/1/stdout.log",
    ]
    shutil.rmtree(logs)
    for code in ("pass", "import sys; sys.exit(3)"):
        done = torchrun(code, *flags, env=env)
        assert "log files" not in done.stderr
        assert not list(place.glob("phalanx_logs_*"))
    command = [*COMMAND, "--tee", "3", "nothing.py"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, check=False)
    assert done.returncode == 2
    assert not list(place.glob("phalanx_logs_*"))


def test_more_than_nine_ranks_and_a_filter_on_global_ones(torchrun):
    """What torchrun cannot do."""
    code = "import os; print('rank', os.environ['RANK'], flush=True)"
    flags = ("--nproc-per-node", "12", "--tee", "11:1,3:1", "--ranks-filter", "3,10-11")
    done = torchrun(code, *flags)
    assert sorted(done.stdout.splitlines()) == [
        "[default11]:rank 11",
        "[default3]:rank 3",
        "rank 10",
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_everything_with_grace(torchrun, number):
    """Workers get it, and may clean up; one that does not end is killed after the timeout."""
    code = """
        import os, signal, time
        for number in (signal.SIGTERM, signal.SIGINT):
            if os.environ["RANK"] == "0":
                signal.signal(number, lambda *_: (print("saved", flush=True), os._exit(0)))
            else:
                signal.signal(number, lambda *_: None)
        print("ready", flush=True)
        time.sleep(600)
    """
    process = torchrun.start(code, "--nproc-per-node", "2", "--shutdown-timeout", "1")
    assert {process.stdout.readline(), process.stdout.readline()} == {"ready\n"}
    below = descendants(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out == "saved\n"
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    assert not any(map(is_alive, below))


def test_nothing_is_left_when_it_is_killed(torchrun):
    """SIGKILL: the workers, and what they have started, go with it."""
    code = """
        import subprocess, time
        subprocess.Popen(["sleep", "600"], start_new_session=True)
        print("ready", flush=True)
        time.sleep(600)
    """
    process = torchrun.start(code, "--nproc-per-node", "1")
    process.stdout.readline()
    below = descendants(process.pid)
    process.kill()
    process.communicate()
    wait_until(lambda: not any(map(is_alive, below)))


def test_user_signals_reach_the_workers_that_catch_them(torchrun):
    """Nobody else dies of them; SIGUSR1 also says that the host will be taken away."""
    code = """
        import os, phalanx, signal, time
        context = phalanx.context()
        got = []
        if context.rank == 0:
            signal.signal(signal.SIGUSR2, lambda *_: (got.append(1), print("got", flush=True)))
        print("ready", flush=True)
        while not context.should_stop():
            time.sleep(0.01)
        print("stops", context.rank, len(got), flush=True)
    """
    process = torchrun.start(code)
    process.stdout.readline(), process.stdout.readline()
    process.send_signal(signal.SIGUSR2)
    assert process.stdout.readline() == "got\n"
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == ["stops 0 1", "stops 1 0"]


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("flags", [(), ("--run-path",)])
def test_the_start_method_says_who_imports(torchrun, tmp_path, flags, method):
    """A new interpreter imports packages itself; one that is forked finds them there."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "imported.py").write_text("import os\nby = os.getpid()\n")
    done = torchrun(
        "import os, imported; print(imported.by == os.getpid(), hash('text'), flush=True)\n"
        "assert os.environ['TORCHELASTIC_USE_AGENT_STORE'] == 'False'  # torch is not imported",
        *("--nproc-per-node", 2, "--start-method", method, *flags),
        env={"PYTHONPATH": str(packages)},
    )
    assert done.returncode == 0, done.stderr
    own, hashes = done.stdout.split()[::2], done.stdout.split()[1::2]
    assert own == [str(method == "spawn")] * 2
    assert (len(set(hashes)) == 2) == (method == "spawn")


def test_workers_are_bound_to_their_processors(tmp_path):
    """With all their threads, those that come later too."""
    (tmp_path / "bound.py").write_text(
        "import os, sys, threading\n"
        "seen = [os.sched_getaffinity(0)]\n"
        "thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))\n"
        "thread.start(); thread.join()\n"
        "open(sys.argv[1], 'w').write(str(seen))\n"
    )
    allowed = sorted(os.sched_getaffinity(0))
    own = [[allowed[0]], [allowed[-1]]]
    args = ("script", str(tmp_path / "bound.py"), (f"{tmp_path}/${{local_rank}}",), False, own)
    phalanx.launch(script.run, args=args, workers_per_host=2)
    for rank in range(2):
        assert (tmp_path / str(rank)).read_text() == str([set(own[rank])] * 2)
    assert sorted(os.sched_getaffinity(0)) == allowed


@pytest.mark.skipif(machine.gpus() > 0, reason="there are GPUs here")
def test_where_there_are_no_gpus_binding_near_them_is_refused(torchrun):
    """Nothing is started."""
    done = torchrun("print(1)", "--numa-binding", "node")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--numa-binding node: no NVIDIA GPU is visible on this machine" in done.stderr


def test_what_cannot_be_honoured_is_an_error(torchrun):
    """One sentence, exit code 2, nothing started."""
    for flags, said in {
        ("--logs-specs", "mine"): "--logs-specs mine: not found under torchrun.logs_specs",
        ("--event-log-handler", "mine"): "null or console",
        ("--rdzv-backend", "etdc"): "Did you mean 'etcd'?",
        ("--rdzv-conf", "join_timeout=x", "--rdzv-backend", "c10d"): "join_timeout",
        ("--nnodes", "0:1"): "at least 1",
        ("--host-checks", "disc"): "unknown host check 'disc'. Did you mean 'disk'",
        ("--host-checks", "disk,clock=1s"): "--host-checks disk,clock=1s: clock compares",
        ("--host-failures", "-1"): "--host-failures -1: must be 0 or more",
    }.items():
        done = torchrun("print(1)", *flags)
        assert (done.returncode, done.stdout) == (2, ""), (flags, done.stderr)
        assert said in done.stderr
        assert "Traceback" not in done.stderr


# ── several hosts, as several commands ────────────────────────────────────────


def start_hosts(torchrun, count, code, *flags, each=lambda number: ()):
    return [
        torchrun.start(code, *flags, *each(number), env={"LOGLEVEL": "INFO"})
        for number in range(count)
    ]


def test_static_hosts_meet_at_the_port_that_was_given(torchrun):
    """Rank by node rank; workers find the store at that very port, in every round."""
    port = free_port()
    code = f"""{GROUP}
    print("port", os.environ["MASTER_PORT"], os.environ["GROUP_RANK"], flush=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        sys.exit(1)
    """
    flags = ("--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", port)
    flags += ("--max-restarts", 1)
    ranks = [("--node-rank", 0), ("--rdzv-conf", "rank=1")]  # either way, as for torch's own
    hosts = start_hosts(torchrun, 2, code, *flags, each=ranks.__getitem__)
    for number, host in enumerate(hosts):
        out, err = host.communicate(timeout=60)
        assert host.returncode == 0, err
        assert out.count(f"rank {number} of 2: 2") == 2
        assert out.count(f"port {port} {number}") == 2


def test_hosts_meet_over_tcp_and_survive_the_one_that_decides(torchrun):
    """By the name that torch has for it; those that are left go on, and succeed."""
    port = free_port()
    code = """
        import os, sys, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        world = dist.get_world_size()
        print("world", world, flush=True)
        total = torch.zeros(1)
        while world == 3:
            dist.all_reduce(total)
            time.sleep(0.02)
        dist.barrier()
        dist.destroy_process_group()
    """
    flags = ("--nnodes", "2:3", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    hosts = start_hosts(torchrun, 3, code, *flags, "--rdzv-id", "one")
    for host in hosts:
        assert host.stdout.readline() == "world 3\n"
    leader = next(host for host in hosts if _listens(host.pid, port))
    leader.kill()
    leader.communicate()
    for host in hosts:
        if host is not leader:
            out, err = host.communicate(timeout=60)
            assert (host.returncode, out) == (0, "world 2\n"), err


@pytest.mark.parametrize("bad", ["the one that decides", "another"])
def test_a_host_on_which_workers_fail_again_and_again_leaves(torchrun, bad):
    """Its command ends and says why; the other goes on without it."""
    port = free_port()
    code = """
        import os, sys, time
        print("world", os.environ["WORLD_SIZE"], flush=True)
        if os.environ["WORLD_SIZE"] == "2":
            if os.environ.get("BAD"):
                sys.exit(3)
            time.sleep(1000)
        """
    flags = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    flags += ("--max-restarts", "4", "--host-failures", "2")
    first = torchrun.start(code, *flags, env={"BAD": "1"} if bad != "another" else {})
    wait_until(lambda: _listens(first.pid, port))
    second = torchrun.start(code, *flags, env={"BAD": "1"} if bad == "another" else {})
    leaves, stays = (second, first) if bad == "another" else (first, second)
    _, err = leaves.communicate(timeout=60)
    assert leaves.returncode == 1, err
    assert "this host has to leave" in err
    assert "was excluded after 2 failures there, the last: rank" in err
    assert "Traceback" not in err
    out, err = stays.communicate(timeout=60)
    assert stays.returncode == 0, err
    assert out.splitlines()[-3:] == ["world 2", "world 2", "world 1"]


PLUGIN = """
    import os

    def space():
        return "no space is left" if os.path.exists(os.environ.get("FULL", "full")) else None
"""


@pytest.mark.parametrize("when", ["at first", "before a restart"])
def test_a_host_that_fails_its_checks_leaves_before_workers_start_there(torchrun, tmp_path, when):
    """By a check of a package's; the other goes on without it, within `--nnodes`."""
    torchrun.write(PLUGIN, "site/spacious.py")
    torchrun.write("Metadata-Version: 2.1\nName: spacious\n", "site/spacious-1.dist-info/METADATA")
    points = "[phalanx.host_checks]\nspace = spacious:space\n"
    torchrun.write(points, "site/spacious-1.dist-info/entry_points.txt")
    port = free_port()
    code = """
        import os, sys, time
        print("world", os.environ["WORLD_SIZE"], flush=True)
        if os.environ["WORLD_SIZE"] == "2":
            if "FULL" in os.environ:
                open(os.environ["FULL"], "w").close()
                sys.exit(3)
            time.sleep(1000)
        """
    flags = ("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    flags += ("--max-restarts", "4", "--host-checks", "disk=1KiB,space")
    full = tmp_path / "no-space"
    site = {"PYTHONPATH": str(tmp_path / "site")}
    if when == "at first":
        full.touch()
    good = torchrun.start(code, *flags, env=site)
    wait_until(lambda: _listens(good.pid, port))
    bad = torchrun.start(code, *flags, env={**site, "FULL": str(full)})
    out, err = bad.communicate(timeout=60)
    assert bad.returncode == 1, err
    assert out.splitlines() == ([] if when == "at first" else ["world 2"])
    assert "host check space failed: no space is left" in err
    assert "Traceback" not in err
    out, err = good.communicate(timeout=60)
    assert good.returncode == 0, err
    assert out.splitlines()[0] == ("world 1" if when == "at first" else "world 2")
    assert out.splitlines()[-1] == "world 1"


def _listens(pid, port):
    inodes = set()
    for line in (
        open(f"/proc/{pid}/net/tcp6").readlines() + open(f"/proc/{pid}/net/tcp").readlines()
    ):
        fields = line.split()
        if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    own = Path(f"/proc/{pid}/fd")
    held = set()
    for place in own.iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            held.add(os.readlink(place))
    return bool(held & inodes)


def _is_connected(port):
    """Somebody has come, and stays."""
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file][1:]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_a_spare_waits_and_exits_with_0(torchrun):
    """Beyond the most hosts it has nothing to do but to be there."""
    port = free_port()
    code = """
        import os, time
        print("runs", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
    """
    flags = ("--nnodes", "1:1", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    first = torchrun.start(code, *flags)
    first.stdout.readline()
    spare = torchrun.start(code, *flags)
    wait_until(lambda: _is_connected(port))
    Path("go").touch()
    outs = [host.communicate(timeout=60) for host in (first, spare)]
    assert [host.returncode for host in (first, spare)] == [0, 0], outs
    assert outs[1][0] == ""


def test_hosts_that_do_not_belong_together_are_told(torchrun):
    """Another run, or another number of hosts."""
    port = free_port()
    code = "import time; print('runs', flush=True); time.sleep(2)"
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    first = torchrun.start(code, "--nnodes", "1:2", *where, "--rdzv-id", "a")
    wait_until(lambda: _listens(first.pid, port))
    other = torchrun(code, "--nnodes", "1:2", *where, "--rdzv-id", "b")
    assert other.returncode == 1
    assert "its run id (--rdzv-id) is 'b', and not that of the others" in other.stderr
    another = torchrun(code, "--nnodes", "3", *where, "--rdzv-id", "a")
    assert another.returncode == 1
    assert "was started for 3 hosts, the others for 1:2" in another.stderr
    first.communicate(timeout=60)
    assert first.returncode == 0


def test_a_rendezvous_that_times_out_says_what_was_awaited(torchrun):
    """The setting that expired, and where."""
    port = free_port()
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    conf = ("--rdzv-conf", "join_timeout=1")
    done = torchrun("print(1)", "--nnodes", "2", *where, *conf)
    assert done.returncode == 1
    itself = re.escape(socket.gethostname())  # it has come, and is not said to be missing
    came = rf"(0 of at least 2 hosts joined within 1 s: none|1 of .* within 1 s: {itself})"
    assert re.search(rf"^phalanx torchrun: {came} \(join_timeout\)$", done.stderr, re.M)
    nobody = ("--rdzv-conf", "join_timeout=1,is_host=0")
    done = torchrun("print(1)", "--nnodes", "2", *where, *nobody)
    assert done.returncode == 1
    assert f"localhost:{port}" in done.stderr
    assert not re.search(rf"\b{itself}\b", done.stderr.replace(f"localhost:{port}", ""))


# ── as python does it ─────────────────────────────────────────────────────────


def same_as_python(torchrun, tmp_path, code):
    """Run a script both ways; gives what both printed."""
    torchrun.write(code)
    plain = subprocess.run(
        [sys.executable, "train.py"], capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    done = torchrun(code, "--nproc-per-node", "1")
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode and 1), done.stderr
    return done


def test_open_files_are_flushed_and_finalizers_run(torchrun, tmp_path):
    """What the script left for the interpreter's end."""
    code = """
        class Last:
            def __del__(self):
                print("finalized")

        file = open("left-open.txt", "w")
        file.write("data")
        last = Last()
    """
    assert same_as_python(torchrun, tmp_path, code).stdout == "finalized\n"
    assert (tmp_path / "left-open.txt").read_text() == "data"


@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        "os.execvp('true', ['true'])",
        "threading.Thread(target=lambda: (time.sleep(0.3), os._exit(3))).start()",
        "atexit.register(lambda: os.kill(os.getpid(), 9))",
        "__builtins__.print('a module')",
        "os.chdir('/'); print(__file__)",
    ],
)
def test_the_exit_status_is_the_outcome(torchrun, tmp_path, end):
    """Whoever brings it about, and when."""
    same_as_python(torchrun, tmp_path, f"import atexit, os, threading, time\n{end}\n")


def test_random_numbers_differ_between_ranks_and_restarts(torchrun):
    """Torch's, unless the script seeds them."""
    code = """
        import os, sys, torch
        print(torch.rand(1).item(), flush=True)
        sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
    """
    done = torchrun(code, "--nproc-per-node", "2", "--max-restarts", "1")
    assert len(set(done.stdout.split())) == len(done.stdout.split()) >= 3, done.stderr


def test_ctrl_c_is_a_keyboard_interrupt_in_the_script(torchrun):
    """The signal that it gets is the one that we got."""
    code = """
        import time
        try:
            print("ready", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("saved", flush=True)
    """
    process = torchrun.start(code, "--nproc-per-node", "1")
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("saved\n", 130), err


def test_archives_and_compiled_files_run(torchrun, tmp_path):
    """As python runs them."""
    import py_compile
    import zipfile

    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", "import own; print('zip', own.X, flush=True)")
        archive.writestr("own.py", "X = 1")
    torchrun.write("print('compiled', flush=True)", "c.py")
    py_compile.compile(str(tmp_path / "c.py"), cfile=str(tmp_path / "c.pyc"))
    for name, said in (("app.zip", "zip 1\n"), ("c.pyc", "compiled\n")):
        done = subprocess.run(
            torchrun.command(name), capture_output=True, text=True, cwd=tmp_path, timeout=60
        )
        assert done.stdout == said, done.stderr


def test_a_syntax_error_shows_the_script_alone(torchrun):
    """And no frame of ours."""
    done = torchrun("def f(:\n", "--nproc-per-node", "1")
    assert "SyntaxError" in done.stderr
    assert "phalanx/_worker" not in done.stderr


def test_what_is_waited_for_is_said(torchrun):
    """Before the limit is reached: the endpoint and why; who has come, of how many."""
    where = ("--rdzv-backend", "c10d", "--rdzv-conf", "join_timeout=4")
    lost = torchrun("print(1)", "--nnodes", "2", *where, "--rdzv-endpoint", "no.such.host:29400")
    (said,) = [line for line in lost.stderr.splitlines() if "waiting for" in line]
    assert "the rendezvous at no.such.host:29400, up to 4 s (join_timeout): " in said
    assert "known" in said or "resolution" in said
    alone = torchrun(
        "print(1)", "--nnodes", "2", *where, "--rdzv-endpoint", f"localhost:{free_port()}"
    )
    assert "up to 4 s (join_timeout): 1 of at least 2 hosts joined: " in alone.stderr
    assert "finds no address" not in alone.stderr


@pytest.mark.parametrize("where", ["rdzv-endpoint", "master-addr"])
def test_an_endpoint_without_an_address_is_named_by_the_host_that_leads(torchrun, where):
    """By flags the first host is the endpoint's, whatever its names are: others cannot find it."""
    endpoint = "no.such.host" + (":29400" if where == "rdzv-endpoint" else "")
    conf = ("--rdzv-conf", "join_timeout=4")
    done = torchrun("print(1)", "--nnodes", "2", f"--{where}", endpoint, *conf)
    (said,) = [line for line in done.stderr.splitlines() if "waiting for" in line]
    assert "This host finds no address of no.such.host: " in said
    assert "known" in said or "resolution" in said
    assert "--node-rank" not in done.stderr  # nobody can wait there


SILENT_RESOLVER = """
import os, socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
raise SystemExit(subprocess.run(sys.argv[2:]).returncode)
"""


@pytest.fixture
def with_silent_resolver(tmp_path):
    """A command in namespaces of its own, with a name server there that never answers."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip", "mount"))):
        pytest.skip("needs root, unshare and iproute2")
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:4 attempts:1\n")
    own = ["unshare", "--mount", "--net", sys.executable, "-c", SILENT_RESOLVER]
    return [*own, str(tmp_path / "resolv.conf")]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_resolver_that_does_not_answer_is_named(torchrun, with_silent_resolver, terminal):
    """What waits for it says so, on a terminal and elsewhere."""
    script = torchrun.write("print(1)")
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "slow.example.org:29400")
    conf = ("--rdzv-conf", "join_timeout=6")
    command = [*with_silent_resolver, *torchrun.command("--nnodes", 2, *where, *conf, script)]
    if terminal:
        shown = Terminal(*command)
        code, said = shown.finish(), "\n".join(shown.lines)
    else:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        code, said = done.returncode, done.stderr
    assert code == 1, said
    assert "waiting for the resolver: no answer for slow.example.org, the endpoint" in said
    assert "no answer from the resolver for slow.example.org within 2 s" in said
