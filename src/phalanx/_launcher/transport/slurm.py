"""The allocation that this process is in, as Slurm's environment tells it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx._core.launch_guard import DEPTH
from phalanx._launcher.transport.targets import Target
from phalanx._schedulers.leases import GroupCommand
from phalanx.errors import ConfigError

_INTERACTIVE = "4294967290"
"""The step that a shell of salloc may be in."""


_OF_TASKS = frozenset(
    {
        *("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_CORE"),
        *("SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_GPU", "SLURM_TASKS_PER_NODE"),
        *("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_CPUS_PER_TASK"),
        *("SRUN_CPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_GPU_BIND", "SLURM_CPU_BIND"),
    }
)
"""What a job has asked for each of its tasks: the agent is one task, with all that the host has."""


_OF_ONE = (
    *((f"SLURM_{name}", "1") for name in ("NNODES", "NPROCS", "NTASKS", "TASKS_PER_NODE")),
    *((f"SLURM_STEP_{name}", "1") for name in ("NUM_NODES", "NUM_TASKS", "TASKS_PER_NODE")),
    *((f"SLURM_{name}", "0") for name in ("NODEID", "PROCID", "GTIDS")),
    *((f"SLURM_{name}_NODELIST", "{host}") for name in ("JOB", "STEP")),
    ("SLURM_NTASKS_PER_NODE", None),
)
"""What Slurm tells a step of one task, where it is one of many."""


_STEP_OPTIONS = (
    *("--overlap", "--unbuffered", "--quiet", "--export=ALL"),
    *("--cpu-bind=none", "--mpi=none", "--kill-on-bad-exit=0"),
)
"""A step that carries every byte at once and shares what the job has."""


@dataclass(frozen=True)
class Allocation:
    """The hosts of a job, and how many tasks each has; none where the job did not say."""

    hosts: tuple[str, ...]
    tasks: tuple[int, ...] | None
    gpus_per_task: str = ""

    def gres(self, index: int) -> str | None:
        """What a step on a host has to ask for, where GPUs were given to tasks; None elsewhere."""
        kind, _, count = self.gpus_per_task.rpartition(":")
        if self.tasks is None or not count.isdigit():
            return None
        return ":".join(["gpu", *([kind] if kind else []), str(int(count) * self.tasks[index])])


def is_within(environ: Mapping[str, str]) -> bool:
    """A launch here means all of an allocation: in salloc or sbatch, but in none of its tasks."""
    if "SLURM_JOB_ID" not in environ or environ.get(DEPTH, "0") != "0":
        return False
    return environ.get("SLURM_STEP_ID", _INTERACTIVE) == _INTERACTIVE


def allocation(environ: Mapping[str, str]) -> Allocation:
    """The allocation. Raises `ConfigError` where there is none."""
    listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not listed or "SLURM_JOB_ID" not in environ:
        raise ConfigError(
            'hostnames="slurm": not inside a Slurm allocation. Use salloc or sbatch, or '
            "name the hosts."
        )
    hosts = _expand(listed)
    given = "SLURM_NTASKS" in environ or "SLURM_NTASKS_PER_NODE" in environ
    tasks = counts(environ.get("SLURM_TASKS_PER_NODE", "")) if given else ()
    per_task = environ.get("SLURM_GPUS_PER_TASK", "")
    return Allocation(hosts, tasks if len(tasks) == len(hosts) else None, per_task)


def counts(text: str) -> tuple[int, ...]:
    """Slurm's `2(x3),1` as (2, 2, 2, 1)."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return ()
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def _expand(listed: str) -> tuple[str, ...]:
    """Slurm's `n[1-3,7]` as names; simple lists need nobody's help."""
    if "[" not in listed:
        return tuple(listed.split(","))
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", listed],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"scontrol cannot list the hosts of {listed}: {error}") from None
    return tuple(done.stdout.split())


def step_command(host: str, *more: str) -> tuple[str, ...]:
    """The command that leads to a host of a job: a step of one task, beside whatever runs there."""
    return ("srun", *more, "-w", host, "-N1", "-n1", *_STEP_OPTIONS)


def group_command(*more: str) -> GroupCommand:
    """The command that leads to many: a step that goes on where a host or a task of it ends."""
    hosts = ("-w", "{hosts}", "-N{count}", "-n{count}", "--ntasks-per-node=1")
    words = ("srun", *more, *hosts, "--no-kill", "--wait=0", *_STEP_OPTIONS)
    return GroupCommand(words, "SLURMD_NODENAME", _OF_ONE)


def srun_target(name: str, pythons: Sequence[str], gres: str | None) -> Target:
    """A host of the allocation."""
    more = () if gres is None else (f"--gres={gres}",)
    return Target(
        name,
        tuple(pythons),
        step_command(name, *more),
        through_shell=False,
        without=_OF_TASKS,
        group=group_command(*more),
    )
