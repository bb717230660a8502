"""What another host is and has, as `phalanx hosts check` asks for it.

Like `bootstrap`, its text travels down the channel and stands alone; any Python from 3.6 on can
read it. Nothing is kept on the host. Each question is a line of JSON, and so is each answer: the
facts; `ping`, the clock; `check`, whether it passes a check; `peers`, whether other hosts are
reached.
"""

import importlib.util
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO, Any

WRITE = 4
_PATIENCE = 3.0
"""Seconds for another host to answer."""


def probe(incoming: "IO[bytes]") -> None:
    """Answer until nothing is asked any more."""
    probe_port = _open_probe_port()
    for line in incoming:
        asked = json.loads(line.decode())
        if asked["ask"] == "facts":
            _say(**facts(), port=probe_port.getsockname()[1])
        elif asked["ask"] == "ping":
            _say(clock=time.time())
        elif asked["ask"] == "check":
            _say(problem=check(asked["name"], asked["value"], asked["clock"]))
        else:
            _say(reached=_reach_all(asked["peers"]))


def _say(**message: "Any") -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(WRITE, data) :]


def facts() -> "dict[str, Any]":
    """What this host is and has."""
    torch, cuda = _torch()
    memory = _memory()
    return {
        "name": socket.gethostname(),
        "address": _address(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable,
        "torch": torch,
        "cuda": cuda,
        "gpus": _gpus(),
        "processors": _processors(),
        "memory": memory.get("MemTotal", 0),
        "memory_free": memory.get("MemAvailable", 0),
        "disk_free": shutil.disk_usage(_home()).free,
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
    }


def _address() -> str:
    """The address that others may reach this host at: the one ssh came to, or the way out."""
    connection = os.environ.get("SSH_CONNECTION", "").split()
    if len(connection) == 4 and _is_own(connection[2]):
        return connection[2]
    for other in (os.environ.get("SLURM_LAUNCH_NODE_IPADDR"), "198.51.100.1"):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((other, 9))
                return str(probe.getsockname()[0])
        except (OSError, TypeError):
            continue
    return ""


def _is_own(address: str) -> bool:
    """Slurm hands the login's variables on to all hosts of a job."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # other Pythons may not have it
        return os.cpu_count() or 1


def _home() -> str:
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else tempfile.gettempdir()


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _memory() -> "dict[str, int]":
    found = re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    return {name: int(size) * 1024 for name, size in found}


def _torch() -> "tuple[str | None, str | None]":
    """Torch's version and the CUDA it was built for, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    text = _read(os.path.join(os.path.dirname(spec.origin), "version.py"))
    version = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    cuda = re.search(r"^cuda(?:: [^=]+)? = ['\"]([^'\"]+)", text, re.MULTILINE)
    return (version.group(1) if version else "unknown", cuda.group(1) if cuda else None)


def _gpus() -> "list[str]":
    """The names of the GPUs, as far as the driver's tool tells."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        try:
            answer = subprocess.run(  # noqa: PLW1510, UP022 for older Pythons too
                [tool, "--query-gpu=name", "--format=csv,noheader"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=10,
            )
            if answer.returncode == 0:
                return answer.stdout.decode("utf-8", "replace").split("\n")[:-1]
        except (OSError, subprocess.TimeoutExpired):
            pass
    return ["GPU" for name in os.listdir("/dev") if re.match(r"nvidia\d+$", name)]


# ── does it pass a check? ──────────────────────────────────────────────────────

CHECKS = {"gpus": 0.0, "ecc": 0.0, "disk": float(1 << 30), "clock": 60.0}
"""What can be checked, and the value unless one is given: GPUs that must respond (0: all that this
user may open), uncorrected ECC errors that a GPU may have, bytes that must be free, seconds that
the clock may be off."""


def check(name: str, value: float, clock: float) -> str:
    """Why this host fails a check; empty if it does not. `clock` is the time elsewhere."""
    if name == "gpus":
        return _check_gpus(int(value))
    if name == "ecc":
        return _check_ecc(int(value))
    if name == "disk":
        return _check_disk(value)
    off = time.time() - clock
    if abs(off) <= value:
        return ""
    return (
        f"the clock is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}, more than {value:g} s"
    )


def _check_gpus(least: int) -> str:
    """A GPU that has fallen off the bus has a device file still, and does not answer."""
    wanted = least or len(_own_gpu_files())
    if not wanted:
        return "no GPU was found"
    lines, problem = _nvidia_smi("-L")
    found = [line for line in lines if re.match(r"GPU \d+: .*UUID", line)]
    if len(found) >= wanted and not problem:
        return ""
    other = [line for line in lines if line not in found]
    said = problem or (other[0] if other else "")
    return f"{len(found)} of {wanted} GPUs respond" + (f": {said}" if said else "")


def _own_gpu_files() -> "list[str]":
    """The device files of GPUs, but for those that others have been given."""
    own = []
    for name in os.listdir("/dev"):
        if re.match(r"nvidia\d+$", name):
            try:
                os.close(os.open(f"/dev/{name}", os.O_RDWR))
            except PermissionError:
                continue
            except OSError:
                pass
            own.append(name)
    return own


def _check_ecc(most: int) -> str:
    query = "--query-gpu=index,ecc.errors.uncorrected.volatile.total"
    lines, problem = _nvidia_smi(query, "--format=csv,noheader,nounits")
    if problem:
        return problem
    for line in lines:
        index, _, count = line.partition(",")
        if count.strip().isdigit() and int(count) > most:
            return f"GPU {index} has {count.strip()} uncorrected ECC errors, more than {most}"
    return ""


def _nvidia_smi(*arguments: str) -> "tuple[list[str], str]":
    """What the driver's tool prints, and why that is nothing to go by."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return [], "nvidia-smi is not installed"
    try:
        answer = subprocess.run(  # noqa: PLW1510 for older Pythons too
            [tool, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20
        )
    except subprocess.TimeoutExpired:
        return [], "nvidia-smi did not answer within 20 s"
    except OSError as error:
        return [], f"nvidia-smi: {error.strerror}"
    lines = [line for line in answer.stdout.decode("utf-8", "replace").splitlines() if line.strip()]
    if answer.returncode:
        said = lines[-1] if lines else f"exit code {answer.returncode}"
        return lines, f"nvidia-smi: {said}"
    return lines, ""


def _check_disk(least: float) -> str:
    """What is needed: room for output, for the project's copy, and for what workers write."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(_home(), ".cache")
    while not os.path.isdir(cache):
        cache = os.path.dirname(cache)
    for directory in (tempfile.gettempdir(), cache, os.getcwd()):
        found = os.statvfs(directory)
        free = found.f_bavail * found.f_frsize
        if free < least:
            return f"{directory} has {free >> 20} MiB free, less than {int(least) >> 20} MiB"
    return ""


# ── do hosts reach each other? ────────────────────────────────────────────────


def _open_probe_port() -> socket.socket:
    """A port that takes connections and says nothing, for the others to try."""
    try:
        listening = socket.socket(socket.AF_INET6)
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(("::", 0))
    except OSError:
        listening = socket.socket()
        listening.bind(("", 0))
    listening.listen(1024)

    def accept() -> None:
        while True:
            listening.accept()[0].close()

    threading.Thread(target=accept, daemon=True).start()
    return listening


def _reach_all(peers: "list[tuple[str, str, int]]") -> "dict[str, str]":
    found = {}  # type: dict[str, str]
    trying = [threading.Thread(target=_reach, args=(found, *peer), daemon=True) for peer in peers]
    for thread in trying:
        thread.start()
    for thread in trying:
        thread.join(_PATIENCE + 1)
    return found


def _reach(found: "dict[str, str]", name: str, address: str, port: int) -> None:
    found[name] = f"no answer within {_PATIENCE:g} s"
    try:
        socket.create_connection((address, port), timeout=_PATIENCE).close()
        found[name] = ""
    except socket.timeout:  # noqa: UP041 for older Pythons too
        return
    except OSError as error:
        found[name] = error.strerror or str(error)
