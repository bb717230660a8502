"""`phalanx torchrun` on each of several hosts, which meet by themselves, and a toy training for them."""

import re
import subprocess
import sys
from pathlib import Path

import phalanx
from tests.conftest import wait_until
from tests.ssh.cluster import PATH

PORT = 29431
CONF = "host_timeout=3,last_call_timeout=30,join_timeout=60"

TRAIN = """
import json, os, pathlib, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
place = pathlib.Path("/root/checkpoint.json")
own = json.loads(place.read_text()) if place.exists() else [0, 0]
known = [None] * world
dist.all_gather_object(known, own)
step, total = max(known)
store = os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"]
print("BEGIN", rank, world, os.environ["TORCHELASTIC_RESTART_COUNT"], store, flush=True)
while True:
    mine = sum(10 * step + i for i in range(10) if i % world == rank)
    state = torch.tensor([mine, os.path.exists("/root/stop")])
    dist.all_reduce(state)
    step, total = step + 1, total + int(state[0])
    place.with_suffix(".new").write_text(json.dumps([step, total]))
    os.replace(place.with_suffix(".new"), place)
    if state[1]:
        break
    time.sleep(0.02)
assert total == sum(range(10 * step)), (step, total)
print("RIGHT", step, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


class Commands:
    """`phalanx torchrun` on hosts, and what each has printed."""

    def __init__(self, cluster, directory, script=TRAIN, conf=CONF):
        self.cluster = cluster
        self.directory = directory
        self.script = script
        self.conf = conf
        self.running = {}
        self.logs = {}

    def start(self, host, endpoint, *flags, before=(), backend="c10d"):
        source = Path(phalanx.__file__).parent
        log = self.logs[host.name] = self.directory / f"{host.name}.log"
        pack = subprocess.run(
            ["tar", "-cC", source.parent, "--exclude=__pycache__", "phalanx"],
            capture_output=True,
            check=True,
        ).stdout
        enter = ["nsenter", "-t", str(host.pid), "-a", "--", "env", "-i", "HOME=/root"]
        unpack = "rm -f /root/stop; mkdir -p /root/src; tar -xC /root/src"
        subprocess.run([*enter, f"PATH={PATH}", "sh", "-c", unpack], input=pack, check=True)
        host.write("/root/train.py", self.script)
        at = f"{endpoint}:{PORT}" if backend == "c10d" else endpoint
        where = ["--rdzv-backend", backend, "--rdzv-endpoint", at, "--rdzv-id", "run"]
        conf = ["--rdzv-conf", self.conf]
        with open(log, "ab") as file:  # what was there before stays, if it is started again
            self.running[host.name] = subprocess.Popen(
                [*enter, f"PATH={PATH}", "PYTHONPATH=/root/src", "PYTHONUNBUFFERED=1", *before]
                + [sys.executable, "-m", "phalanx", "torchrun", *where, *conf, *map(str, flags)]
                + ["/root/train.py"],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def begun(self, host):
        """(rank, world, restarts, store) of every round that has begun there."""
        found = re.findall(r"BEGIN (\d+) (\d+) (\d+) (\S+)", self.logs[host.name].read_text())
        return [(int(rank), int(world), int(count), store) for rank, world, count, store in found]

    def wait_for_world(self, hosts, world, timeout=40):
        """All of them are in one round of this size, and see the same store."""

        def agree():
            last = [self.begun(host)[-1:] for host in hosts]
            if not all(last) or {item[0][1] for item in last} != {world}:
                return False
            stores = {item[0][3] for item in last}
            ranks = sorted(item[0][0] for item in last)
            return stores if len(stores) == 1 and ranks == list(range(world)) else False

        said = lambda: {host.name: self.logs[host.name].read_text()[-1500:] for host in hosts}
        try:
            return wait_until(agree, timeout=timeout)
        except AssertionError:
            raise AssertionError(said()) from None

    def end(self, *hosts):
        """Have the training end, and give every host's exit code."""
        hosts[0].write("/root/stop", "")
        return [self.running[host.name].wait(60) for host in hosts]

    def stop(self):
        """Leave nothing of them."""
        for process in self.running.values():
            process.kill()
            process.wait()
        for host in self.cluster.hosts:
            if host.pid is not None:
                host.mend()
                for pid in host.pids("phalanx"):
                    host.enter("kill", "-9", str(pid), check=False)
