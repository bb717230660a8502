"""Apps and hosts on a real Ray cluster of four nodes on this machine."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.transport.lease import lent_target
from phalanx._schedulers.ray import exec_stream
from phalanx.runner import get_runner
from phalanx.schedulers import LeasePhase, LeaseRequest, LentHost, create_scheduler
from phalanx.specs import AppDef, AppState, Resource, Role
from phalanx.testing import SchedulerSuite
from tests.cluster import ray as ray_box
from tests.cluster.ray import CPUS, RayCluster
from tests.cluster.test_anywhere import test_what_comes_home_is_the_same  # noqa: F401 runs here
from tests.conftest import is_alive, wait_until
from tests.ways_to_hosts import HostSuite, ReconnectSuite, Way

pytestmark = [pytest.mark.usefixtures("in_ray"), pytest.mark.timeout(300)]
PHALANX = [sys.executable, "-m", "phalanx"]
SUM = textwrap.dedent(
    """
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print("the sum is", int(total))
    dist.destroy_process_group()
    """
)


class TestRay(SchedulerSuite):
    """Replicas as processes on nodes."""

    timeout = 180.0
    start_skew = 3.0

    def create_scheduler(self, session_name):
        return create_scheduler("ray", session_name)

    def scheduler_options(self):
        return {"stop_grace": 1}


@pytest.fixture
def launcher():
    return make_launcher()


def make_launcher(num_hosts=2, **options):
    options = {"workers_per_host": 1, "start_timeout": 120.0, **options}
    return phalanx.Launcher(scheduler="ray", num_hosts=num_hosts, **options)


@pytest.fixture(scope="module")
def way(ray_cluster):
    scheduler = create_scheduler("ray", "tests")
    options = scheduler.options(dashboard_address=ray_cluster.dashboard)
    lease = scheduler.lend(LeaseRequest("hosts", 1, options))
    try:
        wait_until(lambda: lease.status().phase is LeasePhase.READY, 120, lease.status())
        (host,) = lease.status().hosts
        nowhere = LentHost("nowhere", exec_stream.exec_command(host.command[-2], "nowhere"))
        python = (sys.executable,)
        yield Way(lent_target(host, python), lent_target(nowhere, python), "nowhere is gone")
    finally:
        lease.give_back()


class TestRayCommands(HostSuite, ReconnectSuite):
    """A command on a node, by way of a job."""


@pytest.fixture
def other_ray():
    """A cluster of two nodes with an earlier Ray, from an environment of its own."""
    cluster = RayCluster(2, ray_box.other_python())
    yield cluster
    cluster.close()


# ── apps ──────────────────────────────────────────────────────────────────────


def run(*words, **options):
    done = subprocess.run(
        [*PHALANX, *words], capture_output=True, text=True, check=False, timeout=240, **options
    )
    return done.returncode, done.stdout, done.stderr


def test_a_script_with_an_all_reduce_runs_on_four_nodes(tmp_path):
    """As docs/ray.md has it: no address, no port."""
    (tmp_path / "ddp.py").write_text(SUM)
    command = ("run", "-s", "ray", "--wait", "--log", "dist.ddp", "-j", "4x1", "--script", "ddp.py")
    code, _, errors = run(*command, cwd=tmp_path)
    assert code == 0, errors
    assert "the sum is 4" in errors


def test_an_app_that_waits_says_which_resources_are_missing():
    """By the name of the resource, and how much of it there is."""
    runner = get_runner()
    role = Role("greedy", entrypoint="true", resource=Resource(cpu=1, gpu=2, memMB=-1))
    handle = runner.run(AppDef("greedy", [role]), "ray")
    try:
        message = lambda: runner.status(handle).message
        wait_until(lambda: "GPU" in message(), 120, "no reason")
        assert "no node has 1 CPU, 2 GPU" in message()
        assert runner.status(handle).state is AppState.PENDING
    finally:
        runner.delete(handle)


def test_replicas_beyond_the_least_are_not_waited_for():
    """`min_replicas`: what there is room for runs."""
    runner = get_runner()
    role = Role(
        "part",
        entrypoint="echo",
        args=["here"],
        num_replicas=5,
        min_replicas=2,
        resource=Resource(cpu=CPUS, gpu=0, memMB=-1),
    )
    handle = runner.run(AppDef("part", [role]), "ray")
    try:
        assert runner.wait(handle, 0.5).state is AppState.SUCCEEDED
    finally:
        runner.delete(handle)


def test_a_job_that_ray_stops_is_cancelled(in_ray):
    """From Ray's own command line; its processes are gone."""
    runner = get_runner()
    role = Role("long", entrypoint="sh", args=["-c", "echo $$$$; sleep 600"])
    handle = runner.run(AppDef("long", [role]), "ray", {"stop_grace": 1})
    try:
        (line,) = wait_until(lambda: list(runner.log_lines(handle, "long", 0)), 120)
        pid = int(line.text if hasattr(line, "text") else line)
        name = handle.rpartition(":")[2]
        ray = str(Path(sys.executable).parent / "ray")
        stop = [ray, "job", "stop", "--no-wait", "--address", in_ray.dashboard, name]
        subprocess.run(stop, check=True, capture_output=True, timeout=120)
        assert runner.wait(handle, 0.5).state is AppState.CANCELLED
        wait_until(lambda: not is_alive(pid))
    finally:
        runner.delete(handle)


def test_a_driver_that_is_killed_leaves_nothing(in_ray):
    """The app has failed, and its replicas are gone."""
    runner = get_runner()
    role = Role("long", entrypoint="sh", args=["-c", "echo $$$$; setsid sleep 600; sleep 600"])
    handle = runner.run(AppDef("long", [role]), "ray")
    try:
        (line,) = wait_until(lambda: list(runner.log_lines(handle, "long", 0)), 120)
        pid = int(line.text if hasattr(line, "text") else line)
        name = handle.rpartition(":")[2]
        with urllib.request.urlopen(f"{in_ray.dashboard}/api/jobs/{name}") as answer:
            driver = int(json.load(answer)["driver_info"]["pid"])
        os.kill(driver, signal.SIGKILL)
        status = runner.wait(handle, 0.5)
        assert status.state is AppState.FAILED, status
        assert "failed" in status.message
        wait_until(lambda: not is_alive(pid))
    finally:
        runner.delete(handle)


def test_secrets_are_not_in_what_ray_shows(in_ray):
    """Neither the environment of replicas nor a token."""
    runner = get_runner()
    role = Role("quiet", entrypoint="true", env={"SECRET": "hidden-value-17"})
    handle = runner.run(AppDef("quiet", [role]), "ray")
    try:
        runner.wait(handle, 0.5)
        with urllib.request.urlopen(f"{in_ray.dashboard}/api/jobs/") as answer:
            shown = answer.read().decode()
        assert handle.rpartition(":")[2] in shown
        assert "hidden-value-17" not in shown
        assert "token" not in shown.lower()
    finally:
        runner.delete(handle)


def test_what_is_wrong_is_one_sentence(tmp_path):
    """With what to type."""
    cases = {
        "no answer from the Ray dashboard": ("-cfg", "dashboard_address=http://127.0.0.1:1"),
        "is an address of Ray Client": ("-cfg", "cluster=ray://127.0.0.1:10001"),
        "cannot read requirements nothing.txt": ("-cfg", "requirements=nothing.txt"),
        "is for hosts that are lent": ("-cfg", "cpus=2"),
        "working_dir": ("-cfg", "working_dir=/nowhere"),
    }
    for said, words in cases.items():
        code, _, errors = run("run", "-s", "ray", *words, "utils.echo", cwd=tmp_path)
        assert code in (1, 2)
        assert said in errors
        assert "Traceback" not in errors


# ── functions ─────────────────────────────────────────────────────────────────


def test_a_function_with_an_all_reduce_runs_on_four_nodes():
    """Placed by Ray, one worker on each."""

    def total():
        import torch
        import torch.distributed as dist

        value = torch.ones(1)
        dist.all_reduce(value)
        return int(value)

    options = {"strategy": "STRICT_SPREAD"}
    assert list(make_launcher(4, scheduler_options=options).run(total)) == [4, 4, 4, 4]


def test_within_a_ray_program(script, in_ray):
    """`ray.init()` has been called: the program's own placement group, which goes with it."""
    done = script(
        f"""
        import os
        import ray
        import phalanx

        def work(x):
            return int(os.environ["RANK"]) + x

        if __name__ == "__main__":
            ray.init({in_ray.head!r}, log_to_driver=False)
            launcher = phalanx.Launcher(scheduler="ray", num_hosts=2, start_timeout=120)
            before = ray.util.placement_group_table().keys()
            with launcher:
                print(list(launcher.run(work, {{"x": 1}})), list(launcher.run(work, {{"x": 2}})))
            groups = ray.util.placement_group_table()
            print([g["state"] for name, g in groups.items() if name not in before])
        """,
        env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"},
        timeout=240,
    )
    assert "[1, 2] [2, 3]" in done.stdout, done.stderr
    assert "['REMOVED']" in done.stdout


def test_hosts_that_are_not_to_be_had_are_waited_for_with_the_reason():
    """Until `queue_timeout`."""
    options = {"resources": {"unobtainium": 1}}
    launcher = make_launcher(scheduler_options=options, queue_timeout=40.0)
    with pytest.raises(phalanx.QueueTimeout, match="no node has 1 CPU, 1 unobtainium"):
        launcher.run(int)


def test_a_launcher_that_is_killed_gives_its_hosts_back(script, in_ray):
    """The job ends by itself."""
    before = running_jobs(in_ray)
    program = script.start(
        """
        import time, phalanx

        def work():
            print("here", flush=True)
            time.sleep(600)

        if __name__ == "__main__":
            phalanx.Launcher(scheduler="ray", num_hosts=1, start_timeout=120).run(work)
        """
    )
    with program:
        assert "here" in iter_until(program.stdout, "here")
        own = running_jobs(in_ray) - before
        program.kill()
    assert len(own) == 1
    wait_until(lambda: not running_jobs(in_ray) & own, 90, "the job goes on")


def running_jobs(cluster):
    with urllib.request.urlopen(f"{cluster.dashboard}/api/jobs/") as answer:
        jobs = json.load(answer)
    return {job["submission_id"] for job in jobs if job["status"] in ("RUNNING", "PENDING")}


def iter_until(stream, word):
    seen = ""
    for line in stream:
        seen += line
        if word in line:
            return seen
    return seen


def test_a_node_that_dies_is_replaced(in_ray, tmp_path):
    """A lost host: the next node with such resources takes its place, and the app goes on."""
    first = in_ray.add_node(resources={"spot": 1})

    def work():
        count = phalanx.context().restart_count
        print("round", count, flush=True)
        if count == 0:
            time.sleep(600)
        return count

    options = {"resources": {"spot": 1}, "cpus": 0}
    app = make_launcher(1, scheduler_options=options, min_hosts=1, max_restarts=1).start(work)
    try:
        assert next(iter(app.logs(follow=True))).text == "round 0"
        in_ray.kill_node(first)
        in_ray.add_node(resources={"spot": 1})
        assert list(app.result(200)) == [1]
    finally:
        app.cancel(0.0)
        app.wait(60)


def test_ray_of_another_version(other_ray, monkeypatch, tmp_path):
    """The cluster's own Ray is used there, whatever its version: apps and functions."""
    monkeypatch.setenv("RAY_ADDRESS", other_ray.dashboard)
    code, _, errors = run("run", "-s", "ray", "--wait", "--log", "utils.echo", cwd=tmp_path)
    assert code == 0, errors
    assert "hello world" in errors
    assert list(make_launcher(2).run(int)) == [0, 0]


def test_ray_is_not_imported_here():
    """Not even to submit."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "phalanx", "runopts", "ray"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not re.search(r"\bray\b(?!_|\.)", done.stderr.replace("phalanx._schedulers.ray", ""))
