"""Podman's socket in the place of Docker's: the same suites, and what it does differently."""

import json

import pytest

import phalanx
from phalanx.errors import SchedulerError
from phalanx.specs import AppDef, AppState, Resource, Role
from tests.cluster import test_docker_hosts as in_containers
from tests.cluster import test_docker_scheduler as in_dockerd
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
def docker(in_docker):
    """What tests of Docker ask of the engine itself."""
    return in_docker


@pytest.fixture
def apps(in_docker):
    made = Apps("podman")
    yield made
    made.delete()


@pytest.fixture
def way(in_docker):
    with lent_way() as made:
        yield made


@pytest.fixture
def launcher(in_docker):
    def make(num_hosts=2, **options):
        options = {"workers_per_host": 1, "image": IMAGE, **options}
        return phalanx.Launcher(scheduler="local_docker", num_hosts=num_hosts, **options)

    return make


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


def test_out_of_memory_is_a_kill_where_podman_does_not_tell(apps, podman):
    """What watches its containers notes it, and Podman 4 looks for that note elsewhere."""
    told = json.loads(podman.docker("version", "--format", "{{json .Server}}"))["Components"]
    version = next(one["Version"] for one in told if one["Name"] == "Podman Engine")
    role = Role("role", image=IMAGE, entrypoint="python", args=["-c", "bytearray(400 << 20)"])
    limited = Role(**{**vars(role), "resource": Resource(cpu=1, gpu=0, memMB=64)})
    says = ": out of memory: its limit is 64 MB" if int(version.split(".")[0]) > 4 else ""
    assert apps.run(AppDef("app", [limited])).message == f"role/0 was killed by SIGKILL{says}"


def test_a_function(launcher):
    def work():
        import socket

        return socket.gethostname()

    assert len(set(launcher().run(work))) == 2


# What tests of Docker show, shown of Podman.
test_missing_image = in_dockerd.test_a_missing_image_is_said_before_anything_is_made
test_image_without_python = in_dockerd.test_an_image_without_python
test_image_without_shell = in_dockerd.test_an_image_without_a_shell
test_read_only_root = in_dockerd.test_a_read_only_root
test_full_disk = in_dockerd.test_a_full_disk_is_the_replicas_error
test_limits_and_mounts = in_dockerd.test_limits_mounts_devices_user_and_shared_memory
test_secrets = in_dockerd.test_secrets_are_in_no_argument_label_or_dry_run
test_secret_of_a_rendezvous = (
    in_dockerd.test_the_secret_of_an_apps_rendezvous_is_not_to_be_inspected
)
test_variables_of_a_role = in_dockerd.test_the_variables_of_a_role_are_in_its_own_containers_alone
test_names = in_dockerd.test_names_of_every_kind
test_error_of_a_worker = in_dockerd.test_the_first_error_of_a_worker_is_told_from_its_own_file
test_killed_container = in_dockerd.test_a_killed_container_fails_the_app_and_ends_the_others
test_paused_container = in_dockerd.test_a_paused_container_runs_and_can_be_cancelled
test_removed_container = in_dockerd.test_a_removed_container_is_a_failure_that_says_so
test_another_users_app = (
    in_dockerd.test_apps_of_another_user_are_not_listed_and_not_ended_by_mistake
)
test_worker_out_of_memory = in_containers.test_a_worker_that_takes_more_memory_than_its_container_has_is_said_to_have_done_so
test_nothing_is_left = in_dockerd.test_nothing_is_left_by_delete
