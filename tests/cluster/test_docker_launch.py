"""Functions in containers: `docker exec` passes what every way to a host must, and launches."""

import dataclasses
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

import phalanx
from phalanx._launcher.transport.lease import lent_target
from phalanx.errors import ConfigError, SchedulerError
from phalanx.schedulers import LeasePhase, LeaseRequest, create_scheduler
from tests.cluster.docker import IMAGE
from tests.conftest import wait_until
from tests.ways_to_hosts import HostSuite, Way

OPTIONS = {"image": IMAGE, "pull": "never"}


def launcher(**options):
    return phalanx.Launcher(scheduler="local_docker", scheduler_options=OPTIONS, **options)


def lent(docker):
    """The containers that are lent to anybody."""
    return docker.docker("ps", "-aq", "--no-trunc", "--filter", "label=phalanx.lease").split()


class TestDockerExec(HostSuite):
    """An exec in a container that a lease holds."""

    @pytest.fixture
    def way(self, in_docker):
        scheduler = create_scheduler("local_docker", "tests")
        lease = scheduler.lend(LeaseRequest("hosts", 1, scheduler.options(**OPTIONS)))
        try:
            wait_until(lambda: lease.status().phase is LeasePhase.READY, 30, lease.status())
            (host,) = lease.status().hosts
            target = lent_target(host, ("python3",))
            words = (*target.transport[:-1], "no-such-container")
            yield Way(
                target,
                dataclasses.replace(target, name="gone", transport=words),
                "No such container: no-such-container",
            )
        finally:
            lease.give_back()


def test_a_function_runs_in_containers_and_they_are_given_back(in_docker):
    before = lent(in_docker)

    def work(x):
        return socket.gethostname(), int(os.environ["RANK"]), x

    results = launcher(num_hosts=2, workers_per_host=2).run(work, {"x": [1]})
    assert list(results) == [(f"container-{rank // 2}", rank, [1]) for rank in range(4)]
    assert lent(in_docker) == before


def test_an_exception_comes_home(in_docker):
    def fail():
        raise KeyError("from a container")

    with pytest.raises(KeyError, match="from a container"):
        launcher().run(fail)


def test_containers_stay_between_the_runs_of_a_with(in_docker):
    def boot():
        return Path("/proc/1/stat").read_text().split()[21], os.getppid()

    with launcher() as warm:
        assert list(warm.run(boot)) == list(warm.run(boot))


def test_a_container_that_dies_is_replaced(in_docker, tmp_path):
    before = lent(in_docker)

    def work():
        print("up", flush=True)
        if socket.gethostname() == "container-0":
            threading.Event().wait(120)
        return socket.gethostname()

    app = launcher(max_restarts=2).start(work)
    assert next(app.logs(follow=True)).text == "up"
    (container,) = set(lent(in_docker)) - set(before)
    in_docker.docker("kill", container)
    assert list(app.result(100)) == ["container-1"]
    wait_until(lambda: lent(in_docker) == before)


def test_a_killed_launcher_leaves_no_container(in_docker, script):
    before = lent(in_docker)
    process = script.start(
        f"""
        import phalanx, time
        def work():
            print("up", flush=True)
            time.sleep(600)
        launcher = phalanx.Launcher(scheduler="local_docker", scheduler_options={OPTIONS!r})
        launcher.run(work)
        """
    )
    try:
        wait_until(lambda: "up" in process.stdout.readline(), 60)
        assert set(lent(in_docker)) - set(before)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_until(lambda: lent(in_docker) == before, 60)


def test_what_cannot_be_lent_is_said(in_docker):
    with pytest.raises(ConfigError, match='scheduler_options={"image"'):
        phalanx.Launcher(scheduler="local_docker").run(print)
    gone = {**OPTIONS, "image": "no/such:1"}
    with pytest.raises(SchedulerError, match="no image 'no/such:1'.*docker pull"):
        phalanx.Launcher(scheduler="local_docker", scheduler_options=gone).run(print)
    gpus = {**OPTIONS, "gpus": 1}
    with pytest.raises(SchedulerError, match="cannot give GPUs"):
        phalanx.Launcher(scheduler="local_docker", scheduler_options=gpus).run(print)
    other = {**OPTIONS, "python": "no-python"}
    with pytest.raises(SchedulerError, match="has no program 'no-python'"):
        phalanx.Launcher(scheduler="local_docker", scheduler_options=other).run(print)
