"""Our rendezvous for agents of torch's: rounds are ours, their store is one of torch's.

Each round has a store of its own, on a port of its own, in the agent of the host that is first.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous import api

from phalanx._rendezvous import handlers
from phalanx._rendezvous.errors import RendezvousError
from phalanx._rendezvous.tcp.handler import TcpHandler

NAME = "phalanx"
_CONNECTING = timedelta(seconds=60)
T = TypeVar("T")


def create(parameters: api.RendezvousParameters) -> TorchrunHandler:
    """A handler for torch's agent; the setting `backend` may be `etcd`. Raises `ConfigError`."""
    given = dict(parameters.config)
    backend = given.pop("backend", "tcp")
    if (address := parameters.local_addr) is not None:
        given.setdefault("local_addr", address)
    inner = handlers.own_handler(
        backend,
        parameters.endpoint,
        parameters.run_id,
        parameters.min_nodes,
        parameters.max_nodes,
        given,
        lenient=True,
    )
    return TorchrunHandler(inner)


class TorchrunHandler(api.RendezvousHandler):
    """One of ours, as torch's agents know handlers."""

    def __init__(self, inner: TcpHandler) -> None:
        """Nothing is opened yet."""
        self._inner = inner

    @property
    def use_agent_store(self) -> bool:
        """Workers meet at the round's store."""
        return True

    def get_backend(self) -> str:
        """The name under which torch knows it."""
        return NAME

    def get_run_id(self) -> str:
        """What names the app."""
        return self._inner.get_run_id()

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Block until enough hosts are there. Raises torch's `RendezvousError`."""
        info = _translated(self._inner.next_rendezvous)
        at = info.bootstrap_store_info
        assert at is not None
        if info.rank == 0:
            bound = self._inner.take_store_socket()
            bound.listen(4096)
            store = TCPStore(
                "localhost",
                0,
                None,
                True,
                _CONNECTING,
                wait_for_workers=False,
                master_listen_fd=os.dup(bound.fileno()),
            )
            bound.close()
        else:
            store = TCPStore(at.master_addr, at.master_port, None, False, _CONNECTING)
        told = api.RendezvousStoreInfo(at.master_addr, at.master_port)
        return api.RendezvousInfo(store, info.rank, info.world_size, told)

    def is_closed(self) -> bool:
        """Nobody meets there any more, as far as this host knows."""
        return self._inner.is_closed()

    def set_closed(self) -> None:
        """Have nobody meet there any more."""
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        """How many hosts wait for the next rendezvous."""
        return self._inner.num_nodes_waiting()

    def shutdown(self) -> bool:
        """The app has ended here: it is over for all, as torch has it."""
        self._inner.set_closed()
        return True


def _translated(call: Callable[[], T]) -> T:
    """What a call gives; errors of ours as torch's of the same names."""
    try:
        return call()
    except RendezvousError as error:
        kind: Any = getattr(api, type(error).__name__, api.RendezvousError)
        raise kind(str(error)) from None
