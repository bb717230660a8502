"""The instance types of AWS, as data: what a container on one can have.

The system and the container runtime take their part of the memory: 4% is left to them.
"""

from __future__ import annotations

from phalanx._specs.app_def import Resource

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
EFA, _NEURON = "vpc.amazonaws.com/efa", "aws.amazon.com/neurondevice"
DEVICE_FILES = {EFA: "/dev/infiniband/uverbs{}", _NEURON: "/dev/neuron{}"}
"""The files of devices that `Resource.devices` names, by number."""
_MB_PER_GIB = int(1024 * 0.96)

# name: processors, GPUs, GiB of memory, network adapters of the EFA kind, Neuron devices
AWS: dict[str, tuple[int, int, int, int, int]] = {
    "aws_t3.medium": (2, 0, 4, 0, 0),
    "aws_m5.large": (2, 0, 8, 0, 0),
    "aws_m5.xlarge": (4, 0, 16, 0, 0),
    "aws_m5.2xlarge": (8, 0, 32, 0, 0),
    "aws_m5.4xlarge": (16, 0, 64, 0, 0),
    "aws_m5.8xlarge": (32, 0, 128, 0, 0),
    "aws_c5.large": (2, 0, 4, 0, 0),
    "aws_c5.xlarge": (4, 0, 8, 0, 0),
    "aws_c5.2xlarge": (8, 0, 16, 0, 0),
    "aws_c5.4xlarge": (16, 0, 32, 0, 0),
    "aws_c5.9xlarge": (36, 0, 72, 0, 0),
    "aws_c5.18xlarge": (72, 0, 144, 0, 0),
    "aws_p3.2xlarge": (8, 1, 61, 0, 0),
    "aws_p3.8xlarge": (32, 4, 244, 0, 0),
    "aws_p3.16xlarge": (64, 8, 488, 0, 0),
    "aws_p3dn.24xlarge": (96, 8, 768, 1, 0),
    "aws_p4d.24xlarge": (96, 8, 1152, 4, 0),
    "aws_p4de.24xlarge": (96, 8, 1152, 4, 0),
    "aws_p5.48xlarge": (192, 8, 2048, 32, 0),
    "aws_p5en.48xlarge": (192, 8, 2048, 16, 0),
    "aws_g4dn.xlarge": (4, 1, 16, 0, 0),
    "aws_g4dn.2xlarge": (8, 1, 32, 0, 0),
    "aws_g4dn.4xlarge": (16, 1, 64, 0, 0),
    "aws_g4dn.8xlarge": (32, 1, 128, 1, 0),
    "aws_g4dn.12xlarge": (48, 4, 192, 1, 0),
    "aws_g4dn.16xlarge": (64, 1, 256, 1, 0),
    "aws_g4dn.metal": (96, 8, 384, 1, 0),
    "aws_g5.xlarge": (4, 1, 16, 0, 0),
    "aws_g5.2xlarge": (8, 1, 32, 0, 0),
    "aws_g5.4xlarge": (16, 1, 64, 0, 0),
    "aws_g5.8xlarge": (32, 1, 128, 1, 0),
    "aws_g5.12xlarge": (48, 4, 192, 1, 0),
    "aws_g5.16xlarge": (64, 1, 256, 1, 0),
    "aws_g5.24xlarge": (96, 4, 384, 1, 0),
    "aws_g5.48xlarge": (192, 8, 768, 1, 0),
    "aws_g6e.xlarge": (4, 1, 32, 0, 0),
    "aws_g6e.2xlarge": (8, 1, 64, 0, 0),
    "aws_g6e.4xlarge": (16, 1, 128, 0, 0),
    "aws_g6e.8xlarge": (32, 1, 256, 1, 0),
    "aws_g6e.12xlarge": (48, 4, 384, 1, 0),
    "aws_g6e.16xlarge": (64, 1, 512, 1, 0),
    "aws_g6e.24xlarge": (96, 4, 768, 2, 0),
    "aws_g6e.48xlarge": (192, 8, 1536, 4, 0),
    "aws_trn1.2xlarge": (8, 0, 32, 0, 1),
    "aws_trn1.32xlarge": (128, 0, 512, 8, 16),
    "aws_inf2.xlarge": (4, 0, 16, 0, 1),
    "aws_inf2.8xlarge": (32, 0, 128, 0, 1),
    "aws_inf2.24xlarge": (96, 0, 384, 0, 6),
    "aws_inf2.48xlarge": (192, 0, 768, 0, 12),
}


def instance(name: str) -> Resource | None:
    """What an instance type has, if there is one of this name."""
    if name not in AWS:
        return None
    cpu, gpu, memory, efa, neuron = AWS[name]
    return Resource(
        cpu=cpu,
        gpu=gpu,
        memMB=memory * _MB_PER_GIB,
        capabilities={INSTANCE_TYPE: name.removeprefix("aws_")},
        devices={key: count for key, count in ((EFA, efa), (_NEURON, neuron)) if count},
    )
