"""TorchX's names on Phalanx: `import phalanx.compat.torchx as torchx`.

Those of version 0.7 that programs use are here, in modules of the same names, with one difference
to ours: specs may be changed. `docs/from-torchx.md` has what differs; a name that is missing says
what to use.
"""

from importlib import import_module
from typing import Any

from phalanx._core.lazy import loader
from phalanx._schedulers.scheduler import BUILT_IN
from phalanx.compat.torchx.version import TORCHX_IMAGE as IMAGE
from phalanx.compat.torchx.version import __version__

__all__ = ["IMAGE", "__version__"]

_SCHEDULERS = ", ".join(BUILT_IN)

ABSENT = {
    "distributed": "call torch.distributed.init_process_group() in the program",
    "tracker": "trackers are not part of Phalanx: set what yours needs in a role's env",
    "pipelines": "run apps with a runner from the pipeline's own steps",
    "runtime": "read and write files with the program's own libraries, such as fsspec",
    "apps": "write the program of the app into your project",
    "workspace.docker_workspace": "build images with build_workspace_and_update_role of your own; "
    "local_docker, kubernetes and aws_batch build theirs",
    "util.cuda": "ask torch.cuda.device_count()",
    "notebook": "call phalanx.launch in the cell",
    "schedulers.kubernetes_mcad_scheduler": "use kubernetes_scheduler; option queue is Kueue's",
    **{
        f"schedulers.{name}": f"Phalanx has {_SCHEDULERS}, and schedulers that plugins add"
        for name in ("aws_sagemaker_scheduler", "gcp_batch_scheduler", "lsf_scheduler", "ray")
    },
    **dict.fromkeys(
        (f"cli.cmd_{verb}" for verb in ("cancel", "describe", "list", "run", "status")),
        "call torchx.cli.main.main([…]), or a runner",
    ),
}
"""Modules that are not here, and what to use instead."""


def absent_in(package: str) -> dict[str, str]:
    """What to use instead of modules of a package of TorchX's that are not here, by their names."""
    start = f"{package}."
    return {n.removeprefix(start): text for n, text in ABSENT.items() if n.startswith(start)}


_MODULES = ("cli", "components", "runner", "schedulers", "specs", "util", "workspace")
_absent = loader(__name__, {}, ABSENT)


def __getattr__(name: str) -> Any:
    """Modules are there without an import of their own: `import phalanx.compat.torchx as torchx`
    is no import of `torchx.specs`.
    """
    return import_module(f"{__name__}.{name}") if name in _MODULES else _absent(name)
