"""Which processors `--numa-binding` gives to whom, over machines that are trees of files."""

import pytest

from phalanx import ConfigError
from phalanx._elastic.command.numa import choose


class Machine:
    """Two sockets with two NUMA nodes each; a node has four cores of two threads, and two caches.

    Processors 0 to 15 are the first threads of the cores, 16 to 31 the second.
    """

    def __init__(self, root):
        self.root = root
        self.allowed = set(range(32))
        for node in range(4):
            first = 4 * node
            self.write(
                f"sys/devices/system/node/node{node}/cpulist",
                f"{first}-{first + 3},{first + 16}-{first + 19}\n",
            )
        for cpu in range(32):
            core, place = cpu % 16, f"sys/devices/system/cpu/cpu{cpu}"
            self.write(f"{place}/topology/physical_package_id", f"{core // 8}\n")
            self.write(f"{place}/topology/thread_siblings_list", f"{core},{core + 16}\n")
            under = core // 2 * 2
            shared = f"{under}-{under + 1},{under + 16}-{under + 17}\n"
            for index, level, kind, share in (
                (0, 1, "Data", f"{core},{core + 16}\n"),
                (1, 9, "Instruction", "0\n"),
                (3, 3, "Unified", shared),
            ):
                self.write(f"{place}/cache/index{index}/level", f"{level}\n")
                self.write(f"{place}/cache/index{index}/type", f"{kind}\n")
                self.write(f"{place}/cache/index{index}/shared_cpu_list", share)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def gpu(self, address, node, *, given=True):
        """One more GPU; not `given`: listed by the driver, and not in this container."""
        minor = len(list(self.root.glob("proc/driver/nvidia/gpus/*")))
        told = f"Model: \t\t NVIDIA\nGPU UUID: \t GPU-{address[5:7]}\nDevice Minor: \t {minor}\n"
        self.write(f"proc/driver/nvidia/gpus/{address}/information", told)
        self.write(f"sys/bus/pci/devices/{address}/numa_node", f"{node}\n")
        if given:
            self.write(f"dev/nvidia{minor}", "")

    def choose(self, kind, workers, **environ):
        return choose(kind, workers, environ, self.allowed, self.root)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def four(machine):
    """GPUs 0 and 1 at node 3, 2 and 3 at node 0."""
    for address, node in (("0a", 3), ("1b", 3), ("c0", 0), ("d0", 0)):
        machine.gpu(f"0000:{address}:00.0", node)
    return machine


@pytest.mark.parametrize(
    ("kind", "first", "second", "third"),
    [
        ("node", (12, 13, 14, 15, 28, 29, 30, 31), (12, 13, 14, 15, 28, 29, 30, 31), 8),
        ("socket", (*range(8, 16), *range(24, 32)), (*range(8, 16), *range(24, 32)), 16),
        ("exclusive", (12, 13, 28, 29), (14, 15, 30, 31), 4),
        ("core-complex", (12, 13, 28, 29), (14, 15, 30, 31), 4),
    ],
)
def test_each_worker_is_near_its_gpu(four, kind, first, second, third):
    """By the four rules."""
    found = four.choose(kind, 4)
    assert found[:2] == (first, second)
    assert [len(processors) for processors in found[2:]] == [third, third]
    assert 0 in found[2]


def test_visible_devices_say_whose_gpu_is_whose(four):
    """By number, or by name; where one is none, CUDA stops."""
    node = {gpu: four.choose("node", 4)[gpu] for gpu in range(4)}
    assert four.choose("node", 2, CUDA_VISIBLE_DEVICES="2,0") == (node[2], node[0])
    assert four.choose("node", 2, CUDA_VISIBLE_DEVICES="GPU-d0,GPU-1b") == (node[3], node[1])
    with pytest.raises(ConfigError, match="2 workers, but only 1 visible GPUs"):
        four.choose("node", 2, CUDA_VISIBLE_DEVICES="1,9,2")
    # With one of a node's two it has the node's cores for itself.
    assert len(four.choose("exclusive", 1, CUDA_VISIBLE_DEVICES="1")[0]) == 8


def test_only_what_this_process_may_use_is_given(four):
    """Cores that are left over go to the first; a cache with more processors comes first."""
    four.allowed = {12, 13, 14, 29, 1}
    assert four.choose("node", 1) == ((12, 13, 14, 29),)
    assert four.choose("socket", 1) == ((12, 13, 14, 29),)
    assert four.choose("exclusive", 2) == ((12, 13, 29), (14,))
    assert four.choose("core-complex", 2) == ((12, 13, 29), (14,))
    four.allowed = {12}
    assert four.choose("core-complex", 2) == ((12,), (12,))
    with pytest.raises(ConfigError, match="too few CPUs available on NUMA node 3.*local rank 1"):
        four.choose("exclusive", 2)
    four.allowed = {0}
    for kind in ("node", "socket", "exclusive", "core-complex"):
        with pytest.raises(
            ConfigError, match="too few CPUs available on NUMA node 3.*local rank 0"
        ):
            four.choose(kind, 1)


def test_a_machine_without_nodes_is_one(tmp_path):
    """The kernel says -1, or nothing at all."""
    bare = Machine(tmp_path)
    bare.gpu("0000:00:06.0", -1)
    assert bare.choose("node", 1) == ((0, 1, 2, 3, 16, 17, 18, 19),)
    for place in tmp_path.glob("sys/devices/system/node/*/cpulist"):
        place.unlink()
        place.parent.rmdir()
    assert bare.choose("node", 1) == (tuple(range(32)),)
    assert bare.choose("socket", 1) == (tuple(range(32)),)


def test_without_gpus_it_is_refused(machine):
    """One that another container has is none."""
    with pytest.raises(ConfigError, match="no NVIDIA GPU is visible on this machine. Remove"):
        machine.choose("node", 1)
    machine.gpu("0000:0a:00.0", 0, given=False)
    with pytest.raises(ConfigError, match="no NVIDIA GPU"):
        machine.choose("node", 1)
    machine.gpu("0000:0b:00.0", 0)
    with pytest.raises(ConfigError, match=r"\(CUDA_VISIBLE_DEVICES=''\)"):
        machine.choose("node", 1, CUDA_VISIBLE_DEVICES="")


def test_what_the_kernel_does_not_tell_is_named(four):
    """The file, and why."""
    (four.root / "sys/bus/pci/devices/0000:1b:00.0/numa_node").unlink()
    with pytest.raises(ConfigError, match=r"--numa-binding node: cannot read .*1b.*: No such file"):
        four.choose("node", 1)
