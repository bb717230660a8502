"""torchrunx's names on Phalanx: `import phalanx.compat.torchrunx as torchrunx`.

Those of version 0.4 are all here; `launch` and the builders of handlers of 0.2 are beside them.
"""

from phalanx.compat.torchrunx.launcher import (
    DEFAULT_ENV_VARS_FOR_COPY,
    Launcher,
    LaunchResult,
    launch,
)
from phalanx.compat.torchrunx.utils import environment as _environment  # noqa: F401 utils has it
from phalanx.compat.torchrunx.utils.errors import AgentFailedError, WorkerFailedError
from phalanx.compat.torchrunx.utils.logging import (
    add_filter_to_handler,
    file_handler,
    stream_handler,
)

__version__ = "0.4.0"

__all__ = [
    "DEFAULT_ENV_VARS_FOR_COPY",
    "AgentFailedError",
    "LaunchResult",
    "Launcher",
    "WorkerFailedError",
    "add_filter_to_handler",
    "file_handler",
    "launch",
    "stream_handler",
]
