"""TorchX's named resources of AWS's instance types."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from phalanx._specs import Resource, get_named_resources, named_resources

MEM_TAX = 0.96
"""What is left of an instance's memory for an app."""
GiB = int(1024 * MEM_TAX)
EFA_DEVICE = "vpc.amazonaws.com/efa"
NEURON_DEVICE = "aws.amazon.com/neurondevice"
K8S_ITYPE = "node.kubernetes.io/instance-type"

__all__ = ["EFA_DEVICE", "K8S_ITYPE", "MEM_TAX", "NAMED_RESOURCES", "NEURON_DEVICE", "GiB"]

NAMED_RESOURCES: Mapping[str, Callable[[], Resource]] = {
    name: functools.partial(get_named_resources, name)
    for name in named_resources
    if name.startswith("aws_")
}


def __getattr__(name: str) -> Callable[[], Resource]:
    """`aws_p4d_24xlarge`, the function of `aws_p4d.24xlarge`."""
    family, _, size = name.removeprefix("aws_").partition("_")
    found = NAMED_RESOURCES.get(f"aws_{family}.{size}")
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
