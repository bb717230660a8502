"""TorchX's base class of schedulers that build images of a directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from phalanx._schedulers.torchx.runopts import runopts
from phalanx._specs import Role

__all__ = ["WorkspaceMixin"]

T = TypeVar("T")


class WorkspaceMixin(Generic[T]):
    """A scheduler that has a role run with the files of a directory."""

    def workspace_opts(self) -> runopts:
        """The options that this adds."""
        return runopts()

    def build_workspace_and_update_role(
        self, role: Role, workspace: str, cfg: Mapping[str, Any]
    ) -> None:
        """Have a role run with the files of a directory.

        Args:
            role: The role, which is changed.
            workspace: The directory.
            cfg: The options.
        """
        raise NotImplementedError(f"{type(self).__name__} builds no images")
