"""Times and sizes as people write them. Pure."""

from __future__ import annotations

import re

_TIMES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def seconds(text: str) -> float:
    """`90`, `10m`, `2h`, `7d` in seconds. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw]?)", text.strip())
    if match is None:
        raise ValueError(f"invalid duration {text!r}: use 30s, 10m, 2h or 7d")
    return float(match[1]) * _TIMES[match[2] or "s"]


def size(text: str) -> int:
    """`512MiB`, `20GiB`, `1000` in bytes. Raises `ValueError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"invalid size {text!r}: use 512MiB or 20GiB")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))


def in_bytes(count: float) -> str:
    """A number of bytes for people."""
    at = 0
    while count >= 1024 and at < len(_SIZES) - 1:
        count, at = count / 1024, at + 1
    return f"{count:.0f} {_SIZES[at]}" if count >= 10 or at == 0 else f"{count:.1f} {_SIZES[at]}"
