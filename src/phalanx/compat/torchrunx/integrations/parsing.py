"""The same as `integrations.cli`, by the name that torchrunx's documentation has."""

from phalanx.compat.torchrunx.integrations.cli import (
    add_torchrunx_argument_group,
    launcher_from_args,
)

__all__ = ["add_torchrunx_argument_group", "launcher_from_args"]
