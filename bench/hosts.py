"""Several hosts, side by side in one run: `make bench-hosts`, as root.

The hosts are network namespaces of this machine with a real sshd each (`tests/ssh/cluster.py`), so
all of them share its processors: the limit rows say what those allow. Rounds are interleaved.
`BENCH_ROUNDS` (5) sets the rounds, `BENCH_PEERS=0` leaves torchrunx out.
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import run as common  # noqa: E402 found by the line above
from tests.ssh.cluster import Cluster, why_not  # noqa: E402

PROGRAM = HERE / "programs" / "hosts.py"
COUNTS = (1, 2, 4, 8)
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
QUOTA = "cpu.cfs_quota_us"
HAS_QUOTAS = Path("/sys/fs/cgroup/cpu").is_dir()
"""The first version of control groups; elsewhere that table is left out."""
PLACE = "/usr/share"
"""A directory that every host has, for the peer, which changes to the launcher's."""


class Hosts:
    """The commands to time, on the first so many hosts."""

    def __init__(self, cluster: Cluster, directory: str) -> None:
        self.cluster = cluster
        self.directory = directory
        self.environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "XDG_STATE_HOME": f"{directory}/state",
        }
        # For the peer, whose launcher and hosts must resolve their own and each other's names.
        names = [("127.0.0.1", "localhost"), (f"{cluster.network}.254", "launcher")]
        names += [(host.address, host.name) for host in cluster.hosts]
        table = "".join(f"{address} {name}\n" for address, name in names)
        self.names = Path(directory) / "names"
        self.names.write_text(table)
        for host in cluster.hosts:
            host.enter("sh", "-c", "cat >/etc/hosts", input=table)

    def rows(self, count: int) -> dict[str, list[str]]:
        names = self.cluster.names[:count]
        config = str(self.cluster.ssh_config)
        program = [sys.executable, str(PROGRAM), config]
        rows = {
            "limit: ssh to all, import torch": self._limit(names, "import torch"),
            "limit: ssh to all, nothing": self._limit(names, "pass"),
            "phalanx, a plain function": [*program, "plain", *names],
            "phalanx, all_reduce": [*program, "reduce", *names],
        }
        if common.WITH_PEERS:
            named = f'hostname launcher; mount --bind {self.names} /etc/hosts; exec "$@"'
            peer = ["unshare", "--uts", "--mount", "sh", "-c", named, "sh", common.PEER_PYTHON]
            peer += [str(HERE / "programs" / "peer_hosts.py"), config]
            # It wants names that the launcher resolves: what only ssh knows it does not find.
            rows["torchrunx, all_reduce"] = [
                *peer,
                *(h.address for h in self.cluster.hosts[:count]),
            ]
        return rows

    def _limit(self, names: list[str], code: str) -> list[str]:
        ssh = f"ssh -F {self.cluster.ssh_config}"
        each = [f"{ssh} {name} {sys.executable} -c \"'{code}'\" &" for name in names]
        return ["bash", "-c", " ".join([*each, "wait"])]

    def run(self, command: list[str], **options: Any) -> float:
        began = time.perf_counter()
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=False, **options
        )
        if done.returncode:
            sys.exit(f"{command} failed:\n{done.stdout}{done.stderr}")
        return time.perf_counter() - began

    def ask(self, *arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(self.cluster.ssh_config), *arguments],
            env=self.environ,
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{arguments} failed:\n{done.stderr}")
        return json.loads(done.stdout.splitlines()[-1])


def measure_starts(hosts: Hosts) -> dict[str, dict[int, list[float]]]:
    times: dict[str, dict[int, list[float]]] = {}
    for i in range(ROUNDS + 1):
        print(f"  round {i} of {ROUNDS}", file=sys.stderr, flush=True)
        for count in COUNTS:
            for name, command in hosts.rows(count).items():
                seconds = hosts.run(command, cwd=PLACE if "torchrunx" in name else hosts.directory)
                if i:  # the first is for the caches
                    times.setdefault(name, {}).setdefault(count, []).append(seconds)
    return times


def measure_shares(hosts: Hosts) -> dict[str, dict[int, list[float]]]:
    """The same where each host has a quarter of a processor, however many there are."""
    groups = [_limit_processor(host.name, host.pid) for host in hosts.cluster.hosts[:4]]
    times: dict[str, dict[int, list[float]]] = {}
    try:
        for _ in range(ROUNDS):
            for count in (1, 2, 4):
                rows = hosts.rows(count)
                for name in ("phalanx, a plain function", "phalanx, all_reduce"):
                    seconds = hosts.run(rows[name], cwd=hosts.directory)
                    times.setdefault(name, {}).setdefault(count, []).append(seconds)
    finally:
        for group in groups:
            (group / QUOTA).write_text("-1")
    return times


def _limit_processor(name: str, pid: int) -> Path:
    group = Path("/sys/fs/cgroup/cpu") / f"bench-{name}"
    group.mkdir(exist_ok=True)
    (group / QUOTA).write_text("25000")
    (group / "cgroup.procs").write_text(str(pid))
    return group


def start_table(title: str, times: dict[str, dict[int, list[float]]]) -> str:
    rows = []
    counts = list(next(iter(times.values())))
    for name, by_count in times.items():
        medians = [statistics.median(by_count[count]) for count in counts]
        cells = [f"{m:.2f} s ({m / medians[0]:.2f})" for m in medians]
        rows.append((name, *cells))
    heads = [f"{count} host" + "s" * (count > 1) for count in counts]
    return common.table((f"{title} (× one host)", *heads), rows)


def rest_table(hosts: Hosts) -> tuple[str, dict[str, Any]]:
    found: dict[str, Any] = {
        f"warm {count}": hosts.ask("warm", *hosts.cluster.names[:count]) for count in COUNTS
    }
    rows: list[common.Row] = []
    for count in COUNTS:
        values = found[f"warm {count}"]["runs"]
        spread = f"{min(values):.3f}–{max(values):.3f}"
        rows.append((f"all_reduce on a warm launcher, {count} hosts", _median(values), spread))
    ship = found["ship"] = hosts.ask("ship", *hosts.cluster.names[:2])
    for name, seconds in ship.items():
        rows.append((f"2,000 files (10 MB) to 2 hosts: {name}", f"{seconds:.2f} s", ""))
    raised = found["raise"] = hosts.ask("raise", *hosts.cluster.names[:4])["runs"]
    spread = f"{min(raised):.3f}–{max(raised):.3f}"
    rows.append(("a worker of one of 4 hosts raises → the caller has it", _median(raised), spread))
    many = found["many"] = hosts.ask("many", "64")
    for name, seconds in sorted(many.items(), key=lambda item: item[1]):
        rows.append((f"64 agents on this machine: {name}", f"{seconds:.2f} s", "after the call"))
    return common.table(("what", "median", ""), rows), found


def _median(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} s"


def main() -> None:
    if reason := why_not():
        sys.exit(f"no hosts here: {reason}")
    if common.WITH_PEERS:
        common.install_peers()
    shown = [str(common.PEERS)] if common.WITH_PEERS else []
    cluster = Cluster(max(COUNTS), shown=shown)
    try:
        with tempfile.TemporaryDirectory() as directory:
            hosts = Hosts(cluster, directory)
            times = measure_starts(hosts)
            rest, found = rest_table(hosts)
            shares = measure_shares(hosts) if HAS_QUOTAS else {}
    finally:
        cluster.close()
    machine = f"{os.cpu_count()} processors, Python {platform.python_version()}, {ROUNDS} rounds"
    tables = [start_table("whole command", times), rest]
    if shares:
        tables.insert(1, start_table("a quarter of a processor for each host", shares))
    text = "\n\n".join([machine, *tables])
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    (common.RESULTS / "hosts.md").write_text(text + "\n")
    saved = {"machine": machine, "starts": times, "shares": shares, "rest": found}
    (common.RESULTS / "hosts.json").write_text(json.dumps(saved, indent=1))


if __name__ == "__main__":
    main()
