"""Our rendezvous as torch's agents have it, for torch's own tests of handlers.

Tests import this module in place of those of torch that make handlers: whatever kind is asked for,
it is ours, as the entry point `torchrun.handlers` makes it; everything else is torch's.
"""

# ruff: noqa: ANN001, ANN201, ANN202, ANN204

from peer_missing import Absent
from peer_torch import HAS_ETCD

from phalanx._torch import torchrun_handler


class _Handler(torchrun_handler.TorchrunHandler):
    """Has the name of the kind that was asked for."""

    def __init__(self, inner, name):
        super().__init__(inner)
        self._name = name

    def get_backend(self):
        return self._name


def create_rdzv_handler(params):
    name = params.backend
    if name.startswith("etcd") and not HAS_ETCD:
        raise Absent("etcd is not there")
    params.config["backend"] = name
    return _Handler(torchrun_handler.create(params)._inner, name)
