"""Programs of ours that components run, as texts: hosts need not have Phalanx."""

from __future__ import annotations

from pathlib import Path


def program(name: str) -> list[str]:
    """The arguments with which Python runs one of them."""
    text = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return ["-c", text.replace("$", "$$")]  # as a macro's `$` would be
