"""Containers as hosts of launches: every way to a host, and what is special of containers."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.transport import bundle, dial
from phalanx._launcher.transport.bundle import Bundle
from phalanx._launcher.transport.lease import lent_target
from phalanx._schedulers.docker import lease as docker_lease
from phalanx._schedulers.docker import labels, leftovers
from phalanx._schedulers.docker.request import user_name
from phalanx.schedulers import LeasePhase, LeaseRequest, create_scheduler
from tests import ways_to_hosts
from tests.cluster.docker import IMAGE, NO_SHELL, Engine
from tests.conftest import wait_until
from tests.ways_to_hosts import HostSuite, ReconnectSuite, Way


@pytest.fixture(autouse=True)
def leases(in_docker, monkeypatch):
    """Of what a test borrows, nothing may be left in the engine, which others use as well."""
    made = []
    create = docker_lease.DockerLease.__init__

    def note(lease, *args):
        create(lease, *args)
        made.append(lease.id)

    monkeypatch.setattr(docker_lease.DockerLease, "__init__", note)
    yield made
    wait_until(
        lambda: not any(left(in_docker, one) for one in made),
        message=f"left: {[left(in_docker, one) for one in made]}",
    )


def left(engine, lease):
    """The containers and networks of a lease."""
    mine = ("--filter", f"label=phalanx.lease={lease}", "-q")
    return [
        *engine.docker("ps", "-a", *mine).split(),
        *engine.docker("network", "ls", *mine).split(),
    ]


@pytest.fixture
def launcher():
    def make(num_hosts=2, **options):
        options = {"workers_per_host": 1, "image": IMAGE, **options}
        return phalanx.Launcher(scheduler="local_docker", num_hosts=num_hosts, **options)

    return make


@pytest.fixture
def way():
    with lent_way() as made:
        yield made


@contextlib.contextmanager
def lent_way():
    """The way to a container of the engine that clients in this process find."""
    scheduler = create_scheduler("local_docker", "tests")
    lease = scheduler.lend(LeaseRequest("hosts", 1, scheduler.options(), IMAGE))
    try:
        wait_until(lambda: lease.status().phase is LeasePhase.READY, 60, lease.status())
        (host,) = lease.status().hosts
        yield _way(host)
    finally:
        lease.give_back()


def _way(host):
    target = lent_target(host, ("python3",))
    nowhere = docker_lease.LentHost("nowhere", docker_lease.exec_command("nowhere"))
    return Way(target, lent_target(nowhere, ("python3",)), "[Nn]o such container")


class TestDockerExec(HostSuite, ReconnectSuite):
    """A command by `docker exec`."""


def test_output_that_nobody_takes_is_bounded_on_disk(way, in_docker, monkeypatch):
    """What is within the limit waits in files, and none of it is lost; the rest is counted."""
    limit, portion, portions = 32 << 20, 16 << 20, 6
    code = bundle.make_bundle().files
    wire = "phalanx/_wire/frames.py"
    smaller = code[wire].replace(b"LOG_CAP = 4 << 30", b"LOG_CAP = %d" % limit)
    assert smaller != code[wire]
    monkeypatch.setattr(bundle, "make_bundle", lambda: Bundle.of({**code, wire: smaller}))
    reattach, is_back = dial.reattach, threading.Event()
    back = lambda *words: reattach(*words) if is_back.is_set() else ways_to_hosts._refuse(way)
    monkeypatch.setattr(dial, "reattach", back)

    def work():
        print("here", flush=True)
        while not os.path.exists("/tmp/is-broken"):
            time.sleep(0.05)
        for number in range(portions):
            os.write(1, b"%1023d\n" % number * (portion >> 10))
            while os.fstat(1).st_blocks * 512 > limit + (1 << 20):
                time.sleep(0.05)
        Path("/tmp/is-printed").touch()

    on_host = lambda *words: in_docker.docker("exec", way.target.name, *words)
    with ways_to_hosts.cuttable(way, work, reconnect_timeout=300.0) as (app, cut):
        logs = app.logs(follow=True)
        assert next(logs).text == "here"
        cut()
        on_host("touch", "/tmp/is-broken")
        is_printed = lambda: "is-printed" in on_host("ls", "/tmp")
        wait_until(is_printed, 60, "more is kept than the limit")
        is_back.set()
        *whole, cut_off, marker = (line.text for line in logs)
        app.result(60)
    numbers = [int(text) for text in whole]
    assert numbers == [number * 1024 // portion for number in range(len(numbers))]
    came = len("here\n") + 1024 * len(whole) + len(cut_off)
    assert came == limit
    left_out = len("here\n") + portions * portion - limit
    assert marker == f"[phalanx: {left_out} bytes left out: over the limit for one rank]"


def test_without_dockers_command_the_api_leads_there(way, monkeypatch, tmp_path):
    """Every byte both ways, and the exit code."""
    monkeypatch.setattr(docker_lease.shutil, "which", lambda name: None)
    command = [*docker_lease.exec_command(way.target.name), "sh", "-c", "cat; echo e >&2; exit 3"]
    data = os.urandom(1 << 20)
    done = subprocess.run(command, input=data, capture_output=True, check=False, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (data, b"e\n", 3)


def test_values_exceptions_and_logs_come_home(launcher, capfd):
    """From an image with nothing but Python."""

    def work(value):
        import socket

        print("hello from", os.environ["RANK"])
        if value == 13:
            raise ValueError("unlucky")
        return socket.gethostname(), value

    found = list(launcher().run(work, {"value": 1}))
    assert len({name for name, _ in found}) == 2
    assert "hello from 0" in capfd.readouterr().out
    with pytest.raises(ValueError, match="unlucky"):
        launcher().run(work, {"value": 13})


def test_the_command_runs_a_function_in_containers(in_docker, tmp_path):
    """As docs/docker.md has it, with another image."""
    page = Path(__file__).parents[2] / "docs" / "docker.md"
    command = re.search(r"^phalanx (launch .*--image .*)$", page.read_text(), re.MULTILINE)[1]
    words = command.replace("pytorch/pytorch", IMAGE).split()
    (tmp_path / "train.py").write_text("import os\n\ndef train():\n    return os.environ['RANK']\n")
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", *words],
        cwd=tmp_path,
        env=in_docker.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [f"rank {i}: '{i}'" for i in range(8)], done.stderr


def test_what_a_launch_keeps_to_itself_is_not_to_be_inspected(launcher, in_docker):
    """Variables of workers, and what proves that a launcher is the same one: in no argument, too."""

    def work():
        import socket

        print(socket.gethostname(), os.environ["TEST_TOKEN"], flush=True)
        time.sleep(600)

    made = launcher(1, extra_env_vars={"TEST_TOKEN": "very-secret"}, reconnect_timeout=20.0)
    app = made.start(work)
    try:
        name, said = next(app.logs(follow=True)).text.split()
        assert said == "very-secret"
        (known,) = json.loads(in_docker.docker("inspect", name))
        (image,) = json.loads(in_docker.docker("inspect", IMAGE))
        assert known["Config"]["Env"] == image["Config"]["Env"]
        assert known["Config"]["Labels"].keys() == {"phalanx.lease", "phalanx.user"}
        arguments = in_docker.docker("top", name, "-ww", "-o", "pid,args")
        assert "phalanx" in arguments
        assert "very-secret" not in json.dumps(known) + arguments
        assert not re.search(r"[0-9a-f]{32}|\w{43}", arguments)
    finally:
        app.cancel()


def test_one_lease_for_all_runs_of_a_with(launcher):
    """The same containers, and the same agents."""

    def where():
        import socket

        return socket.gethostname(), os.getppid()

    with launcher() as warm:
        assert list(warm.run(where)) == list(warm.run(where))


def restarting():
    """Work that waits in the first round; made here, since containers do not have this module."""

    def work():
        import socket

        print("on", socket.gethostname(), flush=True)
        if phalanx.context().restart_count == 0:
            time.sleep(120)
        return socket.gethostname()

    return work


def test_a_container_that_dies_is_replaced(launcher, in_docker, tmp_path):
    """With elastic options; its network is the same."""
    app = launcher(max_restarts=3).start(restarting())
    lines = app.logs(follow=True)
    names = {next(lines).text.split()[1] for _ in range(2)}
    first = min(names)
    subprocess.run(["docker", "kill", first], env=in_docker.environ, check=True)
    found = set(app.result(110))
    assert first not in found
    assert len(found) == 2


def test_a_container_that_is_paused_for_a_while_is_not_lost(launcher, in_docker):
    """One that stays so is, after `host_timeout`, and is replaced."""
    options = {"max_restarts": 1, "host_timeout": 4.0, "reconnect_timeout": 1.0}
    app = launcher(1, **options).start(restarting())
    name = next(app.logs(follow=True)).text.split()[1]
    in_docker.docker("pause", name)
    in_docker.docker("unpause", name)
    assert app.status().state is phalanx.AppState.RUNNING
    in_docker.docker("pause", name)
    (found,) = app.result(100)
    assert found != name


def test_a_worker_that_takes_more_memory_than_its_container_has_is_said_to_have_done_so(launcher):
    """As the kernel has counted it."""
    made = launcher(1, scheduler_options={"mem": "96m"})
    with pytest.raises(phalanx.WorkerFailed, match="killed by SIGKILL: out of memory"):
        made.run(bytearray, args=(400 << 20,))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"image": None}, "needs an image"),
        ({"image": "no/such:1", "scheduler_options": {"pull": "never"}}, "no/such:1"),
        ({"scheduler_options": {"gpus": 1}}, "GPUs"),
        ({"scheduler_options": {"network": "nowhere"}}, "nowhere"),
        ({"scheduler_options": {"user": "nobody-there"}}, "no user 'nobody-there'"),
    ],
)
def test_what_cannot_be_had_is_said_in_a_sentence(launcher, options, says):
    """At once, and nothing is left."""
    with pytest.raises((phalanx.SchedulerError, phalanx.ConfigError), match=says) as caught:
        launcher(**options).run(time.time)
    assert "Traceback" not in str(caught.value)


def test_another_user_of_the_image(launcher):
    """One that has no home, nor a name."""
    made = launcher(1, scheduler_options={"user": "12345:12345"})
    assert list(made.run(os.getuid)) == [12345]


def test_a_read_only_root(launcher):
    """All but /tmp, which the agent needs."""

    def work():
        import tempfile

        return os.access("/", os.W_OK), tempfile.gettempdir()

    made = launcher(1, scheduler_options={"read_only": True})
    assert list(made.run(work)) == [(False, "/tmp")]


@pytest.mark.parametrize(
    ("lacks", "says"),
    [(NO_SHELL, "no program '/bin/sh'"), ("rm /usr/bin/python3*", "no .*python3 found")],
)
def test_an_image_without_a_shell_or_python_is_one_sentence(launcher, in_docker, lacks, says):
    """Both are needed for functions."""
    name = f"phalanx-tests/without-{len(lacks)}:1"
    in_docker.docker("build", "-t", name, "-", input=f"FROM {IMAGE}\nRUN {lacks}\n")
    with pytest.raises((phalanx.SchedulerError, phalanx.StartFailed), match=says) as caught:
        launcher(1, image=name).run(int)
    assert "\n" not in str(caught.value)


def test_an_image_with_another_python_is_one_sentence(launcher, in_docker, tmp_path):
    """Code cannot be carried between them."""
    if shutil.which("pypy3") is None:
        pytest.skip("pypy3 is not installed; 'make test SYSTEM=1' does it")
    listed = subprocess.run(
        ["dpkg", "-L", "pypy3", "pypy3-lib"], capture_output=True, text=True, check=True
    )
    wanted = [path for path in listed.stdout.split() if path.startswith(("/usr/lib", "/usr/bin"))]
    with tarfile.open(tmp_path / "context.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for path in dict.fromkeys(wanted):
            if not path.endswith(".pyc"):
                tar.add(path, f"pypy{path}", recursive=False)
        recipe = f"FROM {IMAGE}\nCOPY pypy /\nRUN cd /usr/bin; rm python3*; ln -s pypy3 python3\n".encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(recipe)
        tar.addfile(entry, io.BytesIO(recipe))
    with open(tmp_path / "context.tar") as context:
        in_docker.docker("build", "-t", "phalanx-tests/pypy:1", "-", stdin=context)
    with pytest.raises(
        phalanx.StartFailed, match=r"its Python is 3\.\d+.*the launcher's is 3"
    ) as no:
        launcher(1, image="phalanx-tests/pypy:1").run(int)
    assert "\n" not in str(no.value)


def test_a_full_disk_is_said(launcher):
    """Where the container can be written to at all."""
    only = {"read_only": True, "user": "12345", "env": {"TMPDIR": "/dev/shm"}}  # noqa: S108
    with pytest.raises(phalanx.StartFailed, match="No space left on device") as caught:
        launcher(1, scheduler_options={**only, "shm_size": "1m"}).run(int)
    assert "Traceback" not in str(caught.value)


def test_where_only_memory_can_be_written_to(launcher):
    """As $TMPDIR says."""
    options = {"read_only": True, "user": "12345", "env": {"TMPDIR": "/dev/shm"}}  # noqa: S108
    made = launcher(1, scheduler_options=options)
    assert list(made.run(os.getenv, args=("TMPDIR",))) == ["/dev/shm"]


def test_a_killed_launcher_leaves_no_container(script, in_docker, monkeypatch, tmp_path):
    """The agents end, and the containers after them, within a minute; the next lease does more."""
    monkeypatch.setenv("LOGNAME", tmp_path.name)  # or it would remove what others just make
    started = script.start(
        f"""
        import time, phalanx
        phalanx.Launcher(
            scheduler="local_docker", num_hosts=2, image={IMAGE!r}, workers_per_host=1,
            reconnect_timeout=1, name="killed",
        ).run(time.sleep, args=(600,))
        """
    )
    containers = lambda: in_docker.docker("ps", "-aq", "--filter", "name=killed").split()
    networks = lambda: in_docker.docker("network", "ls", "-q", "--filter", "name=killed").split()
    wait_until(
        lambda: sum("rank" in in_docker.docker("top", c, check=False) for c in containers()) == 2,
        60,
    )
    started.send_signal(signal.SIGKILL)
    started.communicate()
    wait_until(lambda: not containers(), 60)
    assert networks()
    # Another was killed after it had created a container, and before it could start it.
    own = f"{labels.LEASE}=killed-1", f"{labels.USER}={user_name()}"
    given = [word for label in own for word in ("--label", label)]
    in_docker.docker("create", "--name", "killed-1", *given, IMAGE, "true")
    monkeypatch.setattr(leftovers, "_YOUNG", 0.0)
    phalanx.launch(int, scheduler="local_docker", image=IMAGE, workers_per_host=1)
    assert not networks()
    assert not containers()


@pytest.fixture
def own_engine(docker, monkeypatch):
    """An engine that the test may stop."""
    engine = Engine()
    for name in ("DOCKER_HOST", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, engine.environ[name])
    yield engine
    engine.close()


def test_containers_that_end_with_their_engine_are_replaced_when_it_is_back(launcher, own_engine):
    """With elastic options."""
    app = launcher(2, max_restarts=3, reconnect_timeout=1.0).start(restarting())
    next(app.logs(follow=True))
    own_engine.stop(kill=True)
    own_engine.start()
    assert len(set(app.result(100))) == 2


def test_an_engine_that_does_not_come_back_is_a_lost_host(launcher, own_engine):
    """At once, unless it is to be waited for; nothing is left when it is there again."""
    for options, says in (({}, "docker exited with code"), ({"reconnect_timeout": 2.0}, "failed")):
        app = launcher(1, **options).start(restarting())
        name = next(app.logs(follow=True)).text.split()[1]
        own_engine.stop(kill=True)
        with pytest.raises(phalanx.AgentLost, match=says) as lost:
            app.result(110)
        assert lost.value.hostname == name
        assert "Traceback" not in str(lost.value)
        own_engine.start()
        wait_until(lambda: not own_engine.docker("ps", "-aq"), 60)


@pytest.mark.parametrize("has_command", [True, False])
def test_a_function_does_not_notice_an_engine_that_hangs(
    launcher, own_engine, monkeypatch, caplog, has_command
):
    """For longer than `host_timeout`, whether docker's command leads there or ours."""
    if not has_command:
        monkeypatch.setattr(docker_lease.shutil, "which", lambda name: None)

    def count():
        for number in range(100):
            print(number, flush=True)
            time.sleep(0.1)
        return phalanx.context().restart_count

    app = launcher(2, host_timeout=2.0, reconnect_timeout=100.0).start(count)
    lines = app.logs(follow=True)
    seen = [next(lines)]
    own_engine.hang()
    try:
        wait_until(lambda: caplog.text.count("reconnecting for up to 100 s") == 2)
    finally:
        own_engine.go_on()
    assert list(app.result(110)) == [0, 0]
    seen += lines
    for rank in (0, 1):
        told = [int(line.text) for line in seen if line.rank == rank]
        assert told == list(range(100))
