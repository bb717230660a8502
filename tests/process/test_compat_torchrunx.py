"""Programs that import torchrunx, run on Phalanx without a change."""

import argparse
import dataclasses
import importlib
import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import phalanx.compat.torchrunx as torchrunx
from phalanx.compat.torchrunx.integrations.parsing import (
    add_torchrunx_argument_group,
    launcher_from_args,
)
from phalanx.compat.torchrunx.utils.log_handling import RedirectHandler, get_handler_filter
from phalanx.errors import ConfigError
from tests.conftest import wait_until

PROGRAM = """
import logging
import sys

import torchrunx
from steps import train

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s", stream=sys.stdout)
    launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=2, backend="gloo")
    results = launcher.run(train, "out", steps=int(sys.argv[1]))
    print(results.rank(0), results.index(hostname="localhost", local_rank=1), results.results)
    try:
        launcher.run(train, "out", steps=0)
    except ValueError as error:
        print("raised", error)
    try:
        launcher.run(train, "out", steps=-1)
    except torchrunx.WorkerFailedError as error:
        print("exit code", error.exit_code)
"""

STEPS = """
import logging
import os

import torch
import torch.distributed as dist
import torchrunx  # workers import it too


def train(output, steps=10):
    if steps == 0:
        raise ValueError("no steps")
    if steps < 0:
        os._exit(7)
    total = torch.ones(1)
    for _ in range(steps):
        dist.all_reduce(total)
    print("trained", torchrunx.__version__)
    logging.getLogger("app").warning("saved")
    return f"{output}/{dist.get_rank()}-{int(total)}"
"""


def compat(*words, cwd, **environ):
    return subprocess.run(
        [sys.executable, "-m", "phalanx.compat", *words],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=cwd,
        env={**os.environ, **environ},
    )


def test_a_program_runs_unmodified_under_the_import_hook(tmp_path):
    """Its values, exceptions, loggers and log files are those it knows."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "steps.py").write_text(STEPS)
    logs = tmp_path / "logs"
    done = compat("torchrunx", "--", "program.py", "3", cwd=tmp_path, TORCHRUNX_LOG_DIR=str(logs))
    assert done.returncode == 0, done.stderr
    assert "out/0-8 out/1-8 {'localhost': ['out/0-8', 'out/1-8']}" in done.stdout
    assert "torchrunx.localhost.0 trained 0.4.0" in done.stdout
    assert "torchrunx.localhost.0 app:saved" in done.stdout
    assert "raised no steps" in done.stdout
    assert "exit code 7" in done.stdout
    (worker,) = [p for p in logs.glob("*/localhost[[]1].log") if "trained" in p.read_text()]
    assert re.search(r"^\d{4}-\d\d-\d\d [\d:]+:WARNING: app:saved$", worker.read_text(), re.M)


def test_a_module_runs_under_the_import_hook(tmp_path):
    """With -m, and with its name and arguments as python has them."""
    (tmp_path / "module.py").write_text(
        "import sys, torchrunx\nprint(__name__, torchrunx.__name__, sys.argv[1:])\n"
    )
    done = compat("torchrunx", "--", "-m", "module", "--", "x", cwd=tmp_path)
    assert done.stdout == "__main__ phalanx.compat.torchrunx ['--', 'x']\n", done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["torchrun", "--", "p.py"], "no module 'torchrun'. Did you mean 'torchrunx'?"),
        (["torchrunx", "--", "progam.py"], "no such file: progam.py. Did you mean program.py?"),
        (["torchrunx"], "say which program to run"),
        (["--", "program.py"], "say which names"),
        (["torchrunx", "--", "-m"], "-m needs the name of a module"),
    ],
)
def test_mistakes_on_the_command_line_are_told(words, message, tmp_path):
    """In one sentence, with the usage."""
    (tmp_path / "program.py").write_text("")
    done = compat(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "usage: python -m phalanx.compat" in done.stderr


def test_handlers_of_a_factory_take_what_their_filters_let_through(tmp_path):
    """As its documentation has it: a file for one worker, the launcher's logger for another."""

    def handlers():
        file = logging.FileHandler(tmp_path / "one.txt")
        file.addFilter(get_handler_filter("localhost", 1, logging.DEBUG))
        redirect = RedirectHandler()
        redirect.addFilter(get_handler_filter("localhost", 0))
        return [file, redirect]

    kept = []
    logger = logging.getLogger("torchrunx.localhost.0")
    keeper = logging.Handler()
    keeper.emit = lambda record: kept.append(record.getMessage())
    logger.addHandler(keeper)
    logger.setLevel(logging.INFO)
    try:
        launcher = torchrunx.Launcher(workers_per_host=2, backend=None)
        launcher.set_logging_handlers(handlers).run(lambda: print("rank", os.environ["RANK"]))
    finally:
        logger.removeHandler(keeper)
        logger.setLevel(logging.NOTSET)
    assert (tmp_path / "one.txt").read_text() == "rank 1\n"
    assert kept == ["rank 0"]
    assert not Path("torchrunx_logs").exists()


def test_launch_takes_the_arguments_of_earlier_versions(capfd):
    """A tuple and a dict, or a dict alone; handlers by their builders."""
    options = {"hostnames": ["localhost"], "workers_per_host": 2, "backend": None}
    show = lambda: [torchrunx.stream_handler("localhost", 1)]

    def add(a, b):
        print("adding")
        return a + b + int(os.environ["RANK"])

    result = torchrunx.launch(add, (1,), {"b": 2}, handler_factory=show, **options)
    assert result.by_ranks() == [3, 4]
    assert result.by_hostnames() == {"localhost": [3, 4]}
    assert re.fullmatch(r"\S+ \S+:INFO:localhost\[1\]: adding\n", capfd.readouterr().out)
    assert torchrunx.launch(add, {"a": 1, "b": 1}, handler_factory=None, **options).rank(1) == 3


@pytest.mark.parametrize("name", ["handler_factory", "log_handlers_builder", "log_handlers"])
def test_a_run_takes_handlers_by_the_names_of_earlier_versions(name, capfd):
    """Of one run, and of `launch`; the last name is of handlers, the others of what makes them."""
    options = {"hostnames": ["localhost"], "workers_per_host": 1, "backend": None}

    def say(word):
        print(word)
        return word

    def handlers():
        made = [torchrunx.stream_handler("localhost", 0)]
        return made if name == "log_handlers" else lambda: made

    launcher = torchrunx.Launcher(**options)
    assert launcher.run(say, func_kwargs={"word": "a"}, **{name: handlers()}).rank(0) == "a"
    assert launcher.run(say, ("b",), **{name: handlers()}).rank(0) == "b"
    assert launcher.run(say, func_args=("c",), **{name: None}).rank(0) == "c"
    assert torchrunx.launch(say, ("d",), **{name: handlers()}, **options).rank(0) == "d"
    shown = [line.rpartition(" ")[2] for line in capfd.readouterr().out.splitlines()]
    assert shown == ["a", "b", "d"]


def test_handlers_of_earlier_versions_filter_by_the_names_of_loggers(capfd, tmp_path):
    """Those that its builders make; lines that are printed are the root logger's."""

    def handlers():
        shown = torchrunx.stream_handler("localhost", 0)
        shown.addFilter(logging.Filter("own"))
        kept = torchrunx.file_handler("localhost", 0, tmp_path / "all")
        kept.setFormatter(logging.Formatter("%(name)s %(message)s"))
        return [shown, kept]

    def work():
        logging.getLogger("own.part").warning("shown")
        logging.getLogger("other").warning("not shown")
        print("printed")

    options = {"hostnames": ["localhost"], "workers_per_host": 1, "backend": None}
    torchrunx.launch(work, log_handlers_builder=handlers, **options)
    assert [line.rpartition("]: ")[2] for line in capfd.readouterr().out.splitlines()] == ["shown"]
    kept = (tmp_path / "all").read_text().splitlines()
    assert sorted(kept) == ["other not shown", "own.part shown", "root printed"]


def test_a_launcher_takes_the_fields_of_earlier_versions():
    """They are others' names for what it has."""
    launcher = torchrunx.Launcher(
        timeout=60, default_env_vars=("PATH",), extra_env_vars=("MY_A", "MY_B*")
    )
    assert launcher.worker_timeout == 60
    assert launcher.copy_env_vars == ("PATH", "MY_A", "MY_B*")
    assert launcher.extra_env_vars is None
    assert dataclasses.replace(launcher, timeout=None, default_env_vars=None) == launcher


def test_a_program_that_configures_no_logging_shows_stderr(tmp_path):
    """Its lines are errors, as there; those of stdout are in the files alone."""
    text = """
        import sys
        import torchrunx

        def work():
            print("to stdout")
            print("to stderr", file=sys.stderr)

        if __name__ == "__main__":
            torchrunx.Launcher(["localhost"], 1, backend=None).run(work)
        """
    (tmp_path / "prog.py").write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.compat", "torchrunx", "--", "prog.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "to stderr\n")
    (file,) = tmp_path.glob("torchrunx_logs/*/localhost[[]0].log")
    said = re.findall(r"\w+: to \w+", file.read_text())
    assert sorted(said) == ["ERROR: to stderr", "INFO: to stdout"]


def test_run_takes_the_arguments_of_earlier_versions():
    """Under their names, unless the function has them itself."""
    launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=1, backend=None)
    launcher.set_logging_handlers(None)

    def add(a, b):
        return a + b

    def own(func_kwargs):
        return func_kwargs

    assert launcher.run(func=add, func_args=(1,), func_kwargs={"b": 2}).rank(0) == 3
    assert launcher.run(add, func_kwargs={"a": 1, "b": 1}).rank(0) == 2
    assert launcher.run(own, func_kwargs=None).rank(0) is None


def test_hosts_and_workers_are_found_by_functions_as_there(monkeypatch):
    """Here, and in an allocation; a program asks for them by the package's attributes."""
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    environment = torchrunx.utils.environment
    assert not environment.in_slurm_job()
    assert environment.auto_hosts() == ["localhost"]
    assert environment.auto_workers() == len(os.sched_getaffinity(0))
    with pytest.raises(ConfigError, match="not inside a Slurm allocation"):
        environment.slurm_hosts()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node1,node2")
    assert environment.in_slurm_job()
    assert environment.auto_hosts() == ["node1", "node2"]
    assert environment.slurm_workers() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("SLURM_NTASKS", "6")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "3(x2)")
    assert environment.auto_workers() == environment.slurm_workers() == 3


def test_handlers_of_one_worker_and_an_agent_that_is_lost(tmp_path):
    """A file for a worker, a filter for a handler of one's own; the error as it is caught there."""
    one, own = tmp_path / "one.txt", tmp_path / "own.txt"

    def handlers():
        handler = logging.FileHandler(own)
        torchrunx.add_filter_to_handler(handler, "localhost", 0, logging.WARNING)
        return [torchrunx.file_handler("localhost", 1, one), handler]

    def die():
        print("rank", os.environ["RANK"], flush=True)
        logging.getLogger("app").warning("said by %s", os.environ["RANK"])
        if os.environ["RANK"] == "0":
            wait_until(lambda: "rank 1" in one.read_text() and own.read_text())
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(300)

    launcher = torchrunx.Launcher(workers_per_host=2, backend=None).set_logging_handlers(handlers)
    with pytest.raises(torchrunx.AgentFailedError, match="localhost"):
        launcher.run(die)
    assert re.search(r"^\S+ \S+:INFO: rank 1\n", one.read_text(), re.M)
    assert "rank 0" not in one.read_text()
    assert own.read_text() == "said by 0\n"


def test_lightnings_environment_is_that_of_the_workers(monkeypatch):
    """It says that they are there already; the base class is Lightning's, which takes long to load,
    and whose own variables are those of the workers.
    """
    pytest.importorskip("lightning_fabric", reason="lightning is not installed")
    name = "lightning.fabric.plugins.environments.torchelastic"
    if name not in sys.modules:
        fabric = importlib.import_module(name.replace("lightning.fabric", "lightning_fabric"))
        monkeypatch.setitem(sys.modules, name, fabric)
    lightning = importlib.import_module("phalanx.compat.torchrunx.integrations.lightning")
    for name, value in (("RANK", 5), ("LOCAL_RANK", 1), ("GROUP_RANK", 2), ("WORLD_SIZE", 6)):
        monkeypatch.setenv(name, str(value))
    made = lightning.TorchrunxClusterEnvironment()
    assert type(made).detect()
    assert made.creates_processes_externally
    assert (made.global_rank(), made.local_rank()) == (5, 1)
    assert (made.node_rank(), made.world_size()) == (2, 6)


def test_arguments_of_a_parser_make_a_launcher():
    """With the same words as there."""
    parser = argparse.ArgumentParser()
    add_torchrunx_argument_group(parser)
    words = "--hostnames a b --workers-per-host 2 4 --backend None --extra-env-vars A=1 B=x=y"
    launcher = launcher_from_args(parser.parse_args(words.split()))
    assert launcher == torchrunx.Launcher(
        ["a", "b"], [2, 4], backend=None, extra_env_vars={"A": "1", "B": "x=y"}
    )
    assert launcher_from_args(parser.parse_args([])) == torchrunx.Launcher()
    with pytest.raises(ConfigError, match="must be NAME=VALUE"):
        launcher_from_args(parser.parse_args(["--extra-env-vars", "A"]))
    with pytest.raises(ConfigError, match="must be gpu, cpu, or one or more numbers"):
        launcher_from_args(parser.parse_args(["--workers-per-host", "two"]))


def test_a_level_that_there_is_not_is_refused(monkeypatch):
    """Of the variable for log files."""
    monkeypatch.setenv("TORCHRUNX_LOG_LEVEL", "INF")
    with pytest.raises(ValueError, match="TORCHRUNX_LOG_LEVEL='INF'.*Did you mean 'INFO'"):
        torchrunx.Launcher(workers_per_host=1, backend=None).run(print)
