"""The API's objects in general: templates merged, times read, the container that is ours. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

MAIN = "main"
"""The container of a pod that runs what it is there for."""

_NAMED = {"containers", "initContainers", "env", "volumes", "imagePullSecrets"}
"""Lists whose entries are known by their names."""


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """A template with the fields of another, which wins; lists of named things are joined."""
    made = copy.deepcopy(dict(ours))
    for key, value in theirs.items():
        mine = made.get(key)
        if isinstance(value, Mapping) and isinstance(mine, Mapping):
            made[key] = merged(mine, value)
        elif isinstance(value, list) and isinstance(mine, list):
            made[key] = _joined(key, mine, value)
        else:
            made[key] = copy.deepcopy(value)
    return made


def _joined(key: str, ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    by = "mountPath" if key == "volumeMounts" else "name" if key in _NAMED else None
    if by is None or not all(isinstance(entry, Mapping) for entry in theirs):
        return [*ours, *theirs] if key in ("tolerations", "envFrom") else list(theirs)
    found = {entry[by]: dict(entry) for entry in ours}
    for entry in theirs:
        name = entry.get(by)
        found[name] = merged(found[name], entry) if name in found else dict(entry)
    return list(found.values())


def moment(text: object) -> float | None:
    """A time of the API's in seconds since 1970."""
    if not isinstance(text, str) or not text:
        return None
    whole = re.sub(r"(\.\d{1,6})\d*", r"\1", text.replace("Z", "+00:00"))
    try:
        return datetime.fromisoformat(whole).timestamp()
    except ValueError:
        return None
