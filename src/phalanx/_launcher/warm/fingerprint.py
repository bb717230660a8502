"""All that a worker's process takes over when it starts, and cannot take on later."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from phalanx import __version__
from phalanx import _wire as wire
from phalanx._core.environment import PASSING, users
from phalanx._system import identity

Fingerprint = dict[str, Any]


def local_fingerprint(prepare: wire.Prepare, env_file: str | None) -> Fingerprint:
    """All that a worker's process takes over from this one, and cannot take on later."""
    return {
        "interpreter": [sys.executable, sys.version, _interpreter_flags()],
        "phalanx": [__version__, *_newest(Path(__file__).parents[2])],
        "environment": {k: v for k, v in users(os.environ).items() if k not in PASSING},
        "extra_env_vars": {k: v for k, v in prepare.environment.items() if k not in PASSING},
        "sys.path": list(prepare.python_path),
        "env_file": [env_file, _content(env_file)],
        "start_method": prepare.spawn,
        "no working directory": prepare.cwd is None,
        "several workers": prepare.workers > 1,
        "limits": {n: resource.getrlimit(getattr(resource, n)) for n in _LIMITS},
        "process": _process(),
    }


def remote_fingerprint(
    prepare: wire.Prepare, target: object, code: str, env_file: object
) -> Fingerprint:
    """The same for an agent on another host, as far as it is told from here."""
    return {
        "host": target,
        "phalanx": code,
        "environment": prepare.environment,
        "sys.path": list(prepare.python_path),
        "env_file": env_file,
        "start_method": prepare.spawn,
        "several workers": prepare.workers > 1,
        "reconnects": prepare.reconnect_timeout > 0,
    }


_LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]


def _interpreter_flags() -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def _newest(package: Path) -> tuple[str, int]:
    newest = 0
    for path in package.rglob("*.py"):
        with contextlib.suppress(OSError):  # an editor replaces it at this moment
            newest = max(newest, path.stat().st_mtime_ns)
    return str(package), newest


def _content(path: str | None) -> str:
    if path is None:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return os.urandom(8).hex()  # whatever it is, it is not the same


def _process() -> list[Any]:
    """User, groups, umask, processors, priority, namespaces and control group."""
    umask = re.search(r"^Umask:\s*(\S+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    spaces = []
    for name in ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts"):
        with contextlib.suppress(OSError):
            spaces.append(identity.namespace(name))
    groups = Path("/proc/self/cgroup").read_text()
    return [
        *(os.getresuid(), os.getresgid(), sorted(os.getgroups())),
        umask and umask[1],
        sorted(os.sched_getaffinity(0)),
        os.getpriority(os.PRIO_PROCESS, 0),
        spaces,
        # Two logins of a user differ in this alone.
        re.sub(r"/session-[^/\n]*\.scope", "", groups),
    ]


def digest(fingerprint: Fingerprint) -> str:
    """A name for the fingerprint."""
    text = json.dumps(fingerprint, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:24]
