"""The round's store, in a process of its own: it outlives workers and dies with its round.

torch's store serves whoever connects. Here, of the users of this machine, it serves its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal

from torch._C._distributed_c10d import TCPStore

from phalanx._system import accept_gate
from phalanx._system.local_users import LocalUsers


def serve(listening: int) -> None:
    """Serve on a socket that is bound and listening already. Blocks until the process is ended."""
    resolve_by_files_alone()
    _use_all_descriptors()
    # Where the kernel cannot choose, the store is as open as torch's own.
    accept_gate.guard(listening, LocalUsers(os.getppid()).admit)
    store = TCPStore(
        "localhost", 0, is_master=True, wait_for_workers=False, master_listen_fd=listening
    )
    # Hosts of torchrun and ours that come to one endpoint are told apart by it: `torch_store`.
    store.set("phalanx", "")
    while True:
        signal.pause()


def resolve_by_files_alone() -> None:
    """Have names of hosts looked up in /etc/hosts only, in this process from now on.

    torch's store looks up the name of every client, for its log, on the one thread that serves
    them all: a name server that does not answer would have them wait for seconds, one by one.
    """
    with contextlib.suppress(AttributeError, OSError):  # a C library that has no such choice
        configure = getattr(ctypes.CDLL(None), "__nss_configure_lookup")
        configure(b"hosts", b"files")


def _use_all_descriptors() -> None:
    """Every rank has a connection or two here, whatever the user's limit for their own files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
