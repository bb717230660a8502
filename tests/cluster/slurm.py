"""A real Slurm on this machine: munge, a controller, and a daemon for each of its hosts.

Its hosts are all this machine, under names of their own; each has four processors and two GPUs that
are none (null devices). Needs root.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.conftest import is_alive, wait_until

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "sinfo")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

_CONFIG = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
KillWait=3
GresTypes=gpu
AccountingStorageType=accounting_storage/none
NodeName=n[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] \
CPUs=4 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """The reason why it cannot be had here, or None."""
    if os.geteuid() != 0:
        return "a Slurm of our own needs root"
    missing = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    if missing:
        return f"{', '.join(missing)} not installed; 'make test SYSTEM=1' does it"
    return None


class Slurm:
    """Running from the beginning."""

    def __init__(self, count):
        self.place = Path(tempfile.mkdtemp(prefix="slurm-of-", dir="/tmp"))
        self.place.chmod(0o755)
        self.environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith("SLURM")},
            "PATH": PATH,
            "SLURM_CONF": str(self.place / "slurm.conf"),
        }
        (self.place / "state").mkdir()
        key = self.place / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        for number in range(2):
            os.mknod(self.place / f"gpu{number}", 0o20666, os.makedev(1, 3))
        (self.place / "gres.conf").write_text(f"Name=gpu File={self.place}/gpu[0-1]\n")
        (self.place / "cgroup.conf").write_text("CgroupAutomount=no\n")
        ports = _free_ports(count + 1)
        config = _CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            place=self.place,
            port=ports[0],
            count=count,
            first=ports[1],
            last=ports[-1],
        )
        (self.place / "slurm.conf").write_text(config)
        munge = f"-S {self.place}/munge.socket --pid-file {self.place}/munge.pid --key-file {key}"
        files = f"--log-file {self.place}/munge.log --seed-file {self.place}/munge.seed"
        self.run("munged", "--force", *munge.split(), *files.split())
        self.run("slurmctld", "-f", f"{self.place}/slurm.conf")
        for number in range(1, count + 1):
            self.run("slurmd", "-N", f"n{number}", "-f", f"{self.place}/slurm.conf")
        wait_until(lambda: self._idle() == count, 30, "the hosts did not come up")

    def _idle(self):
        listed = self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", check=False)
        return len(listed.split())

    def run(self, *command, check=True, **kwargs):
        """Run one of its commands; gives what it printed."""
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, check=False, **kwargs
        )
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout

    def start(self, *command, **kwargs):
        """Start one."""
        return subprocess.Popen(
            command,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **kwargs,
        )

    def close(self):
        """End all of it."""
        self.run("scancel", "--full", "--user=root", check=False)
        time.sleep(0.2)
        for file in sorted(self.place.glob("*.pid"), reverse=True):  # slurmd before slurmctld
            _end(int(file.read_text()))
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes()
                name = Path(f"/proc/{entry}/comm").read_text().strip()
            except OSError:
                continue
            if name == "slurmstepd" and str(self.place).encode() in environ:
                os.kill(int(entry), signal.SIGKILL)
        shutil.rmtree(self.place, ignore_errors=True)


def _end(pid):
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    try:
        wait_until(lambda: not is_alive(pid), 10)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)


def _free_ports(count):
    """So many in a row."""
    for first in range(20000 + os.getpid() % 5000, 32000, count):
        held = []
        try:
            for port in range(first, first + count):
                held.append(socket.create_server(("127.0.0.1", port)))
            return list(range(first, first + count))
        except OSError:
            continue
        finally:
            for one in held:
                one.close()
    raise RuntimeError("no free ports")
