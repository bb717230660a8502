"""From submitting to the first line in a pod, and to a function's values: `make bench-kubernetes`.

As root: the cluster is `tests/cluster/kubernetes.py`'s, of this machine alone. The limit is what
the cluster itself needs: bare pods are created at once, and timed until the last of them runs.
A function's values are timed from the call to the last value, an app's first line from the start of
the command to the moment at which that line runs, which it prints. Rounds are interleaved.
`BENCH_ROUNDS` (7) sets the rounds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import run as common  # noqa: E402 found by the line above
from tests.cluster.kubernetes import Cluster, why_not  # noqa: E402

PHALANX = str(Path(sys.executable).parent / "phalanx")
NOTE = "import time; print(time.time(), flush=True)"
"""The user's program: its first line says when it ran."""
PATIENCE = 60.0
PODS = 4

FUNCTION = """
import sys, time
import phalanx

def value():
    return 1

image, count, namespace = sys.argv[1:]
began = time.time()
launcher = phalanx.Launcher(
    scheduler="kubernetes", num_hosts=int(count), workers_per_host=1, workspace=None, image=image,
    scheduler_options={"namespace": namespace},
)
assert list(launcher.run(value)) == [1] * int(count)
print(time.time() - began)
"""


class Rows:
    """What is timed, in seconds."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.directory = directory
        self.environ = {
            **os.environ,
            "KUBECONFIG": str(cluster.kubeconfig),
            "XDG_STATE_HOME": str(directory / "state"),
        }

    def all(self) -> dict[tuple[str, str], Callable[[], float]]:
        function, app = f"a function in {PODS} pods → its values", "an app → its first line"
        return {
            (function, f"limit: {PODS} pods run"): lambda: self.pods(PODS),
            (function, "phalanx: Launcher.run"): self.function,
            (app, "limit: a pod runs"): lambda: self.pods(1),
            (app, "phalanx run -s kubernetes (the whole command)"): self.app,
        }

    def output(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.directory, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{words} failed:\n{done.stderr}")
        return done.stdout

    def function(self) -> float:
        words = (self.cluster.image, str(PODS), self.namespace)
        return float(self.output(sys.executable, "-c", FUNCTION, *words))

    def app(self) -> float:
        began = time.time()
        words = ("utils.sh", "--image", self.cluster.image, "--", "python3", "-c", NOTE)
        options = ("-cfg", f"namespace={self.namespace}", "--workspace", "")
        handle = self.output(PHALANX, "run", "-s", "kubernetes", *options, *words).strip()
        line = self.output(PHALANX, "log", "--follow", handle).split()[-1]
        self.output(PHALANX, "delete", handle)
        return float(line) - began

    def pods(self, count: int) -> float:
        token = uuid.uuid4().hex[:6]
        command = ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"]
        container = {"name": "main", "image": self.cluster.image, "command": command}
        pods = [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"limit-{token}-{number}", "labels": {"limit": token}},
                "spec": {"containers": [container], "restartPolicy": "Never"},
            }
            for number in range(count)
        ]
        began = time.time()
        self.cluster.apply(*pods, namespace=self.namespace)
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=limit%3D{token}"
        while True:
            phases = [one["status"].get("phase") for one in self.cluster.get(path)["items"]]
            if phases == ["Running"] * count:
                break
            if time.time() - began > PATIENCE:
                sys.exit(f"the pods never ran: {phases}")
            time.sleep(0.02)
        seconds = time.time() - began
        hard = ("--force", "--grace-period=0", "-n", self.namespace)
        self.cluster.kubectl("delete", "pods", "-l", f"limit={token}", *hard)
        return seconds


def table(times: dict[tuple[str, str], list[float]]) -> str:
    limits = {
        what: statistics.median(values)
        for (what, name), values in times.items()
        if name.startswith("limit")
    }
    rows: list[common.Row] = []
    for (what, name), values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f}–{max(values):.2f}"
        rows.append((what, name, f"{median:.2f} s", spread, f"{median / limits[what]:.2f}"))
    return common.table(("in pods", "", "median", "fastest–slowest", "× limit"), rows)


def main() -> None:
    if reason := why_not():
        sys.exit(reason)
    cluster = Cluster()
    times: dict[tuple[str, str], list[float]] = {}
    try:
        with (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place,
            cluster.namespace() as namespace,
        ):
            rows = Rows(cluster, namespace, Path(place)).all()
            for i in range(common.ROUNDS + 1):
                print(f"  round {i} of {common.ROUNDS}", file=sys.stderr, flush=True)
                for key, timed in rows.items():
                    seconds = timed()
                    if i:  # the first is for the caches
                        times.setdefault(key, []).append(seconds)
        version = cluster.get("/version")["gitVersion"]
    finally:
        cluster.close()
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}"
    text = f"{machine}, Kubernetes {version}, {common.ROUNDS} rounds\n\n{table(times)}"
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "kubernetes.md").write_text(text + "\n")
    rows_of = [[*key, seconds] for key, seconds in times.items()]
    (common.RESULTS / "kubernetes.json").write_text(
        json.dumps({"machine": machine, "rows": rows_of})
    )


if __name__ == "__main__":
    main()
