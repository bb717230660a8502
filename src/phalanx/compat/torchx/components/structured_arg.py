"""TorchX's arguments of components that are written as one text and mean several values."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from phalanx._specs import get_named_resources

__all__ = ["StructuredJArgument", "StructuredNameArgument"]


@dataclass
class StructuredNameArgument:
    """`EXPERIMENT/RUN`."""

    experiment_name: str
    """What comes before the slash."""
    run_name: str
    """What comes behind it."""

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.experiment_name}/{self.run_name}"

    @staticmethod
    def parse_from(
        name: str,
        m: str | None = None,
        script: str | None = None,
        default_experiment_name: str = "default-experiment",
    ) -> StructuredNameArgument:
        """The two parts of a name; a run without one is named after its program.

        Args:
            name: `EXPERIMENT/RUN`; either, or the slash, may be left out.
            m: The program's module.
            script: The program's file.
            default_experiment_name: The experiment, if none is named.

        Raises:
            ValueError: Not exactly one of `m` and `script` is given.
        """
        if bool(m) == bool(script):
            raise ValueError(f"give one of m and script, not {'both' if m else 'neither'}")
        experiment, slash, run = name.partition("/")
        if not slash:
            experiment, run = "", name
        program = str(m).rpartition(".")[2] if m else Path(str(script)).stem
        return StructuredNameArgument(experiment or default_experiment_name, run or program)


@dataclass
class StructuredJArgument:
    """`HOSTSxWORKERS`."""

    nnodes: int
    """How many hosts."""
    nproc_per_node: int
    """How many workers each of them has."""

    def __str__(self) -> str:
        """As it is written."""
        return f"{self.nnodes}x{self.nproc_per_node}"

    @staticmethod
    def parse_from(h: str, j: str) -> StructuredJArgument:
        """Hosts and workers; with hosts alone, a worker for every GPU.

        Args:
            h: The named resource of each host.
            j: `HOSTSxWORKERS`, or `HOSTS`.

        Raises:
            ValueError: It is not written like that, or the host has no GPUs to count.
        """
        gpus = get_named_resources(h).gpu
        hosts, _, workers = j.partition("x")
        if not hosts.isdecimal() or (workers and not workers.isdecimal()):
            raise ValueError(f"-j {j}: write HOSTSxWORKERS, such as 1x8")
        if not workers:
            if gpus < 1:
                raise ValueError(f"-j {j}: {h!r} has no GPUs to count; write -j {j}xWORKERS")
            return StructuredJArgument(int(hosts), gpus)
        if int(workers) != gpus:
            warnings.warn(f"-j {j}: a {h} has {gpus} GPUs, not {workers}", stacklevel=2)
        return StructuredJArgument(int(hosts), int(workers))
