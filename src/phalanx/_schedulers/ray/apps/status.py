"""How an app stands, by its job and what its driver has said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._schedulers.ray import job_log
from phalanx._schedulers.ray.api.job import seconds_of, state_of
from phalanx._schedulers.ray.apps.names import JobMetadata
from phalanx._schedulers.replicas.error_text import in_text, shown
from phalanx._specs import AppState, AppStatus, ReplicaStatus, RoleStatus

_PREFIXES = (
    "Job supervisor actor died",
    "Unexpected error occurred",
    "runtime_env setup failed",
    "Failed to start",
)


@dataclass(frozen=True)
class SeenRayApp:
    """All that the cluster knows of an app."""

    app_id: str
    metadata: JobMetadata
    job: Mapping[str, Any]
    said: Mapping[str, Any] | None = None
    """What the driver has last said."""
    log: str = ""
    """The job's, where the driver has said nothing and the job has ended."""

    def status(self, now: float) -> AppStatus:
        """How it stands."""
        state = state_of(self.job)
        replicas = self._replicas(state)
        if state is AppState.RUNNING and not self._has_begun(replicas):
            state = AppState.PENDING
        return AppStatus(
            app=self.app_id,
            state=state,
            message=self._message(state, replicas),
            seconds=seconds_of(self.job, now),
            roles=tuple(
                RoleStatus(
                    part.name, tuple(replicas[part.name, number] for number in range(part.replicas))
                )
                for part in self.metadata.lifecycle.roles
            ),
            num_restarts=int((self.said or {}).get("restarts") or 0),
            exit_code=self._exit_code(state),
        )

    def _has_begun(self, replicas: Mapping[tuple[str, int], ReplicaStatus]) -> bool:
        return any(one.state is not AppState.PENDING for one in replicas.values())

    def _replicas(self, state: AppState) -> dict[tuple[str, int], ReplicaStatus]:
        known = {(one["role"], one["id"]): one for one in (self.said or {}).get("replicas", ())}
        found = {}
        for part in self.metadata.lifecycle.roles:
            for number in range(part.replicas):
                one = known.get((part.name, number))
                found[part.name, number] = _replica(part.name, number, one, state)
        return found

    def _message(self, state: AppState, replicas: Mapping[tuple[str, int], ReplicaStatus]) -> str:
        said = self.said or {}
        if state is AppState.PENDING:
            return str(said.get("waiting") or "")
        if state is not AppState.FAILED:
            return ""
        cause = said.get("cause")
        if cause is not None:
            found = replicas[cause[0], cause[1]]
            worker = next(
                (one["worker"] for one in said["replicas"] if [one["role"], one["id"]] == cause), ""
            )
            return f"{cause[0]}/{cause[1]} {found.describe()}{worker}"
        if lost := said.get("lost"):
            return f"output could not be written on its node: {lost}"
        # The driver was killed, or could not begin: what it or Ray said last.
        text = str(self.job.get("message") or "")
        own = shown(in_text(job_log.last_words(self.log)))
        is_ray = any(text.startswith(prefix) for prefix in _PREFIXES)
        return f"the job on Ray failed: {shown(in_text(text)) if is_ray or not own else own}"

    def _exit_code(self, state: AppState) -> int | None:
        if state is AppState.SUCCEEDED:
            return 0
        if state is not AppState.FAILED:
            return None
        code = self.job.get("driver_exit_code")
        return code if isinstance(code, int) and code > 0 else 1


def _replica(
    role: str, number: int, said: Mapping[str, Any] | None, state: AppState
) -> ReplicaStatus:
    if said is None:
        return ReplicaStatus(number, role, AppState.PENDING if state is AppState.RUNNING else state)
    own = AppState[said["state"]]
    if state.is_final and not own.is_final:
        # The driver was killed: everything of it ended with it.
        own = AppState.CANCELLED if state is AppState.SUCCEEDED else state
    return ReplicaStatus(
        number,
        role,
        own,
        hostname=said["hostname"],
        exit_code=said["exit_code"],
        signal=said["signal"],
        error=said["error"],
        retries=said["retries"],
        traceback=said["traceback"],
    )
