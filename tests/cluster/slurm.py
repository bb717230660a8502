"""A real Slurm on this machine: munge, a controller, and a daemon for each of its hosts.

Its hosts are all this machine, under names of their own; each has four processors and two GPUs that
are none (null devices). Partitions: `debug`; `high`, whose jobs preempt those of `debug`, which have
a few seconds then and are requeued; `closed`, for an account that nobody has. Needs root.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import is_alive, wait_until

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "sinfo")
GRACE = 5
"""Seconds between a preempted job's SIGTERM and its end."""
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
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
EnforcePartLimits=ALL
ReturnToService=2
SlurmdTimeout=10
KillWait=3
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
GresTypes=gpu
AccountingStorageType=accounting_storage/none
NodeName=n[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] \
CPUs=4 RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime={grace}
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10
PartitionName=closed Nodes=ALL MaxTime=INFINITE AllowAccounts=insiders
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
        ports, self._port_lock = _free_ports(count + 1)
        self._port = str(ports[0])
        self.hosts = [f"n{number}" for number in range(1, count + 1)]
        config = _CONFIG.format(
            host=socket.gethostname().partition(".")[0],
            place=self.place,
            port=ports[0],
            count=count,
            first=ports[1],
            last=ports[-1],
            grace=GRACE,
        )
        (self.place / "slurm.conf").write_text(config)
        munge = f"-S {self.place}/munge.socket --pid-file {self.place}/munge.pid --key-file {key}"
        files = f"--log-file {self.place}/munge.log --seed-file {self.place}/munge.seed"
        try:
            self.run("munged", "--force", *munge.split(), *files.split())
            self.start_controller()
            for host in self.hosts:
                self.restore_host(host)
            wait_until(lambda: self._idle() == count, 30, "the hosts did not come up")
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def other_login(self):
        """The words that have a command run on another login host: with the same files, but with
        a name, processes and a network of its own, from which the controller can be reached.
        """
        with tempfile.TemporaryDirectory(dir=self.place) as place:
            way = f"{place}/way"
            relay = [sys.executable, str(Path(__file__).with_name("relay.py"))]
            outside = subprocess.Popen([*relay, way, self._port])
            try:
                wait_until(lambda: os.path.exists(way))
                # Without an address beside loopback's, Slurm's commands resolve none.
                network = "ip link set lo up && ip addr add 192.0.2.1/32 dev lo"
                begin = f'hostname elsewhere && {network} && exec "$@"'
                spaces = ("--uts", "--pid", "--net", "--fork", "--mount-proc")
                yield ("unshare", *spaces, "sh", "-c", begin, "sh", *relay, self._port, way)
            finally:
                outside.kill()
                outside.wait()

    # ── faults, and their end ─────────────────────────────────────────────────

    def start_controller(self):
        """Start the controller, which knows what it knew."""
        self.run("slurmctld", "-f", f"{self.place}/slurm.conf")

    def stop_controller(self):
        """Have the controller go away; hosts and their jobs go on."""
        _end(self._pid("slurmctld"))

    def lose_host(self, host, *, told=False):
        """A host loses its power: its daemon and all that runs there are killed.

        The controller finds out after SlurmdTimeout, or is told at once.
        """
        tasks = self._processes(f"SLURMD_NODENAME={host}")
        steps = {parent for task in tasks for parent in _parents(task)}
        steps &= set(self._processes(comm="slurmstepd"))
        for pid in [self._pid(f"slurmd.{host}"), *steps, *tasks]:
            _kill(pid)
        if told:
            self.run("scontrol", "update", f"nodename={host}", "state=down", "reason=lost")

    def restore_host(self, host):
        """Start a host's daemon, if it does not run."""
        pid = self._pid(f"slurmd.{host}")
        if pid is None or not is_alive(pid):
            self.run("slurmd", "-N", host, "-f", f"{self.place}/slurm.conf")

    def mend(self):
        """Have everything as in the beginning: no jobs, every host and the controller there."""
        pid = self._pid("slurmctld")
        if pid is None or not is_alive(pid):
            self.start_controller()
        answers = lambda: "is UP" in self.run("scontrol", "ping", check=False)
        wait_until(answers, 30, "the controller did not come up")
        self.run("scancel", "--full", "--state=PENDING,RUNNING,SUSPENDED", check=False)
        self.mend_hosts(idle=True)

    def mend_hosts(self, *, idle=False):
        """Have every host there; jobs go on, unless all hosts are to be `idle`."""
        for host in self.hosts:
            self.restore_host(host)

        def is_mended():
            states = "idle" if idle else "idle,mixed,allocated"
            if len(self._listed(states)) == len(self.hosts):
                return True
            for host in self._listed("down,drain"):
                self.run("scontrol", "update", f"nodename={host}", "state=resume", check=False)
            time.sleep(0.1)
            return False

        wait_until(is_mended, 60, "the hosts did not come back")

    # ── jobs ──────────────────────────────────────────────────────────────────

    def release(self, job):
        """Let a job that was requeued begin now: Slurm would hold it for two minutes.

        While what it was is still ending, Slurm sets the time once more: call it until it begins.
        """
        self.run("scontrol", "update", f"jobid={job}", "StartTime=now", check=False)

    def job(self, job, field="state"):
        """What squeue says of a job; empty where it knows it no more."""
        listed = self.run(
            "squeue", "-h", "--states=all", f"--jobs={job}", f"--Format={field}:100", check=False
        )
        return listed.strip().partition("\n")[0].strip()

    @staticmethod
    def said(errors):
        """What a command of ours has said, but for what it waits for: Slurm may take its time."""
        lines = errors.splitlines()
        return [line for line in lines if not re.match(r"phalanx \w+: waiting for slurm ", line)]

    def _pid(self, daemon):
        try:
            return int((self.place / f"{daemon}.pid").read_text())
        except (OSError, ValueError):
            return None

    def _processes(self, variable="", comm=""):
        """Processes of this Slurm's: with this in their environment, or of this name."""
        wanted = {f"SLURM_CONF={self.place}/slurm.conf".encode(), variable.encode()} - {b""}
        found = []
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                environ = Path(f"/proc/{entry}/environ").read_bytes()
                name = Path(f"/proc/{entry}/comm").read_text().strip()
            except OSError:
                continue
            if wanted <= set(environ.split(b"\0")) and comm in ("", name):
                found.append(int(entry))
        return found

    def _listed(self, states):
        """The hosts in one of these states."""
        fields = ("-h", "-N", "-p", "debug", "-t", states, "-o", "%N")
        return self.run("sinfo", *fields, check=False).split()

    def _idle(self):
        return len(self._listed("idle"))

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
        self.run("scancel", "--full", "--state=PENDING,RUNNING,SUSPENDED", check=False)
        time.sleep(0.2)
        # The hosts' daemons wait for what they run; the controller and munge have to be there then.
        for daemons in ("slurmd.*.pid", "slurmctld.pid", "munge.pid"):
            _end(*(int(file.read_text()) for file in self.place.glob(daemons)))
        for pid in self._processes(comm="slurmstepd"):
            _kill(pid)
        self._port_lock.close()
        shutil.rmtree(self.place, ignore_errors=True)


def _end(*pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    try:
        wait_until(lambda: not any(map(is_alive, pids)), 10)
    except AssertionError:
        for pid in pids:
            _kill(pid)


def _kill(pid):
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _parents(pid):
    """Who a process descends from."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return
        yield pid


_SPAN = 20
"""As many ports as one Slurm may have."""


def _free_ports(count):
    """So many in a row; and the lock that keeps them from others that are started meanwhile."""
    assert count <= _SPAN
    for first in range(20000, 32000, _SPAN):
        lock = open(f"/tmp/slurm-ports-{first}.lock", "w")
        held = []
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for port in range(first, first + count):
                held.append(socket.create_server(("127.0.0.1", port)))
            return list(range(first, first + count)), lock
        except OSError:
            lock.close()
        finally:
            for one in held:
                one.close()
    raise RuntimeError("no free ports")
