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
import zipfile
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.transport.lease import lent_target
from phalanx._schedulers.ray.hosts import exec_stream
from phalanx._schedulers.ray import scheduler as ray_scheduler
from phalanx.runner import get_runner
from phalanx.schedulers import LeasePhase, LeaseRequest, LentHost, create_scheduler
from phalanx.specs import AppDef, AppState, Resource, Role
from phalanx.testing import SchedulerSuite
from tests.cluster.ray import CPUS, OTHER_VERSION, ROOT
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


@pytest.fixture(autouse=True)
def _forget_at_once(request, monkeypatch):
    """Nobody waits until Ray watches a job no longer, but tests that ask if it is gone for good."""
    if "delet" not in request.node.name:
        monkeypatch.setattr(ray_scheduler, "_WATCHED", 0.0)


class TestRay(SchedulerSuite):
    """Replicas as processes on nodes."""

    timeout = 180.0
    start_skew = 1.0

    def create_scheduler(self, session_name):
        return create_scheduler("ray", session_name)

    def scheduler_options(self):
        return {"stop_grace": 1}


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


# ── apps ──────────────────────────────────────────────────────────────────────


def run(*words, **options):
    done = subprocess.run(
        [*PHALANX, *words], capture_output=True, text=True, check=False, timeout=240, **options
    )
    return done.returncode, done.stdout, done.stderr


def test_a_script_with_an_all_reduce_runs_on_four_nodes(tmp_path):
    """As docs/ray.md has it: no address, no port."""
    (tmp_path / "ddp.py").write_text(SUM)
    spread = ("-cfg", "strategy=STRICT_SPREAD")  # a node for each
    command = ("run", "-s", "ray", *spread, "--wait", "--log", "dist.ddp", "-j", "4x1", "ddp.py")
    code, _, errors = run(*command, cwd=tmp_path)
    assert code == 0, errors
    assert "the sum is 4" in errors


def test_the_head_of_a_cluster_leads_to_its_dashboard(in_ray, tmp_path):
    """`cluster=HOST:PORT`, whatever the environment names."""
    command = ("run", "-s", "ray", "--dryrun", "-cfg", f"cluster={in_ray.head}", "utils.echo")
    code, shown, errors = run(
        *command, cwd=tmp_path, env={**os.environ, "RAY_ADDRESS": "http://no:1"}
    )
    assert code == 0, errors
    assert f'"dashboard": "{in_ray.dashboard}"' in shown


def test_an_app_that_waits_says_which_resources_are_missing():
    """By the name of the resource, and how much of it there is."""
    runner = get_runner()
    role = Role("greedy", entrypoint="true", resource=Resource(cpu=1, gpu=3, memMB=-1))
    handle = runner.run(AppDef("greedy", [role]), "ray")
    try:
        message = lambda: runner.status(handle).message
        wait_until(lambda: "GPU" in message(), 120, "no reason")
        assert "no node has 1 CPU, 3 GPU (the largest: 4 CPU, 2 GPU)" in message()
        assert runner.status(handle).state is AppState.PENDING
    finally:
        runner.delete(handle)


def test_replicas_beyond_the_least_are_not_waited_for():
    """`min_replicas`: what there is room for runs, one on each node."""
    runner = get_runner()
    role = Role(
        "part",
        entrypoint="echo",
        args=["here"],
        num_replicas=8,
        min_replicas=2,
        resource=Resource(cpu=CPUS, gpu=0, memMB=-1),
    )
    handle = runner.run(AppDef("part", [role]), "ray")
    try:
        assert runner.wait(handle, 0.5).state is AppState.SUCCEEDED
        printed = [len(list(runner.log_lines(handle, "part", number))) for number in range(8)]
        assert printed[:2] == [1, 1]
        assert sum(printed) <= 4
    finally:
        runner.delete(handle)


def test_gpus_are_those_that_ray_has_assigned():
    """Two replicas on one node have different ones, two hosts of a launch too; all workers of a host
    have those of its bundle.
    """
    runner = get_runner()
    command = ["-c", "echo has $$CUDA_VISIBLE_DEVICES"]
    one = Resource(cpu=0, gpu=1, memMB=-1)
    role = Role("role", entrypoint="sh", args=command, num_replicas=2, resource=one)
    handle = runner.run(AppDef("app", [role]), "ray")
    try:
        status = runner.wait(handle, 0.5)
        assert status.state is AppState.SUCCEEDED, status
        said = [text_of(line) for n in range(2) for line in runner.log_lines(handle, "role", n)]
        assert sorted(said) == ["has 0", "has 1"]
    finally:
        runner.delete(handle)

    def assigned():
        return os.environ["CUDA_VISIBLE_DEVICES"]

    each = {"cpus": 0, "gpus": 1}
    assert sorted(make_launcher(2, scheduler_options=each).run(assigned)) == ["0", "1"]
    whole = {"cpus": 0, "gpus": 2}
    launcher = make_launcher(1, workers_per_host=2, scheduler_options=whole)
    assert [sorted(one) for one in launcher.run(assigned)] == [[",", "0", "1"]] * 2


def test_a_directory_or_a_file_of_it_is_what_replicas_run_in(tmp_path):
    """`working_dir`: sent from here, or loaded by the nodes themselves."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "note").write_text("sent\n")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("project/note", "loaded\n")
    runner = get_runner()
    app = AppDef("reader", [Role("reader", entrypoint="cat", args=["note"])])
    places = {"sent": tmp_path / "project", "loaded": f"file://{tmp_path}/packed.zip"}
    handles = {
        said: runner.run(app, "ray", {"working_dir": str(where)}) for said, where in places.items()
    }
    for said, handle in handles.items():
        status = runner.wait(handle, 0.5)
        assert status.state is AppState.SUCCEEDED, status
        assert list(map(text_of, runner.log_lines(handle, "reader", 0))) == [said]


def text_of(line):
    return line.text if hasattr(line, "text") else line


def stop_by_ray(cluster, name):
    """From Ray's own command line."""
    ray = str(Path(sys.executable).parent / "ray")
    stop = [ray, "job", "stop", "--no-wait", "--address", cluster.dashboard, name]
    subprocess.run(stop, check=True, capture_output=True, timeout=120)


def kill_driver(cluster, name):
    with urllib.request.urlopen(f"{cluster.dashboard}/api/jobs/{name}") as answer:
        os.kill(int(json.load(answer)["driver_info"]["pid"]), signal.SIGKILL)


def test_a_job_that_ray_stops_is_cancelled(in_ray):
    """Its processes are gone. They have the variables that lead to the cluster,
    and none that Ray has for its own."""
    runner = get_runner()
    command = "echo $$$$; env | grep -e RAY -e OMP_NUM | sort >&2; sleep 600"
    role = Role("long", entrypoint="sh", args=["-c", command])
    handle = runner.run(AppDef("long", [role]), "ray", {"stop_grace": 1})
    try:
        lines = wait_until(
            lambda: (found := list(runner.log_lines(handle, "long", 0)))[1:] and found, 120
        )
        pid, *variables = map(text_of, lines)
        assert [one.partition("=")[0] for one in variables] == ["RAY_ADDRESS", "RAY_AUTH_MODE"]
        stop_by_ray(in_ray, handle.rpartition(":")[2])
        assert runner.wait(handle, 0.5).state is AppState.CANCELLED
        wait_until(lambda: not is_alive(int(pid)))
    finally:
        runner.delete(handle)


def test_a_driver_that_is_killed_leaves_nothing(in_ray):
    """The app has failed, and its replicas are gone."""
    runner = get_runner()
    role = Role("long", entrypoint="sh", args=["-c", "echo $$$$; setsid sleep 600; sleep 600"])
    handle = runner.run(AppDef("long", [role]), "ray")
    try:
        (line,) = wait_until(lambda: list(runner.log_lines(handle, "long", 0)), 120)
        kill_driver(in_ray, handle.rpartition(":")[2])
        status = runner.wait(handle, 0.5)
        assert status.state is AppState.FAILED, status
        assert "failed" in status.message
        wait_until(lambda: not is_alive(int(text_of(line))))
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


# ── functions ─────────────────────────────────────────────────────────────────


def test_a_function_with_an_all_reduce_runs_on_four_nodes(in_ray):
    """Placed by Ray, one worker on each. Nobody sees their variables."""

    def total():
        import torch
        import torch.distributed as dist

        value = torch.ones(1)
        dist.all_reduce(value)
        return int(value), os.environ["SECRET"]

    options = {"strategy": "STRICT_SPREAD", "env": {"SECRET": "hidden-value-18"}}
    with make_launcher(4, scheduler_options=options) as launcher:
        assert list(launcher.run(total)) == [(4, "hidden-value-18")] * 4
        nodes = {}
        for actor in asked(in_ray, "/api/v0/actors")["data"]["result"]["result"]:
            if actor["class_name"].endswith("PhalanxHolder") and actor["state"] == "ALIVE":
                nodes.setdefault(actor["job_id"], []).append(actor["node_id"])
        assert 4 in [len({*found}) for found in nodes.values()]
        assert "hidden-value-18" not in json.dumps(asked(in_ray, "/api/jobs/"))


def groups_of(cluster, job):
    """The states of a job's placement groups."""
    groups = asked(cluster, "/api/v0/placement_groups")["data"]["result"]["result"]
    return {one["state"] for one in groups if one["creator_job_id"] == job}


def asked(cluster, path):
    with urllib.request.urlopen(f"{cluster.dashboard}{path}") as answer:
        return json.load(answer)


def test_within_a_ray_program(script, in_ray):
    """`ray.init()` has been called: the program's own placement group, which goes with it."""
    done = script(
        f"""
        import os
        import ray
        import phalanx

        def work(x):
            return int(os.environ["RANK"]) + x + int(os.environ["MORE"])

        if __name__ == "__main__":
            ray.init({in_ray.head!r}, log_to_driver=False)
            options = {{"env": {{"MORE": "10"}}}}
            launcher = phalanx.Launcher(
                scheduler="ray", num_hosts=2, start_timeout=120, scheduler_options=options
            )
            before = ray.util.placement_group_table().keys()
            with launcher:
                print(list(launcher.run(work, {{"x": 1}})), list(launcher.run(work, {{"x": 2}})))
            groups = ray.util.placement_group_table()
            print([g["state"] for name, g in groups.items() if name not in before])
        """,
        env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"},
        timeout=240,
    )
    assert "[11, 12] [12, 13]" in done.stdout, done.stderr
    assert "['REMOVED']" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="another network needs root")
def test_from_another_network(script, in_ray, tmp_path):
    """Which reaches the dashboard, and the port that it names; without one, that is what to do."""
    from tests.cluster import relay
    from tests.cluster.etcd import free_ports

    dashboard, port = in_ray.dashboard.rpartition(":")[2], str(free_ports(1)[0])
    program = script.write(
        f"""
        import sys
        import phalanx
        from phalanx._schedulers.ray.hosts import lease

        lease._REACHING = 1.0

        def work(x):
            print("here", flush=True)
            return 1 / x

        def run(x, **options):
            hosts = {{"num_hosts": 1, "start_timeout": 120, "scheduler_options": options}}
            return list(phalanx.Launcher(scheduler="ray", **hosts).run(work, {{"x": x}}))

        if __name__ == "__main__":
            try:
                run(1)
            except phalanx.PhalanxError as error:
                print(error)
            print(run(2, relay_port={port}))
            try:
                run(0, relay_port={port})
            except ZeroDivisionError as error:
                print("a mistake", *error.__notes__)
        """
    )
    passing = [sys.executable, relay.__file__]
    ways = {name: str(tmp_path / name) for name in (dashboard, port)}
    inside = [word for name, way in ways.items() for word in (*passing, name, way)]
    command = ["sh", "-c", 'ip link set lo up; exec "$@"', "sh", *inside, sys.executable, program]
    outside = [subprocess.Popen([*passing, way, name]) for name, way in ways.items()]
    try:
        wait_until(lambda: all(os.path.exists(way) for way in ways.values()))
        done = subprocess.run(
            ["unshare", "-n", *command], capture_output=True, text=True, check=False, timeout=240
        )
    finally:
        for one in outside:
            one.kill()
            one.wait()
    assert done.returncode == 0, done.stderr
    assert "cannot be reached from here" in done.stdout
    assert "set relay_port=… and open or forward" in done.stdout
    assert "here\n[0.5]" in done.stdout
    mistake = done.stdout.partition("a mistake")[2]
    assert "raised by rank 0 on " in mistake
    assert "return 1 / x" in mistake


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"resources": {"unobtainium": 1.0}}, "no node has 1 CPU, 1 unobtainium"),
        ({"strategy": "STRICT_SPREAD"}, "needs 99 nodes, for STRICT_SPREAD; the cluster has "),
    ],
)
def test_hosts_that_are_not_to_be_had_are_waited_for_with_the_reason(options, reason):
    """Until they are given back."""
    scheduler = create_scheduler("ray", "tests")
    lease = scheduler.lend(LeaseRequest("hosts", 99, scheduler.options(**options)))
    try:
        wait_until(lambda: reason in lease.status().reason, 120, lease.status())
        assert lease.status().phase is LeasePhase.WAITING
    finally:
        lease.give_back()


def test_a_launcher_that_is_killed_gives_its_hosts_back(script, in_ray):
    """The job ends by itself."""
    before = running_jobs(in_ray)
    program = script.start(
        """
        import time, phalanx
        from phalanx._schedulers.ray.hosts import lease

        lease._ALONE = 1.0

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
    jobs = asked(cluster, "/api/jobs/")
    return {job["submission_id"] for job in jobs if job["status"] in ("RUNNING", "PENDING")}


@pytest.mark.parametrize("end", [stop_by_ray, kill_driver])
def test_a_job_with_hosts_that_ends_ends_the_launch(in_ray, end):
    """Whoever ends it: the hosts are gone, and the workers with them."""

    def work():
        print(os.getpid(), flush=True)
        time.sleep(600)

    before = running_jobs(in_ray)
    app = make_launcher(1).start(work)
    try:
        pid = int(next(iter(app.logs(follow=True))).text)
        (job,) = running_jobs(in_ray) - before
        end(in_ray, job)
        with pytest.raises(phalanx.PhalanxError, match="lost the agent on|the job on Ray"):
            app.result(120)
        wait_until(lambda: not is_alive(pid))
    finally:
        app.cancel(0.0)
        app.wait(60)


def iter_until(stream, word):
    seen = ""
    for line in stream:
        seen += line
        if word in line:
            return seen
    return seen


def test_a_node_that_dies_is_replaced_by_the_autoscaler(in_ray, tmp_path):
    """Nobody has such nodes: the autoscaler adds them, and another for the one that dies.

    A function is whole again then, and a lost replica starts again.
    """
    killed = tmp_path / "killed"

    def work():
        size = phalanx.context().world_size
        is_whole_again = size == 2 and killed.exists()
        print(size, "workers", flush=True)
        if not is_whole_again:
            time.sleep(600)
        return "whole again"

    runner = get_runner()
    command = (
        "echo $$$$ $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 600"
    )
    nothing = Resource(cpu=0, gpu=0, memMB=-1)
    role = Role("role", entrypoint="sh", args=["-c", command], max_retries=1, resource=nothing)
    handle = runner.run(AppDef("app", [role]), "ray", {"resources": {"app": 1.0}})
    options = {"resources": {"spot": 1.0}, "cpus": 0}
    app = make_launcher(2, scheduler_options=options, min_hosts=1, max_restarts=3).start(work)
    lines = lambda: [text_of(line) for line in runner.log_lines(handle, "role", 0)]
    try:
        both = (line for line in app.logs(follow=True) if line.text == "2 workers")
        assert {next(both).rank, next(both).rank} == {0, 1}
        (first,) = wait_until(lines, 120)
        killed.touch()
        in_ray.kill_node_of(int(first.split()[0]))
        assert list(app.result(200)) == ["whole again"] * 2
        status = runner.wait(handle, 0.5)
        assert status.state is AppState.SUCCEEDED, status
        assert [line.split()[1] for line in lines()] == ["0", "1"]
    finally:
        app.cancel(0.0)
        app.wait(60)
        runner.delete(handle)


def test_a_lost_replica_without_retries_fails_the_app(in_ray):
    """The node that it was on is named; of the others nothing is left."""
    runner = get_runner()
    command = ["-c", "echo $$$$; sleep 600"]
    spot = Resource(cpu=0, gpu=0, memMB=-1, devices={"app": 1})
    roles = [
        Role("lost", entrypoint="sh", args=command, resource=spot),
        Role("other", entrypoint="sh", args=command),
    ]
    handle = runner.run(AppDef("app", roles), "ray")
    try:
        said = {
            role.name: wait_until(lambda: list(runner.log_lines(handle, role.name, 0)), 120)
            for role in roles
        }
        pids = {name: int(text_of(lines[0])) for name, lines in said.items()}
        in_ray.kill_node_of(pids["lost"])
        status = runner.wait(handle, 0.5)
        assert status.state is AppState.FAILED, status
        states = {role.role: role.replicas[0] for role in status.roles}
        node = states["lost"].hostname
        assert status.message.startswith(f"lost/0 failed: lost with its node {node}: "), status
        assert states["other"].state is AppState.CANCELLED
        wait_until(lambda: not is_alive(pids["other"]))
        name = handle.rpartition(":")[2]
        job = asked(in_ray, f"/api/jobs/{name}")["job_id"]
        wait_until(lambda: groups_of(in_ray, job) == {"REMOVED"})
    finally:
        runner.delete(handle)


def test_a_node_that_dies_within_a_ray_program(script, in_ray, tmp_path):
    """It is replaced; of a launch that is not elastic, the loss is named."""
    killed = tmp_path / "killed"
    program = script.start(
        f"""
        import os, time
        from pathlib import Path
        import ray
        import phalanx

        def work():
            size = phalanx.context().world_size
            is_whole_again = size == 2 and Path({str(killed)!r}).exists()
            print("of", size, os.getpid(), flush=True)
            if not is_whole_again:
                time.sleep(600)
            return "whole again"

        def wait():
            print("of two", os.getpid(), flush=True)
            time.sleep(600)

        if __name__ == "__main__":
            ray.init({in_ray.head!r}, log_to_driver=False)
            options = {{"resources": {{"spot": 1.0}}, "cpus": 0}}
            hosts = {{"num_hosts": 2, "start_timeout": 120, "scheduler_options": options}}
            launcher = phalanx.Launcher(scheduler="ray", min_hosts=1, max_restarts=3, **hosts)
            print(list(launcher.run(work)), flush=True)
            try:
                phalanx.Launcher(scheduler="ray", **hosts).run(wait)
            except phalanx.AgentLost as error:
                print("AgentLost:", error, flush=True)
        """,
        env={k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"},
    )
    with program:
        pid = iter_until(program.stdout, "of 2").split()[-1]
        killed.touch()
        in_ray.kill_node_of(int(pid))
        assert "['whole again', 'whole again']" in iter_until(program.stdout, "whole again")
        pid = iter_until(program.stdout, "of two").split()[-1]
        in_ray.kill_node_of(int(pid))
        said, errors = program.communicate(timeout=120)
    assert re.search(r"AgentLost: lost the agent on (\S+): .*connection to \1\.", said), (
        said + errors
    )


def test_a_cluster_that_wants_a_token(guarded_ray, monkeypatch, tmp_path):
    """It is found where Ray itself looks for it; what runs on the cluster may use it, too."""
    for name in [name for name in os.environ if name.startswith("RAY_AUTH")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("RAY_ADDRESS", guarded_ray.dashboard)
    home, project = tmp_path, tmp_path / "project"
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    token = "a-token-of-these-tests" * 2
    (project / "main.py").write_text(
        "import ray\nray.init(log_to_driver=False)\nprint(len(ray.nodes()), 'node')\n"
    )
    command = ("run", "-s", "ray", "--wait", "--log", "utils.python", "--script", "main.py")
    for wrong in ({}, {"RAY_AUTH_TOKEN": "another"}):
        code, _, errors = run(*command, cwd=project, env={**os.environ, **wrong})
        assert code == 1
        assert "refuses us" in errors
        assert "Set RAY_AUTH_TOKEN to the cluster's token, or write it to ~/.ray" in errors
        assert len(errors.splitlines()) == 1
    command = (*command[:3], "-cfg", f"cluster={guarded_ray.head}", *command[3:])
    code, _, errors = run(*command, cwd=project, env={**os.environ, "RAY_AUTH_TOKEN": token})
    assert code == 0, errors
    assert "1 node" in errors
    assert token not in errors
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(f"{token}\n")

    def work():
        import ray

        ray.init(log_to_driver=False)
        return len(ray.nodes())

    assert list(make_launcher(1).run(work)) == [1]


def test_a_full_disk(small_ray, monkeypatch, tmp_path):
    """Of the node: an app that runs ends as its program does, one that comes cannot run."""
    monkeypatch.setenv("RAY_ADDRESS", small_ray.dashboard)
    runner = get_runner()
    go = tmp_path / "go"
    wait = f"while ! [ -e {go} ]; do sleep 0.1; done"
    ends = {"silent": "exit 7", "fine": "true", "loses": "seq 20000"}
    ends["talks"] = "seq 20000; echo a mistake >&2; exit 7"
    handles = {}
    one = Resource(cpu=1, gpu=0, memMB=-1)
    for name, end in ends.items():
        command = f"echo begun; {wait}; {end}"
        role = Role(name, entrypoint="sh", args=["-c", command], resource=one)
        handles[name] = runner.run(AppDef(name, [role]), "ray")
    for name, handle in handles.items():
        wait_until(lambda: any(runner.log_lines(handle, name, 0)), 60)
    with small_ray.disk.kept_full():
        go.touch()
        status = {name: runner.wait(handle, 0.5) for name, handle in handles.items()}
        assert status["silent"].message == "silent/0 exited with code 7"
        assert status["fine"].state is AppState.SUCCEEDED
        assert status["talks"].message == "talks/0 exited with code 7: a mistake"
        assert status["loses"].state is AppState.FAILED
        assert "output could not be written on its node" in status["loses"].message
        assert "No space left on device" in status["loses"].message
        with pytest.raises(phalanx.PhalanxError):
            make_launcher(1).run(print)
    small_ray.disk.repair()
    assert runner.status(handles["talks"]) == status["talks"]
    again = runner.run(AppDef("again", [Role("again", entrypoint="true")]), "ray")
    assert runner.wait(again, 0.5).state is AppState.SUCCEEDED


def test_ray_of_another_version(other_ray, monkeypatch, tmp_path):
    """The cluster's own Ray is used there, whatever its version: apps, functions, programs.

    They have the packages that `requirements` names. (Ray copies its environment for them, and this
    one is small.)
    """
    monkeypatch.setenv("RAY_ADDRESS", other_ray.dashboard)
    (tmp_path / "wanted.txt").write_text(f"# not from an index\n{make_wheel(tmp_path)}\n")
    (tmp_path / "main.py").write_text("import brought, ray\nprint(brought.NAME, ray.__version__)\n")
    words = ("-cfg", "requirements=wanted.txt", "utils.python", "--script", "main.py")
    code, _, errors = run("run", "-s", "ray", "--wait", "--log", *words, cwd=tmp_path)
    assert code == 0, errors
    assert f"brought along {OTHER_VERSION}" in errors

    def work():
        import brought

        return brought.NAME

    options = {"requirements": str(tmp_path / "wanted.txt")}
    assert list(make_launcher(1, scheduler_options=options).run(work)) == ["brought along"]
    (tmp_path / "program.py").write_text(PROGRAM)
    environ = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    environ["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(
        [other_ray.python, "program.py", other_ray.head],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=tmp_path,
        env=environ,
    )
    assert "['brought along']" in done.stdout, done.stderr


PROGRAM = """
import sys
import phalanx, ray

def work():
    import brought
    return brought.NAME

if __name__ == "__main__":
    ray.init(sys.argv[1], log_to_driver=False)
    options = {"requirements": "wanted.txt"}
    launcher = phalanx.Launcher(
        scheduler="ray", num_hosts=1, start_timeout=120, scheduler_options=options
    )
    print(list(launcher.run(work)))
"""


def make_wheel(directory):
    """A package of one module, without a builder."""
    path = directory / "brought-1.0-py3-none-any.whl"
    info = "brought-1.0.dist-info"
    files = {
        "brought.py": "NAME = 'brought along'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path
