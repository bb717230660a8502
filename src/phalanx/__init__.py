"""Phalanx runs a Python function or program on every rank and returns results, errors and logs.

Modules without an underscore are public. The others are layers, from the bottom: `_core`,
`_aliases`, `_wire`, `_plugins`, `_specs`, `_system`, `_remote`, `_channel`, `_logs`, `_delivery`,
`_rendezvous` (who decides), `_worker`, `_agent`, `_registry`, `_launcher`, `_elastic`,
`_schedulers` (and `_images`, of which these make use), `_runner`, `_chaos`, `_cli`;
`docs/design.md` says what each must not know. `_torch` is the only package that imports torch; it
is loaded where the user's code runs. Importing `phalanx` itself loads next to nothing: what is
public is loaded when it is first named.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from phalanx._core.lazy import loader

__version__ = "0.1.0"

IMAGE = ""
"""TorchX's name for the image of a role that names none: none is needed on `local_cwd`, `ssh` and
`slurm`; elsewhere name yours. It is not among the public names: new code writes `image=""`.
"""

_PUBLIC = {
    "AgentLost": "phalanx.errors",
    "App": "phalanx._launcher.session.app",
    "AppState": "phalanx._specs",
    "AppStatus": "phalanx._specs",
    "AppStatusError": "phalanx.errors",
    "CallResult": "phalanx._launcher.result",
    "Calls": "phalanx._launcher.calls.calls",
    "Cancelled": "phalanx.errors",
    "ComponentError": "phalanx.errors",
    "ConfigError": "phalanx.errors",
    "Context": "phalanx._worker.context",
    "DefaultLogSpec": "phalanx._logs.spec",
    "FetchError": "phalanx.errors",
    "Job": "phalanx._launcher.calls.jobs.job",
    "LaunchError": "phalanx.errors",
    "LaunchResult": "phalanx._launcher.result",
    "Launcher": "phalanx._launcher.launcher",
    "LogLine": "phalanx._logs.lines",
    "LogSpec": "phalanx._logs.spec",
    "MapFailed": "phalanx.errors",
    "NoTerminal": "phalanx.errors",
    "OutputLost": "phalanx.errors",
    "PhalanxError": "phalanx.errors",
    "PluginError": "phalanx.errors",
    "QueueTimeout": "phalanx.errors",
    "ResultError": "phalanx.errors",
    "SchedulerError": "phalanx.errors",
    "SchedulerUnreachable": "phalanx.errors",
    "StartFailed": "phalanx.errors",
    "StartTimeout": "phalanx.errors",
    "UnknownApp": "phalanx.errors",
    "UnknownScheduler": "phalanx.errors",
    "UsageError": "phalanx.errors",
    "WireError": "phalanx.errors",
    "WorkerFailed": "phalanx.errors",
    "app": "phalanx._launcher.detached.recorded_run",
    "context": "phalanx._worker.context",
    "expires": "phalanx._worker.heartbeat",
    "heartbeat": "phalanx._worker.heartbeat",
    "launch": "phalanx._launcher.launcher",
    "record": "phalanx._worker.error_file",
    "step": "phalanx._worker.heartbeat",
    "warm": "phalanx._launcher.warm.pool",
}

__all__ = [
    "AgentLost",
    "App",
    "AppState",
    "AppStatus",
    "AppStatusError",
    "CallResult",
    "Calls",
    "Cancelled",
    "ComponentError",
    "ConfigError",
    "Context",
    "DefaultLogSpec",
    "FetchError",
    "Job",
    "LaunchError",
    "LaunchResult",
    "Launcher",
    "LogLine",
    "LogSpec",
    "MapFailed",
    "NoTerminal",
    "OutputLost",
    "PhalanxError",
    "PluginError",
    "QueueTimeout",
    "ResultError",
    "SchedulerError",
    "SchedulerUnreachable",
    "StartFailed",
    "StartTimeout",
    "UnknownApp",
    "UnknownScheduler",
    "UsageError",
    "WireError",
    "WorkerFailed",
    "__version__",
    "app",
    "context",
    "expires",
    "heartbeat",
    "launch",
    "record",
    "step",
    "warm",
]

if TYPE_CHECKING:
    from phalanx._launcher.calls.calls import Calls
    from phalanx._launcher.calls.jobs.job import Job
    from phalanx._launcher.detached.recorded_run import app
    from phalanx._launcher.launcher import Launcher, launch
    from phalanx._launcher.result import CallResult, LaunchResult
    from phalanx._launcher.session.app import App
    from phalanx._launcher.warm.pool import warm
    from phalanx._logs.lines import LogLine
    from phalanx._logs.spec import DefaultLogSpec, LogSpec
    from phalanx._specs import AppState, AppStatus
    from phalanx._worker.context import Context, context
    from phalanx._worker.error_file import record
    from phalanx._worker.heartbeat import expires, heartbeat, step
    from phalanx.errors import (
        AgentLost,
        AppStatusError,
        Cancelled,
        ComponentError,
        ConfigError,
        FetchError,
        LaunchError,
        MapFailed,
        NoTerminal,
        OutputLost,
        PhalanxError,
        PluginError,
        QueueTimeout,
        ResultError,
        SchedulerError,
        SchedulerUnreachable,
        StartFailed,
        StartTimeout,
        UnknownApp,
        UnknownScheduler,
        UsageError,
        WireError,
        WorkerFailed,
    )


__getattr__ = loader(
    __name__,
    _PUBLIC,
    {"version": "use phalanx.__version__; TorchX's module is phalanx.compat.torchx.version"},
)


class _Elsewhere:
    """Asked last for a module of ours: says where one is that other launchers have."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        start = f"{__name__}."
        if name.startswith(start) and not name.startswith(f"{start}compat."):
            from phalanx._aliases import module_hint

            if found := module_hint(name.removeprefix(start)):
                raise ModuleNotFoundError(f"no module named {name!r}: {found}", name=name)


sys.meta_path.append(_Elsewhere)


def __dir__() -> list[str]:
    return sorted(__all__)
