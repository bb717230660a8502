"""Which processors `--numa-binding` binds each worker to, read from /proc and /sys.

A worker's GPU is the visible one of its local rank, counted by PCI address, as nvidia-smi does and
CUDA where all GPUs are of one kind. Nothing is asked of CUDA. Knows nothing of workers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from phalanx._core import values
from phalanx.errors import ConfigError

KINDS = ("node", "socket", "exclusive", "core-complex")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def choose(
    kind: str,
    workers: int,
    environ: Mapping[str, str],
    allowed: Collection[int],
    root: Path = Path("/"),
) -> tuple[tuple[int, ...], ...]:
    """The processors of each local rank, out of those that are `allowed`. Raises `ConfigError`.

    `node`: all of the NUMA node that has the GPU. `socket`: all of that node's socket.
    `exclusive`: the node's cores, shared out among its GPUs. `core-complex`: the cores under one
    of the node's last-level caches, another for each GPU as far as there are.
    """
    said = f"--numa-binding {kind}"
    try:
        nodes = _gpu_nodes(environ, root)
        if not nodes:
            seen = f" ({_VISIBLE}={environ[_VISIBLE]!r})" if _VISIBLE in environ else ""
            raise ConfigError(
                f"{said}: no NVIDIA GPU is visible on this machine{seen}. Remove the flag: it "
                "binds workers to the CPUs near their GPUs."
            )
        if workers > len(nodes):
            raise ConfigError(
                f"{said}: {workers} workers, but only {len(nodes)} visible GPUs. "
                "Try --nproc-per-node gpu."
            )
        machine = _Machine(frozenset(allowed), root)
        found = [_choose(kind, gpu, nodes, machine) for gpu in range(workers)]
    except OSError as error:
        raise ConfigError(f"{said}: cannot read {error.filename}: {error.strerror}.") from None
    for gpu, processors in enumerate(found):
        if not processors:
            raise ConfigError(
                f"{said}: too few CPUs available on NUMA node {nodes[gpu]}, which has the GPU of "
                f"local rank {gpu}. Check taskset, cpusets and the job's allocation."
            )
    return tuple(tuple(sorted(processors)) for processors in found)


def _choose(kind: str, gpu: int, nodes: Sequence[int], machine: _Machine) -> set[int]:
    own = machine.node(nodes[gpu])
    neighbours = [other for other, node in enumerate(nodes) if node == nodes[gpu]]
    position = neighbours.index(gpu)
    match kind:
        case "socket":
            return machine.socket_of(nodes[gpu]) if own else own
        case "exclusive":
            cores = sorted(_group(own, machine.core).items())
            # Those that are left over go to the first.
            share, rest = divmod(len(cores), len(neighbours))
            begin = position * share + min(position, rest)
            mine = cores[begin : begin + share + (position < rest)]
            return {processor for _, core in mine for processor in core}
        case "core-complex":
            groups = _group(own, machine.cache).items()
            largest = [group for _, group in sorted(groups, key=lambda g: (-len(g[1]), g[0]))]
            return largest[position % len(largest)] if largest else set()
        case _:
            return own


class _Machine:
    """What the kernel says of processors; of those that may be used."""

    def __init__(self, allowed: frozenset[int], root: Path) -> None:
        self._allowed = allowed
        self._system = root / "sys/devices/system"
        numbers = (re.fullmatch(r"node(\d+)", p.name) for p in self._system.glob("node/node*"))
        self._nodes = [int(number[1]) for number in numbers if number]

    def node(self, number: int) -> set[int]:
        """The processors of a NUMA node; a machine that has none is one."""
        if not self._nodes:
            return set(self._allowed)
        return _numbers(self._system / f"node/node{number}/cpulist") & self._allowed

    def socket_of(self, number: int) -> set[int]:
        """Those of all nodes in the socket of one that is not empty."""
        found = [self.node(node) for node in self._nodes] or [self.node(number)]
        own = self._package(min(self.node(number)))
        return set().union(*(n for n in found if n and self._package(min(n)) == own))

    def core(self, processor: int) -> int:
        """The first processor of the same core."""
        return min(_numbers(self._cpu(processor) / "topology/thread_siblings_list"))

    def cache(self, processor: int) -> int:
        """The first processor under the same last-level cache."""
        levels: dict[int, Path] = {}
        for index in self._cpu(processor).glob("cache/index*"):
            if (index / "type").read_text().strip() in ("Unified", "Data"):
                levels[int((index / "level").read_text())] = index
        return min(_numbers(levels[max(levels)] / "shared_cpu_list")) if levels else processor

    def _cpu(self, processor: int) -> Path:
        return self._system / f"cpu/cpu{processor}"

    def _package(self, processor: int) -> int:
        return int((self._cpu(processor) / "topology/physical_package_id").read_text())


def _gpu_nodes(environ: Mapping[str, str], root: Path) -> list[int]:
    """The NUMA node of each visible GPU."""
    present: list[tuple[str, str]] = []
    for directory in sorted(root.glob("proc/driver/nvidia/gpus/*")):
        told = (directory / "information").read_text()
        facts = dict(re.findall(r"^(GPU UUID|Device Minor):\s*(\S+)", told, re.MULTILINE))
        # In a container those of the whole machine may be listed.
        if (root / f"dev/nvidia{facts.get('Device Minor', '')}").exists():
            present.append((directory.name, facts.get("GPU UUID", "")))
    chosen = [address for address, _ in present]
    if (visible := environ.get(_VISIBLE)) is not None:
        chosen = []
        for entry in map(str.strip, visible.split(",")):
            index = int(entry) if entry.isdecimal() else -1
            found = [a for i, (a, uuid) in enumerate(present) if _is_meant(entry, index, i, uuid)]
            if len(found) != 1:
                break  # as CUDA does
            chosen += found
    # -1 where the machine has one node.
    files = (root / f"sys/bus/pci/devices/{address.lower()}/numa_node" for address in chosen)
    return [max(0, int(file.read_text())) for file in files]


def _is_meant(entry: str, index: int, number: int, uuid: str) -> bool:
    return index == number or (entry.startswith("GPU-") and uuid.startswith(entry))


def _group(processors: Iterable[int], key: Callable[[int], int]) -> dict[int, set[int]]:
    groups: dict[int, set[int]] = {}
    for processor in processors:
        groups.setdefault(key(processor), set()).add(processor)
    return groups


def _numbers(path: Path) -> set[int]:
    text = path.read_text().strip()
    return set(values.numbers(text)) if text else set()
