"""The same call on this machine, over SSH, on Slurm, in containers, in pods and on Ray."""

import os

import pytest

import phalanx
from tests.cluster.conftest import need
from tests.cluster.docker import IMAGE
from tests.ssh import cluster


@pytest.fixture(scope="module")
def ssh_hosts():
    if reason := cluster.why_not():
        pytest.skip(reason)
    hosts = cluster.Cluster(2)
    yield hosts
    hosts.close()


_SERVICES = {"slurm": "slurm", "local_docker": "docker", "kubernetes": "kubernetes"}
_SERVICES |= {"ray": "ray_cluster"}


@pytest.fixture(
    scope="module", params=["here", "ssh", "slurm", "local_docker", "kubernetes", "ray"]
)
def place(request):
    """Where; what that needs is there before the test looks at what it may leave."""
    if request.param == "ssh":
        request.getfixturevalue("ssh_hosts")
    elif request.param != "here":
        need(request, _SERVICES[request.param])
    return request.param


@pytest.fixture
def launcher(place, request, monkeypatch):
    """Two workers, there."""
    match place:
        case "here":
            return phalanx.Launcher(workers_per_host=2)
        case "ssh":
            ssh_hosts = request.getfixturevalue("ssh_hosts")
            config = str(ssh_hosts.ssh_config)
            return phalanx.Launcher(
                hostnames=ssh_hosts.names, workers_per_host=1, ssh_config_file=config
            )
        case "slurm":
            request.getfixturevalue("in_slurm")
            return phalanx.Launcher(scheduler="slurm", num_hosts=2, workers_per_host=1)
        case "kubernetes":
            kubernetes = request.getfixturevalue("kubernetes")
            monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig))
            namespace = request.getfixturevalue("namespace")
            return phalanx.Launcher(
                scheduler="kubernetes",
                num_hosts=2,
                image=kubernetes.image,
                workers_per_host=1,
                scheduler_options={"namespace": namespace},
            )
        case "ray":
            request.getfixturevalue("in_ray")
            return phalanx.Launcher(scheduler="ray", num_hosts=2, workers_per_host=1)
        case _:
            request.getfixturevalue("in_docker")
            return phalanx.Launcher(
                scheduler="local_docker", num_hosts=2, image=IMAGE, workers_per_host=1
            )


def test_what_comes_home_is_the_same(launcher, capfd):
    """Values by rank, the first exception with its type, and the output."""

    def work(numbers, fails=False):
        rank = int(os.environ["RANK"])
        print(f"rank {rank} of {os.environ['WORLD_SIZE']}")
        if fails and rank == 1:
            raise ValueError(numbers)
        return [rank * number for number in numbers]

    with launcher:
        assert list(launcher.run(work, {"numbers": [1, 2]})) == [[0, 0], [1, 2]]
        assert "rank 0 of 2" in capfd.readouterr().out
        with pytest.raises(ValueError, match=r"\[3\]") as caught:
            launcher.run(work, {"numbers": [3], "fails": True})
        assert "rank 1" in "".join(caught.value.__notes__)
        assert launcher.call(work, [5]).rank(1) == [5]
