"""`local_docker` beyond the suite, on a real engine: what goes wrong, and what is left."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from phalanx import specs
from phalanx._cli.commands import clean
from phalanx._schedulers.docker import engine as docker_engine
from phalanx._schedulers.docker import leftovers
from phalanx._schedulers.docker.engine import Engine as DockerEngine
from phalanx._schedulers.docker.gpus import find_used
from phalanx.errors import ConfigError, SchedulerError
from phalanx.runner import get_runner
from phalanx.schedulers import create_scheduler
from phalanx.specs import AppDef, AppState, Resource, RetryPolicy, Role
from tests.cluster.docker import IMAGE, NO_SHELL, Engine
from tests.conftest import wait_until

QUICK = {"pull": "never", "stop_grace": 1.0}
SMALL = Resource(cpu=1, gpu=0, memMB=256)


class Apps:
    """Apps of one test, through the scheduler itself: without a workspace, nothing is built."""

    def __init__(self, session):
        self.scheduler = create_scheduler("local_docker", session)
        self.submitted = []

    def submit(self, app, **options):
        made = self.scheduler.options(**{**QUICK, **options})
        self.submitted.append(self.scheduler.submit(self.scheduler.dryrun(app, made)))
        return self.submitted[-1]

    def status(self, app_id):
        return self.scheduler.describe(app_id)

    def ended(self, app_id, timeout=60):
        final = lambda: (s := self.status(app_id)).state.is_final and s
        return wait_until(final, timeout, f"{app_id} has not ended")

    def run(self, app, **options):
        return self.ended(self.submit(app, **options))

    def lines(self, app_id, role="role", replica=0, **options):
        return [line.text for line in self.scheduler.logs(app_id, role, replica, **options)]

    def delete(self):
        for app_id in self.submitted:
            self.scheduler.delete(app_id)


@pytest.fixture
def apps(in_docker, tmp_path):
    made = Apps(f"session-of-{tmp_path.name}")
    yield made
    made.delete()


@pytest.fixture
def own_engine(docker, monkeypatch, tmp_path):
    """An engine that the test may stop, and apps on it."""
    engine = Engine()
    for name in ("DOCKER_HOST", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, engine.environ[name])
    yield engine, Apps("restarts")
    engine.close()


def sh(command, **fields):
    fields = {"resource": SMALL, "image": IMAGE, **fields}
    return AppDef("app", [Role("role", entrypoint="sh", args=["-c", command], **fields)])


def container(docker, app_id, replica=0, role=None):
    filters = [f"label=phalanx.app={app_id}", f"label=phalanx.replica={replica}"]
    if role is not None:
        filters.append(f"label=phalanx.role={role}")
    words = [word for f in filters for word in ("--filter", f)]
    return docker.docker("ps", "-aq", "--no-trunc", *words).split()[0]


def inspect(docker, app_id, replica=0):
    return json.loads(docker.docker("inspect", container(docker, app_id, replica)))[0]


# ── no engine, no image, no program ───────────────────────────────────────────


def test_an_engine_that_is_not_there_is_said_with_the_next_command(tmp_path, monkeypatch):
    place = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{place}")
    scheduler = create_scheduler("local_docker", "test")
    with pytest.raises(SchedulerError, match="no Docker engine at .*systemctl start docker"):
        scheduler.describe("x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(place))
    with pytest.raises(SchedulerError, match="does not answer .*systemctl restart docker"):
        scheduler.list()
    code = f"""if True:
        import os
        from phalanx.schedulers import create_scheduler
        os.chmod({str(place)!r}, 0o600)
        scheduler = create_scheduler("local_docker", "test")
        for user in (0, 65534):  # whose interpreter others may not be able to read
            os.seteuid(user)
            try:
                scheduler.cancel("x")
            except Exception as error:
                told = f"{{type(error).__name__}} {{error}}"
        print(told)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("SchedulerUnreachable permission denied: ")
    assert "usermod -aG docker" in done.stdout


def test_without_the_client_the_extra_is_named_and_options_are_listed(monkeypatch):
    monkeypatch.setitem(sys.modules, "docker", None)
    scheduler = create_scheduler("local_docker", "test")
    request = scheduler.dryrun(sh("true"), scheduler.options())
    with pytest.raises(ConfigError, match=r"pip install 'phalanx\[docker\]'"):
        scheduler.submit(request)


def test_a_missing_image_is_said_before_anything_is_made(apps, docker):
    with pytest.raises(SchedulerError, match="no image 'no/such:1'.*docker pull no/such:1"):
        apps.submit(sh("true", image="no/such:1"))
    with pytest.raises(SchedulerError, match="cannot pull it"):
        apps.submit(sh("true", image="127.0.0.1:1/no/such:1"), pull="missing")
    with pytest.raises(SchedulerError, match=f"cannot pull it.*docker pull {IMAGE}"):
        apps.submit(sh("true"), pull="always")  # though it is there
    with pytest.raises(ConfigError, match="role 'role' has no image .*--image"):
        apps.submit(sh("true", image=""))


def test_a_program_that_the_image_lacks(apps):
    app = AppDef("app", [Role("role", image=IMAGE, entrypoint="nothing-here", resource=SMALL)])
    status = apps.run(app)
    assert status.state is AppState.FAILED
    assert f"the image {IMAGE} has no program 'nothing-here'" in status.message


def test_an_image_without_python(apps, docker):
    bare = "phalanx-tests/no-python:1"
    recipe = f"FROM {IMAGE}\nRUN rm /usr/bin/python3*\n"
    docker.docker("build", "-t", bare, "-", input=recipe)
    app = AppDef("app", [Role("role", image=bare, entrypoint="python", resource=SMALL)])
    assert "has no program 'python3'" in apps.run(app).message


def test_gpus_that_the_engine_does_not_have_are_one_sentence(apps):
    status = apps.run(sh("true", resource=Resource(cpu=1, gpu=1, memMB=256)))
    assert status.state is AppState.FAILED
    assert "cannot give GPUs" in status.message
    assert "nvidia-ctk runtime configure" in status.message
    assert "\n" not in status.message


def test_gpus_of_apps_and_launches_that_go_on_are_used(apps, docker):
    """As their labels tell; the engine here has none to give."""
    request = apps.scheduler.dryrun(sh("true"), apps.scheduler.options(**QUICK))
    of_app = {**request.containers[0].config["Labels"], "phalanx.gpus": "0,2"}
    of_lease = {"phalanx.lease": f"lease-{request.app_id}", "phalanx.gpus": "1"}
    made = []
    try:
        for own in (of_app, of_lease):
            words = [word for item in own.items() for word in ("--label", "=".join(item))]
            made += docker.docker("run", "--detach", *words, IMAGE, "sleep", "infinity").split()
        with DockerEngine() as engine:
            used = find_used(engine)
            assert {n: used[n] for n in "012"} == {
                "0": request.app_id,
                "1": f"lease-{request.app_id}",
                "2": request.app_id,
            }
            docker.docker("kill", made[0])
            assert not {"0", "2"} & set(find_used(engine))
    finally:
        docker.docker("rm", "-f", *made)


def test_a_read_only_root(apps):
    """All but /tmp, where the error is read from."""
    error = {"message": {"message": "ValueError: from the file", "extraInfo": {}}}
    command = f"touch /new 2>/dev/null || echo '{json.dumps(error)}' >$$TORCHELASTIC_ERROR_FILE; "
    status = apps.run(sh(command + "exit 7"), read_only=True, user="nobody")
    assert status.message == "role/0 exited with code 7: ValueError: from the file"


def test_an_image_without_a_shell(apps, docker):
    """A program needs none."""
    bare = "phalanx-tests/no-shell:1"
    docker.docker("build", "-t", bare, "-", input=f"FROM {IMAGE}\nRUN {NO_SHELL}\n")
    role = Role("role", image=bare, entrypoint="python", args=["-c", "print(1)"], resource=SMALL)
    app_id = apps.submit(AppDef("app", [role]))
    assert apps.ended(app_id).state is AppState.SUCCEEDED
    assert apps.lines(app_id) == ["1"]
    assert "has no program 'sh'" in apps.run(sh("true", image=bare)).message


def test_a_full_disk_is_the_replicas_error(apps):
    status = apps.run(sh("cat /dev/zero >/dev/shm/all"), shm_size="1m")
    assert status.message == (
        "role/0 exited with code 1: cat: write error: No space left on device"
    )


def test_what_cannot_be_started_is_said_in_words(apps):
    assert "has no user 'nobody-here'" in apps.run(sh("true"), user="nobody-here").message
    assert "docker network create gone" in apps.run(sh("true"), network="gone").message
    with pytest.raises(SchedulerError, match="there is no /no/such/path"):
        mount = specs.BindMount("/no/such/path", "/there")
        apps.submit(sh("true", mounts=[mount]))


# ── what containers are given ─────────────────────────────────────────────────


def test_limits_mounts_devices_user_and_shared_memory(apps, docker, tmp_path):
    (tmp_path / "file").write_text("bound\n")
    tmp_path.chmod(0o755)
    mounts = [
        specs.BindMount(str(tmp_path), "/bound", read_only=True),
        specs.VolumeMount(f"volume-{tmp_path.name}", "/volume"),
        specs.DeviceMount("/dev/null", "/dev/nothing", "r"),
    ]
    command = "cat /bound/file; touch /bound/new 2>/dev/null || echo read-only; id -un; "
    command += "ls -d /volume /dev/nothing; df -k --output=size /dev/shm | tail -n 1; pwd"
    resource = Resource(cpu=0.5, gpu=0, memMB=300)
    app_id = apps.submit(sh(command, mounts=mounts, resource=resource), user="user", shm_size="64m")
    assert apps.ended(app_id).state is AppState.SUCCEEDED
    printed = apps.lines(app_id)
    assert [line.strip() for line in printed] == [
        *("bound", "read-only", "user", "/dev/nothing", "/volume", str(64 << 10), "/"),
    ]
    host = inspect(docker, app_id)["HostConfig"]
    assert (host["NanoCpus"], host["Memory"]) == (500_000_000, 300 << 20)
    apps.delete()
    docker.docker("volume", "rm", f"volume-{tmp_path.name}")  # the user's own: it was left


def test_privileged_containers_have_all_rights(apps, docker):
    """As far as this machine has them."""
    given = {}
    for privileged in (False, True):
        app_id = apps.submit(sh("grep CapBnd /proc/self/status"), privileged=privileged)
        apps.ended(app_id)
        assert inspect(docker, app_id)["HostConfig"]["Privileged"] is privileged
        given[privileged] = int(apps.lines(app_id)[0].split()[1], 16)
    assert given[True] & given[False] == given[False] != given[True]


def test_shared_memory_is_large_unless_it_is_said(apps, docker):
    app_id = apps.submit(sh("true"))
    assert inspect(docker, app_id)["HostConfig"]["ShmSize"] > 1 << 30


def test_a_port_is_published_on_this_machine(apps, docker):
    role = Role(
        "web",
        image=IMAGE,
        entrypoint="python",
        args=["-m", "http.server", "8123"],
        port_map={"http": 8123},
        resource=SMALL,
    )
    app_id = apps.submit(AppDef("app", [role]))
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8123').status)"
    answer = lambda: docker.inside("python3", "-c", code, check=False).strip() == "200"
    wait_until(answer, 30)
    again = apps.run(AppDef("app", [role]))
    assert "port 8123 of this machine is taken" in again.message
    apps.scheduler.cancel(app_id)


def test_replicas_reach_each_other_by_name_and_know_the_first(apps):
    command = "python3 -c 'import os, socket; print(socket.gethostname(), "
    command += 'socket.gethostbyname("role-1") != "", os.environ["PHALANX_RANK0_HOST"])\'; sleep 2'
    app_id = apps.submit(sh(command, num_replicas=2))
    assert apps.ended(app_id).state is AppState.SUCCEEDED
    assert apps.lines(app_id, replica=0) == ["role-0 True role-0"]
    assert apps.lines(app_id, replica=1) == ["role-1 True role-0"]


def test_a_network_of_the_users_and_the_hosts(apps, docker, tmp_path):
    name = f"net-{tmp_path.name}"
    docker.docker("network", "create", name)
    try:
        app_id = apps.submit(sh('echo "$$PHALANX_RANK0_HOST"; hostname'), network=name)
        assert apps.ended(app_id).state is AppState.SUCCEEDED
        first, own = apps.lines(app_id)
        assert first == own != "role-0"  # other apps are there as well
        host = apps.submit(sh('echo "$$PHALANX_RANK0_HOST $$PHALANX_RANK0_PORT"'), network="host")
        assert apps.ended(host).state is AppState.SUCCEEDED
        assert apps.lines(host)[0].startswith("localhost ")
        apps.delete()
        assert name in docker.docker("network", "ls", "--format", "{{.Name}}").split()
    finally:
        docker.docker("network", "rm", name)


def test_secrets_are_in_no_argument_label_or_dry_run(apps, docker, monkeypatch):
    monkeypatch.setenv("TEST_TOKEN", "very-secret")
    options = apps.scheduler.options(**QUICK, copy_env=["TEST_*"], env={"OTHER": "open"})
    request = apps.scheduler.dryrun(sh('echo "$$TEST_TOKEN $$OTHER"'), options)
    assert "very-secret" not in str(request) + repr(request)
    assert "TEST_TOKEN" in str(request)
    app_id = apps.scheduler.submit(request)
    apps.submitted.append(app_id)
    apps.ended(app_id)
    assert apps.lines(app_id) == ["very-secret open"]
    known = inspect(docker, app_id)
    shown = json.dumps([known["Config"]["Labels"], known["Args"], known["Path"], known["Name"]])
    assert "very-secret" not in shown


def test_the_variables_of_a_role_are_in_its_own_containers_alone(in_docker, tmp_path, monkeypatch):
    """Whatever else of the app is inspected: other roles, the image with the project, the volume."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "main.py").write_text("")
    secret = f"secret-of-{tmp_path.name}"
    holds = Role("holds", image=IMAGE, entrypoint="true", env={"TOKEN": secret}, resource=SMALL)
    other = Role("other", image=IMAGE, entrypoint="python", args=["-m", "phalanx", "version"])
    with get_runner("secrets") as runner:
        handle = runner.run(AppDef("app", [holds, other]), "local_docker", QUICK, str(tmp_path))
        try:
            assert runner.wait(handle, timeout=60).state is AppState.SUCCEEDED
            shows = lambda kind, name: secret in in_docker.docker(kind, "inspect", name)
            app_id = handle.rpartition("/")[2]
            ids = [container(in_docker, app_id, role=role) for role in ("holds", "other")]
            assert [shows("container", one) for one in ids] == [True, False]
            image = json.loads(in_docker.docker("inspect", ids[0]))[0]["Config"]["Image"]
            assert image != IMAGE
            assert not shows("image", image)
            assert secret not in in_docker.docker("history", "--no-trunc", image)
            assert not shows("network", app_id)
            assert not shows("volume", f"{app_id}-phalanx")
        finally:
            runner.delete(handle)


@pytest.mark.parametrize("read_only", [False, True])
def test_the_secret_of_an_apps_rendezvous_is_not_to_be_inspected(apps, docker, read_only):
    """Replicas have the same one, whoever they run as, and their retries have it, too."""
    command = "cat $$PHALANX_RDZV_TOKEN_FILE; echo; exit 3"
    app = sh(command, num_replicas=2, max_retries=1)
    app_id = apps.submit(app, user="12345", read_only=read_only)
    assert apps.ended(app_id).state is AppState.FAILED
    token, again = apps.lines(app_id)
    assert apps.lines(app_id, replica=1)[0] == again == token
    assert len(token) >= 32
    made = docker.docker("ps", "-aq", "--filter", f"label=phalanx.app={app_id}").split()
    assert token not in docker.docker("inspect", *made)


def test_names_of_every_kind(apps):
    odd = 'Ümläut "quoted" $HOME `id` \\ ; & | <> ! 字 😀 \' ' * 7
    roles = [
        Role(name, image=IMAGE, entrypoint="echo", args=[str(i)], resource=SMALL)
        for i, name in enumerate(["字字 😀 $$x ‘q’", "字字 😀 $$y ‘q’", "-" * 200, "A.b_c"])
    ]
    app_id = apps.submit(AppDef(odd[:300], roles))
    status = apps.ended(app_id)
    assert status.state is AppState.SUCCEEDED
    for i, role in enumerate(roles):
        assert apps.lines(app_id, role.name) == [str(i)]
    (listed,) = apps.scheduler.list()
    assert (listed.name, listed.seconds) == (odd[:300], status.seconds)


def test_fifty_replicas(apps):
    app_id = apps.submit(sh("echo ${replica_id}", num_replicas=50, resource=Resource(1, 0, 64)))
    assert apps.ended(app_id, 110).state is AppState.SUCCEEDED
    assert [apps.lines(app_id, replica=i) for i in range(50)] == [[str(i)] for i in range(50)]


# ── how replicas end ──────────────────────────────────────────────────────────


def test_the_first_error_of_a_worker_is_told_from_its_own_file(apps):
    error = {"message": {"message": "ValueError: from the file", "extraInfo": {}}}
    command = f"echo '{json.dumps(error)}' >\"$$TORCHELASTIC_ERROR_FILE\"; echo other >&2; exit 7"
    status = apps.run(sh(command), user="nobody")
    assert (status.exit_code, status.message) == (
        7,
        "role/0 exited with code 7: ValueError: from the file",
    )


def test_out_of_memory_is_said_as_such(apps):
    role = Role("role", image=IMAGE, entrypoint="python", args=["-c", "bytearray(400 << 20)"])
    role = specs.Role(**{**vars(role), "resource": Resource(cpu=1, gpu=0, memMB=64)})
    status = apps.run(AppDef("app", [role]))
    assert status.message == "role/0 was killed by SIGKILL: out of memory: its limit is 64 MB"
    assert status.exit_code == 137


def test_a_killed_container_fails_the_app_and_ends_the_others(apps, docker):
    app_id = apps.submit(sh("echo up; exec sleep 600", num_replicas=3))
    wait_until(lambda: apps.lines(app_id, replica=1) == ["up"])
    docker.docker("kill", container(docker, app_id, 1))
    status = apps.ended(app_id)
    assert status.message == "role/1 was killed by SIGKILL"
    states = [replica.state for replica in status.roles[0].replicas]
    assert states == [AppState.CANCELLED, AppState.FAILED, AppState.CANCELLED]


def test_a_paused_container_runs_and_can_be_cancelled(apps, docker):
    app_id = apps.submit(sh("echo up; sleep 600"))
    docker.docker("pause", container(docker, app_id))
    assert apps.status(app_id).state is AppState.RUNNING
    assert apps.lines(app_id) in (["up"], [])
    apps.scheduler.cancel(app_id)
    assert apps.status(app_id).state is AppState.CANCELLED


def test_a_removed_container_is_a_failure_that_says_so(apps, docker):
    app_id = apps.submit(sh("sleep 600", num_replicas=2))
    docker.docker("rm", "-f", container(docker, app_id, 0))
    status = apps.ended(app_id)
    assert status.message == "role/0 failed: its container was removed"


def test_a_long_line_and_one_without_an_end_are_whole(apps):
    command = "python3 -c \"import sys; sys.stdout.write('x' * 100000 + '\\n' + 'y' * 50000)\""
    app_id = apps.submit(sh(command))
    apps.ended(app_id)
    assert apps.lines(app_id) == ["x" * 100000, "y" * 50000]
    assert apps.lines(app_id, follow=True) == ["x" * 100000, "y" * 50000]


def test_a_killed_supervisor_is_replaced_by_who_looks(apps, docker):
    app_id = apps.submit(sh("exec sleep 600", num_replicas=2))
    (supervisor,) = wait_until(lambda: supervisors(app_id))
    os.kill(supervisor, 9)
    docker.docker("kill", container(docker, app_id, 1))
    assert apps.ended(app_id).message == "role/1 was killed by SIGKILL"


def supervisors(app_id):
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{entry}/status") as file:
                is_dead = "State:\tZ" in file.read()
        except OSError:
            continue
        if app_id.encode() in words and b"docker.supervisor" in b" ".join(words) and not is_dead:
            found.append(int(entry))
    return found


def test_nothing_is_left_by_delete(apps, docker):
    app = sh("exec sleep 600", num_replicas=2)
    phalanx = Role("agent", image=IMAGE, entrypoint="python", args=["-m", "phalanx", "version"])
    app_id = apps.submit(app.with_role(phalanx))
    wait_until(lambda: apps.lines(app_id, "agent"))
    before = docker.docker("volume", "ls", "-q")
    assert f"{app_id}-phalanx" in before
    apps.scheduler.delete(app_id)
    apps.scheduler.delete(app_id)
    for kind in ("container", "network", "volume"):
        listed = docker.docker(kind, "ls", *(["-a"] if kind == "container" else []))
        assert app_id not in listed
    wait_until(lambda: not supervisors(app_id))


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_network_that_is_left_late_is_waited_for(apps, docker, monkeypatch, is_gone):
    """By containers of ours that are gone already; who else is in it stays there."""
    monkeypatch.setattr(docker_engine, "_LEAVING", 1.0)
    app_id = apps.submit(sh("true"))
    apps.ended(app_id)
    other = docker.docker("run", "--detach", "--network", app_id, IMAGE, "sleep", "600").strip()
    inspect = DockerEngine.inspect
    if is_gone:
        monkeypatch.setattr(
            DockerEngine,
            "inspect",
            lambda engine, one: None if one == other else inspect(engine, one),
        )
        ender = threading.Timer(3.0, docker.docker, ["rm", "-f", other])
        ender.start()
        apps.scheduler.delete(app_id)
        ender.join()
    else:
        with pytest.raises(SchedulerError, match="active endpoints"):
            apps.scheduler.delete(app_id)
        assert other in docker.docker("ps", "-q", "--no-trunc")
        docker.docker("rm", "-f", other)
        docker.docker("network", "rm", app_id)
    assert app_id not in docker.docker("network", "ls")


def test_clean_removes_what_a_killed_submission_has_left(apps, docker, monkeypatch, tmp_path):
    """A network, a volume, and a container through which that is filled; nothing that is used."""
    user = tmp_path.name
    monkeypatch.setenv("LOGNAME", user)  # or it would remove what others just make
    monkeypatch.setattr(leftovers, "_YOUNG", 0.0)
    going = apps.submit(sh("exec sleep 600"))
    mine = ("--label", f"phalanx.user={user}")
    gone = (*mine, "--label", f"phalanx.app=gone-{user}")
    docker.docker("network", "create", *gone, f"gone-{user}")
    docker.docker("volume", "create", *gone, f"gone-{user}")
    docker.docker("volume", "create", *mine, f"theirs-{user}")
    docker.docker("create", *mine, "--label", "phalanx.filling=x", "--name", f"gone-{user}", IMAGE)
    assert clean.main([]) == 0
    for kind in ("container", "network", "volume"):
        listed = docker.docker(kind, "ls", *(["-a"] if kind == "container" else []))
        assert f"gone-{user}" not in listed
    assert apps.status(going).state is AppState.RUNNING
    assert going in docker.docker("network", "ls")
    docker.docker("volume", "rm", f"theirs-{user}")


def test_apps_of_another_user_are_not_listed_and_not_ended_by_mistake(apps, monkeypatch):
    """Their status and logs can be read; root may end them."""
    monkeypatch.setenv("LOGNAME", "alice")
    app_id = apps.submit(sh("echo up; exec sleep 600"))
    assert [app.app_id for app in apps.scheduler.list()] == [app_id]
    monkeypatch.setenv("LOGNAME", "bob")
    assert apps.scheduler.list() == []
    for end in (apps.scheduler.cancel, apps.scheduler.delete):
        with pytest.raises(SchedulerError, match=f"{app_id} is alice's app.*sudo phalanx"):
            end(app_id)
    assert apps.status(app_id).state is AppState.RUNNING
    wait_until(lambda: apps.lines(app_id) == ["up"])
    monkeypatch.setenv("LOGNAME", "root")
    apps.scheduler.cancel(app_id)
    assert apps.status(app_id).state is AppState.CANCELLED


def test_two_real_users_do_not_end_each_others_apps_by_mistake(own_engine, tmp_path):
    """One process for each, the second without the rights of root; both may use the engine."""
    engine, apps = own_engine
    app_id = apps.submit(sh("echo up; exec sleep 600"))
    wait_until(lambda: apps.lines(app_id) == ["up"])
    engine.socket.chmod(0o666)
    code = f"""if True:
        import os
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            os.environ.pop(name, None)
        from phalanx.schedulers import create_scheduler
        scheduler = create_scheduler("local_docker", "restarts")
        def use():
            print([app.app_id for app in scheduler.list()], scheduler.describe({app_id!r}).state.name)
            print([line.text for line in scheduler.logs({app_id!r}, "role", 0)])
        use()  # with all imported that is needed: others may not be able to read it
        os.setgroups([])
        os.setresuid(65534, 65534, 65534)
        use()
        for end in (scheduler.cancel, scheduler.delete):
            try:
                end({app_id!r})
            except Exception as error:
                print(type(error).__name__, error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    mine, _, theirs, read, *refused = done.stdout.splitlines()
    assert (mine, theirs) == (f"['{app_id}'] RUNNING", "[] RUNNING"), done.stderr
    assert read == "['up']"
    assert len(refused) == 2
    assert all(f"SchedulerError {app_id} is " in line and "'s app" in line for line in refused)
    assert apps.status(app_id).state is AppState.RUNNING
    apps.delete()


def test_the_engine_is_the_only_record(docker, tmp_path):
    """Whoever has submitted an app, with all that they have kept: others do all with it."""

    def say(home, *words):
        places = {"HOME": str(home), "XDG_STATE_HOME": str(home / "state")}
        done = subprocess.run(
            [sys.executable, "-m", "phalanx", *words],
            env={**docker.environ, **places, "LOGNAME": tmp_path.name},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    lost, other = tmp_path / "lost", tmp_path / "other"
    for home in (lost, other):
        home.mkdir()
    options = ("-cfg", "pull=never,stop_grace=1", "--workspace", "")
    said = say(
        *(lost, "run", "-s", "local_docker", *options, "utils.sh", "--image", IMAGE),
        *("--max_retries", "1", "echo up; exec sleep 600"),
    )
    (handle,) = re.findall(r"local_docker://\S+", said)
    app_id = handle.rpartition("/")[2]
    (supervisor,) = wait_until(lambda: supervisors(app_id))
    os.kill(supervisor, 9)
    shutil.rmtree(lost)
    assert app_id in say(other, "list", "-s", "local_docker")
    wait_until(lambda: "up" in say(other, "log", handle))
    docker.docker("kill", container(docker, app_id))
    wait_until(lambda: say(other, "log", handle).count("sh/0 up") == 2, 60, "no retry")
    say(other, "cancel", handle)
    assert "CANCELLED" in say(other, "status", handle)
    say(other, "delete", handle)
    for kind in ("container", "network", "volume"):
        listed = docker.docker(kind, "ls", *(["-a"] if kind == "container" else []))
        assert app_id not in listed


# ── the engine goes away ──────────────────────────────────────────────────────


def test_an_engine_that_restarts_knows_its_apps_and_retries_go_on(own_engine):
    engine, apps = own_engine
    ended = apps.submit(sh("echo done"))
    apps.ended(ended)
    command = "echo up; if [ -e /shared/again ]; then exit 0; fi; touch /shared/again; sleep 600"
    mounts = [specs.VolumeMount("shared", "/shared")]
    retried = apps.submit(sh(command, max_retries=1, mounts=mounts))
    failing = apps.submit(sh("echo up; exec sleep 600"))
    wait_until(lambda: apps.lines(failing) == apps.lines(retried) == ["up"])
    engine.stop(kill=True)
    with pytest.raises(SchedulerError):
        apps.status(failing)
    engine.start()
    assert apps.status(ended).state is AppState.SUCCEEDED
    assert apps.lines(ended) == ["done"]
    assert apps.ended(failing).state is AppState.FAILED
    status = apps.ended(retried)
    assert (status.state, status.num_restarts) == (AppState.SUCCEEDED, 1)
    assert apps.lines(retried) == ["up", "up"]
    apps.delete()
    wait_until(lambda: not supervisors(retried))


def test_with_live_restore_an_app_does_not_notice(own_engine):
    engine, apps = own_engine
    engine.stop()
    engine.start(**{"live-restore": True})
    command = "i=0; while [ $$i -lt 50 ]; do echo $$i; i=$$((i+1)); sleep 0.1; done"
    app_id = apps.submit(sh(command))
    lines = iter(apps.scheduler.logs(app_id, "role", 0, follow=True))
    first = next(lines)
    engine.stop(kill=True)
    engine.start(**{"live-restore": True})
    followed = [first.text, *(line.text for line in lines)]
    assert apps.ended(app_id).state is AppState.SUCCEEDED
    assert followed == apps.lines(app_id)
    assert followed == [str(i) for i in range(50)]
    apps.delete()


@pytest.mark.parametrize("shows", [False, True], ids=["waits", "follows"])
def test_a_command_that_waits_goes_on_when_its_engine_is_back(own_engine, tmp_path, shows):
    """With what engines keep through it; and says meanwhile why it is silent."""
    engine, apps = own_engine
    engine.stop()
    engine.start(**{"live-restore": True})
    command = "i=0; until [ -e /shared/end ]; do echo $$i; i=$$((i+1)); sleep 0.1; done"
    mounts = f"type=bind,src={tmp_path},dst=/shared"
    words = ("-cfg", "pull=never", "--workspace", "", "--wait", *(["--log"] if shows else []))
    with subprocess.Popen(
        [sys.executable, "-m", "phalanx", "run", "-s", "local_docker", *words]
        + ["utils.sh", "--image", IMAGE, "--mounts", mounts, command],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        handle = process.stdout.readline().strip()
        if shows:
            assert any("sh/0 0" in line for line in iter(process.stderr.readline, ""))
        engine.stop(kill=True)
        said = next(line for line in process.stderr if "asking again for up to 60 s" in line)
        assert "the Docker engine at" in said
        engine.start(**{"live-restore": True})
        (tmp_path / "end").touch()
        _, rest = process.communicate()
    assert process.returncode == 0, rest
    assert "asking again" not in rest
    name = handle.rpartition("/")[2]
    scheduler = create_scheduler("local_docker", "phalanx")
    assert [line.text for line in scheduler.logs(name, "sh", 0)][:3] == ["0", "1", "2"]
    scheduler.delete(name)


# ── through the runner ────────────────────────────────────────────────────────


@pytest.mark.parametrize("user", [None, "12345:12345"], ids=["root", "a user without a home"])
def test_ddp_forms_its_group_in_an_image_with_python_alone(in_docker, tmp_path, monkeypatch, user):
    """And prints nothing of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "project"
    project.mkdir()
    code = "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'], os.getcwd())"
    (project / "main.py").write_text(code)
    with get_runner("ddp") as runner:
        arguments = ["--image", IMAGE, "-j", "2x1", "--script", "main.py"]
        handle = runner.run_component(
            "dist.ddp", arguments, "local_docker", {**QUICK, "user": user}, str(project)
        )
        try:
            status = runner.wait(handle, timeout=90)
            assert status.state is AppState.SUCCEEDED, status
            printed = [line for i in (0, 1) for line in runner.log_lines(handle, "main", i)]
            ranks = sorted(line.rpartition("]:")[2] for line in printed)
            assert ranks == ["0 2 /workspace", "1 2 /workspace"]
        finally:
            runner.delete(handle)


def test_clean_deletes_what_has_ended_from_the_engine(in_docker, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with get_runner("clean") as runner:
        going, ended = (
            runner.run(sh(command), "local_docker", QUICK, workspace=str(tmp_path))
            for command in ("sleep 600", "true")
        )
        runner.wait(ended, timeout=60)
        clean = [sys.executable, "-m", "phalanx", "clean", "--older-than", "0"]
        done = subprocess.run(clean, capture_output=True, text=True, check=True)
        assert done.stdout == "1 app deleted\n"
        assert runner.status(ended) is None
        assert runner.status(going).state is AppState.RUNNING
        runner.delete(going)
