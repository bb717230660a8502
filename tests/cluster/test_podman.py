"""Podman's socket in the place of Docker's: the same suites, and what it does differently."""

import pytest

import phalanx
from phalanx.errors import SchedulerError
from phalanx.specs import AppDef, AppState, Resource, Role
from tests.cluster.docker import IMAGE
from tests.cluster.podman import Podman
from tests.cluster.test_docker_hosts import lent_way
from tests.cluster.test_docker_scheduler import Apps, sh
from tests.cluster.test_docker_suite import TestDocker
from tests.ways_to_hosts import HostSuite, ReconnectSuite


@pytest.fixture(scope="module")
def podman():
    engine = Podman()
    yield engine
    engine.close()


@pytest.fixture
def in_docker(podman, monkeypatch):
    """Podman is the engine that clients in this process find."""
    for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG"):
        monkeypatch.setenv(name, podman.environ[name])
    return podman


@pytest.fixture
def apps(in_docker):
    made = Apps("podman")
    yield made
    made.delete()


@pytest.fixture
def way(in_docker):
    with lent_way() as made:
        yield made


class TestPodman(TestDocker):
    """Replicas as Podman's containers."""


del TestDocker  # which is run where it is


class TestPodmanExec(HostSuite, ReconnectSuite):
    """A command by `docker exec`, which Podman runs."""


def test_an_app_that_finds_its_replicas_and_starts_again(apps):
    command = (
        "python3 -c 'import socket; socket.gethostbyname(\"role-1\")'; "
        "echo ${replica_id}; test $$HOSTNAME = role-0 || exit 3"
    )
    app_id = apps.submit(sh(command, num_replicas=2, max_retries=1))
    status = apps.ended(app_id)
    assert status.message == "role/1 exited with code 3"
    assert apps.lines(app_id, replica=1) == ["1", "1"]


def test_what_cannot_be_started_is_said_in_words(apps):
    """By Podman's own first process; or at once, since Podman keeps no record of it."""
    app = AppDef("app", [Role("role", image=IMAGE, entrypoint="nothing-here")])
    status = apps.run(app)
    assert status.state is AppState.FAILED
    assert f"{IMAGE} has no program 'nothing-here'" in status.message
    with pytest.raises(SchedulerError, match="has no user 'nobody-here'"):
        apps.submit(sh("true"), user="nobody-here")


def test_a_request_for_gpus_that_podman_ignores_is_said(apps, caplog):
    apps.run(sh("true", resource=Resource(cpu=1, gpu=1, memMB=256)))
    assert "the engine ignores the request for GPUs" in caplog.text


def test_a_function(apps):
    def work():
        import socket

        return socket.gethostname()

    launcher = phalanx.Launcher(
        scheduler="local_docker", num_hosts=2, image=IMAGE, workers_per_host=1
    )
    assert len(set(launcher.run(work))) == 2
