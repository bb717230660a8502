"""TorchX's names on Phalanx: `import phalanx.compat.torchx as torchx`.

Those of version 0.7 that programs use are here, in their places, with one difference to ours: specs
may be changed. `docs/from-torchx.md` has what differs; a name that there is not says what to use.
"""

from phalanx._core.lazy import loader
from phalanx.compat.torchx.version import __version__

__all__ = ["__version__"]

__getattr__ = loader(
    __name__,
    {},
    {
        "distributed": "call torch.distributed.init_process_group() in the program",
        "tracker": "trackers are not part of Phalanx: set what yours needs in a role's env",
        "pipelines": "run apps with a runner from the pipeline's own steps",
    },
)
