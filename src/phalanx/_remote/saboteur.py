"""Breaks things on one host, and mends them: the far end of `phalanx chaos`.

Like `bootstrap`, its text travels down the channel and stands alone; any Python from 3.6 on can
read it. Each question is a line of JSON, and so is each answer. What it breaks for a while it mends
itself when the time is over, when it is asked to, and when whoever asked is gone.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WRITE = 4
_NET_ADMIN = 1 << 12
_CHUNK = 64 << 20
_ANSWERED = 0.3
"""Seconds in which an answer is on its way before packets to whoever asked are dropped."""
_PLAIN_QUEUES = ("noqueue", "pfifo_fast", "fq_codel", "fq", "mq", "pfifo", "cake")
"""Queues of network interfaces that nobody has set up on purpose."""


def saboteur(incoming: "IO[bytes]") -> None:
    """Answer until nothing is asked any more, then mend everything."""
    damage = Damage()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(1))
    try:
        for line in incoming:
            asked = json.loads(line.decode())
            try:
                _answer(damage, asked)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                _say(problem=str(error) or type(error).__name__)
    finally:
        damage.mend()


def _answer(damage: "Damage", asked: "dict[str, Any]") -> None:
    kind = asked["ask"]
    if kind == "abilities":
        _say(**abilities(asked["limit"]))
    elif kind == "mend":
        damage.mend()
        _say(done="")
    elif kind == "kill":
        _check_ours(asked["pid"])
        os.kill(asked["pid"], signal.SIGKILL)
        _say(done="")
    elif kind == "pause":
        _pause(damage, asked["pid"], asked["seconds"])
    elif kind == "lose":
        pid = asked["pid"]
        _check_ours(pid)
        _say(done=f"killed {kill_tree(pid)} processes")
    elif kind == "fill":
        _fill(damage, asked["limit"], asked["seconds"])
    elif kind == "slow":
        _slow_down(damage, asked["peers"], asked["rate"], asked["seconds"])
    elif kind == "cut":
        _cut(damage, asked["peers"], asked["seconds"])
    else:
        raise ValueError(f"unknown question {kind!r}")


def _say(**message: "Any") -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(WRITE, data) :]


class Damage:
    """What is broken now, each with what mends it."""

    def __init__(self) -> None:
        self._mends = {}  # type: dict[int, Callable[[], None]]
        self._lock = threading.Lock()
        self._count = 0

    def add(self, mend: "Callable[[], None]", seconds: float) -> int:
        """Something is broken; mend it so many seconds from now, or when all is mended.

        Gives its number.
        """
        with self._lock:
            self._count += 1
            number = self._count
            self._mends[number] = mend
        timer = threading.Timer(seconds, self.mend_one, [number])
        timer.daemon = True
        timer.start()
        return number

    def extend(self, number: int, more: "Callable[[], None]") -> None:
        """Break more of what has this number, unless it is mended: nobody would mend that."""
        with self._lock:
            if number in self._mends:
                more()

    def mend(self) -> None:
        """Mend everything now."""
        for number in list(self._mends):
            self.mend_one(number)

    def mend_one(self, number: int) -> None:
        """Mend what has this number now, unless it is mended."""
        with self._lock:
            mend = self._mends.pop(number, None)
            if mend is not None:
                mend()


# ── what may be done here ─────────────────────────────────────────────────────


def abilities(limit: int) -> "dict[str, Any]":
    """Why each kind of damage cannot be done here; empty where it can."""
    client = _client()
    address = os.environ["SSH_CONNECTION"].split()[2] if client else ""
    # Other hosts have addresses of the kind by which this one is reached.
    tool = _filter_for(address)
    return {
        "address": address,
        "fill-disk": _why_not_fill(limit),
        "cut": _why_not_run([tool, "-w", "-n", "-L", "INPUT"]),
        "slow-network": _why_not_run(["tc", "qdisc", "show"]),
    }


def _why_not_fill(limit: float) -> str:
    directory = tempfile.gettempdir()
    free = float(shutil.disk_usage(directory).free)
    if free <= limit:
        return ""
    free, limit = free / (1 << 30), limit / (1 << 30)
    return f"{directory} has {free:.1f} GiB free, more than the limit of {limit:.1f} GiB"


def _why_not_run(command: "list[str]") -> str:
    if _tool(command[0]) is None:
        return f"{command[0]} is not installed"
    if not _is_admin() and not _has_sudo():
        return f"{command[0]} needs root, or sudo without a password"
    done = _run(command)
    text = done.stderr.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else f"{command[0]}: {text}"


def _is_admin() -> bool:
    """This process may change the network."""
    try:
        with open("/proc/self/status") as file:
            found = [line for line in file if line.startswith("CapEff:")]
        return bool(int(found[0].split()[1], 16) & _NET_ADMIN)
    except (OSError, IndexError, ValueError):
        return os.geteuid() == 0


def _has_sudo() -> bool:
    sudo = shutil.which("sudo")
    return (
        sudo is not None
        and subprocess.call(
            [sudo, "-n", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        == 0
    )


def _tool(name: str) -> "str | None":
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _run(command: "list[str]") -> "subprocess.CompletedProcess[bytes]":
    path = _tool(command[0]) or command[0]
    prefix = [] if _is_admin() else ["sudo", "-n"]
    return subprocess.run(  # noqa: PLW1510, UP022 for older Pythons too
        [*prefix, path, *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=10
    )


def _try(command: "list[str]") -> None:
    """Run it as far as that goes: what comes after it must be done all the same."""
    try:
        _run(command)
    except (OSError, subprocess.SubprocessError):
        pass


def _must(command: "list[str]") -> None:
    done = _run(command)
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise OSError(f"{' '.join(command)}: {text}")


# ── processes ─────────────────────────────────────────────────────────────────


def _check_ours(pid: int) -> None:
    """Refuse a process that is no agent and no worker: its number may be another's by now."""
    for one in (pid, _parents().get(pid, 0)):
        try:
            with open(f"/proc/{one}/cmdline", "rb") as file:
                if file.read(9) == b"phalanx: ":
                    return
        except OSError:
            continue
    raise OSError(f"process {pid} has ended")


def _parents() -> "dict[int, int]":
    """The parent of every process here."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
    return found


def _below(pid: int) -> "set[int]":
    parents = _parents()
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


def kill_tree(pid: int) -> int:
    """Kill a process and all below it at once; gives how many there were."""
    os.kill(pid, signal.SIGSTOP)  # it must not start others meanwhile, nor notice
    killed = set()  # type: set[int]
    while True:
        new = _below(pid) - killed
        if not new:
            break
        for one in new:
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                pass
        killed |= new
    os.kill(pid, signal.SIGKILL)
    return len(killed) + 1


def _pause(damage: Damage, pid: int, seconds: float) -> None:
    _check_ours(pid)
    start = _start_time(pid)

    def go_on() -> None:
        if _start_time(pid) == start:
            os.kill(pid, signal.SIGCONT)

    os.kill(pid, signal.SIGSTOP)
    damage.add(go_on, seconds)
    _say(done="")


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


# ── disk and network ──────────────────────────────────────────────────────────


def _fill(damage: Damage, limit: int, seconds: float) -> None:
    """Take all that is free with a file that has no name: it is gone with this process."""
    directory = tempfile.gettempdir()
    problem = _why_not_fill(limit)
    if problem:
        raise OSError(problem)
    file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 it is closed when it is mended
    size, chunk = 0, _CHUNK
    while chunk >= 4096 and size < limit:
        try:
            os.posix_fallocate(file.fileno(), size, min(chunk, limit - size))
            size += min(chunk, limit - size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                file.close()
                raise
            chunk //= 2
    damage.add(file.close, seconds)
    _say(done=f"{size / (1 << 30):.2f} GiB of {directory}")


def _client() -> "list[str]":
    """The address that whoever asks has come from."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return connection[:1] if len(connection) == 4 else []


def _filter_for(address: str) -> str:
    return "ip6tables" if ":" in address else "iptables"


def _rule(chain: str, end: str, address: str) -> "list[str]":
    mark = ["-j", "DROP", "-m", "comment", "--comment", "phalanx chaos"]
    return [_filter_for(address), chain, end, address, *mark]


def _cut(damage: Damage, peers: "list[str]", seconds: float) -> None:
    """Drop all packets of these and of whoever asks, who is told while that is still possible:
    when all rules are there but the last, without which the answer gets out.
    """
    client = _client()
    addresses = list(dict.fromkeys(filter(None, [*peers, *client])))
    if not addresses:
        raise ValueError("there is no other host to be cut off from")
    rules = [_rule("INPUT", "-s", address) for address in addresses]
    rules += [_rule("OUTPUT", "-d", address) for address in addresses if address not in client]
    last = [_rule("OUTPUT", "-d", address) for address in client]
    made = []  # type: list[list[str]]

    def mend() -> None:
        for tool, *rule in made:
            _try([tool, "-w", "-D", *rule])

    def begin() -> None:
        for tool, *rule in rules:
            made.append([tool, *rule])  # it may be there, too, if we do not hear of it
            _must([tool, "-w", "-I", *rule])

    def complete() -> None:
        for tool, *rule in last:
            # Nothing can be said any more; what the client sends is dropped in any case.
            made.append([tool, *rule])
            _try([tool, "-w", "-I", *rule])

    number = damage.add(mend, seconds)
    try:
        damage.extend(number, begin)
    except (OSError, subprocess.SubprocessError):
        damage.mend_one(number)
        raise
    _say(done=f"cut off from {len(addresses)} addresses")
    time.sleep(_ANSWERED)
    damage.extend(number, complete)


def _slow_down(damage: Damage, peers: "list[str]", rate: str, seconds: float) -> None:
    interface = _interface([*_client(), *peers])
    shown = _run(["tc", "qdisc", "show", "dev", interface, "root"]).stdout.decode().split()
    if len(shown) > 1 and shown[1] not in _PLAIN_QUEUES:
        raise OSError(f"{interface} has a {shown[1]} queue already")
    shape = ["root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms"]
    _must(["tc", "qdisc", "replace", "dev", interface, *shape])

    def mend() -> None:
        _try(["tc", "qdisc", "del", "dev", interface, "root"])

    damage.add(mend, seconds)
    _say(done=f"{interface} limited to {rate}")


def _interface(addresses: "list[str]") -> str:
    for address in filter(None, addresses):
        shown = subprocess.run(  # noqa: PLW1510, UP022 for older Pythons too
            [_tool("ip") or "ip", "route", "get", address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=10,
        )
        words = shown.stdout.decode().split()
        if "dev" in words and words[words.index("dev") + 1] != "lo":
            return words[words.index("dev") + 1]
    raise OSError("no network interface leads to the other hosts")
