"""What most schedulers need, ours among them."""

from __future__ import annotations

import importlib
import os
import re
import secrets
from collections.abc import Iterator
from types import ModuleType

from phalanx._specs import AppDef, Role
from phalanx._specs.substitution import Values
from phalanx._system.near_files import near_file
from phalanx.errors import ConfigError

UNSAID_MEMORY = 1024
"""Megabytes that components ask for where the user said nothing: far too little to be a wish."""


def make_app_id(name: str) -> str:
    """A new id for an app, made of letters, digits, `_` and `-`.

    Args:
        name: The app's name, with which the id begins.
    """
    word = re.sub(r"[^a-zA-Z0-9_]+", "-", name).strip("-_").lower()[:40].rstrip("-_") or "app"
    return f"{word}-{secrets.token_hex(4)}"


def replicas(
    app: AppDef, app_id: str, *, rank0_env: str, root: str | None = None
) -> Iterator[tuple[Role, int]]:
    """Every replica of an app: its role, with the macros replaced, and its number in it.

    Args:
        app: The app.
        app_id: Its id, for `${app_id}`.
        rank0_env: The scheduler's `rank0_env`, for `${rank0_env}`.
        root: The directory that replicas start in, for `${img_root}`; by default the role's
            workspace.

    Yields:
        Pairs of role and number.

    Raises:
        ConfigError: There is nothing to run.
    """
    if not app.roles:
        raise ConfigError(f"app {app.name!r} has no roles.")
    for role in app.roles:
        if not role.entrypoint:
            raise ConfigError(f"role {role.name!r} of {app.name!r} has no entrypoint.")
        for number in range(role.num_replicas):
            directory = workspace_of(role) if root is None else root
            yield Values(directory, app_id, str(number), rank0_env).apply(role), number


def workspace_of(role: Role) -> str:
    """The directory whose files a role runs with: its own, or the current one."""
    try:
        path = (role.workspace or os.getcwd()).removeprefix("file://")
        return os.path.abspath(os.path.expanduser(path))
    except FileNotFoundError:
        raise ConfigError(
            "the current directory no longer exists; change to another one."
        ) from None


def needs_phalanx(role: Role) -> bool:
    """A word of its command is Phalanx."""
    words = [role.entrypoint, *role.args]
    return any(re.search(r"(^|\s|/)phalanx(\s|\.|$)", word) for word in words)


def check_script(script: str, directory: str) -> None:
    """Refuse a Python file that is not there. Raises `ConfigError`."""
    path = os.path.join(directory, script)
    if not os.path.exists(path):
        raise ConfigError(f"no such file: {script}.{near_file(path)}")
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        raise ConfigError(f"{script} is a directory without a __main__.py.")


def workspace_files(directory: str) -> Iterator[str]:
    """The files of a workspace that are sent to hosts.

    Args:
        directory: The workspace.

    Yields:
        Paths within it: what git tracks or does not ignore, less what `.phalanxignore` takes out.
    """
    from phalanx._launcher.project.project_files import ProjectDirectory

    for path, _ in ProjectDirectory(os.path.abspath(directory)).files():
        yield path


def need(package: str, extra: str) -> ModuleType:
    """Import a client library.

    Args:
        package: What to import.
        extra: What to install for it, such as `mypackage[docker]`.

    Raises:
        ConfigError: It is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(f"missing package ({error}): pip install '{extra}'") from None
