"""Every error that Phalanx raises of its own, under one root.

    PhalanxError
    ├── ConfigError          a mistake found before anything was started
    │   ├── ComponentError   there is no such component, or it is not one
    │   ├── UnknownName      a name that is not there
    │   │   └── UnknownScheduler  there is no such scheduler
    │   └── UsageError       a component was given arguments that it does not take
    ├── PluginError          what an installed package has registered cannot be used
    ├── SchedulerError       a scheduler could not do what it was asked for
    │   └── SchedulerUnreachable  it does not answer; it may later
    ├── UnknownApp           there is no such app
    ├── AppStatusError       an app on a scheduler did not succeed
    ├── WireError            bytes that are not frames of our version
    ├── NoTerminal           a worker has come to a breakpoint where nobody can debug it
    └── LaunchError          an app that was started and did not succeed
        ├── StartFailed      an agent, or what it needs, could not be started
        ├── QueueTimeout     the hosts that a scheduler was asked for were not there in time
        ├── StartTimeout     not everything was running in time
        ├── WorkerFailed     a worker exited, was killed, or raised what cannot be raised again
        ├── ResultError      a value could not be brought home
        ├── FetchError       the app succeeded, and a file that was asked for is not home
        ├── AgentLost        an agent is gone or fell silent
        ├── OutputLost       all succeeded, but what workers printed could not be written
        ├── MapFailed        some calls of a map did not return
        └── Cancelled        someone asked for the end

A worker's own exception is raised with its own type, not as one of these. All of them pickle, with
their fields. This module knows nothing of the rest of the package.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AgentLost",
    "AppStatusError",
    "Cancelled",
    "ComponentError",
    "ConfigError",
    "FetchError",
    "LaunchError",
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
    "UnknownName",
    "UnknownScheduler",
    "UsageError",
    "WireError",
    "WorkerFailed",
]


def _rebuild(cls: type[PhalanxError], args: tuple[Any, ...], state: dict[str, Any]) -> PhalanxError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class PhalanxError(Exception):
    """The root of all errors of ours."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by arguments and fields, so that subclasses may have any constructor."""
        return _rebuild, (type(self), self.args, dict(self.__dict__))


class ConfigError(PhalanxError, ValueError):
    """A mistake in what was asked for; nothing was started."""


class ComponentError(ConfigError):
    """There is no such component, or it is not one: `name` says which."""

    def __init__(self, message: str, *, name: str) -> None:
        super().__init__(message)
        self.name = name


class UnknownName(ConfigError, KeyError):
    """A name that is not there: a named resource's, a key of a mount."""

    __str__ = Exception.__str__  # a `KeyError` would quote the sentence


class UnknownScheduler(UnknownName):
    """There is no such scheduler."""


class UsageError(ConfigError):
    """A component was given arguments that it does not take.

    `component` and `option` are set when it is an option that it does not have.
    """

    def __init__(self, message: str, *, component: str = "", option: str = "") -> None:
        super().__init__(message)
        self.component = component
        self.option = option


class PluginError(PhalanxError):
    """What a package has registered cannot be used: `plugin` says which, `reason` why."""

    def __init__(self, plugin: Any, reason: str) -> None:
        super().__init__(f"plugin {plugin} is broken: {reason}")
        self.plugin = plugin
        self.reason = reason


class SchedulerError(PhalanxError):
    """A scheduler could not do what it was asked for."""


class SchedulerUnreachable(SchedulerError):
    """A scheduler does not answer. It may later: ask again."""


class UnknownApp(PhalanxError, LookupError):
    """There is no such app."""


class AppStatusError(PhalanxError):
    """An app on a scheduler did not succeed: `status` says how it stands."""

    def __init__(self, message: str, *, status: Any) -> None:
        super().__init__(message)
        self.status = status


class WireError(PhalanxError):
    """A peer sent something that is not a frame of this version."""


class NoTerminal(PhalanxError):
    """A worker has come to a breakpoint, and has no terminal to read commands from.

    `short` is the message without what to do, in which `python` stands for options of a launch.
    """

    python = 'workers_per_host=1, start_method="inline"'

    def __init__(self, message: str, *, short: str) -> None:
        super().__init__(message)
        self.short = short


class LaunchError(PhalanxError):
    """An app was started and did not succeed."""


class StartFailed(LaunchError):
    """An agent on `hostname` could not be started."""

    def __init__(self, message: str, *, hostname: str) -> None:
        super().__init__(message)
        self.hostname = hostname


class QueueTimeout(LaunchError):
    """The hosts were not there within `timeout` seconds; `reason` is the scheduler's own."""

    def __init__(self, message: str, *, timeout: float, reason: str) -> None:
        super().__init__(message)
        self.timeout = timeout
        self.reason = reason


class StartTimeout(LaunchError):
    """Not everything was running within `timeout` seconds; `missing` names what was awaited."""

    def __init__(self, message: str, *, timeout: float, missing: tuple[str, ...]) -> None:
        super().__init__(message)
        self.timeout = timeout
        self.missing = missing


class WorkerFailed(LaunchError):
    """The worker of `rank` ended without a value and without an exception to raise again.

    `exit_code` is set when it exited, `signal` (a name such as `SIGKILL`) when it was killed;
    `type_name` and `worker_traceback` when it raised something that cannot be raised here.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int,
        hostname: str,
        pid: int | None = None,
        exit_code: int | None = None,
        signal: str | None = None,
        type_name: str | None = None,
        worker_traceback: str | None = None,
        log_file: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.hostname = hostname
        self.pid = pid
        self.exit_code = exit_code
        self.signal = signal
        self.type_name = type_name
        self.worker_traceback = worker_traceback
        self.log_file = log_file


class ResultError(LaunchError):
    """The value that `rank` returned could not be pickled, carried or unpickled."""

    def __init__(self, message: str, *, rank: int, hostname: str, type_name: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.hostname = hostname
        self.type_name = type_name


class FetchError(LaunchError):
    """Every rank returned, but files named by `fetch` are not home; `result` has the values."""

    def __init__(self, message: str, *, problems: tuple[str, ...], result: Any) -> None:
        super().__init__(message)
        self.problems = problems
        self.result = result


class AgentLost(LaunchError):
    """The agent on `hostname` is gone or fell silent; `ranks` were its workers'."""

    def __init__(self, message: str, *, hostname: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.hostname = hostname
        self.ranks = ranks


class OutputLost(LaunchError):
    """All workers succeeded, but some of what they printed could not be written to `places`.

    `result` is what would have been given otherwise.
    """

    def __init__(self, message: str, *, places: tuple[str, ...], result: Any = None) -> None:
        super().__init__(message)
        self.places = places
        self.result = result


class MapFailed(LaunchError):
    """Some calls of a map did not return.

    `failures` has what each of them raised, `results` what the others gave; both by the item's
    position among the items.
    """

    def __init__(
        self, message: str, *, failures: dict[int, BaseException], results: dict[int, Any]
    ) -> None:
        super().__init__(message)
        self.failures = failures
        self.results = results


class Cancelled(LaunchError):
    """The app was cancelled before it ended."""
