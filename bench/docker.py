"""From submitting to the first line of user code in a container: `make bench-docker`, as root.

The engine is `tests/cluster/docker.py`'s, of this machine alone, and so is the registry that the
image was pulled from. Every row is the time from the command's start to the moment at which the
user's first line runs, which that line prints. `docker run` is what the engine itself allows, and
`docker build` before it where the project is to be in the image. A function's values are timed from
the call to the last value, beside four `docker run` at once. The project has 200 files of 10 KiB;
before a row with a change, one of them is written anew. Rounds are interleaved. TorchX 0.7.0 is
installed into an environment of its own.
`BENCH_ROUNDS` (7) sets the rounds, `BENCH_PEERS=0` leaves TorchX out.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import run as common  # noqa: E402 found by the line above
from tests.cluster import registry  # noqa: E402
from tests.cluster.docker import IMAGE, Engine, why_not  # noqa: E402

PHALANX = str(Path(sys.executable).parent / "phalanx")
VENV = HERE.parent / ".venv-torchx"
TORCHX = str(VENV / "bin" / "torchx")
NOTE = "import time; print(time.time(), flush=True)"
"""The user's program: its first line says when it ran."""
PATIENCE = 60.0
UNCHANGED, CHANGED = "the project as before", "one file changed"
CONTAINERS = 4

IN_PROCESS = """
import sys, time
from phalanx.runner import get_runner
from phalanx.specs import AppDef, Role
role = Role("role", image=sys.argv[1], entrypoint="python3", args=["main.py"])
with get_runner() as runner:
    began = time.time()
    runner.run(AppDef("bench", [role]), "local_docker")
    print(began)
"""
FUNCTION = """
import sys, time
import phalanx

def value():
    return 1

began = time.time()
launcher = phalanx.Launcher(
    scheduler="local_docker", num_hosts=int(sys.argv[2]), workers_per_host=1, workspace=None,
    image=sys.argv[1],
)
assert list(launcher.run(value)) == [1] * int(sys.argv[2])
print(time.time() - began)
"""


def install_torchx() -> None:
    if (VENV / "ready").exists():
        return
    print("installing TorchX (once)", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
    pip = [str(VENV / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "torchx==0.7.0", "setuptools<81"], check=True)
    (VENV / "ready").touch()


class Rows:
    """What is timed: each gives when it began, and leaves a container that has printed."""

    def __init__(self, engine: Engine, image: str, directory: Path) -> None:
        self.engine = engine
        self.image = image
        self.project = directory / "project"
        self.environ = {**engine.environ, "XDG_STATE_HOME": str(directory / "state")}
        self.project.mkdir()
        (self.project / "main.py").write_text(NOTE)
        for number in range(200):
            (self.project / f"file_{number}.bin").write_bytes(os.urandom(10 << 10))

    def output(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.project, env=self.environ, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{words} failed:\n{done.stderr}")
        return done.stdout

    def command(self, *words: str) -> float:
        """A command, from its start."""
        began = time.time()
        self.output(*words)
        return began

    def build_and_run(self) -> float:
        began = time.time()
        (self.project.parent / "Dockerfile").write_text(f"FROM {self.image}\nCOPY . .\n")
        built = self.output("docker", "build", "-q", "-f", "../Dockerfile", ".").strip()
        self.output("docker", "run", "--detach", built, "python3", "main.py")
        return began

    def all(self) -> dict[tuple[str, str], Callable[[], float]]:
        words = ("utils.sh", "--image", self.image, "--", "python3", "main.py")
        ours = (PHALANX, "run", "-s", "local_docker", *words)
        by_name: dict[str, Callable[[], float]] = {
            "limit: docker build, docker run": self.build_and_run,
            "phalanx: Runner.run": lambda: float(
                self.output(sys.executable, "-c", IN_PROCESS, self.image)
            ),
            "phalanx run -s local_docker (the whole command)": lambda: self.command(*ours),
        }
        if common.WITH_PEERS:
            theirs = (TORCHX, "run", "-s", "local_docker", *words)
            by_name["torchx run -s local_docker (the whole command)"] = lambda: self.command(
                *theirs
            )
        rows: dict[tuple[str, str], Callable[[], float]] = {
            ("no project", "limit: docker run"): lambda: self.command(
                *("docker", "run", "--detach", self.image, "python3", "-c", NOTE)
            )
        }
        for state in (UNCHANGED, CHANGED):
            rows |= {(state, name): row for name, row in by_name.items()}
        return rows

    def values(self) -> dict[str, Callable[[], float]]:
        """Seconds to the values of a function in several containers."""
        return {
            "limit: docker run, at once": self._many_runs,
            "phalanx: Launcher.run": lambda: float(
                self.output(sys.executable, "-c", FUNCTION, self.image, str(CONTAINERS))
            ),
        }

    def _many_runs(self) -> float:
        words = ("docker", "run", "--rm", self.image, "python3", "-c", "print(1)")
        began = time.time()
        with ThreadPoolExecutor(CONTAINERS) as threads:
            printed = [*threads.map(lambda _: self.output(*words), range(CONTAINERS))]
        assert printed == ["1\n"] * CONTAINERS
        return time.time() - began

    def measure(self, state: str, began: Callable[[], float]) -> float:
        """Seconds to the user's first line."""
        if state == CHANGED:
            (self.project / "file_0.bin").write_bytes(os.urandom(10 << 10))
        else:
            began()  # whatever it builds, it has built
            self.remove()
        start = began()
        limit = time.time() + PATIENCE
        while not (line := self._first_line()):
            if time.time() > limit:
                sys.exit("the user's first line never ran")
            time.sleep(0.02)
        self.remove()
        return float(line) - start

    def _first_line(self) -> str:
        container = self.engine.docker("ps", "-aq", "--latest").strip()
        lines = self.engine.docker("logs", container).split() if container else []
        return lines[0] if lines else ""

    def remove(self) -> None:
        """Everything but images."""
        self.engine.clear()


def table(what: str, times: dict[tuple[str, str], list[float]]) -> str:
    limits = {
        state: statistics.median(values)
        for (state, name), values in times.items()
        if name.startswith("limit")
    }
    rows: list[common.Row] = []
    for (state, name), values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.2f}–{max(values):.2f}"
        rows.append((state, name, f"{median:.2f} s", spread, f"{median / limits[state]:.2f}"))
    heads = (what, "", "median", "fastest–slowest", "× limit")
    return common.table(heads, rows)


def main() -> None:
    if reason := why_not() or registry.why_not():
        sys.exit(reason)
    if common.WITH_PEERS:
        install_torchx()
    engine = Engine()
    times: dict[tuple[str, str], list[float]] = {}
    values: dict[tuple[str, str], list[float]] = {}
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            directory = Path(place)
            images = registry.Registry(engine, directory / "registry")
            image = f"{images.address}/bench:1"
            engine.docker("build", "-t", image, "-", input=f"FROM {IMAGE}\nWORKDIR /app\n")
            engine.docker("push", image)
            rows = Rows(engine, image, directory)
            for i in range(common.ROUNDS + 1):
                print(f"  round {i} of {common.ROUNDS}", file=sys.stderr, flush=True)
                for (state, name), began in rows.all().items():
                    seconds = rows.measure(state, began)
                    if i:  # the first is for the caches
                        times.setdefault((state, name), []).append(seconds)
                for name, timed in rows.values().items():
                    seconds = timed()
                    if i:
                        values.setdefault(("values", name), []).append(seconds)
            images.close()
        version = engine.docker("version", "--format", "{{.Server.Version}}").strip()
    finally:
        engine.close()
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}, Docker {version}"
    text = f"{machine}, {common.ROUNDS} rounds\n\n"
    text += table("submit → first line in a container", times) + "\n\n"
    text += table(f"a function in {CONTAINERS} containers → its values", values)
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "docker.md").write_text(text + "\n")
    rows_of = [[*key, seconds] for key, seconds in {**times, **values}.items()]
    (common.RESULTS / "docker.json").write_text(json.dumps({"machine": machine, "rows": rows_of}))


if __name__ == "__main__":
    main()
