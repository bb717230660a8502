"""TorchX's names on Phalanx: `import phalanx.compat.torchx as torchx`.

Those of version 0.7 that programs use are here, in their places, with one difference to ours: specs
may be changed. `docs/from-torchx.md` has what differs; a name that there is not says what to use.
"""

from importlib import import_module
from typing import Any

from phalanx._core.lazy import loader
from phalanx.compat.torchx.version import TORCHX_IMAGE as IMAGE
from phalanx.compat.torchx.version import __version__

__all__ = ["IMAGE", "__version__"]

ABSENT = {
    "distributed": "call torch.distributed.init_process_group() in the program",
    "tracker": "trackers are not part of Phalanx: set what yours needs in a role's env",
    "pipelines": "run apps with a runner from the pipeline's own steps",
    "runtime": "read and write files with the program's own libraries, such as fsspec",
    "util": "these are TorchX's own helpers, not part of its interface",
}
"""Modules that are not here, and what to use instead."""

_MODULES = ("cli", "components", "runner", "schedulers", "specs", "workspace")
_absent = loader(__name__, {}, ABSENT)


def __getattr__(name: str) -> Any:
    """Modules are there without an import of their own: `import phalanx.compat.torchx as torchx`
    is no import of `torchx.specs`.
    """
    return import_module(f"{__name__}.{name}") if name in _MODULES else _absent(name)
