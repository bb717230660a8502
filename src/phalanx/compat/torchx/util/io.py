"""TorchX's helper to read files."""

from __future__ import annotations

from pathlib import Path

__all__ = ["read_conf_file"]


def read_conf_file(conf_file: str | Path) -> str:
    """The text of a file.

    Args:
        conf_file: The file.

    Raises:
        FileNotFoundError: There is no such file.
    """
    return Path(conf_file).read_text()
