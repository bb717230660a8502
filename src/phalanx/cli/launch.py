"""`phalanx launch TARGET`: a function of a file or module, on every rank.

The workers' packages load while the file itself is loaded here: what it imports is read from its
source first.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from phalanx.errors import ConfigError, WorkerFailed
from phalanx.launcher import Launcher, imports, payload
from phalanx.launcher.interrupts import interruptible

_USAGE = """\
usage: phalanx launch FILE.py:FUNCTION | MODULE:FUNCTION [OPTIONS] [-- ARGUMENTS]

Run a function on every rank. ARGUMENTS are the function's own, by its signature:
'phalanx launch FILE.py:FUNCTION -- --help' lists them. Rank 0's output is shown, all output is in
./logs. Values other than None are printed in rank order.

exit codes: 0 all ranks returned; 1 the launch failed; N a worker exited with code N; 2 a mistake in
the command; 130 interrupted.
"""


def main(arguments: list[str]) -> int:
    """Launch; gives the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_USAGE)
        _parse_options(["--help"], "TARGET")
        return 0 if arguments else 2
    target, *rest = arguments
    options, own = _split(rest)
    try:
        launcher = _parse_options(options, target)
        return _launch(launcher, _Target(target), own)
    except ConfigError as error:
        print(f"phalanx launch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("phalanx launch: interrupted; all workers were stopped", file=sys.stderr)
        return 130


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _parse_options(options: list[str], target: str) -> Launcher:
    import tyro

    return tyro.cli(Launcher, args=options, prog=f"phalanx launch {target}")


class _Target:
    """`FILE.py:FUNCTION` or `MODULE:FUNCTION`."""

    def __init__(self, text: str) -> None:
        self.place, colon, self.function = text.rpartition(":")
        if not colon or not self.place or not self.function:
            raise ConfigError(
                f"{text!r} is not FILE.py:FUNCTION or MODULE:FUNCTION. Example: train.py:main"
            )
        self.is_file = self.place.endswith(".py") or os.sep in self.place
        sys.path.insert(0, str(Path(self.place).parent.absolute()) if self.is_file else os.getcwd())

    def needs(self) -> imports.Needs:
        """What the file imports, without importing it."""
        path = Path(self.place) if self.is_file else imports.find_source(self.place)
        if self.is_file and not path.is_file():  # type: ignore[union-attr]
            raise ConfigError(f"there is no file {self.place}.")
        if path is None:
            return imports.Needs((), torch=False)
        return imports.of_file(path, self.function)

    def load(self) -> Callable[..., Any]:
        """Import the file or module, and give the function."""
        if self.is_file:
            name = Path(self.place).stem
        else:
            name = self.place
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                raise ConfigError(f"there is no module {name!r} here or installed.")
        module = importlib.import_module(name)
        found: Any = module
        for part in self.function.split("."):
            found = getattr(found, part, None)
        if not callable(found):
            raise ConfigError(self._not_found(module))
        return found  # type: ignore[no-any-return]

    def _not_found(self, module: Any) -> str:
        import difflib

        names = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        near = difflib.get_close_matches(self.function, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return f"{self.place} has no function {self.function!r}.{hint}"


def _launch(launcher: Launcher, target: _Target, own: list[str]) -> int:
    began = time.monotonic()
    if launcher.start_method == "inline":
        function = target.load()
        args, kwargs = _parse_own(function, own, target)
        _print_values(launcher.run(function, kwargs, args=args))
        return 0
    call: Future[payload.Function] = Future()
    with interruptible() as interrupts:
        app = launcher.begin(target.needs(), target.function, call)
        interrupts.attach(app.cancel)
        try:
            function = target.load()
            args, kwargs = _parse_own(function, own, target)
            needs = imports.of_function(function)
            call.set_result(payload.pack(function, args, kwargs, uses_torch=needs.torch))
        except BaseException:
            app.cancel(0.0)
            app.wait()
            raise
        app.wait()
    try:
        result = app.result()
    except Exception as error:  # noqa: BLE001 it is the user's: printed, not judged
        _report(error)
        return (isinstance(error, WorkerFailed) and error.exit_code) or 1
    _print_values(result)
    print(f"{len(result)} workers returned after {time.monotonic() - began:.1f} s", file=sys.stderr)
    return 0


def _parse_own(
    function: Callable[..., Any], own: list[str], target: _Target
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The function's arguments, by its signature and docstring."""
    import tyro

    @functools.wraps(function)
    def capture(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    args, kwargs = tyro.cli(
        capture, args=own, prog=f"phalanx launch {target.place}:{target.function} --"
    )
    return args, kwargs


def _print_values(values: Any) -> None:
    for rank, value in enumerate(values):
        if value is not None:
            print(f"rank {rank}: {value!r}")


def _report(error: BaseException) -> None:
    """The one report, printed last: the exception and what is noted on it, no frames of ours."""
    import traceback

    sys.stdout.flush()
    lines = traceback.format_exception_only(error)
    print("".join(lines).rstrip(), file=sys.stderr)
