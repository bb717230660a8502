"""The text of `phalanx launch --help`: what people use first, then the rest under headings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

USAGE = "usage: phalanx launch FILE.py:FUNCTION | MODULE:FUNCTION [OPTIONS] [-- ARGUMENTS]"

_DESCRIPTION = """\
Run a function on every rank and print what each rank returns.

  phalanx launch train.py:main --workers-per-host 4
  phalanx launch train.py:main --hostnames gpu-1 gpu-2 -- --lr 0.1
  phalanx launch train.py:main -s slurm --num-hosts 4 -cfg partition=gpu,time=2:00:00

ARGUMENTS are passed to the function. List them with: phalanx launch FILE.py:FUNCTION -- --help
A function without parameters finds them in sys.argv, as a script does.
Follow the launch from another terminal with: phalanx list, status, log, stacks, cancel"""

_EPILOG = """\
exit codes: 0 all ranks returned; 1 the launch failed, or output could not be written; N a worker
exited with code N; 2 invalid command line; 130 interrupted."""

GROUPS: dict[str, dict[str, str]] = {
    "options": {
        "hostnames": "HOST ...",
        "workers_per_host": "N",
        "python": "PATH",
        "backend": "NAME",
        "extra_env_vars": "NAME VALUE ...",
        "max_restarts": "N",
        "log_dir": "DIR",
        "show": "RANKS",
        "detach": "",
        "name": "NAME",
    },
    "logs": {
        "quiet": "",
        "verbose": "",
    },
    "hosts of a scheduler": {
        "scheduler": "NAME",
        "num_hosts": "N",
        "image": "NAME",
        "scheduler_options": "KEY=VALUE,…",
        "queue_timeout": "SECONDS",
    },
    "environment": {
        "env_vars": "PATTERN ...",
        "host_env_vars": "HOST NAME VALUE ...",
        "env_file": "FILE",
    },
    "files": {
        "workspace": "DIR",
        "fetch": "PATTERN ...",
    },
    "processes": {
        "start_method": "METHOD",
        "preload": "PACKAGE ...",
        "keep_warm": "SECONDS",
        "preempt_signal": "SIGNAL",
    },
    "restarts and elastic hosts": {
        "min_hosts": "N",
        "max_hosts": "N",
        "restart": "SCOPE",
        "restart_backoff": "SECONDS",
        "same_failures": "N",
        "host_failures": "N",
        "host_checks": "CHECK ...",
    },
    "ssh and network": {
        "ssh_config_file": "FILE",
        "parallel_logins": "N",
        "address": "ADDRESS",
        "interface": "NAME",
    },
    "timeouts": {
        "start_timeout": "SECONDS",
        "process_group_timeout": "SECONDS",
        "heartbeat_timeout": "SECONDS",
        "host_timeout": "SECONDS",
        "orphan_timeout": "SECONDS",
        "reconnect_timeout": "SECONDS",
        "stop_grace": "SECONDS",
    },
}
"""The options under their headings, each with what stands for its value."""

METAVARS = {name: value for group in GROUPS.values() for name, value in group.items()}
"""What stands for the value of each."""

_SHORT = {"scheduler": "-s, ", "scheduler_options": "-cfg, "}
_WIDTH = 100
_COLUMN = 26


def render(
    *kinds: type[Any],
    head: Sequence[str] = (USAGE, _DESCRIPTION),
    groups: Mapping[str, Mapping[str, str]] = GROUPS,
    epilog: str = _EPILOG,
) -> str:
    """The help: from the fields of these dataclasses, and the docstrings below them."""
    texts = {name: text for kind in kinds for name, text in _docstrings(kind).items()}
    defaults = {field.name: field for kind in kinds for field in fields(kind)}
    parts = [*head]
    for title, options in groups.items():
        lines = ["  -h, --help".ljust(_COLUMN) + "Show this help."] if title == "options" else []
        for name, metavar in options.items():
            flag = f"{_SHORT.get(name, '')}--{name.replace('_', '-')} {metavar}".rstrip()
            text = f"{_for_a_shell(texts[name], defaults)}{_default(defaults[name])}"
            # As everywhere else on the command line.
            lines += _entry(flag, re.sub(r"\.? Default: (.*?)\.?$", r" (default: \1).", text))
        parts.append("\n".join([f"{title}:", *lines]))
    return "\n\n".join([*parts, epilog])


def _for_a_shell(text: str, names: Collection[str]) -> str:
    """A field's docstring, where others are named as flags."""
    text = re.sub(r" \(on the command line: [^)]*\)", "", text)
    others = "|".join(name for name in names if "_" in name or name == "hostnames")
    return re.sub(rf"\b({others})\b", lambda found: f"--{found[1].replace('_', '-')}", text)


def _entry(flag: str, text: str) -> list[str]:
    indent = " " * _COLUMN
    lines = textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    if len(flag) + 4 > _COLUMN:
        return [f"  {flag}", *lines]
    return [f"  {flag}".ljust(_COLUMN) + lines[0].strip(), *lines[1:]]


def _default(field: Any) -> str:
    """What a field is unless it is given; where that is None, its docstring says so."""
    value = field.default
    if value is MISSING or value is None or value is False:
        return ""
    if isinstance(value, tuple):
        return f" Default: {' '.join(value)}"
    return f" Default: {value:g}." if isinstance(value, float) else f" Default: {value}."


def _docstrings(kind: type[Any]) -> dict[str, str]:
    """The text below each field of a dataclass, its own and those that it inherits."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match text:
                    case ast.Expr(ast.Constant(str(doc))):
                        found[field.target.id] = " ".join(doc.split())
    return found
