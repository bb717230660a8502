"""Apps on a real Slurm: what its scheduler does, and what becomes of them when it fails."""

import contextlib
import functools
import importlib
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phalanx import Launcher
from phalanx._schedulers.slurm import controller as slurm_controller
from phalanx.errors import SchedulerError
from phalanx.runner import get_runner
from phalanx.schedulers import Stream
from phalanx.specs import AppDef, AppState, Role
from tests.conftest import wait_until
from tests.process.disks import Disk

STOPS = """
import os, time
import phalanx

print("restart", phalanx.context().restart_count, flush=True)
while not phalanx.context().should_stop() and phalanx.context().restart_count == 0:
    time.sleep(0.05)
print("stopped" if phalanx.context().should_stop() else "done", flush=True)
"""
"""A program that works until it is told to stop, and has little to do the second time."""


@pytest.fixture(scope="module", autouse=True)
def limited(slurm, tmp_path_factory):
    """Two apps with a minute of time, which passes while the other tests run: one has asked to be
    requeued. They are on n4, which others share with them.
    """
    slurm.mend()
    place = tmp_path_factory.mktemp("limited")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PATH", "SLURM_CONF"):
            patch.setenv(name, slurm.environ[name])
        with Apps(slurm, place) as apps:
            options = {"time": "1", "nodelist": "n4"}
            again = apps.submit(apps.program(STOPS), **options, signal="30", requeue=True)
            never = apps.submit("echo up; sleep 600", **options)
            yield again, never
    slurm.mend()


@pytest.fixture
def apps(in_slurm, tmp_path):
    """Submit apps, and ask for them; they are gone in the end."""
    with Apps(in_slurm, tmp_path) as made:
        yield made


class Apps:
    """Apps of one test."""

    def __init__(self, slurm, place):
        self.slurm = slurm
        self.place = place
        self.runner = get_runner("tests")
        self.handles = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for handle in self.handles:
            with contextlib.suppress(SchedulerError):
                self.runner.delete(handle)
        self.runner.close()

    def app(self, command, **fields):
        role = Role("role", entrypoint="sh", args=["-c", command], **fields)
        return AppDef("app", [role])

    def submit(self, app, **options):
        app = self.app(app) if isinstance(app, str) else app
        handle = self.runner.run(app, "slurm", {"cpus": 1, **options}, workspace=str(self.place))
        self.handles.append(handle)
        return handle

    def program(self, text, name="program.py"):
        """An app that runs a Python program."""
        (self.place / name).write_text(textwrap.dedent(text))
        return AppDef("app", [Role("role", entrypoint="python", args=[name])])

    def status(self, handle):
        return self.runner.status(handle)

    def wait(self, handle, state, timeout=60):
        def is_there():
            status = self.status(handle)
            ended = status.state.is_final and status.state is not state
            assert not ended, f"{status}\n{self.slurm_log(handle)}"
            return status.state is state and status

        return wait_until(is_there, timeout, f"it did not become {state}: {handle}")

    def finish(self, handle):
        """Wait for an app's end, after a restart that Slurm would have wait for two minutes."""

        def has_ended():
            status = self.status(handle)
            if "BeginTime" in status.message:  # again: what ends is given a start time once more
                self.slurm.release(self.job(handle))
            return status.state.is_final and status

        try:
            status = wait_until(has_ended, 90)
        except AssertionError:
            hosts = self.slurm.run("sinfo", "-N")
            raise AssertionError(
                f"{self.status(handle)}\n{self.slurm_log(handle)}\n{hosts}"
            ) from None
        assert status.state is AppState.SUCCEEDED, f"{status}\n{self.slurm_log(handle)}"
        return status

    def lines(self, handle, role="role", replica=0, **options):
        return [line.text for line in self.runner.lines(handle, role, replica, **options)]

    def until_line(self, handle, text, timeout=60):
        wait_until(lambda: text in self.lines(handle), timeout, f"{text!r} was never printed")

    def directory(self, handle):
        """The app's directory."""
        (path,) = Path(os.environ["XDG_STATE_HOME"]).glob(f"phalanx/apps/{id_of(handle)}")
        return Path(json.loads((path / "app.json").read_text())["job_dir"])

    def slurm_log(self, handle):
        path = self.directory(handle) / "slurm.log"
        return path.read_text() if path.exists() else ""

    def job(self, handle):
        return json.loads((self.directory(handle) / "job.json").read_text())["job"]


def id_of(handle):
    return handle.rpartition("/")[2]


def phalanx(slurm, *arguments, through=(), **options):
    """The command, in a process of its own, started by the command `through`."""
    return subprocess.run(
        [*through, sys.executable, "-m", "phalanx", *arguments],
        env={**slurm.environ, "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]},
        capture_output=True,
        text=True,
        timeout=100,
        **options,
    )


# ── what it does ──────────────────────────────────────────────────────────────


def test_a_script_with_an_all_reduce_runs_on_four_nodes(in_slurm, tmp_path):
    """The group forms on the job's first host; nothing has to be said for it."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import os
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print(f"rank {dist.get_rank()} on {os.environ['SLURMD_NODENAME']}: {total.item()}")
        dist.destroy_process_group()
        """)
    )
    run = ("run", "-s", "slurm", "--wait", "--log", "dist.ddp", "-j", "4x2", "--script", "train.py")
    done = phalanx(in_slurm, *run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    found = re.findall(r"rank (\d) on (n\d): 8\.0", told)
    assert sorted(rank for rank, _ in found) == list("01234567"), told
    assert sorted(host for _, host in found) == ["n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"]
    handle = next(word for word in told.split() if word.startswith("slurm://"))
    deleted = phalanx(in_slurm, "delete", handle)
    assert deleted.returncode == 0, deleted.stderr


def test_what_is_submitted_is_what_a_dry_run_shows(apps):
    """To the byte; and a person can submit it again."""
    info = apps.runner.dryrun(apps.app("echo hi"), "slurm", {"cpus": 1}, str(apps.place))
    assert str(info).endswith("=== SCHEDULER REQUEST ===\n" + info.request.script.rstrip("\n"))
    handle = apps.runner.schedule(info)
    apps.handles.append(handle)
    kept = apps.slurm.run("scontrol", "write", "batch_script", apps.job(handle), "-")
    assert kept == info.request.script
    apps.wait(handle, AppState.SUCCEEDED)
    by_hand = apps.runner.dryrun(apps.app("echo again"), "slurm", {}, str(apps.place)).request
    Path(by_hand.job_dir).mkdir(parents=True, mode=0o700)
    apps.slurm.run("sbatch", "--wait", input=by_hand.script)
    log = Path(by_hand.job_dir, "logs", "role", "0", "stdout.log")
    assert log.read_text() == "again\n"
    shutil.rmtree(by_hand.job_dir)


def test_the_project_is_copied_by_content(apps):
    """What is changed after the submission is not in the job; what git ignores neither."""
    held = apps.submit("sleep 600", exclusive=True, nodelist="n1")
    apps.wait(held, AppState.RUNNING)
    (apps.place / "sub").mkdir()
    (apps.place / "sub" / "data").write_text("before\n")
    (apps.place / ".phalanxignore").write_text("large\n")
    (apps.place / "large").write_text("")
    jobs = apps.place / "jobs"
    handle = apps.submit("cat sub/data; ls; pwd", nodelist="n1", job_dir=str(jobs))
    (apps.place / "sub" / "data").write_text("after\n")
    apps.runner.cancel(held)
    apps.wait(handle, AppState.SUCCEEDED)
    own = jobs / id_of(handle) / "workspace"
    assert apps.lines(handle) == ["before", "sub", str(own)]


def test_another_login_host_knows_the_apps(apps):
    """With the same home, by list, status, log, cancel and delete: it has no process of theirs."""
    handle = apps.submit("echo hello; until test -e go; do sleep 0.1; done; echo on; sleep 600")
    apps.until_line(handle, "hello")
    name = id_of(handle)
    with apps.slurm.other_login() as elsewhere:
        there = functools.partial(phalanx, apps.slurm, through=elsewhere)
        assert re.search(rf"{name} +slurm +RUNNING +1 replica +n\d ", there("list").stdout)
        assert "RUNNING" in there("status", handle).stdout
        command = (*elsewhere, sys.executable, "-m", "phalanx", "log", handle, "--follow")
        environ = {**apps.slurm.environ, "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
        following = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        assert "hello" in following.stdout.readline()
        (apps.place / "go").touch()
        assert "on" in following.stdout.readline()
        assert there("cancel", handle).stdout == f"{name}: CANCELLED\n"
        following.communicate(timeout=60)
        assert apps.status(handle).state is AppState.CANCELLED
        place = apps.directory(handle)
        assert there("delete", handle).stdout == f"deleted {handle}\n"
        assert not place.exists()


def test_apps_that_run_are_cancelled_together(apps):
    """By one command, with an answer for each, and at once."""
    handles = [apps.submit("echo up; sleep 600") for _ in range(3)]
    for handle in handles:
        apps.until_line(handle, "up")
    done = phalanx(apps.slurm, "cancel", *handles, "--json")
    told = [{"id": id_of(h), "state": "CANCELLED", "was": "RUNNING"} for h in handles]
    assert (json.loads(done.stdout), apps.slurm.said(done.stderr)) == (told, [])
    states = [apps.slurm.job(apps.job(handle)) for handle in handles]
    assert set(states) <= {"CANCELLED", ""}


def test_a_replica_has_what_it_asked_for(apps):
    """GPUs, the user's umask, the host's name; and the secret of the app is in no argument."""
    umask = os.umask(0o027)
    try:
        handle = apps.submit(
            "echo $$CUDA_VISIBLE_DEVICES; umask; echo $$PHALANX_RANK0_HOST; "
            "test -n $$PHALANX_RDZV_TOKEN && echo token; cat /proc/*/cmdline 2>/dev/null | tr '\\0' ' '",
            gpus_per_node="2",
        )
    finally:
        os.umask(umask)
    apps.wait(handle, AppState.SUCCEEDED)
    gpus, mask, first, token, *commands = apps.lines(handle)
    assert (gpus, mask, first, token) == ("0,1", "0027", "127.0.0.1", "token")
    secret = apps.directory(handle) / "token"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert secret.read_text() not in "\n".join(commands)


def test_users_do_not_see_each_others_files(slurm):
    """Neither the script, nor what replicas print; and each lists its own apps alone."""
    if not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("needs a Python that other users can start: /usr/bin/python3")
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as place:
        os.chmod(place, 0o755)
        for package in ("phalanx", "msgpack", "cloudpickle", "yaml"):
            source = os.path.dirname(importlib.import_module(package).__file__)
            shutil.copytree(source, f"{place}/lib/{package}")
        users = [(name, pwd.getpwnam(name).pw_uid) for name in ("daemon", "games")]
        handles = {}
        for name, uid in users:
            home = Path(place, name)
            home.mkdir(mode=0o755)  # as careless as homes are
            os.chown(home, uid, uid)
            run = ("run", "-s", "slurm", "-cfg", "cpus=1", "--wait", "utils.sh", "echo", "secret")
            done = as_user(slurm, place, name, *run)
            assert done.returncode == 0, done.stderr
            handles[name] = next(word for word in done.stdout.split() if "://" in word)
            assert "secret" in as_user(slurm, place, name, "log", handles[name]).stdout
        for (name, _), (other, uid) in zip(users, reversed(users), strict=True):
            listed = as_user(slurm, place, name, "list", "-s", "slurm").stdout
            assert re.search(rf"{handles[name]} +\S+ +SUCCEEDED +\d", listed), listed
            assert handles[other] not in listed
            (job,) = Path(place, other).glob("**/script.sh")
            for path in (job.parent, job, job.parent / "logs/sh/0/stdout.log"):
                assert path.exists()
                read = ["cat" if path.is_file() else "ls", str(path)]
                user = pwd.getpwnam(name).pw_uid
                done = subprocess.run(read, user=user, group=user, capture_output=True, text=True)
                assert "Permission denied" in done.stderr


def as_user(slurm, place, name, *arguments):
    """The command as another user's, from a copy of the package that others can read."""
    uid = pwd.getpwnam(name).pw_uid
    return subprocess.run(
        ["/usr/bin/python3", "-m", "phalanx", *arguments],
        user=uid,
        group=uid,
        extra_groups=[],
        cwd=f"{place}/{name}",
        env={
            "PATH": slurm.environ["PATH"],
            "SLURM_CONF": slurm.environ["SLURM_CONF"],
            "HOME": f"{place}/{name}",
            "PYTHONPATH": f"{place}/lib",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def questions(in_slurm, tmp_path, monkeypatch):
    """What this process asks the controller, not what is asked in jobs; they are counted in the
    end, by the times at which they were asked.
    """
    asked = tmp_path / "asked"
    asked.touch()
    (tmp_path / "bin").mkdir()
    for tool in ("squeue", "sacct", "scontrol"):
        if real := shutil.which(tool, path=in_slurm.environ["PATH"]):
            shim = tmp_path / "bin" / tool
            note = f"echo $(date +%s.%N) {tool} >>{asked}"
            shim.write_text(f'#!/bin/sh\n[ -n "$SLURM_JOB_ID" ] || {note}\nexec {real} "$@"\n')
            shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    began = time.time()
    yield lambda: [line.split()[1] for line in asked.read_text().splitlines()]
    times = sorted(float(line.split()[0]) for line in asked.read_text().splitlines())
    assert times
    assert len(times) <= times[-1] - began + 1, [when - began for when in times]


def test_the_controller_is_asked_once_a_second_at_most(apps, questions):
    """However many wait, follow, list, submit and queue."""
    go = apps.place / "go"
    until_go = f"until [ -e {go} ]; do sleep 0.1; done"
    held = apps.submit(until_go, exclusive=True, nodelist="n1")
    handles = [held, *(apps.submit(until_go) for _ in range(2))]
    on_held = {"nodelist": "n1", "exclusive": True}
    lender = Launcher(scheduler="slurm", scheduler_options=on_held, workspace=None)
    submitter = Launcher(scheduler="slurm", workers_per_host=1, workspace=None)
    with ThreadPoolExecutor(12) as pool:
        waits = [pool.submit(apps.runner.wait, handle, 0.01) for handle in handles * 2]
        follows = [pool.submit(apps.lines, handle, follow=True) for handle in handles]
        jobs = [submitter.submit(int) for _ in range(3)]
        queued = [lender.start(int) for _ in range(2)]
        wait_until(lambda: all("PENDING (" in app.status().message for app in queued), 30)
        for app in queued:
            app.cancel()
        assert {*handles} <= {app.app_handle for app in apps.runner.list("slurm")}
        assert [job.result(60).values for job in jobs] == [(0,)] * 3
        go.touch()
        assert {wait.result().state for wait in waits} == {AppState.SUCCEEDED}
        assert [follow.result() for follow in follows] == [[], [], []]
        assert all(app.wait(60).state.is_final for app in queued)
    assert "squeue" in questions()


def test_the_first_job_of_the_documentation_runs(in_slurm, tmp_path):
    """As the page has it: its file, its commands."""
    page = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
    part = page.partition("## Run your first job")[2].partition("\n## ")[0]
    ((name, code),) = re.findall(r"```py\n# ([\w.]+)\n(.*?)```", part, re.S)
    (tmp_path / name).write_text(code)
    (commands,) = re.findall(r"```sh\n(.*?)```", part, re.S)
    shown = ""
    for line in commands.splitlines():
        words = shlex.split(line.partition("#")[0])
        done = phalanx(in_slurm, *words[1:], cwd=tmp_path)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        shown += done.stdout
    assert "the sum is 8" in shown


# ── what is refused, and what waits ───────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition": "nope"}, "Invalid partition name specified"),
        ({"partition": "closed", "account": "outsiders"}, "Invalid account"),
        ({"constraint": "gold"}, "Invalid feature specification"),
        ({"sbatch": {"reservation": "none"}}, "reservation"),
        ({"sbatch": {"nosuch": "1"}}, "unrecognized option '--nosuch=1'"),
    ],
)
def test_what_slurm_refuses_is_said_at_once(apps, options, reason):
    """In one line with Slurm's own words; and nothing is recorded."""
    before = len(apps.runner.list("slurm"))
    with pytest.raises(SchedulerError) as caught:
        apps.submit("true", **options)
    assert reason in str(caught.value)
    assert str(caught.value).startswith("Slurm refused the job: ")
    assert "\n" not in str(caught.value)
    assert len(apps.runner.list("slurm")) == before


def test_a_full_partition_is_waited_for(apps):
    """The status has the queue's own reason."""
    full = apps.submit(apps.app("sleep 600", num_replicas=3), exclusive=True, nodelist="n[1-3]")
    apps.wait(full, AppState.RUNNING)
    handle = apps.submit("echo mine", nodelist="n2")
    wait_until(lambda: "(Resources" in apps.status(handle).message, 30)
    status = apps.status(handle)
    assert status.state is AppState.PENDING
    job = apps.job(handle)
    assert status.message == f"job {job}: waiting for nodes to be free (Resources, partition debug)"
    command = [sys.executable, "-m", "phalanx", "log", "--follow", handle]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as follower:
        said = follower.stderr.readline()
        assert said == f"phalanx log: {id_of(handle)}: PENDING: {status.message}\n"
        apps.runner.cancel(full)
        assert follower.communicate(timeout=100) == ("role/0 mine\n", "")
    assert apps.status(handle).state is AppState.SUCCEEDED


def test_an_interpreter_that_nodes_do_not_have_is_named(apps):
    """Where the app's state is asked for, not only in Slurm's own log."""
    status = apps.wait(apps.submit("true", python="/nowhere/python"), AppState.FAILED)
    assert status.message.startswith("cannot run /nowhere/python on n")
    assert "-cfg python=" in status.message


# ── faults ────────────────────────────────────────────────────────────────────


def test_a_job_cancelled_from_outside_is_cancelled(apps):
    """By whoever may."""
    handle = apps.submit("echo up; sleep 600")
    apps.until_line(handle, "up")
    apps.slurm.run("scancel", apps.job(handle))
    assert apps.wait(handle, AppState.CANCELLED).exit_code is None
    assert apps.lines(handle, follow=True) == ["up"]


def test_a_preempted_app_is_warned_and_goes_on_later(apps):
    """It sees should_stop(), or SIGTERM where no signal was asked for; its restarts count on."""
    options = {"exclusive": True, "requeue": True}
    polite = apps.submit(apps.program(STOPS), **options, nodelist="n1")
    trap = "trap 'echo saved; exit 1' TERM; echo restart $$PHALANX_RESTART_COUNT; "
    rough = apps.submit(
        trap + "[ $$PHALANX_RESTART_COUNT = 1 ] || while :; do sleep 0.1; done",
        **options,
        nodelist="n2",
        signal="0",
    )
    for handle in (polite, rough):
        apps.until_line(handle, "restart 0")
    first = apps.submit(
        apps.app("true", num_replicas=2), partition="high", exclusive=True, nodelist="n[1-2]"
    )
    apps.wait(first, AppState.SUCCEEDED)
    for handle in (polite, rough):
        assert apps.finish(handle).num_restarts == 1
    assert apps.lines(polite) == ["restart 0", "stopped", "restart 1", "done"]
    assert apps.lines(rough, stream=Stream.STDOUT) == ["restart 0", "saved", "restart 1"]


def test_an_app_outlives_the_controller(apps, questions, monkeypatch, caplog):
    """While it is down, status and logs are there from the files, and say so; so is the end.

    What is submitted meanwhile waits for it, a while; however much that is, nobody asks it more
    often.
    """
    go = apps.place / "go"
    handle = apps.submit(f"echo up; until [ -e {go} ]; do sleep 0.1; done; echo end; exit 3")
    apps.until_line(handle, "up")
    apps.wait(handle, AppState.RUNNING)
    apps.slurm.stop_controller()
    with ThreadPoolExecutor(4) as pool:
        try:
            with monkeypatch.context() as impatient:
                impatient.setattr(slurm_controller, "UNREACHABLE_FOR", 0.0)
                refused = pool.submit(apps.submit, "true")  # it takes Slurm some seconds to be sure
                wait_until(lambda: "Slurm does not answer" in apps.status(handle).message, 30)
                assert apps.status(handle).state is AppState.RUNNING
                with pytest.raises(SchedulerError, match="does not answer: Unable to contact slur"):
                    refused.result()
            late = [pool.submit(apps.submit, "true") for _ in range(4)]
            go.touch()
            status = wait_until(lambda: (s := apps.status(handle)).state.is_final and s, 30)
            assert (status.state, status.exit_code) == (AppState.FAILED, 3)
            assert apps.lines(handle, follow=True) == ["up", "end"]
            wait_until(lambda: caplog.text.count("trying for 60 s") == 4, 60)
            pings = questions().count("scontrol")
            wait_until(lambda: questions().count("scontrol") > pings, 30)
        finally:
            apps.slurm.start_controller()
            wait_until(lambda: "is UP" in apps.slurm.run("scontrol", "ping", check=False), 30)
        for one in late:
            apps.wait(one.result(), AppState.SUCCEEDED)


def test_a_lost_host_fails_an_app_or_has_it_start_again(apps):
    """As was asked for, once Slurm has noticed by itself; the others' replicas are not left
    running.
    """
    app = apps.app("echo up; [ $$PHALANX_RESTART_COUNT = 1 ] || sleep 600", num_replicas=2)
    again = apps.submit(app, requeue=True, exclude="n4")
    apps.until_line(again, "up")
    lost = wait_until(lambda: apps.status(again).roles[0].replicas[1].hostname, 30)
    never = apps.submit(apps.app("echo up; sleep 600"), nodelist=lost)
    apps.until_line(never, "up")
    apps.slurm.lose_host(lost)
    try:
        status = apps.wait(never, AppState.FAILED)
        assert status.message == "Slurm lost a node of the job"
        assert apps.finish(again).num_restarts == 1
        assert lost not in {r.hostname for r in apps.status(again).roles[0].replicas}
    finally:
        apps.slurm.mend_hosts()


def test_roles_start_again_together(apps):
    """A job of several components is requeued as a whole, and counts on."""
    # A shell that waits for another program may tell of its end.
    command = (
        "echo restart $$PHALANX_RESTART_COUNT; [ $$PHALANX_RESTART_COUNT = 1 ] || exec sleep 600"
    )
    roles = [Role(name, entrypoint="sh", args=["-c", command]) for name in ("reader", "trainer")]
    handle = apps.submit(AppDef("app", roles), requeue=True)
    for role in ("reader", "trainer"):
        wait_until(lambda: apps.lines(handle, role) == ["restart 0"], 90)  # noqa: B023
    apps.slurm.run("scontrol", "requeue", apps.job(handle))
    assert apps.finish(handle).num_restarts == 1
    for role in ("reader", "trainer"):
        assert apps.lines(handle, role) == ["restart 0", "restart 1"]


def test_a_failed_replica_is_named_with_its_error(apps):
    """And the others end with it."""
    (apps.place / "program.py").write_text(
        "import os\nif os.environ['PHALANX_REPLICA_ID'] == '1':\n    raise ValueError('no')\nimport time\ntime.sleep(600)\n"
    )
    role = Role("role", entrypoint="python", args=["program.py"], num_replicas=2)
    status = apps.wait(apps.submit(AppDef("app", [role]), nodelist="n[1-2]"), AppState.FAILED)
    assert status.message == "role/1 on n2 exited with code 1: ValueError: no"
    assert [r.state for r in status.roles[0].replicas] == [AppState.CANCELLED, AppState.FAILED]


def test_an_app_at_its_time_limit_fails_or_goes_on_later(apps, limited):
    """As was asked for: it sees should_stop() some time before."""
    again, never = limited
    apps.until_line(again, "stopped", 100)
    status = apps.finish(again)
    assert apps.lines(again) == ["restart 0", "stopped", "restart 1", "done"]
    assert status.num_restarts == 1
    status = apps.wait(never, AppState.FAILED, 110)
    assert status.message.startswith("the time limit was reached")


@pytest.mark.parametrize(
    ("trouble", "code", "state"),
    [("full", 0, "SUCCEEDED"), ("full", 3, "FAILED"), ("read-only", 3, "FAILED")],
)
def test_a_disk_that_is_full_in_the_end_does_not_lose_it(apps, tmp_path, trouble, code, state):
    """Room is kept for what replicas say; nothing half-written stays. Otherwise Slurm says it."""
    disk = Disk(tmp_path / "disk", "256k")
    try:
        go = apps.place / "go"  # the project is copied to the job's directory
        program = f"echo up; while [ ! -e {go} ]; do sleep 0.05; done; exit {code}"
        handle = apps.submit(program, job_dir=str(disk.path))
        wait_until(lambda: any("up" in p.read_text() for p in disk.path.rglob("stdout.log")))
        disk.harm(trouble)
        go.touch()
        status = apps.wait(handle, AppState[state], timeout=100)
        if trouble == "full":
            assert status.exit_code == code
        else:
            assert status.exit_code == 1
            assert "how the program ended (3)" in status.message, apps.slurm_log(handle)
        disk.repair()
        assert not [*disk.path.rglob("*.new"), *disk.path.rglob("*.reserve")] or trouble != "full"
    finally:
        disk.repair()
        for handle in apps.handles:
            apps.runner.delete(handle)
        disk.close()
