"""Tensors on their way home: their memory as one buffer, instead of torch's copies of copies."""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch


def reduce_storage(storage: Any) -> tuple[Any, ...] | None:
    """How to pickle the storage of a CPU tensor; None where torch's own way has to do."""
    untyped = storage._untyped_storage
    if untyped.device.type != "cpu" or untyped.nbytes() == 0:
        return None
    memory = (ctypes.c_char * untyped.nbytes()).from_address(untyped.data_ptr())
    return rebuild_storage, (pickle.PickleBuffer(memory), storage.dtype)


def rebuild_storage(memory: bytearray, dtype: torch.dtype) -> Any:
    """A storage over memory that was unpickled, without a copy."""
    untyped = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    storage: Any = torch.storage.TypedStorage
    return storage(wrap_storage=untyped, dtype=dtype, _internal=True)
