"""Every mistake in what is asked for is found before anything starts, and says what to do."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx import ConfigError, Launcher, launch
from phalanx._core import environment, ranks
from phalanx._system import machine
from phalanx._launcher.planning.imports import Needs
from phalanx._launcher.planning.plan import make_plan
from phalanx._core.ids import AgentId
from phalanx._core.rounds import Endpoint, Member, Round

NOTHING = Needs((), torch=False)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hostnames": "gpu1"}, r"Write hostnames=\['gpu1'\]"),
        ({"hostnames": []}, "one or more host names"),
        ({"hostnames": [""]}, "one or more host names"),
        ({"hostnames": "slurm"}, "slurm"),
        ({"workers_per_host": [1, 2]}, "2 entries for 1 hosts"),
        ({"hostnames": ["localhost"] * 2, "workers_per_host": [1]}, "1 entries for 2 hosts"),
        ({"workers_per_host": 0}, "must be 1 or more"),
        ({"workers_per_host": -1}, "must be 1 or more"),
        ({"workers_per_host": True}, "must be a number"),
        ({"workers_per_host": "gpus"}, "must be a number"),
        ({"workers_per_host": 1.5}, "must be a number"),
        ({"workers_per_host": [1, "x"]}, "must be a number"),
        ({"backend": "nccl2"}, "Did you mean 'nccl'"),
        ({"start_method": "fork"}, "unknown start_method 'fork'"),
        ({"start_timeout": 0}, "more than 0"),
        ({"stop_grace": -1}, "0 or more"),
        ({"host_timeout": "30"}, "number of seconds"),
        ({"orphan_timeout": float("nan")}, "number of seconds"),
        ({"env_vars": {"A": "b"}}, "extra_env_vars="),
        ({"env_vars": "PATH"}, r"Write env_vars=\['PATH'\]"),
        ({"extra_env_vars": {"A": 1}}, "must be strings"),
        ({"extra_env_vars": {"A=B": "1"}}, "not a valid variable name"),
        ({"extra_env_vars": {"A": "x\0y"}}, "NUL"),
        ({"extra_env_vars": {"RANK": "1"}}, "RANK cannot be set"),
        ({"extra_env_vars": ["A"]}, "must be a dict"),
        (
            {"hostnames": ["localhost"], "host_env_vars": {"localhost": {"RANK": "1"}}},
            r"^host_env_vars\['localhost'\]: RANK cannot be set",
        ),
        (
            {"hostnames": ["localhost"], "host_env_vars": {"localhost": {"A": 1}}},
            r"^host_env_vars\['localhost'\]: 'A' = 1: names and values must be strings",
        ),
        (
            {"start_method": "inline", "env_file": os.devnull},
            "env_file cannot be used .*in this process",
        ),
        (
            {"start_method": "inline", "max_restarts": 2},
            "max_restarts=2 cannot be used .*in this process",
        ),
        ({"env_file": "/no/such/file"}, "No such file"),
        ({"preload": "torch"}, "list of modules"),
        ({"preload": None}, "list of modules"),
        ({"preload": [1]}, "list of modules"),
        ({"name": 5}, "must be a string"),
        ({"log_spec": "x"}, "must be a LogSpec instance"),
        ({"stop_grace": float("inf")}, "number of seconds"),
        ({"extra_env_vars": {"A": "\ud800"}}, "cannot be encoded"),
    ],
)
def test_mistakes_are_named(fields, message):
    """One sentence that says what was seen and what to write."""
    with pytest.raises(ConfigError, match=message):
        make_plan(Launcher(**fields), NOTHING, "f")


def test_gpu_without_a_gpu_is_an_error(monkeypatch):
    """It names the variable that hides them, if there is one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="no NVIDIA GPU is visible"):
        make_plan(Launcher(workers_per_host="gpu"), NOTHING, "f")


def test_an_unknown_option_suggests_the_right_one():
    """`launch` takes the fields of `Launcher`."""
    with pytest.raises(ConfigError, match=r"launch\(func, {'x': ...}\)"):
        launch(lambda x: x, x=2)
    with pytest.raises(ConfigError, match="no time limit"):
        launch(print, timeout=2)
    with pytest.raises(ConfigError, match="Did you mean 'workers_per_host'"):
        launch(print, worker_per_host=2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: launch(3), "3 is not callable"),
        (lambda: launch(print, ["a"]), "must be a dict"),
        (lambda: launch(_coroutine), "is async"),
        (lambda: launch(_generator), "is a generator"),
        (lambda: launch(print, args="ab"), "must be a tuple"),
        (lambda: launch(lambda x: x, {"x": __import__("threading").Lock()}), "cannot be pickled"),
    ],
)
def test_calls_that_cannot_be_made_start_nothing(call, message):
    """Named before anything starts."""
    with pytest.raises(ConfigError, match=message):
        call()


async def _coroutine():
    pass


def _generator():
    yield 1


def test_cpu_means_the_processors_we_may_use():
    """Not those of the machine."""
    plan = make_plan(Launcher(workers_per_host="cpu"), NOTHING, "f")
    assert plan.members[0].workers == len(os.sched_getaffinity(0))


def test_ranks_follow_the_order_of_hosts():
    """Whoever the agents are; without hosts there are none."""
    hosts = [
        (AgentId(7), "b", 2, "default"),
        (AgentId(-1), "a", 1, "default"),
        (AgentId(3), "b", 3, "default"),
    ]
    table = ranks.lay_out(iter(hosts))
    assert table == (Member(7, "b", 0, 2), Member(-1, "a", 2, 1), Member(3, "b", 3, 3))
    assert ranks.lay_out([]) == ()


def test_role_ranks_count_within_the_role():
    """Over hosts whose roles alternate, as torchrun counts them."""
    names = ["trainer", "reader", "trainer"]
    table = ranks.lay_out((AgentId(i), f"h{i}", 2, role) for i, role in enumerate(names))
    round_ = Round(1, table, Endpoint("a", 1))
    found = [
        ranks.worker_environment(round_, m, rank, run_id="a", error_file="e", agent_store=True)
        for m in table
        for rank in m.ranks
    ]
    assert [(e["ROLE_NAME"], e["ROLE_RANK"], e["ROLE_WORLD_SIZE"]) for e in found] == [
        ("trainer", "0", "4"),
        ("trainer", "1", "4"),
        ("reader", "0", "2"),
        ("reader", "1", "2"),
        ("trainer", "2", "4"),
        ("trainer", "3", "4"),
    ]


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_ranks_are_contiguous_and_complete(workers):
    """Whatever the counts."""
    table = ranks.members([f"h{i}" for i in range(len(workers))], workers)
    assert [r for m in table for r in m.ranks] == list(range(sum(workers)))
    round_ = Round(1, table, Endpoint("a", 1))
    for member in table:
        for rank in member.ranks:
            env = ranks.worker_environment(
                round_, member, rank, run_id="a", error_file="e", agent_store=True
            )
            agents = {ranks.APP, ranks.HEARTBEAT_FILE, ranks.SPOOL, ranks.STOP_FILE}
            assert env.keys() == ranks.RANK_VARIABLES - agents
            assert int(env["LOCAL_RANK"]) < int(env["LOCAL_WORLD_SIZE"]) == member.workers
            assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def test_patterns_choose_what_is_copied():
    """fnmatch, and the default list."""
    environ = {"PATH": "p", "CUDA_HOME": "c", "SECRET": "s", "HF_HOME": "h", "https_proxy": "x"}
    assert environment.copied(environ, environment.COPIED_BY_DEFAULT).keys() == environ.keys() - {
        "SECRET"
    }
    assert environment.copied(environ, ["SEC*"]) == {"SECRET": "s"}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, 4),
        ("", 0),
        ("0,1", 2),
        ("-1", 0),
        ("1,-1,2", 1),
        ("0,9", 1),
        ("GPU-ab,GPU-cd", 2),
    ],
)
def test_gpus_are_counted_as_cuda_does(visible, expected, monkeypatch, tmp_path):
    """From the device files that there are and the variable that hides them."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert machine.gpus(environ, devices=str(tmp_path)) == expected


def test_the_app_s_id_is_fit_for_a_file_name():
    """Whatever the name."""
    plan = make_plan(Launcher(name="my exp/1: ü"), NOTHING, "f")
    assert plan.app.startswith("my-exp-1-")
    assert "/" not in plan.app
