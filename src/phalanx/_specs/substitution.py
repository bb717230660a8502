"""`${app_id}` and the like: what is known only when an app runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from string import Template
from typing import Any, ClassVar

from phalanx._specs.app_def import Role

_HANDLES = ("PHALANX_JOB_ID", "TORCHX_JOB_ID")
"""The variables in which a replica finds its app's handle."""


@dataclass(frozen=True)
class Values:
    """What the macros stand for in one replica."""

    img_root: str
    app_id: str
    replica_id: str
    rank0_env: str = ""
    """The *name* of the variable that holds the address of the role's first replica."""

    def apply(self, role: Role, handle_id: str = "") -> Role:
        """The role with all macros replaced, in entrypoint, arguments, environment and metadata.

        `handle_id` is the id in the app's handle, where that also says on which cluster the app is.
        """
        handle = dataclasses.replace(self, app_id=handle_id or self.app_id)
        return dataclasses.replace(
            role,
            entrypoint=self.substitute(role.entrypoint),
            args=[self.substitute(arg) for arg in role.args],
            env={
                key: (handle if key in _HANDLES else self).substitute(value)
                for key, value in role.env.items()
            },
            metadata=self.substitute_all(role.metadata),
        )

    def substitute(self, text: str) -> str:
        """`${name}` by its value, `$$` by `$`; names that are not ours stay."""
        return Template(text).safe_substitute(dataclasses.asdict(self))

    def substitute_all(self, value: Any) -> Any:
        """The same within lists and dicts."""
        if isinstance(value, str):
            return self.substitute(value)
        if isinstance(value, dict):
            return {key: self.substitute_all(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.substitute_all(inner) for inner in value]
        return value


class macros:  # noqa: N801 the name that users know
    """The macros, to be written into arguments, environment values and metadata."""

    app_id: ClassVar[str] = "${app_id}"
    replica_id: ClassVar[str] = "${replica_id}"
    img_root: ClassVar[str] = "${img_root}"
    rank0_env: ClassVar[str] = "${rank0_env}"

    Values = Values
