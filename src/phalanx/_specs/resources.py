"""Resources by name: generic sizes, the instance types of AWS, and what plugins add."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phalanx import _plugins as plugins
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._specs.app_def import Resource
from phalanx.errors import ConfigError, PluginError, UnknownName

GROUP = "phalanx.named_resources"

_CPU, _GPU, _MEMORY = 2, 0, 1024

_GENERIC = {
    "cpu.nano": (1, 0, 512),
    "cpu.micro": (1, 0, 1024),
    "cpu.small": (1, 0, 2 * 1024),
    "cpu.medium": (2, 0, 4 * 1024),
    "cpu.large": (2, 0, 8 * 1024),
    "cpu.xlarge": (8, 0, 32 * 1024),
    "gpu.small": (8, 1, 32 * 1024),
    "gpu.medium": (16, 2, 64 * 1024),
    "gpu.large": (32, 4, 128 * 1024),
    "gpu.xlarge": (64, 8, 256 * 1024),
}


def resource(
    cpu: float | None = None,
    gpu: int | None = None,
    memMB: int | None = None,  # noqa: N803 the name that users know
    h: str | None = None,
) -> Resource:
    """A resource by its parts, or by name.

    Args:
        cpu: Processors; by default 2.
        gpu: GPUs; by default 0.
        memMB: Megabytes of memory; by default 1024.
        h: The name of a resource, which wins over the parts.

    Raises:
        ConfigError: There is no resource of that name, or a part is not a number, 0 or more.
    """
    if h:
        return get_named_resources(h)
    return Resource(
        cpu=_CPU if cpu is None else cpu,
        gpu=_GPU if gpu is None else gpu,
        memMB=_MEMORY if memMB is None else memMB,
    )


def get_named_resources(name: str) -> Resource:
    """A resource by its name, from a plugin or one of ours.

    Args:
        name: Such as `gpu.small`, or one of `list(phalanx._specs.named_resources)`.

    Raises:
        UnknownName: There is no resource of that name.
        PluginError: The plugin that has it is broken.
    """
    if not isinstance(name, str):
        raise ConfigError(f"invalid resource name {name!r}.")
    for plugin in plugins.of(GROUP):
        if plugin.name == name:
            return _of_plugin(plugin)
    found = _shipped(name)
    if found is not None:
        return found
    meant = closest(name, named_resources)
    hint = did_you_mean(meant, "List them with: list(phalanx.specs.named_resources)")
    raise UnknownName(f"unknown named resource {name!r}.{hint}")


class NamedResources(Mapping[str, Resource]):
    """All named resources. Iterating gives the names, and loads no plugin."""

    def __getitem__(self, name: str) -> Resource:
        """As `get_named_resources`."""
        return get_named_resources(name)

    def __iter__(self) -> Iterator[str]:
        from phalanx._specs.instances import AWS

        plugged = (plugin.name for plugin in plugins.of(GROUP))
        return iter(dict.fromkeys([*_GENERIC, *AWS, *plugged]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


named_resources = NamedResources()


def _shipped(name: str) -> Resource | None:
    if name in _GENERIC:
        cpu, gpu, memory = _GENERIC[name]
        return Resource(cpu=cpu, gpu=gpu, memMB=memory)
    from phalanx._specs.instances import instance

    return instance(name)


def _of_plugin(plugin: plugins.Plugin) -> Resource:
    made = plugin.call()
    if not isinstance(made, Resource):
        raise PluginError(plugin, f"it returned {made!r}, not a phalanx.specs.Resource")
    return made
