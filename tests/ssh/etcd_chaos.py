"""A toy training on hosts that meet by etcd; hosts and etcd itself break again and again.

Nobody is above the hosts: `phalanx torchrun` runs on each, and is started again where it was killed,
as whoever manages a cluster does. Faults come as a seed says, for a while; then everything is
mended, and all hosts must train together again. In the end the sum must be right, and nothing left.
"""

import heapq
import itertools
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from phalanx._chaos.faults import Rate, plan
from tests.cluster.etcd import Etcd
from tests.conftest import wait_until
from tests.ssh.commands import Commands

RATES = (
    *(Rate("kill-worker", 15), Rate("kill-agent", 30), Rate("kill-command", 30)),
    *(Rate("pause-worker", 60, 6), Rate("pause-agent", 60, 8), Rate("pause-command", 60, 8)),
    *(Rate("kill-host", 30, 2), Rate("lose-host", 30, 6)),
    *(Rate("cut", 30, 10), Rate("divide", 40, 10), Rate("slow-network", 60, 8)),
    *(Rate("kill-member", 30, 8), Rate("pause-member", 40, 6)),
    *(Rate("kill-etcd", 60, 6), Rate("lose-etcd", 90, 20)),
)
"""Every so many seconds on average, for so many seconds."""
CONF = "host_timeout=4,etcd_timeout=12,read_timeout=2,last_call_timeout=5,join_timeout=180"
BURST = 30.0
"""Seconds of faults before all hosts must train together again."""
LAST = 120.0
"""Seconds for that."""
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)


@dataclass(frozen=True)
class Report:
    """What was done."""

    faults: list[tuple[float, str, str]]
    """Seconds from the beginning, what, and where."""
    rounds: int
    """That the first host has begun."""
    steps: int
    recoveries: list[float]
    """Seconds after each burst of faults, all mended, until all hosts trained together."""


class EtcdChaos:
    """Breaks and mends.

    Args:
        commands: `phalanx torchrun` on the hosts.
        etcd: What they meet by.
        seed: Says which fault comes when.
    """

    def __init__(self, commands, etcd, seed):
        self.commands, self.etcd = commands, etcd
        self.hosts = commands.cluster.hosts
        self.faults = []
        """(seconds, what, where) of those that were made."""
        self.recoveries = []
        """Seconds until all hosts trained together again, after each burst."""
        self._plan = plan(seed, RATES)
        self._burst = 0.0
        self._began = time.monotonic()
        self._broken = set()
        """Hosts and members that are broken, by their names."""
        self._mends = []
        self._count = itertools.count()

    # ── time ──────────────────────────────────────────────────────────────────

    def burst(self):
        """Faults for a while."""
        origin, self._burst = time.monotonic() - self._burst, self._burst + BURST
        for fault in self._plan:
            if fault.at > self._burst:
                # The plan goes on from here; this one is made at its time, in the next burst.
                self._plan = itertools.chain([fault], self._plan)
                break
            self._mend_until(origin + fault.at)
            self._strike(fault)
        self._mend_until(origin + self._burst)

    def settle(self):
        """Mend what is broken, in its time; all hosts must train together then."""
        self._mend_until(None)
        mended = time.monotonic()
        together(self.commands, self.hosts, LAST)
        self.recoveries.append(time.monotonic() - mended)

    def _mend_until(self, until):
        """Mend what is due; without a time, all that there is."""
        while until is not None or self._mends:
            due = self._mends[0][0] if self._mends else until
            if until is not None:
                due = min(due, until)
            while (left := due - time.monotonic()) > 0:
                self._check()
                time.sleep(min(left, 0.2))
            if until is not None and due >= until:
                return
            self._do_mend()

    def _do_mend(self):
        _, _, name, mend = heapq.heappop(self._mends)
        mend()
        self._broken.discard(name)

    def _check(self):
        """Nobody has ended by itself."""
        for name, process in self.commands.running.items():
            if name not in self._broken and process.poll() is not None:
                self.fail(f"{name} has ended with {process.returncode}")

    def fail(self, what):
        """With what is needed to find out why."""
        said = [f"── {name} ──\n{log.read_text()[-4000:]}" for name, log in self._logs()]
        raise AssertionError("\n".join([what, *map(str, self.faults), *said]))

    def _logs(self):
        return sorted(self.commands.logs.items())

    # ── faults ────────────────────────────────────────────────────────────────

    def _strike(self, fault):
        """Break one that is not broken already."""
        member = fault.kind.endswith("-member")
        if fault.kind.endswith("-etcd"):
            chosen = [m for m in self.etcd.members if m.name not in self._broken]
        else:
            whole = self.etcd.members if member else self.hosts
            chosen = [one for one in whole if one.name not in self._broken]
            chosen = chosen[int(fault.pick * len(chosen)) :][:1]
        if not chosen:
            return
        if fault.kind in ("kill-host", "lose-host") and not self._is_saved_besides(chosen[0]):
            return
        at = round(time.monotonic() - self._began, 1)
        self.faults.append((at, fault.kind, " ".join(one.name for one in chosen)))
        break_it = getattr(self, "_" + fault.kind.replace("-", "_"))
        for one in chosen:
            mend = break_it(one, random.Random(fault.pick))
            self._broken.add(one.name)
            due = time.monotonic() + fault.seconds
            heapq.heappush(self._mends, (due, next(self._count), one.name, mend))

    def _is_saved_besides(self, host):
        """Another host has a checkpoint: those of a host are lost with it."""
        return any(steps_of(one) for one in self.hosts if one is not host and one.pid is not None)

    def _kill(self, host, part, which=signal.SIGKILL):
        for pid in host.pids(part):
            host.enter("kill", f"-{which.value}", str(pid), check=False)

    def _kill_worker(self, host, chance):
        self._kill(host, "train.py rank", chance.choice(SIGNALS))
        return lambda: None

    def _kill_agent(self, host, _):
        self._kill(host, "train.py agent")
        return lambda: None

    def _kill_command(self, host, _):
        process = self.commands.running[host.name]
        self._kill(host, "-m phalanx torchrun")
        process.wait(LAST)
        return lambda: self.start(host)

    def _pause_worker(self, host, _):
        return self._pause(host, "train.py rank")

    def _pause_agent(self, host, _):
        return self._pause(host, "train.py agent")

    def _pause_command(self, host, _):
        mend = self._pause(host, "-m phalanx torchrun")
        # `nsenter`, by which it runs there, stops with it.
        return lambda: (mend(), self.commands.running[host.name].send_signal(signal.SIGCONT))

    def _pause(self, host, part):
        pids = host.pids(part)
        for pid in pids:
            host.enter("kill", "-STOP", str(pid), check=False)
        return lambda: [host.enter("kill", "-CONT", str(pid), check=False) for pid in pids]

    def _kill_host(self, host, _):
        host.kill()
        self.commands.running[host.name].wait(LAST)
        return lambda: self._boot(host)

    def _lose_host(self, host, _):
        """As when its power goes: nobody hears of it."""
        host.cut()
        return self._kill_host(host, _)

    def _boot(self, host):
        host.reboot()
        self.start(host)

    def _cut(self, host, _):
        host.cut()
        return host.mend

    def _slow_network(self, host, _):
        host.slow_down("2mbit")
        return host.mend

    def _divide(self, host, _):
        """From the other hosts; etcd is reached."""
        others = [one.address for one in self.hosts if one is not host]
        rules = [("INPUT", "-s", other) for other in others]
        rules += [("OUTPUT", "-d", other) for other in others]
        for rule in rules:
            host.enter("iptables", "-A", *rule, "-j", "DROP")
        return lambda: [host.enter("iptables", "-D", *rule, "-j", "DROP") for rule in rules]

    def _kill_member(self, member, _):
        member.kill()
        return member.start

    _kill_etcd = _lose_etcd = _kill_member

    def _pause_member(self, member, _):
        process = member.process
        process.send_signal(signal.SIGSTOP)
        return lambda: process.send_signal(signal.SIGCONT)

    # ── the training ──────────────────────────────────────────────────────────

    def start(self, host):
        """Have a host take part."""
        flags = ("--nnodes", f"1:{len(self.hosts)}", "--max-restarts", "100000")
        flags += ("--shutdown-timeout", "2")
        self.commands.start(host, self.etcd.endpoint, *flags, backend="etcd")

    def end(self):
        """Have the training end; gives the steps that were made."""
        codes = self.commands.end(*self.hosts)
        if codes != [0] * len(codes):
            self.fail(f"the training ends with {codes}")
        for name, log in self._logs():
            if "RIGHT" not in log.read_text().rpartition("BEGIN")[2]:
                self.fail(f"{name} does not have the right sum")
        return steps_of(self.hosts[0])


def steps_of(host):
    """How many steps a host has made, by its checkpoint."""
    try:
        return json.loads(Path(f"/proc/{host.pid}/root/root/checkpoint.json").read_text())[0]
    except OSError:
        return 0


def together(commands, hosts, timeout):
    """Wait until all hosts are in one round, and make steps in it."""
    commands.wait_for_world(hosts, len(hosts), timeout)
    before = [steps_of(host) for host in hosts]
    moves = lambda: all(steps_of(host) > step for host, step in zip(hosts, before, strict=True))
    message = f"nobody goes on from {before}: { {h.name: h.processes() for h in hosts} }"
    wait_until(moves, timeout, message)


def run(cluster, directory, seed, minutes):
    """Train under chaos; gives faults, rounds and steps. Raises `AssertionError`."""
    etcd = Etcd(3, address=f"{cluster.network}.254")
    commands = Commands(cluster, directory, conf=CONF)
    chaos = EtcdChaos(commands, etcd, seed)
    until = time.monotonic() + 60 * minutes
    try:
        for host in cluster.hosts:
            chaos.start(host)
        together(commands, cluster.hosts, LAST)
        while True:
            chaos.burst()
            try:
                chaos.settle()
            except AssertionError as error:
                chaos.fail(str(error)[:2000])
            if time.monotonic() > until:
                break
        steps = chaos.end()
        for host in cluster.hosts:
            message = lambda host=host: f"{host.name}: {host.processes()} is left"
            wait_until(lambda host=host: not host.processes(), 30, message())
            assert not host.files(), host.files()
        left = set(etcd.values("/phalanx/run/"))
        assert "/phalanx/run/leader" not in left, left
    finally:
        commands.stop()
        etcd.close()
    rounds = len(commands.begun(cluster.hosts[0]))
    return Report(chaos.faults, rounds, steps, chaos.recoveries)
