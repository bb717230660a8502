"""An app's status as the registry has it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from phalanx._registry.recorded_app import RecordedApp
from phalanx._specs import (
    AppState,
    AppStatus,
    AppSummary,
    ReplicaStatus,
    RoleStatus,
)


def recorded_status(app: RecordedApp) -> AppStatus:
    """An app's status, as it is recorded."""
    status = app.status()
    state = AppState(status["state"])
    return AppStatus(
        app=app.id,
        state=state,
        message=status.get("message", ""),
        warnings=tuple(status.get("warnings", ())),
        seconds=status.get("seconds"),
        roles=tuple(
            RoleStatus(role["role"], tuple(map(_replica_status, role["replicas"])))
            for role in status["roles"]
        ),
        num_restarts=status.get("num_restarts", 0),
        exit_code=status.get("exit_code", 1 if state is AppState.FAILED else None),
    )


def _replica_status(replica: Mapping[str, Any]) -> ReplicaStatus:
    known = {field.name for field in dataclasses.fields(ReplicaStatus)}
    facts = {key: value for key, value in replica.items() if key in known}
    return ReplicaStatus(**{**facts, "state": AppState(replica["state"])})


def recorded_summary(app: RecordedApp) -> AppSummary:
    """An app as its scheduler lists it."""
    seconds = app.status().get("seconds")
    return AppSummary(app.id, app.state, str(app.facts["name"]), app.handle, seconds)
