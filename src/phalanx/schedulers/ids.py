"""Ids that are new each time, in the module where TorchX has them."""

from __future__ import annotations

import os
import secrets

_FIRST = "bcdfghjklmnpqrstvwxz"
_OTHERS = _FIRST + "012345679"

__all__ = ["get_len_random_id", "make_unique", "random_id", "random_uint64"]


def make_unique(name: str, string_length: int = 0) -> str:
    """A name with a random end, fit for Kubernetes.

    Args:
        name: What it begins with.
        string_length: Characters of the end; by default as many as have 64 random bits.
    """
    return f"{name}-{get_len_random_id(string_length) if string_length else random_id()}"


def random_id() -> str:
    """A random name of 64 bits, fit for Kubernetes."""
    number, digit = divmod(random_uint64(), len(_FIRST))
    name = _FIRST[digit]
    while number:
        number, digit = divmod(number, len(_OTHERS))
        name += _OTHERS[digit]
    return name


def get_len_random_id(string_length: int) -> str:
    """A random name of a length, fit for Kubernetes.

    Args:
        string_length: Its length.
    """
    others = (secrets.choice(_OTHERS) for _ in range(string_length - 1))
    return "".join([secrets.choice(_FIRST), *others])[:string_length]


def random_uint64() -> int:
    """A random number of 64 bits."""
    return int.from_bytes(os.urandom(8))
