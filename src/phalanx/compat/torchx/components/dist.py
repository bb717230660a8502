"""TorchX's `dist` components."""

from phalanx.compat.torchx.specs.api import thawing
from phalanx.components import dist as _ours

__all__ = ["ddp", "parse_nnodes", "spmd"]

ddp = thawing(_ours.ddp)
spmd = thawing(_ours.spmd)


def parse_nnodes(j: str) -> tuple[int, int, int, str]:
    """The least and the most hosts, the workers of each, and what torchrun's `--nnodes` is then.

    Args:
        j: `[MIN:]HOSTSxWORKERS`, or `WORKERS` on one host.

    Raises:
        ValueError: It is not written like that.
    """
    least, most, workers = _ours._parse_j(j)
    return least, most, workers, f"{least}:{most}" if ":" in j else str(most)
