"""Where a cluster's dashboard is. Where only Ray knows, it is asked in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from phalanx._schedulers.ray.api.auth_token import with_mode
from phalanx._schedulers.ray.options import RayOptions
from phalanx.errors import ConfigError

DEFAULT = "http://127.0.0.1:8265"
_VARIABLES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_AUTO = "auto"
_CURRENT = "/tmp/ray/ray_current_cluster"  # noqa: S108 Ray's own file
_ASKING = 60.0
_ASK = """
import sys
from ray._raylet import GcsClient
found = GcsClient(address=sys.argv[1]).internal_kv_get(b"webui:url", b"dashboard", timeout=20)
print(found.decode() if found else "")
"""


def dashboard_of(options: RayOptions, environ: Mapping[str, str]) -> str:
    """The address that options and environment name. Raises `ConfigError`."""
    if options.dashboard_address is not None:
        return _as_url(options.dashboard_address)
    named = options.cluster
    if named == _AUTO:
        named = next((environ[name] for name in _VARIABLES if environ.get(name)), _AUTO)
    if named.startswith(("http://", "https://")):
        return _as_url(named)
    if named.startswith("ray://"):
        raise ConfigError(
            f"RAY_ADDRESS={named} is an address of Ray Client. Give the dashboard's: "
            "-cfg dashboard_address=http://HOST:8265"
        )
    if named in (_AUTO, "local"):
        named = within_program() or _current()
        return DEFAULT if not named else named if "://" in named else _ask(named)
    return _ask(named)


def within_program() -> str:
    """The dashboard of the cluster that this very program is connected to; empty if to none."""
    ray = sys.modules.get("ray")
    if ray is None or not getattr(ray, "is_initialized", bool)():
        return ""
    url = ray._private.worker.get_dashboard_url()
    return _as_url(url) if url else ""


def _current() -> str:
    """The cluster that was last started on this machine, by this user or any other."""
    try:
        with open(_CURRENT) as file:
            return file.read().strip()
    except OSError:
        return ""


def _ask(head: str) -> str:
    """Ask a cluster's head, with Ray's own client, in a process of its own."""
    try:
        asked = subprocess.run(
            [sys.executable, "-c", _ASK, head],
            env=with_mode(os.environ),
            capture_output=True,
            text=True,
            timeout=_ASKING,
            check=False,
        )
        said = asked.stderr.strip().splitlines()
    except subprocess.TimeoutExpired:
        said = [f"no answer in {_ASKING:g} s"]
    else:
        if asked.returncode == 0 and asked.stdout.strip():
            return _as_url(asked.stdout.strip().splitlines()[-1])
    if said and "No module named 'ray'" in said[-1]:
        said[-1] = "that needs Ray here: pip install 'phalanx[ray]'"
    reason = said[-1] if said else "it has none"
    raise ConfigError(
        f"ray: cannot find the dashboard of the cluster at {head}: {reason}. Name it with "
        "-cfg dashboard_address=http://HOST:8265"
    )


def _as_url(address: str) -> str:
    address = address.rstrip("/")
    return address if "://" in address else f"http://{address}"
