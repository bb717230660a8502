"""A toy training under `phalanx chaos`, on real hosts: `make chaos`, and for a minute a test.

`--with etcd` runs that of `etcd_chaos` instead, where no launcher leads.

The training adds up numbers, whoever is there to add them, with checkpoints on the hosts' own disks.
Whatever breaks, it must end with exactly the right sum, and leave nothing behind.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import phalanx
from tests.cluster import etcd as etcd_box
from tests.conftest import wait_until
from tests.ssh import etcd_chaos
from tests.ssh.cluster import REPOSITORY, Cluster, why_not

FAULTS = (
    *("--kill-worker", "12s", "--kill-agent", "40s", "--pause-worker", "25s:4s"),
    *("--lose-host", "60s", "--cut", "60s:10s", "--fill-disk", "60s:5s"),
    *("--slow-network", "60s:10s"),
)
LAST = 180.0
"""Seconds for the training to end once it is told to."""
TMP = "64m"
"""The size of the hosts' temporary directories, which are filled."""


def train():
    """Add up 0, 1, 2, …, ten a step, until told to end; gives the step and the sum."""
    import pathlib

    import torch
    import torch.distributed as dist

    context = phalanx.context()
    told = []
    signal.signal(signal.SIGUSR2, lambda *_: told.append(1))
    place = pathlib.Path("/tmp/checkpoint.json")
    own = json.loads(place.read_text()) if place.exists() else [0, 0]
    known = [None] * context.world_size
    dist.all_gather_object(known, own)
    step, total = max(known)
    print(f"begins at {step} as {context.rank}/{context.world_size} in {context.round}", flush=True)
    while True:
        mine = [10 * step + i for i in range(10) if i % context.world_size == context.rank]
        state = torch.tensor([sum(mine), bool(told)])
        dist.all_reduce(state)
        step, total = step + 1, total + int(state[0])
        if context.local_rank == 0:
            place.with_suffix(".new").write_text(json.dumps([step, total]))
            os.replace(place.with_suffix(".new"), place)
        if state[1]:
            return step, total
        time.sleep(0.05)


def launch(names, ssh_config, stop):
    """Train as a launch, until the file `stop` is there; prints the steps."""
    launcher = phalanx.Launcher(
        hostnames=names,
        ssh_config_file=ssh_config,
        workers_per_host=2,
        min_hosts=1,
        max_restarts=100_000,
        same_failures=0,
        restart_backoff=0.0,
        host_timeout=6.0,
        process_group_timeout=20.0,
        stop_grace=2.0,
        name="chaos",
    )
    app = launcher.start(train)
    while not app.wait(0.5).state.is_final:
        if Path(stop).exists():
            app.signal(signal.SIGUSR2)
    try:
        results = app.result()
    except phalanx.OutputLost as lost:  # all have returned: a disk that is filled takes no output
        results = lost.result
    for step, total in results:
        assert total == sum(range(10 * step)), f"{total} after {step} steps"
    print(f"{step} steps, and the sum is right")


def run(cluster, directory, seed, minutes):
    """Train under chaos; gives the report. Raises `AssertionError` for what should not be."""
    environ = {**os.environ, "XDG_STATE_HOME": str(directory), "PYTHONPATH": str(REPOSITORY)}
    for host in cluster.hosts:
        host.enter("mount", "-o", f"remount,size={TMP}", "/tmp")
    stop, output = directory / "stop", directory / "train.log"
    command = [sys.executable, "-m", "tests.ssh.chaos", "--train"]
    command += ["--ssh-config", cluster.ssh_config, "--stop", stop, *cluster.names]
    with output.open("w") as log:
        training = subprocess.Popen(
            command, cwd=directory, env=environ, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        begun = lambda: "begins at" in output.read_text() or training.poll() is not None
        wait_until(begun, timeout=120, message=output.read_text())
        chaos = [sys.executable, "-m", "phalanx", "chaos", "--seed", str(seed), "--json"]
        chaos += ["--duration", f"{60 * minutes:g}s", "--settle", "90s", *FAULTS]
        done = subprocess.run(
            chaos,
            cwd=directory,
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60 * minutes + 240,
            check=False,
        )
        assert training.poll() is None, f"the training ended:\n{output.read_text()[-8000:]}"
        stop.touch()
        training.wait(LAST)
    finally:
        if training.poll() is None:
            training.send_signal(signal.SIGTERM)
            try:
                training.wait(60)
            except subprocess.TimeoutExpired:
                training.kill()
                training.wait()
    said = output.read_text()
    assert training.returncode == 0, said[-8000:]
    assert "and the sum is right" in said, said[-8000:]
    assert done.returncode == 0, f"{done.stdout}\n{said[-8000:]}"
    check_clean(cluster)
    (directory / "report.json").write_text(done.stdout)
    return json.loads(done.stdout)


def check_clean(cluster):
    """Nothing runs on the hosts, and what was broken is mended."""
    for host in cluster.hosts:
        message = lambda host=host: f"{host.name}: {host.processes()} is left"
        wait_until(lambda host=host: not host.processes(), timeout=30, message=message())
        assert "DROP" not in host.enter("iptables", "-S")
        assert "tbf" not in host.enter("tc", "qdisc", "show")
        free = os.statvfs(f"/proc/{host.pid}/root/tmp")
        assert free.f_bavail * free.f_frsize > 32 << 20


def main():
    """Run the training, or one under chaos with hosts of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--with", dest="way", choices=WAYS, default="launcher")
    parser.add_argument("--keep", type=Path, help="leave logs and the report in this directory")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--ssh-config")
    parser.add_argument("--stop")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.train:
        launch(options.names, options.ssh_config, options.stop)
        return 0
    if reason := why_not() or (etcd_box.why_not() if options.way == "etcd" else None):
        sys.exit(f"make chaos: {reason}")
    minutes, seed, way = options.minutes, options.seed, options.way
    print(f"{minutes:g} minutes of chaos with {way}, seed {seed}", flush=True)
    cluster = Cluster(3)
    try:
        with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
            directory = options.keep or Path(temporary)
            directory.mkdir(parents=True, exist_ok=True)
            print(WAYS[way](cluster, directory, seed, minutes))
    finally:
        cluster.close()
    return 0


def run_with_launcher(cluster, directory, seed, minutes):
    """`run`, in a line."""
    report = run(cluster, directory, seed, minutes)
    faults = [fault for fault in report["faults"] if not fault["problem"]]
    median, longest = report["median_recovery_seconds"], report["longest_recovery_seconds"]
    return (
        f"{len(faults)} faults, {report['recovered']} recoveries (median {median:.1f} s, longest "
        f"{longest:.1f} s), {report['rounds']} rounds, goodput {report['goodput']:.0%}"
    )


def run_with_etcd(cluster, directory, seed, minutes):
    """Likewise for hosts that meet by etcd."""
    report = etcd_chaos.run(cluster, directory, seed, minutes)
    return (
        f"{len(report.faults)} faults, {len(report.recoveries)} recoveries (longest "
        f"{max(report.recoveries):.1f} s), {report.rounds} rounds, {report.steps} steps"
    )


WAYS = {"launcher": run_with_launcher, "etcd": run_with_etcd}
"""Who leads the hosts."""


if __name__ == "__main__":
    sys.exit(main())
