"""The version whose names these are."""

__version__ = "0.7.0"

TORCHX_IMAGE = ""
"""Local schedulers need no image."""

__all__ = ["TORCHX_IMAGE", "__version__"]
