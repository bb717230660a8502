"""What a replica runs, and how it learns its number. Pure.

The replicas of a role share one command, since a multi-node job has at most five groups of nodes
and an array job has one. A shell puts in what only the replica knows.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from phalanx._core.ranks import REPLICA
from phalanx._schedulers.aws_batch.names import BatchAppId, JobKind
from phalanx._schedulers.replicas.request import ROLE, with_python
from phalanx._specs import Role
from phalanx._specs.substitution import Values
from phalanx.errors import ConfigError

_REPLICA_ID = "PHALANX-5f0c8e1d-REPLICA-ID"
"""Stands for a replica's number until the shell knows it."""
_MAIN_NODE = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
"""Set by the service on all nodes but the main one, which has to find out its own address."""
_MAIN_OR_OWN = (
    f'export NAME="${{{_MAIN_NODE}:-$(hostname -i 2>/dev/null | cut -d " " -f 1)}}"\n'
    'case "$NAME" in ""|127.*|::1) NAME=localhost ;; esac\n'
)


@dataclass(frozen=True)
class ReplicaCommand:
    """The command of a role's replicas, and their environment."""

    argv: tuple[str, ...]
    env: dict[str, str]


def make_command(
    role: Role, kind: JobKind, app: BatchAppId, rank0_env: str, python: str, first: int
) -> ReplicaCommand:
    """The command of a role whose first replica has that number in the app.

    Raises `ConfigError` for a role whose replicas want to find their first, and cannot.
    """
    _check_meeting(role, kind, rank0_env, first)
    number = "0" if kind is JobKind.CONTAINER else _REPLICA_ID
    meant = Values(".", app.name, number, rank0_env).apply(role, str(app))
    argv = with_python((meant.entrypoint, *meant.args), python)
    env = {ROLE: role.name, "PYTHONUNBUFFERED": "1", **meant.env}
    if kind is JobKind.CONTAINER:
        return ReplicaCommand(argv, {REPLICA: "0", rank0_env: "localhost", **env})
    lines = [f"export {REPLICA}={_index(kind, first)}\n"]
    if kind is JobKind.NODES and first == 0:
        lines.append(_MAIN_OR_OWN.replace("NAME", rank0_env))
    elif kind is JobKind.NODES and role.num_replicas == 1:
        env.setdefault(rank0_env, "localhost")
    own = {name: value for name, value in env.items() if _REPLICA_ID in value}
    lines += [f"export {name}={_word(value)}\n" for name, value in own.items()]
    lines.append(f"exec {' '.join(_word(word) for word in argv)}\n")
    shared = {name: value for name, value in env.items() if name not in own}
    return ReplicaCommand(("sh", "-c", "".join(lines)), shared)


def _index(kind: JobKind, first: int) -> str:
    if kind is JobKind.ARRAY:
        return '"$AWS_BATCH_JOB_ARRAY_INDEX"'
    return f"$((AWS_BATCH_JOB_NODE_INDEX - {first}))"


def _word(text: str) -> str:
    """A word for the shell, with the replica's number where it belongs."""
    parts = [shlex.quote(part) if part else "" for part in text.split(_REPLICA_ID)]
    return f'"${REPLICA}"'.join(parts) or "''"


def _check_meeting(role: Role, kind: JobKind, rank0_env: str, first: int) -> None:
    """The service tells nodes where the main node is, and nothing of any other."""
    words = [role.entrypoint, *role.args, *role.env.values()]
    if not any("${rank0_env}" in word or rank0_env in word for word in words):
        return
    if kind is JobKind.ARRAY:
        raise ConfigError(
            f"role {role.name!r}: replicas of an array job do not find each other. Use "
            "-cfg job_type=nodes."
        )
    if kind is JobKind.NODES and first and role.num_replicas > 1:
        raise ConfigError(
            f"role {role.name!r}: only the replicas of the first role find their first. Put it "
            "first, or into an app of its own."
        )
