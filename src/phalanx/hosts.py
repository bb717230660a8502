"""What a host is and has: names that mean this machine, processors, GPUs, how to start an agent.

Nothing here imports torch or asks the GPU driver more than which devices there are.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence

_AGENT = "import sys; sys.path[:0] = {roots!r}; from phalanx.agent.process import main; main()"

SOURCE_FAILED = 97
"""The exit code of the shell that sources `env_file`, when that fails."""

# The file's own output must not get into the channel, nor may it eat what is meant for the agent.
_SOURCE = (
    'file=$1; shift; { source "$file"; } >&2 </dev/null; status=$?; '
    'if [ "$status" -ne 0 ]; then '
    'echo "env_file $file: its last command ended with status $status" >&2; '
    f'exit {SOURCE_FAILED}; fi; exec "$@"'
)


def is_this_machine(name: str) -> bool:
    """The name or address means this machine. May ask the resolver."""
    if name in ("localhost", "127.0.0.1", "::1", socket.gethostname()):
        return True
    try:
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        return False
    return bool(addresses) and all(map(_is_own_address, addresses))


def _is_own_address(address: str) -> bool:
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if parsed.is_loopback:
        return True
    family = socket.AF_INET6 if parsed.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(parsed), 0))
        except OSError:
            return False
    return True


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0))


def gpus(environ: Mapping[str, str] = os.environ, devices: str = "/dev") -> int:
    """How many NVIDIA GPUs are visible, without importing torch or starting CUDA."""
    present = _gpu_devices(devices)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or present == 0:
        return present
    named: list[str] = []
    for entry in visible.split(","):
        device = entry.strip()
        # CUDA stops at the first entry that is no device.
        if not device or device.startswith("-") or (device.isdigit() and int(device) >= present):
            break
        named.append(device)
    return len(named)


def _gpu_devices(directory: str) -> int:
    try:
        found = [n for n in os.listdir(directory) if re.fullmatch(r"nvidia\d+", n)]
    except OSError:
        found = []
    if found or not (tool := shutil.which("nvidia-smi")):
        return len(found)
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith(b"GPU ") for line in listing.stdout.splitlines())


def agent_command(env_file: str | None = None) -> list[str]:
    """The command that runs an agent on this machine with this interpreter."""
    roots = [_root(name) for name in ("phalanx", "msgpack")]
    code = _AGENT.format(roots=list(dict.fromkeys(roots)))
    command = [sys.executable, *interpreter_flags(), "-c", code]
    if env_file is not None:
        command = ["bash", "-c", _SOURCE, "bash", env_file, *command]
    return command


def interpreter_flags() -> Sequence[str]:
    """The options that this interpreter was started with, for one that should behave alike."""
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def _root(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return os.path.dirname(os.path.dirname(spec.origin))
