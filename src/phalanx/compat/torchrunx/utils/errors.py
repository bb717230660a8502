"""torchrunx's names for our errors, so that `except` clauses written for them catch ours."""

from phalanx.errors import AgentLost as AgentFailedError
from phalanx.errors import WorkerFailed as WorkerFailedError

__all__ = ["AgentFailedError", "WorkerFailedError"]
