"""Which environment variables travel, whose they are, which must be there at a start. Pure."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from phalanx._core.json_text import parse_json
from phalanx.errors import ConfigError

COPIED_BY_DEFAULT = (
    "PATH",
    "LD_LIBRARY*",
    "LIBRARY_PATH",
    "PYTHON*",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CUDA*",
    "NVIDIA*",
    "TORCH*",
    "PYTORCH*",
    "NCCL*",
    "GLOO*",
    "UCX*",
    "UCC*",
    "OMP*",
    "MKL*",
    "OPENBLAS*",
    "KMP*",
    "JAX*",
    "XLA*",
    "HF_*",
    "HUGGINGFACE*",
    "TRANSFORMERS*",
    "TOKENIZERS*",
    "WANDB*",
    "MLFLOW*",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE",
    "LANG",
    "LC_*",
    "TZ",
    "PHALANX_COMPAT",
)
"""Patterns (fnmatch) of the variables that a launch copies to other hosts."""

_ACTS_AT_START = (
    "LD_*",
    "PYTHON*",
    "MALLOC_*",
    "GLIBC_*",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "ASAN_*",
)


PASSING = (
    "COLUMNS",
    "GPG_TTY",
    "LINES",
    "OLDPWD",
    "PWD",
    "PYTEST_CURRENT_TEST",
    "SHLVL",
    "SSH_AUTH_SOCK",
    "SSH_CLIENT",
    "SSH_CONNECTION",
    "SSH_TTY",
    "STY",
    "TERM_SESSION_ID",
    "TMUX",
    "TMUX_PANE",
    "WINDOW",
    "WINDOWID",
    "XDG_SESSION_ID",
    "_",
)
"""Variables that say where a command was typed, and change from one to the next: a process that was
started before can take them on. Any other difference wants another process."""


OURS = "PHALANX_DEFAULTS"
"""The variable in which a worker finds what we have set where the user had set nothing, names and
values as JSON: it must not be taken for the user's wish by what is started inside."""


def defaults(environ: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Those of `wanted` that the user has not set, and the note that they are ours."""
    chosen = {name: value for name, value in wanted.items() if name not in environ}
    return {**chosen, OURS: json.dumps({**_ours(environ), **chosen})}


def users(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without what we have set in it; what was changed since is the user's."""
    ours = _ours(environ)
    return {k: v for k, v in environ.items() if k != OURS and ours.get(k) != v}


def _ours(environ: Mapping[str, str]) -> dict[str, str]:
    try:
        noted = parse_json(environ.get(OURS, "{}"))
    except ValueError:
        return {}  # somebody else's variable of that name
    return noted if isinstance(noted, dict) else {}


def passing(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change from one command to the next."""
    return {name: environ[name] for name in PASSING if name in environ}


def copied(environ: Mapping[str, str], patterns: Iterable[str]) -> dict[str, str]:
    """The variables of `environ` whose names match one of the patterns."""
    patterns = tuple(patterns)
    return {
        name: value
        for name, value in environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def acts_at_start(name: str) -> bool:
    """The variable is read by the loader, libc or the interpreter before any code of ours runs."""
    return any(fnmatchcase(name, pattern) for pattern in _ACTS_AT_START)


def not_a_name(name: object) -> str:
    """What to say of a name that no variable can have; one with a value in it is taken apart."""
    said = f"{name!r} is not a valid variable name."
    if isinstance(name, str):
        real, is_pair, value = name.partition("=")
        if real and is_pair:
            said += f" Write {real!r}: {value!r}."
    return said


def check(field: str, name: object, value: object) -> None:
    """Refuse what no process environment can hold, naming the variable and where it was given."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise ConfigError(
            f"{field}: {name!r} = {value!r}: names and values must be strings. "
            f"Write {str(name)!r}: {str(value)!r}."
        )
    if not name or "=" in name or "\0" in name:
        raise ConfigError(f"{field}: {not_a_name(name)}")
    if "\0" in value:
        raise ConfigError(f"{field}: the value of {name} contains a NUL byte.")
    try:
        os.fsencode(name + value)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{field}: {name} cannot be encoded: {error.reason}.") from None
