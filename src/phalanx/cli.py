"""For packages that add commands to `phalanx`.

A command is a function of its arguments, a module with a `main`, or, as in TorchX, a class with the
methods of `SubCommand`; it is registered under the entry point `phalanx.cli`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

__all__ = ["SubCommand"]


class SubCommand(ABC):
    """A command that argparse parses."""

    @abstractmethod
    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Add the arguments that the command takes.

        Args:
            subparser: The command's own parser.
        """

    @abstractmethod
    def run(self, args: argparse.Namespace) -> Any:
        """Run the command.

        Args:
            args: What was given.

        Returns:
            The exit code; 0 for what is no number.
        """
