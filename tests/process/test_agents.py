"""Agents by TorchElastic's names: the customization guide's launcher and its three customizations."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import phalanx
from phalanx import events, metrics
from phalanx.agent import LocalElasticAgent, WorkerSpec, WorkerState
from phalanx.errors import ConfigError
from phalanx.rendezvous import (
    RendezvousClosedError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousTimeoutError,
    get_handler,
)


def trainer(value):
    return value + phalanx.context().rank


def fail_once(value):
    context = phalanx.context()
    if context.restart_count == 0 and context.rank == 0:
        time.sleep(0.5)  # the others are there by then
        raise ValueError("the first time")
    return value, context.restart_count, context.round, context.run_id


def fail_always():
    raise ValueError("always")


GUIDE = """
    import argparse
    import sys

    from phalanx.agent import LocalElasticAgent, WorkerSpec
    from phalanx.rendezvous import get_handler


    def trainer_entrypoint_fn(fn_args):
        if fn_args == "fail":
            raise ValueError("no")
        return f"trained {fn_args}"


    def parse_args(words):
        parser = argparse.ArgumentParser()
        parser.add_argument("--nproc_per_node", type=int)
        parser.add_argument("--max_restarts", type=int, default=0)
        parser.add_argument("--monitor_interval", type=float, default=0.1)
        parser.add_argument("fn_args")
        return parser.parse_args(words)


    if __name__ == "__main__":
        args = parse_args(sys.argv[1:])
        rdzv_handler = get_handler("c10d", "localhost:0", "guide")
        spec = WorkerSpec(
            local_world_size=args.nproc_per_node,
            fn=trainer_entrypoint_fn,
            args=(args.fn_args,),
            rdzv_handler=rdzv_handler,
            max_restarts=args.max_restarts,
            monitor_interval=args.monitor_interval,
        )

        agent = LocalElasticAgent(spec, start_method="spawn")
        try:
            run_result = agent.run()
            if run_result.is_failed():
                print(f"worker 0 failed with: {run_result.failures[0]}")
            else:
                print(f"worker 0 return value is: {run_result.return_values[0]}")
        except Exception as ex:
            print("an exception", ex)
"""


def test_the_guides_custom_launcher_runs_as_written(script):
    """Names imported from phalanx; values and failures come back."""
    done = script(GUIDE, "--nproc_per_node", "2", "well")
    assert done.stdout == "worker 0 return value is: trained well\n", done.stderr
    failed = script(GUIDE, "--nproc_per_node", "1", "fail")  # of two, the slower one is stopped
    assert "worker 0 failed with: rank 0 on" in failed.stdout
    assert "ValueError: no" in failed.stdout


class MyRendezvousHandler(RendezvousHandler):
    """As the guide has it: one host, which counts how often it was asked."""

    def __init__(self, params=None):
        self.params = params
        self.rounds = 0
        self.waiting = 0
        self.closed = self.ended = False

    def get_backend(self):
        return "mine"

    def next_rendezvous(self):
        self.rounds += 1
        self.waiting = 0
        return RendezvousInfo(None, 0, 1)

    def is_closed(self):
        return self.closed

    def set_closed(self):
        self.closed = True

    def num_nodes_waiting(self):
        return self.waiting

    def get_run_id(self):
        return "my-run"

    def shutdown(self):
        self.ended = True
        return True


@pytest.mark.parametrize("start_method", ["zygote", "spawn"])
def test_a_rendezvous_handler_of_ones_own(start_method):
    """It is asked for every round, and let go at the end."""
    handler = MyRendezvousHandler()
    spec = WorkerSpec(
        rdzv_handler=handler, fn=fail_once, args=(5,), local_world_size=2, max_restarts=1
    )
    result = LocalElasticAgent(spec, start_method=start_method).run(spec.role)
    assert not result.is_failed()
    assert result.state is WorkerState.SUCCEEDED
    assert result.return_values == {0: (5, 1, 2, "my-run"), 1: (5, 1, 2, "my-run")}
    assert (handler.rounds, handler.ended) == (2, True)


def test_hosts_that_wait_restart_the_workers_without_spending_a_restart():
    """As the handler tells it."""

    class SomebodyWaits(MyRendezvousHandler):
        def next_rendezvous(self):
            info = super().next_rendezvous()
            self.waiting = int(self.rounds == 1)
            return info

    def work():
        context = phalanx.context()
        if context.round == 1:
            time.sleep(600)
        return context.round, context.restart_count

    spec = WorkerSpec(rdzv_handler=SomebodyWaits(), fn=work, max_restarts=0, monitor_interval=0.02)
    result = LocalElasticAgent(spec).run()
    assert result.return_values == {0: (2, 0)}


@pytest.mark.parametrize("error", [RendezvousClosedError, RendezvousTimeoutError, RuntimeError])
def test_what_a_handler_raises_is_raised(error):
    """With its own type; nothing is left."""

    class Raises(MyRendezvousHandler):
        def next_rendezvous(self):
            raise error("not here")

    with pytest.raises(error, match="not here"):
        LocalElasticAgent(WorkerSpec(fn=trainer, args=(1,), rdzv_handler=Raises())).run()


def test_a_host_that_is_not_needed_ends_well():
    """The rendezvous says so."""

    class Full(MyRendezvousHandler):
        def next_rendezvous(self):
            raise RendezvousGracefulExitError("enough")

    result = LocalElasticAgent(WorkerSpec(fn=trainer, args=(1,), rdzv_handler=Full())).run()
    assert (result.is_failed(), result.return_values) == (False, {})


@pytest.mark.parametrize("backend", ["c10d", "static"])
def test_torchs_own_handlers_are_as_good(script, backend, tmp_path):
    """Two agents in two processes, meeting at a store of torch's, in the first round and in those
    after a failure on either host. Hosts come to these one after the other.
    """
    code = """
        import os, pathlib, sys, time
        from torch.distributed.elastic.rendezvous.api import RendezvousParameters
        import torch.distributed.elastic.rendezvous.registry as registry
        import phalanx
        from phalanx.agent import LocalElasticAgent, WorkerSpec

        FAILING = (2, 0, 1, 0)  # which rank, in which round

        def work():
            import torch, torch.distributed as dist
            rank, total = phalanx.context().rank, torch.ones(1)
            dist.init_process_group("gloo")
            dist.all_reduce(total)
            dist.barrier()
            number = len(list(pathlib.Path(sys.argv[4]).iterdir()))
            dist.barrier()
            if number < len(FAILING) and FAILING[number] == rank:
                pathlib.Path(sys.argv[4], str(number)).touch()
                os._exit(3)
            if number == 3:
                time.sleep(600)  # it misses nobody: its agent has to see that another waits
            try:
                dist.barrier()
            except RuntimeError:
                time.sleep(0.5)  # the other host is in the next round by then
                raise
            dist.destroy_process_group()
            return rank, int(total), number

        if __name__ == "__main__":
            port, number, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
            more = {"last_call_timeout": 1, "is_host": number == 0, "rank": number}
            parameters = RendezvousParameters(
                sys.argv[5], f"127.0.0.1:{port}", "run", 2, 2, **more
            )
            handler = registry.get_rendezvous_handler(parameters)
            spec = WorkerSpec(
                local_world_size=workers, fn=work, rdzv_handler=handler, max_restarts=8,
                monitor_interval=0.05,
            )
            result = LocalElasticAgent(spec).run()
            if result.is_failed():
                sys.exit(str(result.failures))
            print(sorted(result.return_values.items()))
    """
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    failed = tmp_path / "failed"
    failed.mkdir()
    one = script.start(code, port, "0", "1", str(failed), backend)
    other = script.start(code, port, "1", "2", str(failed), backend)
    outs = [process.communicate(timeout=90) for process in (one, other)]
    assert [process.returncode for process in (one, other)] == [0, 0], outs
    values = dict(pair for out, _ in outs for pair in eval(out))
    assert values == {rank: (rank, 3, 4) for rank in range(3)}


@pytest.mark.parametrize("end", ["raise", "kill"])
def test_failures_are_by_global_rank_with_what_is_known(end):
    """Type, traceback, exit code; a killed one its signal."""

    def work():
        if phalanx.context().rank == 0:
            time.sleep(60)
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("no")

    result = LocalElasticAgent(WorkerSpec(fn=work, local_world_size=2, max_restarts=0)).run()
    assert result.is_failed()
    failure = result.failures[1]
    assert (failure.rank, failure.local_rank) == (1, 1)
    if end == "kill":
        assert (failure.exitcode, failure.signal_name()) == (-9, "SIGKILL")
    else:
        assert failure.exitcode == 1
        assert "ValueError: no" in str(failure)
        assert "in work" in failure.traceback


class MyMetricHandler(metrics.MetricHandler):
    def __init__(self):
        self.data = []

    def emit(self, metric_data: metrics.MetricData):
        self.data.append(metric_data)


class MyEventHandler(events.EventHandler):
    def __init__(self):
        self.events = []

    def record(self, event: events.Event):
        self.events.append(event)


@pytest.fixture
def handlers():
    kept = MyMetricHandler(), MyEventHandler()
    metrics.configure(kept[0])
    events.configure(kept[1])
    yield kept
    metrics.configure(metrics.NullMetricHandler())
    events.configure()


def test_metrics_and_events_of_a_restart(handlers):
    """Every step has a real time; the restart's parts add up; the share that was useful is told."""
    began = time.time()
    spec = WorkerSpec(fn=fail_once, args=(1,), local_world_size=2, max_restarts=2)
    LocalElasticAgent(spec).run()
    assert metrics.flush() and events.flush()
    kept, told = handlers
    names = [event.name for event in told.events]
    wanted = ["start", "round", "workers started", "running", "failure", "restart", "round"]
    wanted += ["workers started", "running", "restarted", "worker ended", "end"]
    positions = []
    for name in wanted:
        positions.append(names.index(name, positions[-1] + 1 if positions else 0))
    assert all(began - 1 < event.timestamp < time.time() + 1 for event in told.events)
    assert all(event.source is events.EventSource.AGENT for event in told.events)
    (restarted,) = [event.metadata for event in told.events if event.name == "restarted"]
    parts = ("detect", "stop", "rendezvous", "fork", "first_line")
    total = sum(restarted[f"{part}_seconds"] for part in parts)
    assert total == pytest.approx(restarted["total_seconds"], abs=0.05)
    (end,) = [event.metadata for event in told.events if event.name == "end"]
    assert end["state"] == "succeeded"
    assert 0 <= end["goodput"] <= 1
    values = {data.name: data.value for data in kept.data}
    assert values["workers.default.run_success_with_retries"] == 1
    assert values["workers.default.remaining_restarts"] == 1
    assert values["restart.total.ms"] > 0


def test_a_handler_that_blocks_or_raises_disturbs_nothing(script):
    """The app ends, and the program too."""
    code = """
        import threading, time
        from phalanx import events, metrics
        from phalanx.agent import LocalElasticAgent, WorkerSpec

        class Blocks(events.EventHandler):
            def record(self, event):
                threading.Event().wait()

        class Raises(metrics.MetricHandler):
            def emit(self, data):
                raise RuntimeError("no sink")

        def work():
            return 1

        if __name__ == "__main__":
            events.configure(Blocks())
            metrics.configure(Raises())
            print(LocalElasticAgent(WorkerSpec(fn=work)).run().return_values)
    """
    done = script(code)
    assert done.stdout == "{0: 1}\n", done.stderr
    assert done.returncode == 0
    assert "no sink" in done.stderr


def test_mistakes_are_told_before_anything_starts():
    """Each with what to write instead."""
    for fields, said in (
        ({}, "fn="),
        ({"fn": trainer, "entrypoint": trainer}, "not both"),
        ({"fn": trainer, "local_world_size": 0}, "1 or more"),
        ({"fn": trainer, "rdzv_handler": MyRendezvousHandler}, "is a class"),
        ({"fn": trainer, "rdzv_handler": object()}, "has no next_rendezvous"),
        ({"fn": trainer, "master_port": 1}, "get_handler"),
        ({"fn": trainer, "virtual_local_rank": True}, "for programs"),
    ):
        with pytest.raises(ConfigError, match=said):
            WorkerSpec(**fields)
    with pytest.raises(ConfigError, match="zygote"):
        LocalElasticAgent(WorkerSpec(fn=trainer), start_method="thread")
    with pytest.raises(ConfigError, match="Did you mean 'static'"):
        get_handler("statc")
    with pytest.raises(ConfigError, match="HOST:PORT"):
        get_handler("tcp", "host:port:more")
    with pytest.raises(ConfigError, match="more than max_hosts"):
        get_handler("tcp", min_hosts=3, max_hosts=2)


def test_our_handler_for_agents_of_others(tmp_path):
    """Its blocking methods: two hosts meet, one leaves and comes again, both are in the next."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"localhost:{probe.getsockname()[1]}"
    handlers = [get_handler("tcp", endpoint, "run", 2, 2, last_call_timeout=1) for _ in range(2)]

    def meet(chosen):
        found = {}
        threads = [
            threading.Thread(target=lambda h=h: found.update({h: h.next_rendezvous()}))
            for h in chosen
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return [found[h] for h in chosen]

    first = meet(handlers)
    assert sorted(info.rank for info in first) == [0, 1]
    assert {info.world_size for info in first} == {2}
    assert len({info.bootstrap_store_info for info in first}) == 1
    second = meet(handlers)
    assert sorted(info.rank for info in second) == [0, 1]
    for handler in handlers:
        handler.shutdown()
    handlers[0].set_closed()
    assert handlers[0].is_closed()
    with pytest.raises(RendezvousClosedError):
        handlers[0].next_rendezvous()


def test_a_rendezvous_from_a_package(tmp_path, monkeypatch):
    """Registered under the entry point, found by name; one that is broken is named."""
    package = tmp_path / "packages"
    (package / "meeting-1.dist-info").mkdir(parents=True)
    (package / "meeting-1.dist-info" / "METADATA").write_text("Name: meeting\nVersion: 1\n")
    (package / "meeting-1.dist-info" / "entry_points.txt").write_text(
        "[phalanx.rendezvous]\nmine = meeting:make\nbroken = meeting:nothing\n"
    )
    (package / "meeting.py").write_text(
        textwrap.dedent(
            """
            from phalanx.rendezvous import RendezvousHandler, RendezvousInfo

            class Alone(RendezvousHandler):
                def __init__(self, parameters):
                    self.parameters = parameters
                def get_backend(self): return "mine"
                def next_rendezvous(self): return RendezvousInfo(None, 0, 1)
                def is_closed(self): return False
                def set_closed(self): pass
                def num_nodes_waiting(self): return 0
                def get_run_id(self): return self.parameters.run_id

            def make(parameters):
                return Alone(parameters)
            """
        )
    )
    (tmp_path / "s.py").write_text(
        "import os; print(os.environ['TORCHELASTIC_RUN_ID'], flush=True)"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), *sys.path[1:]])}
    command = [sys.executable, "-m", "phalanx", "torchrun", "--rdzv-id", "r1", "--rdzv-backend"]
    run = lambda backend: subprocess.run(
        [*command, backend, "s.py"], capture_output=True, text=True, env=environ, timeout=60
    )
    done = run("mine")
    assert done.stdout == "r1\n", done.stderr
    broken = run("broken")
    assert broken.returncode == 1
    assert "meeting" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_events_as_lines_of_json(tmp_path, script):
    """One line each, from a launch as well."""
    code = """
        import sys, phalanx
        from phalanx import events

        def work():
            return phalanx.context().host

        if __name__ == "__main__":
            events.configure(events.JSONLinesEventHandler(sys.argv[1]))
            print(list(phalanx.launch(work, workers_per_host=2)))
    """
    done = script(code, str(tmp_path / "events.jsonl"))
    assert done.stdout == "['localhost', 'localhost']\n", done.stderr
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [line["name"] for line in lines][0] == "start"
    assert lines[-1]["name"] == "end"
