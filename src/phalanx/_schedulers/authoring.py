"""What most schedulers need, ours among them."""

from __future__ import annotations

import fnmatch
import importlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType

from phalanx._logs import logger
from phalanx._specs import AppDef, Role
from phalanx._specs.app_def import MODULE, SCRIPT
from phalanx._specs.substitution import Values
from phalanx._system.near_files import current_directory, no_such_file
from phalanx.errors import ConfigError

UNSAID_MEMORY = 1024
"""Megabytes that components ask for where the user said nothing: far too little to be a wish."""


def make_app_id(name: str) -> str:
    """A new id for an app, made of letters, digits, `_` and `-`.

    Args:
        name: The app's name, with which the id begins.
    """
    word = re.sub(r"[^a-zA-Z0-9_]+", "-", name).strip("-_").lower()[:40].rstrip("-_") or "app"
    return f"{word}-{os.urandom(4).hex()}"


def replicas(
    app: AppDef, app_id: str, *, rank0_env: str, root: str | None = None, handle_id: str = ""
) -> Iterator[tuple[Role, int]]:
    """Every replica of an app: its role, with the macros replaced, and its number in it.

    Args:
        app: The app.
        app_id: Its id, for `${app_id}`.
        rank0_env: The scheduler's `rank0_env`, for `${rank0_env}`.
        root: The directory that replicas start in, for `${img_root}`; by default the role's
            workspace.
        handle_id: The id in the app's handle, for `PHALANX_JOB_ID`; by default `app_id`.

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
            yield Values(directory, app_id, str(number), rank0_env).apply(role, handle_id), number


def workspace_of(role: Role) -> str:
    """The directory whose files a role runs with: its own, or the current one."""
    path = os.path.expanduser((role.workspace or "").removeprefix("file://"))
    return os.path.normpath(path if os.path.isabs(path) else f"{current_directory()}/{path}")


def needs_phalanx(role: Role) -> bool:
    """A word of its command is Phalanx."""
    words = [role.entrypoint, *role.args]
    return any(re.search(r"(^|\s|/)phalanx(\s|\.|$)", word) for word in words)


def copied_variables(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The variables of an environment whose names match, for an API that takes text.

    Raises `ConfigError` for one that is none; its value is not told.
    """
    wanted = list(patterns)
    found = {
        name: value
        for name, value in environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in wanted)
    }
    for name, value in found.items():
        if not _is_text(name + value):
            raise ConfigError(f"copy_env: the variable {name!r} is not UTF-8 text. Leave it out.")
    return found


def check_text(app: AppDef, env: Mapping[str, str]) -> None:
    """Refuse words and variables that no API can take: bytes that are no text.

    `env` is what the options set. Raises `ConfigError`.
    """
    for role in app.roles:
        for word in (role.entrypoint, *role.args):
            if not _is_text(word):
                raise ConfigError(f"role {role.name!r}: the argument {word!r} is not UTF-8 text.")
        for name, value in {**env, **role.env}.items():
            if not _is_text(name + value):
                raise ConfigError(f"role {role.name!r}: the variable {name!r} is not UTF-8 text.")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_script(script: str, directory: str) -> None:
    """Refuse a Python file that is not there. Raises `ConfigError`."""
    path = os.path.join(directory, script)
    if not os.path.exists(path):
        raise ConfigError(no_such_file(script, directory))
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


def files_needed(roles: Iterable[Role]) -> dict[str, tuple[str, ...]]:
    """What is sent of workspaces that are nobody's projects, such as a home directory.

    By workspace: the scripts or modules that roles run, and what these import of it, in full. A
    workspace that is not among them goes as a whole. Warns of what is not sent.
    """
    from phalanx._launcher.project.project_files import is_too_wide

    found: dict[str, dict[str, None]] = {}
    told: dict[str, None] = {}
    for role in roles:
        directory = workspace_of(role)
        if not is_too_wide(directory):
            continue
        files = _files_run(role, directory)
        found.setdefault(directory, {}).update(dict.fromkeys(files))
        what = f"nothing of {directory} is sent"
        if files:
            script = os.path.relpath(files[0], directory)
            what = f"of {directory} only {script} and what it imports is sent"
        told[what] = None
    for what in told:
        logger.warning(
            "phalanx: %s: a home or system directory is not taken for a project. To send more, run "
            "from the project's own directory",
            what,
        )
    return {directory: tuple(files) for directory, files in found.items()}


def _files_run(role: Role, directory: str) -> tuple[str, ...]:
    from phalanx._launcher.planning import script_files

    script, module = role.metadata.get(SCRIPT), role.metadata.get(MODULE)
    if isinstance(script, str):
        return script_files.of_script(script, directory)
    return script_files.of_module(module, directory) if isinstance(module, str) else ()


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
