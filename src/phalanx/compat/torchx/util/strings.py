"""TorchX's helper for names."""

from __future__ import annotations

import re

__all__ = ["normalize_str"]


def normalize_str(data: str) -> str:
    """A name in lower case, of letters, digits and dashes only.

    Args:
        data: The name.
    """
    return re.sub(r"[^a-z0-9-]", "", data.removeprefix("-").lower())
