"""The round's store, in a process of its own: it outlives workers and dies with its round."""

from __future__ import annotations

import signal

from torch._C._distributed_c10d import TCPStore


def serve(listening: int) -> None:
    """Serve on a socket that is bound and listening already. Blocks until the process is ended."""
    store = TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False, master_listen_fd=listening
    )
    while store is not None:
        signal.pause()
