"""Functions on hosts that Slurm lends, from outside of any allocation."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._cli import main as command
from phalanx._launcher.transport import dial
from tests.conftest import phalanx_processes, wait_until

pytestmark = pytest.mark.usefixtures("in_slurm")


def launcher(**options):
    given = {"num_hosts": 1, "workers_per_host": 1, "workspace": None, **options}
    return phalanx.Launcher(scheduler="slurm", **given)


def where():
    return os.environ["SLURMD_NODENAME"], int(os.environ["RANK"])


def where_am_i():
    return os.getcwd()


def jobs(slurm):
    return slurm.run("squeue", "-h", "--states=PENDING,RUNNING", "-o", "%i").split()


@pytest.fixture(autouse=True)
def no_job_is_left(slurm):
    yield
    wait_until(lambda: not jobs(slurm), 30, "jobs are left")


@contextlib.contextmanager
def full(slurm):
    """No host is free within."""
    options = ("-N4", "--exclusive", "-o", "/dev/null", "--parsable", "--wrap", "sleep 600")
    job = slurm.run("sbatch", *options).strip()
    wait_until(lambda: slurm.job(job) == "RUNNING", 30)
    try:
        yield
    finally:
        slurm.run("scancel", job)
        wait_until(lambda: slurm.job(job) not in ("RUNNING", "COMPLETING"), 30)


def test_workers_on_four_hosts_form_a_group():
    """Twice in one allocation, the second time with the agents of the first."""

    def reduce():
        import torch
        import torch.distributed as dist

        total = torch.ones(1)
        dist.all_reduce(total)
        return os.environ["SLURMD_NODENAME"], os.getppid(), total.item()

    with launcher(num_hosts=4) as lent:
        first, second = lent.run(reduce), lent.run(reduce)
    assert [(host, total) for host, _, total in first] == [(f"n{i}", 4.0) for i in range(1, 5)]
    assert list(first) == list(second)


def listening(pid):
    """The TCP ports at which a process listens."""
    tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    ports = {
        f"socket:[{row[9]}]": int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"
    }
    links = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(path))
    return [ports[link] for link in links if link in ports]


def test_the_launcher_opens_no_port_and_shows_nobody_its_files(tmp_path):
    """Hosts are reached through srun; what is written is for the user alone."""
    go = tmp_path / "go"

    def work():
        spool = Path(os.environ["PHALANX_STOP_FILE"])
        while not spool.name.startswith("phalanx-"):
            spool = spool.parent
        wait_until(go.exists, 60)
        return {spool.name: spool.stat().st_mode & 0o077}

    before = listening(os.getpid())
    app = launcher(num_hosts=2).start(work)
    wait_until(lambda: app.status().state.value == "RUNNING", 60)
    assert listening(os.getpid()) == before
    (record,) = Path(os.environ["XDG_STATE_HOME"]).glob(f"phalanx/apps/{app.id}")
    assert any(path.stat().st_mode & 0o077 == 0 for path in (record, *record.parents))
    go.touch()
    for modes in app.result(60):
        assert modes
        assert not any(modes.values())


def test_the_gpus_asked_for_are_the_workers():
    """Every host has its own."""
    lent = launcher(num_hosts=2, workers_per_host="gpu", scheduler_options={"gpus_per_node": "2"})
    result = lent.run(lambda: (*where(), os.environ["CUDA_VISIBLE_DEVICES"]))
    assert list(result) == [(f"n{1 + rank // 2}", rank, "0,1") for rank in range(4)]


def test_an_exception_comes_home_with_notes_and_logs():
    """As from any other host."""

    def fail():
        print("before", flush=True)
        raise ValueError("no")

    app = launcher().start(fail)
    with pytest.raises(ValueError, match="no") as caught:
        app.result(60)
    assert "rank 0 on n1" in "".join(caught.value.__notes__)
    assert "before" in [line.text for line in app.logs()]


def test_hosts_are_checked():
    """They reach each other."""
    report = launcher(num_hosts=2).check()
    assert [host.hostname for host in report.hosts] == ["n1", "n2"]
    assert report.usable, report


@pytest.fixture
def together(monkeypatch):
    """So few hosts are started by one step."""
    monkeypatch.setattr(dial, "GROUP_SIZE", 2)


def test_many_hosts_are_started_by_one_step(monkeypatch):
    """Their environment is that of a host with a step of its own, but for the names of things."""

    def variables():
        print("here")
        own = ("ID", "JOBID", "STEPID", "PORT", "PID")
        found = {k: v for k, v in os.environ.items() if k.startswith("SLURM")}
        return os.environ["SLURM_STEP_ID"], {k: v for k, v in found.items() if not k.endswith(own)}

    apart = list(launcher(num_hosts=4).run(variables))
    assert len({step for step, _ in apart}) == 4
    monkeypatch.setattr(dial, "GROUP_SIZE", 4)
    as_one = list(launcher(num_hosts=4).run(variables))
    assert len({step for step, _ in as_one}) == 1
    assert [found for _, found in as_one] == [found for _, found in apart]
    assert [found["SLURM_STEP_NODELIST"] for _, found in as_one] == ["n1", "n2", "n3", "n4"]


@pytest.mark.usefixtures("together")
def test_a_host_of_one_step_is_lost_by_itself(slurm, tmp_path):
    """When its node is: the step goes on for the others, and its hosts keep their agents."""

    def work(place):
        host, _ = where()
        if not Path(place, "lost").exists():
            Path(place, f"{os.getppid()}.on-{host}").touch()
            threading.Event().wait(120)
        return host, Path(place, f"{os.getppid()}.on-{host}").exists()

    app = launcher(num_hosts=3, min_hosts=2, max_restarts=3).start(work, {"place": str(tmp_path)})
    try:
        wait_until(lambda: len(list(tmp_path.glob("*.on-*"))) == 3, 60)
        kept, lost, _ = sorted(path.name.partition("on-")[2] for path in tmp_path.glob("*.on-*"))
        (tmp_path / "lost").touch()
        slurm.lose_host(lost)
        found = dict(app.result(90))
        assert found[kept]
        assert lost not in found
    finally:
        app.cancel(0.0)
        app.wait(30)
        slurm.mend()
    phalanx.launch(where_am_i)  # sweeps up what the lost host could not


@pytest.mark.usefixtures("together")
def test_a_step_for_many_that_is_killed_is_the_loss_of_all(tmp_path):
    """With Slurm's words; the workers do not outlive it."""
    app = launcher(num_hosts=2).start(stay, {"place": str(tmp_path)})
    wait_until((tmp_path / "up").exists, 60)
    (step,) = [pid for pid, words in own_children() if words.startswith(b"srun\0")]
    os.kill(step, signal.SIGKILL)
    with pytest.raises(phalanx.AgentLost):
        app.result(60)


def own_children():
    """The processes that this one has started, with their arguments."""
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                yield int(pid), Path(f"/proc/{pid}/cmdline").read_bytes()


def test_launches_at_once_have_jobs_of_their_own(slurm):
    """And end apart."""
    apps = [launcher(num_hosts=2).start(where) for _ in range(2)]
    assert [len(app.result(60)) for app in apps] == [2, 2]


def test_a_lost_host_is_replaced(slurm, tmp_path):
    """By one that the job did not have."""

    def work(place):
        host, _ = where()
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not Path(place, "lost").exists():
            Path(place, f"up-{host}").touch()
            threading.Event().wait(120)
        return host

    app = launcher(num_hosts=2, max_restarts=3).start(work, {"place": str(tmp_path)})
    try:
        wait_until(lambda: len(list(tmp_path.glob("up-*"))) == 2, 60)
        lost, kept = sorted(path.name.removeprefix("up-") for path in tmp_path.glob("up-*"))
        (tmp_path / "lost").touch()
        slurm.lose_host(lost, told=True)
        found = set(app.result(90))
        assert len(found) == 2
        assert kept in found
        assert lost not in found
    finally:
        app.cancel(0.0)
        app.wait(30)
        slurm.mend()


def stay(place):
    """The first time until the host is taken away."""
    if not (up := Path(place, "up")).exists():
        up.with_suffix(".new").write_text(os.environ["SLURM_JOB_ID"])
        up.with_suffix(".new").rename(up)
        threading.Event().wait(120)
    return where()[0], os.environ["SLURM_JOB_ID"]


@pytest.mark.parametrize("how", ["preempted", "out of time"])
def test_a_host_that_slurm_takes_away_is_replaced(slurm, tmp_path, how):
    """The job ends as a whole; the launch goes on in another one."""
    options = {"nodelist": "n1", "exclusive": True}
    elastic = launcher(max_restarts=3, scheduler_options=options)
    app = elastic.start(stay, {"place": str(tmp_path)})
    try:
        wait_until((tmp_path / "up").exists, 60)
        first = (tmp_path / "up").read_text()
        if how == "preempted":
            urgent = ("-p", "high", "-w", "n1", "--exclusive", "-o", "/dev/null")
            slurm.run("sbatch", *urgent, "--job-name=urgent", "--wrap", "sleep 600")
        else:
            slurm.run("scontrol", "update", f"jobid={first}", "EndTime=now+2")
        ((host, job),) = app.result(100)
        assert host != "n1"
        assert job != first
    finally:
        app.cancel(0.0)
        app.wait(30)
        slurm.run("scancel", "--name=urgent")


def test_hosts_of_a_job_that_somebody_cancels_are_not_replaced(slurm, tmp_path):
    """That would not be what they wanted."""
    app = launcher(max_restarts=3).start(stay, {"place": str(tmp_path)})
    wait_until((tmp_path / "up").exists, 60)
    slurm.run("scancel", *jobs(slurm))
    with pytest.raises(phalanx.LaunchError):
        app.result(100)


def test_a_request_stays_in_the_queue_while_the_controller_is_away(slurm):
    """Nothing is asked for twice, and the wait says why it is told nothing."""
    with full(slurm):
        app = launcher().start(where)
        is_queued = lambda: re.search(r"PENDING \((Resources|Priority)\)", app.status().message)
        wait_until(is_queued)
        queued = jobs(slurm)
        slurm.stop_controller()
        try:
            wait_until(lambda: not is_queued())
        finally:
            slurm.start_controller()
        wait_until(is_queued)
        assert jobs(slurm) == queued
    assert len(app.result(100)) == 1


def test_a_full_partition_ends_with_queue_timeout(slurm):
    """In the queue's own words."""
    with full(slurm), pytest.raises(phalanx.QueueTimeout) as caught:
        launcher(queue_timeout=4).run(where)
    assert caught.value.reason in ("Resources", "Priority"), caught.value


def test_a_job_that_never_starts_ends_with_the_queues_reason(slurm):
    """Not only when somebody loses patience; and it is withdrawn."""
    failed = slurm.run("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "exit 1").strip()
    wait_until(lambda: slurm.job(failed) == "FAILED", 30)
    after = {"sbatch": {"dependency": f"afterok:{failed}"}}
    with pytest.raises(phalanx.SchedulerError, match="DependencyNeverSatisfied"):
        launcher(scheduler_options=after).run(where)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition": "nowhere"}, "Invalid partition name specified"),
        ({"partition": "closed"}, "Invalid account or account/partition combination"),
        ({"nodelist": "n99"}, "Invalid node name"),
        ({"sbatch": {"nosuch": "1"}}, "unrecognized option '--nosuch=1'"),
    ],
)
def test_what_slurm_refuses_is_told_in_its_words(options, message):
    """At once."""
    with pytest.raises(phalanx.SchedulerError, match=message):
        launcher(scheduler_options=options).run(where)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partiton": "debug"}, "slurm has no option 'partiton'. Did you mean 'partition'"),
        ({"time": "soon"}, "time=soon: not a time limit"),
        ({"python": "/usr/bin/python3"}, "python has no effect on lent hosts"),
    ],
)
def test_mistakes_are_found_before_slurm_is_asked(options, message):
    """Each is named."""
    with pytest.raises(phalanx.ConfigError, match=message):
        launcher(scheduler_options=options).run(where)


def test_keeping_agents_warm_on_hosts_that_are_given_back_is_a_mistake():
    """It would have no effect."""
    with pytest.raises(phalanx.ConfigError, match="keep_warm=5 has no effect"):
        launcher(keep_warm=5).run(where)


def test_the_command_checks_borrowed_hosts(slurm, capfd):
    """As many as are asked for."""
    options = ["-s", "slurm", "--num-hosts", "2", "-cfg", "nodelist=n[1-2]"]
    assert command(["hosts", "check", *options, "--json"]) == 0
    assert [host["hostname"] for host in json.loads(capfd.readouterr().out)["hosts"]] == [
        "n1",
        "n2",
    ]
    assert command(["hosts", "check", "-s", "slurm", "-cfg", "partition=nowhere"]) == 1
    assert "Invalid partition name" in capfd.readouterr().err


def test_a_job_that_is_cancelled_is_the_reason(slurm, tmp_path):
    """Beside the loss of its hosts."""

    def work(place):
        Path(place, "up").touch()
        threading.Event().wait(120)

    app = launcher().start(work, {"place": str(tmp_path)})
    wait_until((tmp_path / "up").exists, 60)
    slurm.run("scancel", *jobs(slurm))
    with pytest.raises(phalanx.LaunchError) as caught:
        app.result(60)
    assert "revoked" in "".join(caught.value.__notes__), caught.value


def test_hosts_are_given_back_when_the_controller_answers_again(
    slurm, caplog, tmp_path, monkeypatch
):
    """The launches do not wait for that; what waits asks in turn whether it is there."""
    (tmp_path / "scontrol").write_text(
        f"#!/bin/sh\n[ $1 = show ] || date +%s.%N >>{tmp_path}/pings\n"
        f'exec {shutil.which("scontrol")} "$@"\n'
    )
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def work(place):
        Path(place, f"up-{os.environ['SLURM_JOB_ID']}").touch()
        while not Path(place, "down").exists():
            threading.Event().wait(0.05)

    apps = [launcher().start(work, {"place": str(tmp_path)}) for _ in range(3)]
    wait_until(lambda: len(list(tmp_path.glob("up-*"))) == 3, 60)
    slurm.stop_controller()
    (tmp_path / "down").touch()
    assert [len(app.result(60)) for app in apps] == [1] * 3
    wait_until(lambda: caplog.text.count("Slurm does not answer; job") == 3, 30)
    pings = [float(line) for line in (tmp_path / "pings").read_text().split()]
    assert len(pings) <= (pings[-1] - pings[0]) / 5 + 1
    slurm.start_controller()
    wait_until(lambda: not jobs(slurm), 60, "the job is left")
    slurm.mend()


def test_hosts_are_asked_for_again_when_the_controller_was_away(slurm):
    """salloc gives up after a few seconds."""
    slurm.stop_controller()
    try:
        app = launcher().start(where)
        wait_until(lambda: "no answer from Slurm" in app.status().message, 60)
    finally:
        slurm.start_controller()
    assert len(app.result(60)) == 1


def test_a_detached_launch_waits_in_the_queue_and_is_found_again(slurm):
    """By its id alone."""
    with full(slurm):
        app = launcher().start(where, detach=True)
        wait_until(lambda: "PENDING (" in phalanx.app(app.id).status().message, 30)
    ((host, rank),) = phalanx.app(app.id).result(60)
    assert (host in slurm.hosts, rank) == (True, 0)


def up_and_wait():
    print("up", flush=True)
    while True:
        time.sleep(0.05)


def test_launches_are_cancelled_together_from_another_login_host(slurm, capfd):
    """Found by its list; each is cancelled, and says nothing of hosts that it has lost."""
    started = [launcher().start(up_and_wait) for _ in range(3)]
    for app in started:
        wait_until(lambda app=app: any("up" in line.text for line in app.logs()), 60)
    with slurm.other_login() as elsewhere:

        def there(*arguments):
            command = [*elsewhere, sys.executable, "-m", "phalanx", *arguments]
            return subprocess.run(command, capture_output=True, text=True, timeout=100)

        running = there("list", "--running").stdout
        assert all(app.id in running for app in started)
        assert "up" in there("log", started[0].id).stdout
        done = there("cancel")
        assert "several apps are running; name those to cancel" in done.stderr
        done = there("cancel", *(app.id for app in started))
    assert (done.stdout, done.stderr) == ("".join(f"{a.id}: CANCELLED\n" for a in started), "")
    for app in started:
        with pytest.raises(phalanx.Cancelled):
            app.result(60)
    said = capfd.readouterr().err
    assert "AgentLost" not in said
    assert "lost" not in said


def test_the_pages_function_runs(slurm, tmp_path):
    """With the names of this cluster."""
    page = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
    code = re.search(r"```py\n# reduce.py\n(.*?)```", page, re.S).group(1)
    for name, ours in {"=4": "=1", '"gpu", "gpus': '"debug", "gpus', '"8"': '"1"'}.items():
        assert name in code
        code = code.replace(name, ours)
    (tmp_path / "reduce.py").write_text(code)
    process = slurm.start(sys.executable, "reduce.py", cwd=tmp_path)
    output, errors = process.communicate(timeout=90)
    assert output == "[1.0]\n", errors


SCRIPT = """
import os, threading
import phalanx

def work():
    print("running", flush=True)
    threading.Event().wait(600)

launcher = phalanx.Launcher(scheduler="slurm", num_hosts=2, workers_per_host=1, workspace=None)
launcher.run(work)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_ends_while_it_runs_leaves_no_job(slurm, script, number):
    """Nor any process."""
    process = slurm.start(sys.executable, str(script.write(SCRIPT)))
    assert process.stdout.readline() == "running\n"
    process.send_signal(number)
    process.communicate(timeout=60)
    wait_until(lambda: not jobs(slurm), 30, "the job is left")
    wait_until(lambda: not phalanx_processes(), 20)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_launcher_that_ends_while_it_is_queued_leaves_no_job(slurm, script, number):
    """It is withdrawn."""
    with full(slurm):
        process = slurm.start(sys.executable, str(script.write(SCRIPT)))
        said = process.stderr.readline()
        assert "waiting for 2 hosts from slurm: job" in said
        assert len(jobs(slurm)) == 2
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        wait_until(lambda: len(jobs(slurm)) == 1, 30, "the job is left")
    assert number == signal.SIGKILL or "the hosts were given back" in errors


def test_the_command_borrows_hosts(slurm, tmp_path):
    """With Slurm's own options."""
    (tmp_path / "job.py").write_text(
        "import os\n\ndef main():\n    return os.environ['SLURMD_NODENAME']\n"
    )
    command = [sys.executable, "-m", "phalanx", "launch", "job.py:main", "-s", "slurm"]
    options = ["--num-hosts", "2", "--workers-per-host", "1", "-cfg", "partition=debug,time=5"]
    process = slurm.start(*command, *options, cwd=tmp_path)
    output, errors = process.communicate(timeout=60)
    assert output == "rank 0: 'n1'\nrank 1: 'n2'\n", errors
