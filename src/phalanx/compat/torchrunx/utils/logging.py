"""Builders of log handlers as torchrunx 0.2 has them."""

from __future__ import annotations

import logging
import os
import sys

from phalanx.compat.torchrunx.utils.log_handling import (
    KEEPING_NAMES,
    default_handlers,
    file_handlers,
    get_handler_filter,
)

__all__ = [
    "add_filter_to_handler",
    "default_handlers",
    "file_handler",
    "file_handlers",
    "stream_handler",
]


def add_filter_to_handler(
    handler: logging.Handler,
    hostname: str,
    local_rank: int | None,
    log_level: int = logging.NOTSET,
) -> None:
    """Have a handler take what one worker says; with no local rank, what the host's agent says."""
    handler.addFilter(get_handler_filter(hostname, local_rank, log_level))
    KEEPING_NAMES.add(handler)


def stream_handler(
    hostname: str, local_rank: int | None, log_level: int = logging.NOTSET
) -> logging.Handler:
    """A handler that prints what one worker or agent says."""
    handler = logging.StreamHandler(sys.stdout)
    add_filter_to_handler(handler, hostname, local_rank, log_level)
    whose = "%(hostname)s" if local_rank is None else "%(hostname)s[%(local_rank)s]"
    handler.setFormatter(logging.Formatter(f"%(asctime)s:%(levelname)s:{whose}: %(message)s"))
    return handler


def file_handler(
    hostname: str,
    local_rank: int | None,
    file_path: str | os.PathLike[str],
    log_level: int = logging.NOTSET,
) -> logging.Handler:
    """A handler that writes what one worker or agent says to a file."""
    handler = logging.FileHandler(file_path)
    add_filter_to_handler(handler, hostname, local_rank, log_level)
    handler.setFormatter(logging.Formatter("%(asctime)s:%(levelname)s: %(message)s"))
    return handler
