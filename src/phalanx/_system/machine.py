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
from collections.abc import Mapping

from phalanx._system import processes

# The directory that we are started in must not shadow the standard library, and it must be this
# very phalanx that is found, wherever another may be installed. First of all, long before our
# modules are imported: `processes.first_words`.
_BOOT = (
    "import sys; sys.path[:] = {first!r} + [p for p in sys.path if p] + {roots!r}; "
    "{wake}"
    "import importlib.util as u; "
    "s = u.spec_from_file_location('phalanx', {init!r}, submodule_search_locations=[{package!r}]); "
    "m = sys.modules['phalanx'] = u.module_from_spec(s); s.loader.exec_module(m); "
    "from {module} import main; main()"
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


def agent_command(*arguments: str, env_file: str | None = None) -> list[str]:
    """The command that runs an agent on this machine with this interpreter."""
    command = python_command("phalanx._agent.process", *arguments)
    if env_file is not None:
        from phalanx._remote.bootstrap import SOURCE

        command = ["bash", "-c", SOURCE, "bash", env_file, env_file, *command]
    return command


def python_command(module: str, *arguments: str, wakes: bool = True) -> list[str]:
    """The command that runs `main()` of one of our modules in an interpreter like this one.

    While it is stopped, the end of the process that started it wakes it: it then sees what else
    has ended, and ends in order. Not so with `wakes=False`, for what dies with its parent.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    roots = [_root("msgpack"), _root("cloudpickle")]
    sent = {os.path.dirname(package)} == set(roots)
    code = _BOOT.format(
        first=roots[:1] if sent else [],  # a directory with nothing but what was sent here
        wake=processes.first_words() if wakes else "",
        roots=list(dict.fromkeys(roots)),
        init=os.path.join(package, "__init__.py"),
        package=package,
        module=module,
    )
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *flags, "-c", code, *arguments]


def program_path(path: str) -> str:
    """PATH, with the programs of the virtual environment that this runs in before all others."""
    if sys.prefix == sys.base_prefix:
        return path
    programs = os.path.join(sys.prefix, "bin")
    return os.pathsep.join([programs, *(p for p in path.split(os.pathsep) if p != programs)])


def _root(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return os.path.dirname(os.path.dirname(spec.origin))
