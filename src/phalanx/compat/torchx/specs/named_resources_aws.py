"""TorchX's named resources of AWS's instance types."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from phalanx._specs import Resource, get_named_resources, named_resources

__all__ = ["NAMED_RESOURCES"]

NAMED_RESOURCES: Mapping[str, Callable[[], Resource]] = {
    name: functools.partial(get_named_resources, name)
    for name in named_resources
    if name.startswith("aws_")
}
