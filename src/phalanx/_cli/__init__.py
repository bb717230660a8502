"""The command line: one module per verb, loaded only when it is asked for.

A verb's module has `main(arguments) -> exit code`. It prints and never decides. A user's mistake is
one clear sentence and exit code 2, never a traceback.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from phalanx._core.suggestions import closest, did_you_mean
from phalanx._logs.losses import reader_has_left
from phalanx._system import own_process, shortage, standard_streams
from phalanx.errors import ConfigError, PluginError

GROUP = "phalanx.cli"
"""Where packages register commands of their own."""

_LONGEST = 60
"""Characters of a mistyped command that are worth repeating."""

GROUPS = {
    "launch and run": {
        "launch": "run a Python function on every rank",
        "map": "call a Python function for every item of a file",
        "torchrun": "run a script on every worker of this host, with torchrun's flags",
        "run": "run a component on a scheduler",
        "builtins": "list components",
        "runopts": "list schedulers and their options",
    },
    "watch": {
        "list": "list apps",
        "status": "show an app's status",
        "log": "show an app's logs",
        "stacks": "show the Python stacks of running workers",
        "describe": "show an app's definition",
    },
    "manage": {
        "cancel": "cancel an app",
        "delete": "delete apps and their logs",
        "clean": "delete old apps",
        "hosts": "check hosts before a launch",
        "chaos": "break a running app on purpose and report how it recovers",
        "warm": "show or stop the agents kept by keep_warm",
    },
    "configure": {
        "configure": "write a configuration file",
        "config": "show all settings and where they come from",
        "completion": "print a shell completion script",
        "version": "print the version",
    },
}
VERBS = {verb: text for group in GROUPS.values() for verb, text in group.items()}


def run() -> NoReturn:
    """Run as the program. What was loaded may have imported torch, whose teardown is slow."""
    failure: OSError | None = None
    own_process.begin()
    standard_streams.fill()
    from phalanx._worker.shutdown import exit_worker  # now: later no file may be left to open

    try:
        _prepare_streams()
        code = main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            _say(stop.code)
    except KeyboardInterrupt:
        _say("phalanx: interrupted")
        code = 130
    except BrokenPipeError:
        code = 0  # whoever reads has had enough
    except OSError as error:
        code = 1
        if error.filename is None and error.errno in _NO_ROOM:
            failure = error  # if it was stderr, nobody hears what is said of stdout
        else:
            _show(error)
    except BaseException as error:  # noqa: BLE001 the user's file raised: shown as Python shows it
        _show(error)
        code = 1
    failure = _finish_stdout() or failure
    unheard = _Stdout.failure
    if code == 0 and unheard is not None and not reader_has_left(unheard, 1):
        failure = unheard  # otherwise whoever heard of it has said so
    if failure is not None:
        _say(f"phalanx: cannot write to stdout: {failure.strerror}")
        code = code or 1
    exit_worker(code, preloaded=())


def _show(error: BaseException) -> None:
    if shortage.is_shortage(error):
        _say(f"phalanx: {shortage.describe(error)}")
    else:
        sys.excepthook(type(error), error, error.__traceback__)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class _Stdout(io.FileIO):
    """Remembers that a write has failed: not all who print let it be heard, argparse for one."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _Stdout.failure = _Stdout.failure or error
            raise


class _Stderr(io.FileIO):
    """Our own words: that a full disk does not take them fails nothing."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return memoryview(data).nbytes


def _prepare_streams() -> None:
    """What replicas print may be anything; and of what does not fit on a disk nothing is lost
    unheard, as it is without a buffer (`PYTHONUNBUFFERED`).
    """
    for name, kind in (("stdout", _Stdout), ("stderr", _Stderr)):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        stream.reconfigure(errors="backslashreplace")
        buffer: Any = stream.buffer
        is_unbuffered = isinstance(buffer, io.FileIO)
        if isinstance(buffer if is_unbuffered else getattr(buffer, "raw", None), io.FileIO):
            stream.flush()
            wrapped = io.TextIOWrapper(  # it lives as long as the process
                io.BufferedWriter(kind(buffer.fileno(), "w", closefd=False)),
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=is_unbuffered or stream.line_buffering,
            )
            setattr(sys, name, wrapped)


def _finish_stdout() -> OSError | None:
    """Have what was printed written; gives why it cannot be, unless the reader has left."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        # What could not be written is not tried again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return None if reader_has_left(error, 1) else error
    return None


def _say(text: str) -> None:
    """To whoever is there to hear it."""
    with contextlib.suppress(OSError, AttributeError):
        print(text, file=sys.stderr, flush=True)


def main(
    arguments: list[str] | None = None,
    others: Mapping[str, Callable[[list[str]], int]] | None = None,
) -> int:
    """Run one verb; gives the exit code. `others` are used in place of ours, by verb."""
    arguments = sys.argv[1:] if arguments is None else arguments
    verb = arguments[0] if arguments else "--help"
    if verb in ("-h", "--help", "help"):
        print(_overview())
        return 0 if arguments else 2
    if verb == "--version":
        verb = "version"
    _sweep()
    try:
        if others is not None and verb in others:
            return others[verb](arguments[1:])
        if verb in VERBS:
            code: int = importlib.import_module(f"phalanx._cli.commands.{verb}").main(arguments[1:])
            return code
        return _run_plugin(verb, arguments[1:])
    except (ConfigError, PluginError) as error:
        print(f"phalanx {verb}: {error}", file=sys.stderr)
        return 1 if isinstance(error, PluginError) else 2


def _sweep() -> None:
    """Clear what agents of this user that were killed have left; a look where there is nothing."""
    with contextlib.suppress(OSError):
        if _has_spools() or _has_stopped():
            from phalanx._worker import leftovers

            leftovers.sweep()


def _has_spools() -> bool:
    names = ("TMPDIR", "TEMP", "TMP")
    directory = next((os.environ[name] for name in names if os.environ.get(name)), "/tmp")  # noqa: S108 only looked at
    return any(name.startswith("phalanx-") for name in os.listdir(directory))


def _has_stopped() -> bool:
    """Whether a process of this user is stopped: it may be one that has nobody to continue it."""
    user = os.geteuid()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid != user:
                continue
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                if file.read().rpartition(b")")[2].lstrip()[:1] in (b"T", b"t"):
                    return True
    return False


def _run_plugin(verb: str, arguments: list[str]) -> int:
    """A command that a package has registered: a function, or a module with a `main`."""
    from phalanx import _plugins as plugins

    for plugin in plugins.of(GROUP):
        if plugin.name == verb:
            found = plugin.load()
            function = _sub_command(verb, found) or getattr(found, "main", found)
            if not callable(function):
                raise PluginError(plugin, f"{found!r} is not callable and has no main")
            try:
                code = function(arguments)
            except Exception as error:  # noqa: BLE001 the plugin's own
                from phalanx._cli.tracebacks import print_users_part

                print_users_part(error)
                return 1
            return code if isinstance(code, int) else 0
    known = [*VERBS, *(plugin.name for plugin in plugins.of(GROUP))]
    from phalanx._cli import hints

    meant = hints.VERBS.get(verb) or closest(verb[:_LONGEST], known)
    hint = did_you_mean(meant, "See: phalanx --help")
    shown = verb if len(verb) <= _LONGEST else f"{verb[:_LONGEST]}…"
    print(f"phalanx: unknown command {shown!r}.{hint}", file=sys.stderr)
    return 2


def _sub_command(verb: str, found: Any) -> Callable[[list[str]], Any] | None:
    """What a class with TorchX's methods for a command does; None for anything else."""
    if not all(callable(getattr(found, name, None)) for name in ("add_arguments", "run")):
        return None

    def run(arguments: list[str]) -> Any:
        import argparse

        command = found() if isinstance(found, type) else found
        parser = argparse.ArgumentParser(prog=f"phalanx {verb}", description=command.__doc__)
        command.add_arguments(parser)
        return command.run(parser.parse_args(arguments))

    return run


def _overview() -> str:
    from phalanx import _plugins as plugins

    added: dict[str, str] = {}
    for plugin in plugins.of(GROUP):
        if plugin.name in VERBS:
            print(
                f"phalanx: plugin {plugin} is ignored: phalanx has a command of that name",
                file=sys.stderr,
            )
        else:
            added.setdefault(plugin.name, f"from {plugin.package}")
    for problem in plugins.clashes(GROUP):
        print(f"phalanx: {problem}", file=sys.stderr)
    groups = {**GROUPS, **({"plugins": added} if added else {})}
    width = max(map(len, [*VERBS, *added]))
    parts = [
        "\n".join([f"{title}:", *(f"  {name:<{width}}  {text}" for name, text in verbs.items())])
        for title, verbs in groups.items()
    ]
    return "\n\n".join(
        [
            "usage: phalanx COMMAND ...",
            "Run Python functions and programs on every rank, on this machine or on many hosts.",
            *parts,
            "See 'phalanx COMMAND --help' for the options of a command.",
        ]
    )
