"""The batch script of an app. Pure.

Several roles are a heterogeneous job, one component for each: roles want different hosts (trainers
with GPUs, readers without), and Slurm starts all components at once or none. Steps inside one
uniform job would need every host to have what the greediest role wants. The price: only Slurm's
backfill scheduler starts such jobs, by default every 30 seconds. An app of one role is a plain job.

Each replica is one task on a host of its own: what a job asks for "per node" is then what a
replica has, whichever way a cluster counts its GPUs.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx._core.lazy import attribute_hints
from phalanx._schedulers.authoring import UNSAID_MEMORY
from phalanx._schedulers.slurm.layout import RESULT, SLURM_LOG
from phalanx._schedulers.slurm.options import SlurmOptions
from phalanx._specs import Resource

_REQUEUE_TIME = 15.0
"""Seconds before the time limit at which a job asks to be requeued."""


@dataclass(frozen=True)
class ScriptRole:
    """One role, as the script has it."""

    name: str
    num_replicas: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    resource: Resource
    max_retries: int = 0
    hosts: int = 1
    """How many hosts a replica has; it runs on the first."""
    rank0_env: str = "PHALANX_RANK0_HOST"


@dataclass(frozen=True)
class SlurmRequest:
    """What is submitted: the script, and the directory that it works in."""

    app_id: str
    name: str
    session: str
    job_dir: str
    script: str
    roles: tuple[ScriptRole, ...]
    copies: Mapping[str, str] = field(default_factory=dict)
    """Directories to copy before, and where to."""
    copied_only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of directories among them that are nobody's projects: the files that are copied."""
    files: tuple[tuple[str, str], ...] = ()
    """Python files that must be there: the directory, and the path in it."""

    if not TYPE_CHECKING:  # its fields are known
        __getattr__ = attribute_hints(
            {
                "cmd": "script is what sbatch is given",
                "replicas": "roles have argv, env and num_replicas",
            }
        )

    def __str__(self) -> str:
        """The script, to the byte."""
        return self.script


def make_script(
    app_id: str,
    job_dir: str,
    roles: tuple[ScriptRole, ...],
    options: SlurmOptions,
    replica_command: tuple[str, ...],
    path: str | None = None,
) -> str:
    """The batch script. `replica_command` runs `_remote.slurm_replica` on a host; `path` is what
    is put before the hosts' PATH.
    """
    lines = [
        "#!/bin/bash",
        f"# {app_id}, an app of phalanx. To submit it by hand:",
        f"#   mkdir -p -m 700 {shlex.quote(job_dir)} && sbatch THIS_FILE",
        *_directives(app_id, job_dir, roles, options),
        "",
        *_beginning(job_dir, options, replica_command, path),
        *_meeting_point(len(roles)),
        "",
        *(line for index, role in enumerate(roles) for line in _role(index, role, len(roles) > 1)),
        *_steps(roles, options),
    ]
    return "\n".join(lines) + "\n"


# ── what is asked for ─────────────────────────────────────────────────────────


def _directives(
    app_id: str, job_dir: str, roles: tuple[ScriptRole, ...], options: SlurmOptions
) -> Iterator[str]:
    _, lead = options.warning
    yield f"#SBATCH --job-name={app_id}"
    yield f"#SBATCH --output={_word(_literal(f'{job_dir}/{SLURM_LOG}'))}"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --requeue" if options.requeue else "#SBATCH --no-requeue"
    if lead:
        yield f"#SBATCH --signal=B:USR1@{lead}"
    for index, role in enumerate(roles):
        if index:
            yield "#SBATCH hetjob"
        yield f"#SBATCH --nodes={role.num_replicas * role.hosts}"
        yield "#SBATCH --ntasks-per-node=1"
        yield from _resources(role.resource, options)
        for name, value in options.directives():
            if not index or not name.startswith(("mail-", "comment")):
                yield f"#SBATCH --{name}" + ("" if value is None else f"={_word(value)}")


def _resources(resource: Resource, options: SlurmOptions) -> Iterator[str]:
    if options.cpus or resource.cpu >= 0:
        yield f"#SBATCH --cpus-per-task={options.cpus or max(1, math.ceil(resource.cpu))}"
    if options.mem is not None:
        yield f"#SBATCH --mem={_word(options.mem)}"
    elif resource.memMB > 0 and resource.memMB != UNSAID_MEMORY:
        yield f"#SBATCH --mem={resource.memMB}M"
    if options.gpus_per_node is not None:
        yield f"#SBATCH --gpus-per-node={_word(options.gpus_per_node)}"
    elif resource.gpu > 0 and options.gres is None:
        yield f"#SBATCH --gpus-per-node={resource.gpu}"


def _literal(path: str) -> str:
    """A path in which sbatch finds no pattern."""
    return path.replace("%", "%%")


def _word(text: str) -> str:
    """A value in a directive: sbatch takes quotes as a shell does."""
    return shlex.quote(text)


# ── what it does ──────────────────────────────────────────────────────────────


def _beginning(
    job_dir: str, options: SlurmOptions, replica_command: tuple[str, ...], path: str | None
) -> Iterator[str]:
    name, lead = options.warning
    yield f"job_dir={shlex.quote(job_dir)}"
    yield f"replica=({shlex.join(replica_command)})"
    yield from """\
exec {port}< <("${replica[@]}" --free-port) # meanwhile:
(
    umask 077
    [ -d "$job_dir/replicas" ] || mkdir -p "$job_dir/replicas"
    [ -s "$job_dir/token" ] || od -An -N32 -v -tx1 /dev/urandom | tr -d ' \\n' >"$job_dir/token"
    : >>"$job_dir/control"
)
address_of() { # a host's name; where that does not resolve, what Slurm reaches it by
    getent ahosts "$1" >/dev/null && echo "$1" && return
    scontrol show node "$1" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p'
}
pause() { read -r -t "$1" <> <(:) || :; } # no process that could be killed before this one
first_of() { # of a list of hosts, as Slurm writes it
    case $1 in *[[,]*) set -- "$(scontrol show hostnames "$1" | head -n 1)" ;; esac
    address_of "$1"
}""".splitlines()
    if path is not None:
        yield f'export PATH={shlex.quote(path)}:"$PATH"'
    yield f"export PYTHONUNBUFFERED=1 PHALANX_STOP_GRACE={options.stop_grace:g}"
    yield "warned="
    if lead:
        yield "warn() {"
        yield f'    warned=1; echo warn {name} >>"$job_dir/control"'
        if (
            options.requeue
        ):  # what does not stop by itself is stopped while there is time to requeue
            pause = max(1, math.floor(lead - options.stop_grace - _REQUEUE_TIME))
            yield f'    {{ sleep {pause}; echo stop >>"$job_dir/control"; }} &'
        yield "}"
        yield "trap warn USR1"


def _nodes(index: int, several: bool) -> str:  # noqa: FBT001
    """The variable with a role's hosts."""
    return f"SLURM_JOB_NODELIST_HET_GROUP_{index}" if several else "SLURM_JOB_NODELIST"


def _meeting_point(count: int) -> Iterator[str]:
    """Where the replicas of each role can meet."""
    for index in range(count):
        yield f'host_{index}=$(first_of "${_nodes(index, count > 1)}")'
    yield from """\
read -r PHALANX_RANK0_PORT <&$port || {
    echo "cannot run ${replica[0]} on $SLURMD_NODENAME. Set -cfg python=… to one that nodes have"
    echo 127 >"$job_dir/result"
    exit 127
}
export PHALANX_RANK0_PORT
exec {port}<&-""".splitlines()


def _role(index: int, role: ScriptRole, several: bool) -> Iterator[str]:  # noqa: FBT001
    yield f"role_{index}() {{ # {role.name}"
    yield f"    export {role.rank0_env}=$host_{index}"
    for name, value in role.env.items():
        if name.isidentifier():
            yield f"    export {name}={shlex.quote(value)}"
    # Names that no shell can set are given by env; they are too odd to be secrets.
    odd = [f"{name}={value}" for name, value in role.env.items() if not name.isidentifier()]
    yield f"    cd {shlex.quote(role.cwd)} || exit"
    step = ["srun", *([f"--het-group={index}"] if several else [])]
    step += [f"--nodes={role.num_replicas}", f"--ntasks={role.num_replicas}"]
    step += ["--ntasks-per-node=1", "--cpu-bind=none", "--mpi=none", "--export=ALL"]
    step += ["--input=none", "--kill-on-bad-exit=1", "--quiet"]
    yield f"    exec {' '.join(step)} \\"
    program = shlex.join([*(["env", *odd] if odd else []), *role.argv])
    yield f'        "${{replica[@]}}" "$job_dir" {index} -- {program}'
    yield "}"
    yield ""


def _steps(roles: tuple[ScriptRole, ...], options: SlurmOptions) -> Iterator[str]:
    """Run all roles; again, while one that fails has retries left; then say how it ended."""
    yield f"retries=({' '.join(str(role.max_retries) for role in roles)})"
    yield "restarts=${SLURM_RESTART_COUNT:-0}"
    yield "# A job that was requeued goes on counting where it was."
    yield '((restarts)) && read -r _ last _ <"$job_dir/control" && ((last >= restarts)) &&'
    yield "    restarts=$((last + 1))"
    yield "while :; do"
    yield "    export PHALANX_RESTART_COUNT=$restarts"
    yield f'    rm -f "$job_dir/{RESULT}"; echo "try $restarts" >"$job_dir/control"'
    yield "    code=0 steps=()"
    for index in range(len(roles)):
        yield f"    role_{index} & steps+=($!)"
    yield from """\
    for step in "${steps[@]}"; do
        # A signal ends a wait, not the step.
        while kill -0 "$step" 2>/dev/null; do wait "$step"; done
        wait "$step" || code=$?
    done
    # The first that failed by itself counts; srun fails by itself when it loses a replica.
    first=$(grep -m 1 '^failed ' "$job_dir/control" || grep '^terminated ' "$job_dir/control" |
        sort -n -k 4 | tail -n 1 | grep . || echo "- 0 - $code")
    read -r word failed _ code <<<"$first"
    [ "$code" = 0 ] || [ -n "$warned" ] || [ "$word" = terminated ] ||
        ((retries[failed]-- <= 0)) && break
    restarts=$((restarts + 1))
done""".splitlines()
    if options.requeue:
        yield from """\
if [ "$word" = terminated ] || { [ -n "$warned" ] && [[ " 0 138 143 " = *" $code "* ]]; }; then
    # It has stopped because the job is taken away: Slurm ends this script, and starts it later.
    scontrol requeue "$SLURM_JOB_ID" && pause 60 && exit
fi""".splitlines()
    # Slurm kills one process after another: where it ends the job, this one is yet to come.
    yield '[ "$code" = 0 ] || [ "$word" = failed ] || pause 3'
    new = f'"$job_dir/{RESULT}.new"'
    yield f'{{ echo "$code" >{new} && mv {new} "$job_dir/{RESULT}"; }} 2>/dev/null || rm -f {new}'
    yield 'exit "$code"'
