"""A real Podman, whose socket speaks Docker's API, on a machine within this one."""

import shutil
from pathlib import Path

from tests.cluster import docker, machine
from tests.conftest import wait_until

TOOLS = ("podman", "conmon", "catatonit", "runc", "docker", *machine.TOOLS)
HELPERS = Path("/usr/lib/podman")


def why_not():
    """The reason why it cannot be had here, or None."""
    return machine.why_not("a Podman", TOOLS)


class Podman(docker.Engine):
    """Its service in the place of dockerd."""

    def start(self):
        """Start the service."""
        (self.place / "containers.conf").write_text(
            f"""
            [containers]
            log_driver = "k8s-file"
            [network]
            network_backend = "netavark"
            network_config_dir = "{self.place}/networks"
            [engine]
            runtime = "tests"
            cgroup_manager = "cgroupfs"
            events_logger = "file"
            helper_binaries_dir = ["{HELPERS}"]
            [engine.runtimes]
            tests = ["{self.runtime() or shutil.which("runc", path=machine.PATH)}"]
            """
        )
        for name in ("data", "state", "networks"):
            (self.place / name).mkdir(exist_ok=True)
        self.spawn(
            "podman",
            *(
                "env",
                f"CONTAINERS_CONF={self.place}/containers.conf",
                f"TMPDIR={self.place}",
                "podman",
            ),
            *("--root", self.place / "data", "--runroot", self.place / "state"),
            *("system", "service", "--time=0", self.host),
        )
        log = self.place / "podman.log"
        wait_until(self._answers, 60, f"podman does not answer: {machine.read(log)[-2000:]}")
