"""Phalanx runs a Python function or program on every rank and brings everything home.

The layers, each importing only from those above it: pure data (`errors`, `rounds`, `ranks`,
`wire`, `values`), `plugins`, `specs`, `channel` and `hosts`, `logs`, `rendezvous` (who decides),
`worker`, `agent`, `registry`, `launcher`, `schedulers`, `runner`, `components`, `testing`, `cli`.
`phalanx.torch` is the only package that imports torch, and only workers load it. Importing
`phalanx` itself loads next to nothing: what is public is loaded when it is first named.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "AgentLost": "phalanx.errors",
    "App": "phalanx.launcher.app",
    "AppState": "phalanx.specs",
    "AppStatus": "phalanx.specs",
    "Cancelled": "phalanx.errors",
    "ComponentError": "phalanx.errors",
    "ConfigError": "phalanx.errors",
    "Context": "phalanx.worker.context",
    "DefaultLogSpec": "phalanx.logs.spec",
    "FetchError": "phalanx.errors",
    "LaunchError": "phalanx.errors",
    "LaunchResult": "phalanx.launcher.result",
    "Launcher": "phalanx.launcher",
    "LogLine": "phalanx.logs.lines",
    "LogSpec": "phalanx.logs.spec",
    "NoTerminal": "phalanx.errors",
    "OutputLost": "phalanx.errors",
    "PhalanxError": "phalanx.errors",
    "PluginError": "phalanx.errors",
    "ResultError": "phalanx.errors",
    "SchedulerError": "phalanx.errors",
    "StartFailed": "phalanx.errors",
    "StartTimeout": "phalanx.errors",
    "UnknownScheduler": "phalanx.errors",
    "UsageError": "phalanx.errors",
    "WireError": "phalanx.errors",
    "WorkerFailed": "phalanx.errors",
    "context": "phalanx.worker.context",
    "launch": "phalanx.launcher",
    "record": "phalanx.worker.errorfile",
    "warm": "phalanx.launcher.warmth",
}

__all__ = [
    "AgentLost",
    "App",
    "AppState",
    "AppStatus",
    "Cancelled",
    "ComponentError",
    "ConfigError",
    "Context",
    "DefaultLogSpec",
    "FetchError",
    "LaunchError",
    "LaunchResult",
    "Launcher",
    "LogLine",
    "LogSpec",
    "NoTerminal",
    "OutputLost",
    "PhalanxError",
    "PluginError",
    "ResultError",
    "SchedulerError",
    "StartFailed",
    "StartTimeout",
    "UnknownScheduler",
    "UsageError",
    "WireError",
    "WorkerFailed",
    "__version__",
    "context",
    "launch",
    "record",
    "warm",
]

if TYPE_CHECKING:
    from phalanx.errors import (
        AgentLost,
        Cancelled,
        ComponentError,
        ConfigError,
        FetchError,
        LaunchError,
        NoTerminal,
        OutputLost,
        PhalanxError,
        PluginError,
        ResultError,
        SchedulerError,
        StartFailed,
        StartTimeout,
        UnknownScheduler,
        UsageError,
        WireError,
        WorkerFailed,
    )
    from phalanx.launcher import Launcher, launch
    from phalanx.launcher.app import App
    from phalanx.launcher.result import LaunchResult
    from phalanx.launcher.warmth import warm
    from phalanx.logs.lines import LogLine
    from phalanx.logs.spec import DefaultLogSpec, LogSpec
    from phalanx.specs import AppState, AppStatus
    from phalanx.worker.context import Context, context
    from phalanx.worker.errorfile import record


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
