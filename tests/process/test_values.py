"""Functions and values: what can be launched, and what comes back."""

import functools
import os
import pickle
import subprocess
import sys
import threading

import pytest

import phalanx
from phalanx import ConfigError, Launcher, LaunchResult, ResultError


def rank():
    return int(os.environ["RANK"])


class Callable:
    def __init__(self, offset):
        self.offset = offset

    def __call__(self):
        return self.offset + int(os.environ["RANK"])

    def method(self, scale):
        return scale * (self.offset + int(os.environ["RANK"]))


def test_every_rank_s_value_comes_back_in_rank_order():
    """A module's function, three workers."""
    result = phalanx.launch(rank, workers_per_host=3)
    assert list(result) == [0, 1, 2]
    assert len(result) == 3
    assert result.rank(2) == 2
    assert result.index("localhost", 1) == 1
    assert result.results == {"localhost": [0, 1, 2]}


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: lambda: int(os.environ["RANK"]) + 10, id="lambda"),
        pytest.param(lambda: functools.partial(Callable(10).method, 1), id="partial of a method"),
        pytest.param(lambda: functools.partial(int, "10"), id="partial of a builtin"),
        pytest.param(lambda: Callable(10), id="callable object"),
        pytest.param(
            lambda: functools.partial(Callable(5).method, scale=2), id="partial with keyword"
        ),
    ],
)
def test_anything_callable_launches(make):
    """Lambdas, partials, callable objects and built-ins."""
    assert phalanx.launch(make(), workers_per_host=1).rank(0) == 10


def test_a_closure_and_a_bound_method_launch():
    """With what they hold."""
    base = 7
    result = phalanx.launch(lambda: base + int(os.environ["RANK"]), workers_per_host=2)
    assert list(result) == [7, 8]
    assert list(phalanx.launch(Callable(1).method, {"scale": 3}, workers_per_host=2)) == [3, 6]


def test_positional_and_keyword_arguments_arrive():
    """`run` with args, `call` with the function's own signature."""

    def f(a, b, *, c):
        return a, b, c

    launcher = Launcher(workers_per_host=1)
    assert launcher.run(f, {"c": 3}, args=(1, 2)).rank(0) == (1, 2, 3)
    assert launcher.call(f, 1, b=2, c=3).rank(0) == (1, 2, 3)


def test_a_call_that_does_not_fit_the_signature_starts_nothing():
    """The mistake is the caller's, and is raised as Python would."""
    with pytest.raises(TypeError, match="required argument: 'x', and it takes no 'y'."):
        phalanx.launch(lambda x: x, {"y": 1})
    with pytest.raises(TypeError, match="missing a required argument: 'x'$"):
        phalanx.launch(lambda x, **more: x, {"y": 1})
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        phalanx.launch(lambda x: x, workers_per_host=1)


MAIN_CLASS = """
    import os, phalanx

    class Point:
        def __init__(self, x):
            self.x = x
        def double(self):
            return self.x * 2

    def make():
        return Point(int(os.environ["RANK"]) + 1)

    result = phalanx.launch(make, workers_per_host=2)
    assert all(type(point) is Point for point in result), [type(p) for p in result]
    print([point.double() for point in result])
"""


def test_an_instance_of_a_class_of_main_comes_back_usable(script):
    """Its methods work."""
    done = script(MAIN_CLASS)
    assert done.stdout.strip() == "[2, 4]", done.stderr


def test_a_script_from_standard_input_launches(tmp_path):
    """No importable file anywhere."""
    code = (
        "import phalanx\ndef f(x):\n    import os\n    return x + int(os.environ['RANK'])\n"
        "print(list(phalanx.launch(f, {'x': 1}, workers_per_host=2)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-"], input=code, capture_output=True, text=True, cwd=tmp_path, timeout=60
    )
    assert done.stdout.strip() == "[1, 2]", done.stderr


def test_a_function_from_exec_launches_as_in_a_notebook_cell(script):
    """The code has no file, and lives in __main__."""
    done = script("""
        import phalanx
        cell = "import os\\ndef f():\\n    return helper() + int(os.environ['RANK'])\\n" \\
               "def helper():\\n    return 5\\n"
        exec(compile(cell, "/tmp/ipykernel_1/123.py", "exec"), globals())
        print(list(phalanx.launch(f, workers_per_host=2)))
    """)
    assert done.stdout.strip() == "[5, 6]", done.stderr


def test_500_mb_arrive_intact_within_two_and_a_half_times_their_size(script):
    """Of the launcher's memory."""
    done = script(
        """
        import phalanx
        SIZE = 500 << 20

        def big():
            return b"\\x01\\x02\\x03\\x04" * (SIZE // 4)

        value = phalanx.launch(big, workers_per_host=1).rank(0)
        # Not ru_maxrss: that includes what the process that started us had.
        (line,) = [l for l in open("/proc/self/status") if l.startswith("VmHWM")]
        peak = int(line.split()[1]) * 1024
        assert len(value) == SIZE and value[:4] == value[-4:] == b"\\x01\\x02\\x03\\x04"
        assert value.count(b"\\x01\\x02\\x03\\x04") == SIZE // 4
        print(peak / SIZE)
    """,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2.5


def test_tensors_of_every_kind_come_back(script):
    """Their memory is carried as one buffer: views, gradients, dtypes and sparse ones survive."""
    done = script("""
        import torch, phalanx

        def f():
            base = torch.arange(10.0)
            layer = torch.nn.Linear(3, 2)
            return [torch.ones(5), base[2:5], base.view(2, 5).t(), torch.empty(0), torch.tensor(3),
                    torch.ones(3, dtype=torch.bfloat16), torch.tensor([True, False]),
                    torch.ones(2, dtype=torch.complex64), torch.ones(2, requires_grad=True),
                    torch.eye(3).to_sparse(), layer, layer.state_dict()]

        value = phalanx.launch(f, workers_per_host=1).rank(0)
        base = torch.arange(10.0)
        assert torch.equal(value[1], base[2:5]) and torch.equal(value[2], base.view(2, 5).t())
        assert value[3].numel() == 0 and value[4].item() == 3 and value[5].dtype == torch.bfloat16
        assert value[6].tolist() == [True, False] and value[7].dtype == torch.complex64
        assert value[8].requires_grad and torch.equal(value[9].to_dense(), torch.eye(3))
        assert torch.equal(value[10].weight, value[11]["weight"])
        value[0] += 1
        print(value[0].sum().item(), value[10](torch.ones(3)).shape[0])
    """)
    assert done.stdout.strip() == "10.0 2", done.stderr


def test_a_large_argument_arrives_intact():
    """The way out is streamed as well."""
    data = os.urandom(1 << 20) * 40
    sums = phalanx.launch(
        lambda d: (len(d), hash(d) == hash(bytes(d)), d[-20:]), {"d": data}, workers_per_host=2
    )
    assert all(s == (len(data), True, data[-20:]) for s in sums)


def test_a_value_that_cannot_be_pickled_is_named():
    """The rank, the type and the reason."""

    def f():
        import threading

        return threading.Lock() if int(os.environ["RANK"]) == 1 else 0

    with pytest.raises(ResultError, match=r"rank 1 .*lock.*cannot pickle") as caught:
        phalanx.launch(f, workers_per_host=2)
    assert caught.value.rank == 1
    assert "lock" in caught.value.type_name


def test_a_value_that_cannot_be_unpickled_here_is_named():
    """Nor can the launcher load it: the rank and the reason are named."""

    def f():
        class Bad:
            def __reduce__(self):
                return (exec, ("raise OSError('no such thing here')",))

        return Bad()

    with pytest.raises(ResultError, match="rank 0 .* no such thing here"):
        phalanx.launch(f, workers_per_host=1)


def test_duplicate_hosts_keep_all_their_results():
    """Counts differ, ranks are contiguous, an ambiguous lookup raises."""

    def f():
        env = os.environ
        return tuple(int(env[k]) for k in ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE"))

    result = phalanx.launch(
        f, hostnames=["localhost", "127.0.0.1", "localhost"], workers_per_host=[2, 1, 2]
    )
    assert list(result) == [(0, 0, 0, 2), (1, 1, 0, 2), (2, 0, 1, 1), (3, 0, 2, 2), (4, 1, 2, 2)]
    assert [len(v) for v in result.results.values()] == [4, 1]
    assert result.index("127.0.0.1", 0) == (2, 0, 1, 1)
    with pytest.raises(KeyError, match="listed 2 times"):
        result.index("localhost", 0)


def test_two_launches_at_once_in_threads():
    """Neither sees the other."""
    results = {}

    def go(i):
        results[i] = list(phalanx.launch(lambda: (i, int(os.environ["RANK"])), workers_per_host=2))

    threads = [threading.Thread(target=go, args=(i,)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {i: [(i, 0), (i, 1)] for i in range(3)}


def test_a_launch_inside_a_worker():
    """The inner ranks are the inner launch's own."""

    def outer():
        import phalanx

        inner = phalanx.launch(
            lambda: (os.environ["RANK"], os.environ["WORLD_SIZE"]), workers_per_host=2
        )
        return os.environ["RANK"], list(inner)

    inner = [("0", "2"), ("1", "2")]
    assert list(phalanx.launch(outer, workers_per_host=2)) == [("0", inner), ("1", inner)]


def test_a_launch_from_a_process_that_is_in_a_group(script):
    """The launcher's own group is left alone."""
    done = script("""
        import torch, torch.distributed as dist, phalanx
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

        def f():
            t = torch.ones(1)
            dist.all_reduce(t)
            return t.item()

        print(list(phalanx.launch(f, workers_per_host=2)), dist.get_world_size())
    """)
    assert done.stdout.strip() == "[2.0, 2.0] 1", done.stderr


def test_the_seeds_example_works_as_written(script):
    """A launcher filled by tyro."""
    code = """
        import phalanx as trx
        import tyro

        def distributed_function():
            print("Hello world!")

        if __name__ == "__main__":
            launcher = tyro.cli(trx.Launcher)
            launcher.run(distributed_function, {})
    """
    done = script(code, "--workers-per-host", "2")
    assert done.stdout == "Hello world!\n", done.stderr
    done = script(code, "--help")
    assert "--stop-grace" in done.stdout
    assert "Seconds between SIGTERM and SIGKILL" in done.stdout


def test_a_main_written_for_torchrun_launches_unchanged(script):
    """Its own init_process_group replaces ours, under whatever name it was imported."""
    done = script("""
        import os
        import torch
        import torch.distributed as dist
        from torch.distributed import init_process_group
        import phalanx

        def main():
            init_process_group("gloo")
            t = torch.ones(1) * dist.get_rank()
            dist.all_reduce(t)
            dist.destroy_process_group()
            return t.item(), int(os.environ["LOCAL_RANK"])

        def uses_ours():
            assert dist.is_initialized()
            t = torch.ones(1)
            dist.all_reduce(t)
            return t.item()

        print(list(phalanx.launch(main, workers_per_host=3)))
        print(list(phalanx.launch(uses_ours, workers_per_host=2)))
        print(list(phalanx.launch(uses_ours, workers_per_host=2, start_method="spawn")))
        print(list(phalanx.launch(main, workers_per_host=2, start_method="spawn")))
        print(list(phalanx.launch(main, workers_per_host=2, backend=None)))
    """)
    assert done.stdout.splitlines() == [
        "[(3.0, 0), (3.0, 1), (3.0, 2)]",
        "[2.0, 2.0]",
        "[2.0, 2.0]",
        "[(1.0, 0), (1.0, 1)]",
        "[(1.0, 0), (1.0, 1)]",
    ], done.stderr


def test_a_group_is_formed_by_the_user_where_torch_was_not_foreseen(script):
    """Imported in a way that no reading of the source finds: rank 0 carries the store itself."""
    done = script("""
        import importlib, phalanx

        def main():
            dist = importlib.import_module("tor" + "ch.distributed")
            dist.init_process_group("gloo")
            out = [None] * dist.get_world_size()
            dist.all_gather_object(out, dist.get_rank())
            dist.destroy_process_group()
            return out

        print(list(phalanx.launch(main, workers_per_host=2)))
    """)
    assert done.stdout.strip() == "[[0, 1], [0, 1]]", done.stderr


def test_a_module_that_reads_its_rank_when_imported_sees_its_own(script, tmp_path):
    """It is imported in each worker."""
    (tmp_path / "mine.py").write_text(
        "import os\nRANK = os.environ.get('RANK')\ndef f():\n    return RANK\n"
    )
    done = script("""
        import mine, phalanx
        print(list(phalanx.launch(mine.f, workers_per_host=3)))
    """)
    assert done.stdout.strip() == "['0', '1', '2']", done.stderr


def test_a_method_whose_object_holds_the_launcher():
    """A launcher pickles."""

    class Trainer:
        def __init__(self):
            self.launcher = Launcher(workers_per_host=2)

        def work(self):
            return self.launcher.workers_per_host

        def go(self):
            return list(self.launcher.run(self.work))

    assert Trainer().go() == [2, 2]


@pytest.mark.parametrize("method", ["zygote", "spawn"])
def test_random_numbers_differ_between_workers(method):
    """Those of numpy and of Python."""

    def f():
        import random

        import numpy as np

        return float(np.random.random()), random.random(), float(np.random.default_rng().random())

    values = list(phalanx.launch(f, workers_per_host=4, start_method=method))
    for column in zip(*values, strict=True):
        assert len(set(column)) == 4


def test_workers_see_all_of_torchruns_environment():
    """The contract, complete."""
    names = [
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "ROLE_NAME",
        "LOCAL_WORLD_SIZE",
        "WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCHELASTIC_ERROR_FILE",
        "OMP_NUM_THREADS",
    ]
    seen = phalanx.launch(lambda: {n: os.environ.get(n) for n in names}, workers_per_host=2)
    for number, values in enumerate(seen):
        assert all(values.values()), values
        assert values["RANK"] == values["LOCAL_RANK"] == str(number)
        assert values["OMP_NUM_THREADS"] == "1"
    assert seen.rank(0)["MASTER_PORT"] == seen.rank(1)["MASTER_PORT"]


def test_a_worker_looks_like_a_script_to_its_code(script, tmp_path):
    """__main__, argv, directory, umask, and a name in ps that shows function and rank."""
    done = script(
        """
        import os, sys, phalanx

        class Thing:
            pass

        def look():
            import pickle
            main = sys.modules["__main__"]
            pickle.loads(pickle.dumps(Thing()))
            title = open("/proc/self/cmdline").read().strip("\\0")
            mask = os.umask(0)
            return (os.path.basename(main.__file__), sys.argv[1:], os.getcwd(), mask, title)

        os.umask(0o027)
        print(phalanx.launch(look, workers_per_host=1).rank(0))
    """,
        "one",
        "two",
    )
    expected = ("script.py", ["one", "two"], str(tmp_path), 0o027, "phalanx: look rank 0")
    assert done.stdout.strip() == str(expected), done.stderr


@pytest.mark.parametrize("method", ["zygote", "spawn"])
def test_a_worker_leaves_as_an_interpreter_does(script, method, tmp_path):
    """Threads are waited for, atexit runs, files of the user's globals are flushed."""
    done = script(f"""
        import atexit, threading, time, phalanx
        file = None

        def f():
            global file
            file = open("global.txt", "w")
            file.write("flushed")
            atexit.register(lambda: open("atexit.txt", "w").write("ran"))
            def late():
                time.sleep(0.2)
                open("thread.txt", "w").write("done")
            threading.Thread(target=late).start()

        phalanx.launch(f, workers_per_host=1, start_method={method!r})
    """)
    assert done.returncode == 0, done.stderr
    for name, text in {"global": "flushed", "atexit": "ran", "thread": "done"}.items():
        assert (tmp_path / f"{name}.txt").read_text() == text


def test_multiprocessing_with_spawn_works_inside_a_worker(script):
    """Children find the user's __main__."""
    done = script("""
        import multiprocessing, os, phalanx

        def square(x):
            return x * x

        def f():
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                return pool.map(square, [1, 2, 3])

        if __name__ == "__main__":
            print(phalanx.launch(f, workers_per_host=1).rank(0))
    """)
    assert done.stdout.strip() == "[1, 4, 9]", done.stderr


def test_inline_runs_in_this_process():
    """For debuggers: same process, the exception as it is, the environment restored."""
    launcher = Launcher(workers_per_host=1, start_method="inline", extra_env_vars={"MINE": "1"})
    assert launcher.run(lambda: (os.getpid(), os.environ["RANK"], os.environ["MINE"])).rank(0) == (
        os.getpid(),
        "0",
        "1",
    )
    assert "RANK" not in os.environ
    launcher.hostnames, launcher.host_env_vars = ["localhost"], {"localhost": {"MINE": "2"}}
    assert launcher.run(lambda: os.environ["MINE"]).rank(0) == "2"
    assert "MINE" not in os.environ
    error = ValueError("x")

    def fail():
        raise error

    with pytest.raises(ValueError) as caught:
        launcher.run(fail)
    assert caught.value is error
    with pytest.raises(ConfigError, match="workers_per_host=1"):
        phalanx.launch(rank, workers_per_host=2, start_method="inline")


def test_inline_has_a_group_when_torch_is_used(script):
    """A function that uses the group can be debugged as well."""
    done = script("""
        import torch, torch.distributed as dist, phalanx

        def f():
            t = torch.ones(1)
            dist.all_reduce(t)
            return t.item(), dist.get_world_size()

        print(phalanx.launch(f, workers_per_host=1, start_method="inline").rank(0),
              dist.is_initialized())
    """)
    assert done.stdout.strip() == "(1.0, 1) False", done.stderr


def test_launcher_and_result_pickle():
    """Plain data."""
    launcher = Launcher(workers_per_host=3, extra_env_vars={"A": "b"})
    assert pickle.loads(pickle.dumps(launcher)) == launcher
    result = LaunchResult((1, 2), phalanx.launch(rank, workers_per_host=2).members)
    assert pickle.loads(pickle.dumps(result)) == result
