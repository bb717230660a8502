"""`phalanx launch TARGET`: a function of a file or module, on every rank.

The workers' packages load while the file itself is loaded here: what it imports is read from its
source first.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, fields
from typing import Any

from phalanx._cli import hints, launch_help, parsing, tyro_errors
from phalanx._cli.function_target import FunctionTarget, check_target
from phalanx._cli.scheduler_flags import take_scheduler_options
from phalanx._cli.tracebacks import print_users_part
from phalanx._core.option_names import as_flags
from phalanx._core.signals import signal_name
from phalanx._launcher import payload
from phalanx._launcher.interrupts import hide_traceback, interruptible
from phalanx._launcher.launcher import Launcher, begin, check_call
from phalanx._launcher.planning import imports
from phalanx._launcher.session.app import Run
from phalanx._logs.console import is_terminal, shows_colour
from phalanx._logs.spec import LOG_DIR, DefaultLogSpec, LogSpec
from phalanx._specs import AppStatus
from phalanx.errors import (
    ConfigError,
    FetchError,
    NoTerminal,
    OutputLost,
    PhalanxError,
    SchedulerError,
    StartFailed,
    WorkerFailed,
)


def main(arguments: list[str]) -> int:
    """Launch; gives the exit code."""
    if {"-h", "--help"} & {*_split(arguments)[0]}:
        print(launch_help.render(Launcher, _Options))
        return 0
    hints.say_flags()
    try:
        if not arguments or arguments[0].startswith("-"):
            raise ConfigError(
                f"name the function first, as in: phalanx launch train.py:main\n{launch_help.USAGE}"
            )
        target, *rest = arguments
        typed, own = _split(rest)
        check_target(target, typed)
        options, given = take_scheduler_options(typed)
        hints.check_flags(options)
        parsed = _parse_options(options, target)
        parsed.launcher.scheduler_options = given
        found = FunctionTarget(target)
        with _argv(found.program, *own), _explaining(typed):
            return _launch(parsed, found, own)
    except ConfigError as error:
        print(f"phalanx launch: {as_flags(str(error))}", file=sys.stderr)
        return 2
    except (SchedulerError, StartFailed) as error:
        _report(error)
        return 1
    except KeyboardInterrupt as interrupt:
        left = getattr(interrupt, "hushed", "nothing was started")
        print(f"phalanx launch: interrupted; {left}", file=sys.stderr)
        return 130


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


@contextlib.contextmanager
def _explaining(typed: list[str]) -> Iterator[None]:
    """Say of a function's argument that is missing that it was given before `--`."""
    try:
        yield
    except ConfigError as error:
        found = re.match(r"missing required ([^.]*)\.", str(error))
        wanted = found[1].split(", ") if found else []
        if own := [flag for flag in wanted if flag in {word.partition("=")[0] for word in typed}]:
            whose = "the app's name" if own[0] == "--name" else "an option of the launch"
            text = f"{own[0]} before '--' is {whose}; put the function's after '--'."
            raise ConfigError(f"{error}\n{text}") from None
        raise


@contextlib.contextmanager
def _argv(*words: str) -> Iterator[None]:
    """`sys.argv` as the script's own command line has it, here and in the workers."""
    before, sys.argv = sys.argv, list(words)
    try:
        yield
    finally:
        sys.argv = before


@dataclass
class _Options:
    """What the command line has on top of a launcher's fields."""

    launcher: Launcher
    """Hosts, workers and the rest."""

    quiet: bool = False
    """Show only returned values, warnings and failures."""

    verbose: bool = False
    """Show the output of all ranks, and the time each phase took."""

    show: str | None = None
    """Ranks whose output to show: 0,2-4, all or none. Default: 0."""

    log_dir: str = LOG_DIR
    """Directory for log files."""

    detach: bool = False
    """Start the function and return; it keeps running. Follow it with status, log and cancel."""

    def log_spec(self) -> LogSpec:
        """As asked for."""
        if self.quiet and self.verbose:
            raise ConfigError("--quiet cannot be used with --verbose.")
        shown = self.show or ("none" if self.quiet else "all" if self.verbose else "0")
        if shown in ("all", "none"):
            return DefaultLogSpec(log_dir=self.log_dir, show="all" if shown == "all" else ())
        try:
            return DefaultLogSpec(log_dir=self.log_dir, show=parsing.ranks(shown))
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"--show: {error}, or all or none.") from None


def _parse_options(options: list[str], target: str) -> _Options:
    import tyro

    return tyro_errors.parse(
        _Options,
        options,
        f"phalanx launch {target}",
        [field.name for kind in (Launcher, _Options) for field in fields(kind)],
        "Put the function's arguments after '--'.",
        launch_help.METAVARS,
        config=(
            tyro.conf.OmitArgPrefixes,
            tyro.conf.FlagCreatePairsOff,
            tyro.conf.SuppressFixed,
        ),
    )


def _launch(options: _Options, target: FunctionTarget, own: list[str]) -> int:
    began = time.monotonic()
    launcher = options.launcher
    launcher.log_spec = options.log_spec()
    if launcher.start_method == "inline":
        function = target.load()
        args, kwargs = _parse_own(function, own, target)
        _print_values(launcher.run(function, kwargs, args=args))
        if not options.quiet:
            _print_summary(1, began)
        return 0
    if options.detach:
        return _detach(launcher, target, own)
    loaded = None
    if {"-h", "--help"} & set(own):
        loaded = _load_call(target, own)  # prints it, and exits, unless the function itself does
    call: Future[payload.Function] = Future()
    app = begin(launcher, target.needs(), target.function, call)
    app.tell_failure(prints=True)
    if not options.quiet:
        app.show_status()
    try:
        call.set_result(loaded or _load_call(target, own))
    except BaseException as error:
        app.cancel(0.0)
        app.wait()
        if isinstance(error, KeyboardInterrupt):
            hide_traceback(error, app.describe_left())
        app.forget()
        if not isinstance(error, Exception) or isinstance(error, ConfigError):
            raise
        _print_raised(error, target)
        return 1
    _wait(app)
    if options.verbose:
        _print_phases(app.status())
    try:
        result = app.result()
    except OutputLost as error:
        _report(error)
        if "stdout" not in error.places:
            _print_values(error.result)
        return 1
    except Exception as error:  # noqa: BLE001 it is the user's: printed, not judged
        if isinstance(error, FetchError):
            _print_values(error.result)
        _report(error)
        return (isinstance(error, WorkerFailed) and error.exit_code) or 1
    _print_values(result)
    if not options.quiet:
        _print_summary(len(result), began)
    return 0


def _detach(launcher: Launcher, target: FunctionTarget, own: list[str]) -> int:
    try:
        function = target.load()
        args, kwargs = _parse_own(function, own, target)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 the user's file: printed, not judged
        _print_raised(error, target)
        return 1
    app = launcher.start(function, kwargs, args=args, detach=True)
    print(app.id)
    print(
        f"phalanx launch: {app.id} keeps running. Follow it with: phalanx log -f {app.id}",
        file=sys.stderr,
    )
    return 0


_OF_RANKS = re.compile(r"\b((LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT))\b")


def _print_raised(error: Exception, target: FunctionTarget) -> None:
    """What the file raised while it was loaded here, where no rank is."""
    print_users_part(error)
    if target.is_file and _OF_RANKS.search(str(error)):
        print(
            f"phalanx launch: launch imports the file here first; to run a script: phalanx "
            f"torchrun {target.source}",
            file=sys.stderr,
        )


def _wait(app: Run[Any]) -> None:
    """Until it has ended, by itself or by a signal, which then has its way."""
    try:
        with interruptible() as interrupts:
            interrupts.attach(app.cancel)
            app.wait()
            if interrupts.received not in (None, signal.SIGINT):  # behind this it ends us
                how = f"terminated by {signal_name(interrupts.received)}"
                text = f"phalanx launch: {how}; {app.describe_left()}"
                with contextlib.suppress(OSError):  # a terminal that was closed
                    print(text, file=sys.stderr, flush=True)
    except KeyboardInterrupt as interrupt:
        hide_traceback(interrupt, app.describe_left())
        raise


def _load_call(target: FunctionTarget, own: list[str]) -> payload.Function:
    function = target.load()
    args, kwargs = _parse_own(function, own, target)
    check_call(function, args, kwargs)
    needs = imports.of_function(function)
    return payload.pack(function, args, kwargs, needs)


def _parse_own(
    function: Callable[..., Any], own: list[str], target: FunctionTarget
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The function's arguments, by its signature and docstring.

    None for one that takes none: it finds them in `sys.argv`, as a script does.
    """
    parameters = inspect.signature(function).parameters
    if all(_is_for_scripts(parameter) for parameter in parameters.values()):
        if {"-h", "--help"} & set(own) and not _reads_argv(target.program):
            print(f"usage: phalanx launch {target.source}:{target.function} [OPTIONS]\n")
            print(f"{target.function} takes no arguments. What stands after -- is its sys.argv.")
            raise SystemExit(0)
        return (), {}

    @functools.wraps(function)
    def capture(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    prog = f"phalanx launch {target.source}:{target.function} --"
    try:
        args, kwargs = tyro_errors.parse(capture, own, prog, parameters)
    except NameError as error:  # of an annotation that is a text
        raise ConfigError(f"{target.source}:{target.function}: annotations: {error}.") from None
    return args, kwargs


_PARSERS = re.compile(
    rb"argv|arg_?parse|parse_args|ArgumentParser|click|typer|fire|tyro|absl|hydra"
)
"""What a file names that reads `sys.argv`."""


def _reads_argv(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return _PARSERS.search(file.read(1 << 20)) is not None
    except OSError:
        return True


def _is_for_scripts(parameter: inspect.Parameter) -> bool:
    """As in `def main(argv=None)`: where it is not given, `sys.argv` counts."""
    return parameter.name == "argv" and parameter.default is None


def _print_values(values: Any) -> None:
    for rank, value in enumerate(values):
        if value is not None:
            try:
                text = repr(value)
            except Exception as error:  # noqa: BLE001 the user's code
                text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
            print(f"rank {rank}: {text}")


def _print_phases(status: AppStatus) -> None:
    print(f"{status.app}: {status.state.value}", file=sys.stderr)
    for phase, seconds in sorted(status.phases.items(), key=lambda item: item[1]):
        print(f"  {phase:<16} {seconds:7.3f} s", file=sys.stderr)


def _print_summary(count: int, began: float) -> None:
    workers = "worker" if count == 1 else "workers"
    print(f"{count} {workers} returned after {time.monotonic() - began:.1f} s", file=sys.stderr)


def _report(error: BaseException) -> None:
    """The one report, printed last: the exception and what is noted on it, no frames of ours."""
    import traceback

    sys.stdout.flush()
    if isinstance(error, NoTerminal):
        flags = "--workers-per-host 1 --start-method inline"
        error.args = (str(error).replace(NoTerminal.python, flags),)
    text = "".join(traceback.format_exception_only(error)).rstrip()
    if isinstance(error, PhalanxError) and not isinstance(error, WorkerFailed):
        text = as_flags(text)
    if is_terminal(sys.stderr):
        width = shutil.get_terminal_size().columns
        rules = f"── {type(error).__name__} ".ljust(width, "─"), "─" * width
        if shows_colour(sys.stderr):
            rules = f"\x1b[1;31m{rules[0]}\x1b[0m", f"\x1b[1;31m{rules[1]}\x1b[0m"
        text = f"\n{rules[0]}\n{text}\n{rules[1]}"
    print(text, file=sys.stderr)
