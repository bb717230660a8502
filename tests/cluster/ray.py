"""A real Ray cluster of several nodes on this machine; `ray_nodes` is the process that holds it.

`python -m tests.cluster.ray` installs the other version of Ray that a test asks for, unless it is there.
"""

import fcntl
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.cluster.machine import CACHE
from tests.process.disks import Disk

ROOT = Path(__file__).parents[2]
CPUS = 4
"""Of each node."""
OTHER_VERSION = "2.40.0"


def why_not():
    """The reason why it cannot be had here, or None."""
    return None if importlib.util.find_spec("ray") else "Ray is not installed"


def other_python():
    """An interpreter with another version of Ray, installed once. Raises `RuntimeError`."""
    place = CACHE / f"ray-{OTHER_VERSION}"
    python = place / "bin" / "python"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "ray.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
            pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
            wanted = f"ray[default]=={OTHER_VERSION}"
            more = ("setuptools<81", "cloudpickle")  # Ray's commands need the one, ours the other
            done = subprocess.run([*pip, wanted, *more], capture_output=True, text=True)
            if done.returncode:
                reason = done.stderr.splitlines()[-1]
                raise RuntimeError(f"{wanted} cannot be installed: {reason}")
            (place / "ready").touch()
    return str(python)


class RayCluster:
    """Nodes of a cluster; the first is its head.

    Args:
        nodes: How many.
        python: The interpreter whose Ray it is.
        prestart: Start workers in advance, as Ray does by itself.
        gpus: How many the last of several nodes has, as far as Ray knows.
        autoscaled: Resources of the nodes that an autoscaler adds when somebody waits for them.
        token: What whoever uses it has to prove.
        disk: The size of a file system of its own, for all files of Ray and of workers.
    """

    def __init__(
        self,
        nodes,
        python=sys.executable,
        *,
        prestart=False,
        gpus=0,
        autoscaled=None,
        token=None,
        disk=None,
    ):
        self.python = python
        self._place = tempfile.TemporaryDirectory(
            prefix="ray-", dir="/tmp"
        )  # sockets' names are short
        self.disk = None if disk is None else Disk(Path(self._place.name, "d"), disk)
        files = self._place.name if disk is None else self.disk.path
        environ = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environ["PATH"] = f"{Path(python).parent}:{environ['PATH']}"
        environ["TMPDIR"] = str(files)
        environ["RAY_AUTH_MODE"] = "disabled"
        if token is not None:
            environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        environ["RAY_raylet_start_wait_time_s"] = "240"
        environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if not prestart:
            # Workers that nobody has asked for take processors from those that somebody has.
            for name in ("enable_worker_prestart", "prestart_worker_first_driver"):
                environ[f"RAY_{name}"] = "0"
        self.errors = open(Path(self._place.name, "errors"), "w+")
        # Not a child of ours: processes that Ray keeps are none that a test has left.
        orphan = "import os, sys; os.fork() and os._exit(0); os.setsid(); "
        orphan += "os.execv(sys.argv[1], sys.argv[1:])"
        nodes_of = (python, "-m", "tests.cluster.ray_nodes", f"{files}/ray")
        self._process = subprocess.Popen(
            [
                python,
                "-c",
                orphan,
                *nodes_of,
                *map(str, (nodes, CPUS, gpus)),
                json.dumps(autoscaled),
            ],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self._process.wait()
        try:
            facts = self._answer()
        except BaseException:
            self.close()
            raise
        self.dashboard = f"http://{facts['dashboard']}"
        self.head = facts["head"]

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"no Ray cluster: {Path(self.errors.name).read_text()[-2000:]}")
        return json.loads(line)

    def kill_node_of(self, pid):
        """The node of a process that is below Ray's, as a loss of power would; not the head."""
        self._tell(f"kill {pid}")

    def _tell(self, command):
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self):
        self._process.stdin.close()
        self._process.stdout.read()  # it is closed when all nodes have ended
        self._process.stdout.close()
        self.errors.close()
        if self.disk is not None:
            self.disk.close()
        self._place.cleanup()


if __name__ == "__main__":
    try:
        other_python()
    except RuntimeError as error:
        print(f"{error}; the test that needs it is skipped", file=sys.stderr)
