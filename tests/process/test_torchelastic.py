"""Programs written for TorchElastic's agent, with names of ours: what they give and get."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import phalanx
from phalanx.agent import (
    ChildFailedError,
    LaunchConfig,
    LocalElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
    elastic_launch,
    launch_agent,
)
from phalanx.errors import ConfigError
from phalanx.rendezvous import RendezvousParameters, get_handler


def config(**fields):
    return LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, max_restarts=0, **fields)


def role_of(text):
    print("hello", text, flush=True)
    return os.environ["ROLE_NAME"], os.environ["RANK"], text


def fail():
    if os.environ["RANK"] == "1":
        raise KeyError("no such thing")
    signal.pause()


def test_one_host_of_several_needs_no_run_id():
    """One is made, and told, for those that come later."""
    found = LaunchConfig(
        1, 2, 1, rdzv_endpoint="localhost:0", rdzv_configs={"last_call_timeout": 0}
    )
    assert elastic_launch(found, role_of)("x") == {0: ("default_role", "0", "x")}
    assert found.run_id


def test_elastic_launch_gives_values_by_rank():
    """Of a function with its arguments."""
    values = elastic_launch(config(role="trainer"), role_of)("x")
    assert values == {0: ("trainer", "0", "x"), 1: ("trainer", "1", "x")}


def test_launch_agent_raises_what_failed_first(tmp_path, monkeypatch):
    """With torch's error data, which `record` passes on to whoever started this program."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "own.json"))
    with pytest.raises(ChildFailedError, match="fail failed:\nrank 1 .*KeyError") as info:
        phalanx.record(launch_agent)(config(), fail, [])
    rank, failure = info.value.get_first_failure()
    assert (rank, failure.local_rank, info.value.name) == (1, 1, "fail")
    said = failure.error_file_data["message"]
    assert said["message"] == "KeyError: 'no such thing'"
    assert "in fail" in said["extraInfo"]["py_callstack"]
    assert json.loads((tmp_path / "own.json").read_text()) == {"message": {**said, "errorCode": 1}}
    assert failure.timestamp_isoformat()[:2] == "20"


def test_record_takes_an_exit_with_0_for_a_return():
    """As torch's decorator does; other exits go on."""
    assert phalanx.record(sys.exit)(0) is None
    with pytest.raises(SystemExit):
        phalanx.record(sys.exit)(3)


def test_record_passes_on_what_torchs_own_error_says(script, tmp_path):
    """The worker's error file, not the traceback of the program around it."""
    done = script(
        """
        import json, os, sys, phalanx
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
        extra = {"py_callstack": "the worker's", "timestamp": "7"}
        with open("worker.json", "w") as file:
            json.dump({"message": {"message": "E: m", "extraInfo": extra}}, file)

        @phalanx.record
        def main():
            raise ChildFailedError("train", {0: ProcessFailure(0, 1, 3, "worker.json")})

        main()
        """,
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "own.json")},
    )
    assert "ChildFailedError" in done.stderr
    said = json.loads((tmp_path / "own.json").read_text())
    assert said["message"]["extraInfo"]["py_callstack"] == "the worker's"
    assert said["message"]["errorCode"] == 3


def test_torchs_own_log_specs_are_taken(script, tmp_path):
    """With its files, its tee and its prefix."""
    done = script(
        f"""
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
        from phalanx.agent import LocalElasticAgent, WorkerSpec

        def say():
            import os
            print("said by", os.environ["RANK"], flush=True)

        if __name__ == "__main__":
            logs = DefaultLogsSpecs(
                log_dir={str(tmp_path / "logs")!r}, redirects={{0: Std.OUT}}, tee={{1: Std.OUT}}
            )
            spec = WorkerSpec(role="r", local_world_size=2, entrypoint=say, max_restarts=0)
            agent = LocalElasticAgent(spec, logs, log_line_prefix_template="<${{role_name}}.${{rank}}> ")
            assert not agent.run().is_failed()
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<r.1> said by 1\n"
    files = {p.parent.name: p.read_text() for p in tmp_path.glob("logs/*/attempt_0/*/stdout.log")}
    assert files == {"0": "said by 0\n", "1": "said by 1\n"}


def test_an_agent_tells_of_its_workers():
    """Their states and ranks, and the entry point's name."""
    spec = WorkerSpec(role="reader", local_world_size=2, entrypoint=role_of, args=("x",))
    agent = LocalElasticAgent(spec, start_method="spawn")
    group = agent.get_worker_group()
    assert isinstance(group, WorkerGroup)
    assert (group.state, spec.get_entrypoint_name()) == (WorkerState.INIT, "role_of")
    assert [worker.global_rank for worker in group.workers] == [-1, -1]
    stopped = []

    class Server:
        def stop(self):
            stopped.append(self)

    agent = LocalElasticAgent(spec, health_check_server=Server())
    assert agent.run().return_values[1][0] == "reader"
    group = agent.get_worker_group()
    assert group.state is WorkerState.SUCCEEDED
    assert [(w.global_rank, w.role_rank, w.role_world_size) for w in group.workers] == [
        (0, 0, 2),
        (1, 1, 2),
    ]
    assert len(stopped) == 1
    assert WorkerSpec(entrypoint="/bin/true").get_entrypoint_name() == "true"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WorkerSpec(entrypoint=3), "neither a function nor a program"),
        (lambda: WorkerSpec(entrypoint=print, max_restarts=-1), "max_restarts=-1"),
        (lambda: WorkerSpec(entrypoint=print, monitor_interval=0), "monitor_interval=0"),
        (lambda: WorkerSpec(entrypoint=print, event_log_handler="x"), "null or console"),
        (lambda: WorkerSpec(entrypoint=print, numa_options=1), "--numa-binding"),
        (lambda: WorkerSpec(entrypoint=print, master_port=1), "on the rendezvous"),
        (lambda: LocalElasticAgent(WorkerSpec(entrypoint=print), logs_specs=3), "must be a log"),
        (lambda: LocalElasticAgent(print), "must be a WorkerSpec"),
        (lambda: LaunchConfig(2, 1, 1), "hosts"),
        (lambda: LaunchConfig(1, 1, 0), "nproc_per_node=0"),
        (lambda: LaunchConfig(1, 1, 1, shutdown_timeout=-1), "shutdown_timeout=-1"),
        (lambda: LaunchConfig(2, 2, 1), "run_id is empty"),
        (lambda: RendezvousParameters("", "h:1", "id", 1, 1, {}), "backend is empty"),
        (lambda: RendezvousParameters("c10d", "h:1", "id", 2, 1, {}), "min_hosts=2 is more"),
        (lambda: elastic_launch(config(), None), "neither a function nor a program"),
    ],
)
def test_mistakes_are_raised_where_the_object_is_made(make, said):
    """Before anything is started."""
    with pytest.raises(ConfigError, match=said):
        make()


def test_an_address_beside_a_static_rendezvous_is_taken_if_it_is_the_same():
    """As launchers written for torch give it twice."""
    handler = get_handler("static", "localhost:29511", "job")
    spec = WorkerSpec("default", 1, handler, entrypoint=print, master_addr="localhost")
    assert spec.master_addr == "localhost"


def test_torchs_file_timers_end_a_worker_that_is_late(script, tmp_path):
    """By the client of torch itself, against our agent; one that is in time goes on."""
    done = script(
        """
        import os, time
        from phalanx.agent import LocalElasticAgent, WorkerSpec

        def train():
            import torch.distributed.elastic.timer as timer
            timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
            with timer.expires(after=300):
                pass
            if os.environ["RANK"] == "1":
                with timer.expires(after=0.2):
                    time.sleep(100)
            else:
                time.sleep(100)

        if __name__ == "__main__":
            spec = WorkerSpec(local_world_size=2, entrypoint=train, max_restarts=0)
            result = LocalElasticAgent(spec, shutdown_timeout=1).run()
            print({rank: f.signal_name() for rank, f in result.failures.items()})
        """,
        env={**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
        timeout=100,
    )
    assert "1: 'SIGKILL'" in done.stdout, done.stderr
    assert "expired: SIGKILL" in done.stderr


PACKAGE = """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from phalanx.rendezvous import RendezvousHandler, RendezvousInfo

    class Numbered(DefaultLogsSpecs):
        def reify(self, envs):
            dest = super().reify(envs)
            for local in dest.stdouts:
                dest.stdouts[local] = f"{self.root_log_dir}/number-{local}.txt"
            return dest

    class Alone(RendezvousHandler):
        def __init__(self, params):
            self.params = params
        def get_backend(self): return "alone"
        def next_rendezvous(self):
            print("asked for", self.params.get_as_int("size"), self.params.get_as_bool("on"))
            return RendezvousInfo(None, 0, 1)
        def is_closed(self): return False
        def set_closed(self): pass
        def num_nodes_waiting(self): return 0
        def get_run_id(self): return self.params.run_id

    def creator():
        return Alone
"""
ENTRIES = """
    [torchrun.logs_specs]
    numbered = theirs:Numbered
    [torchrun.handlers]
    alone = theirs:creator
"""


@pytest.fixture
def installed(tmp_path):
    """A package with entry points of torch's, on the path."""
    place = tmp_path / "site"
    facts = place / "theirs-1.0.dist-info"
    facts.mkdir(parents=True)
    (place / "theirs.py").write_text(textwrap.dedent(PACKAGE))
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(textwrap.dedent(ENTRIES))
    return {**os.environ, "PYTHONPATH": str(place)}


def test_what_packages_register_for_torchrun_is_found(installed, tmp_path):
    """A rendezvous handler and log specs, by torch's entry points."""
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'])")
    command = [sys.executable, "-m", "phalanx", "torchrun", "--nproc-per-node", "2"]
    flags = ["--rdzv-backend", "alone", "--rdzv-conf", '"size=3,on=yes"']
    logs = ["--logs-specs", "numbered", "--log-dir", str(tmp_path / "logs")]
    done = subprocess.run(
        [*command, *flags, *logs, "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=installed,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert "asked for 3 True" in done.stdout
    said = sorted(path.read_text() for path in tmp_path.glob("logs/number-*.txt"))
    assert said == ["rank 0\n", "rank 1\n"]
    done = subprocess.run(
        [*command, "--logs-specs", "numbred", "train.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=installed,
        timeout=100,
    )
    assert "Did you mean 'numbered'?" in done.stderr


def test_roles_are_counted_apart_between_hosts():
    """Two agents of different roles in one job."""
    code = """
        import os, sys
        from phalanx.agent import LaunchConfig, elastic_launch

        def look():
            return [os.environ[n] for n in ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE")]

        if __name__ == "__main__":
            role, endpoint = sys.argv[1:]
            config = LaunchConfig(2, 2, 2, run_id="j", rdzv_endpoint=endpoint, role=role)
            print(sorted(elastic_launch(config, look)().values()))
    """
    Path("host.py").write_text(textwrap.dedent(code))
    from tests.process.test_torchrun import free_port

    endpoint = f"localhost:{free_port()}"
    hosts = [
        subprocess.Popen(
            [sys.executable, "host.py", role, endpoint],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in ("trainer", "reader")
    ]
    found = [host.communicate(timeout=100) for host in hosts]
    for role, (out, errors) in zip(("trainer", "reader"), found, strict=True):
        assert out.strip() == str([[role, "0", "2"], [role, "1", "2"]]), errors
