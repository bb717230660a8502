"""`phalanx run COMPONENT`: an app onto a scheduler."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx._cli import parsing
from phalanx._cli.long_waits import say_if_long
from phalanx._cli.stdout_guard import stdout_to_stderr
from phalanx._cli.tracebacks import is_raised_outright, print_users_part
from phalanx._core.suggestions import closest, did_you_mean
from phalanx._runner.component import Component, HelpWanted
from phalanx._runner.runner import AppDryRunInfo, Runner, get_runner
from phalanx._schedulers.options import parse
from phalanx._schedulers.replicas.request import AppRequest
from phalanx._schedulers.scheduler_calls import asking
from phalanx._specs import AppState, AppStatus
from phalanx.errors import ComponentError, ConfigError, PhalanxError, UnknownScheduler, UsageError

_USAGE = "phalanx run [OPTIONS] COMPONENT [COMPONENT OPTIONS] [-- PROGRAM ARGUMENTS]"

_DESCRIPTION = """\
Run a component on a scheduler and print the app's handle. The app keeps running when this command
ends; use --wait or --log to wait for it.

COMPONENT is listed by 'phalanx builtins' (the last part of the name is enough), or is
FILE.py:FUNCTION. Show its options with 'phalanx run COMPONENT --help'. Pass scheduler options
('phalanx runopts') as -cfg key=value,… or as flags: --log_dir DIR.

  phalanx run utils.echo --msg hi
  phalanx run --wait --log utils.python train.py --lr 0.1
  phalanx run -s ssh -cfg hosts=gpu-1,gpu-2 dist.ddp -j 2x8 --script train.py -- --lr 0.1
"""

_EPILOG = """\
exit codes: 0 submitted or, with --wait, succeeded; N with --wait, the exit code of the first
replica that failed (128 + N for signal N); 1 not submitted, cancelled, or output could not be
written; 2 invalid command line; 130 interrupted (the app keeps running).
"""


_QUIET = 0.5
"""Seconds before a status line is shown."""
_LONG = 2.0
"""Seconds of waiting in a queue after which that is said where there is no terminal."""
_SHOWN = 4
"""Hosts that a note names."""
_REMEMBERED = 10_000
"""Lines of replicas among which a traceback is looked for."""
_NOT_BEGUN = (AppState.UNSUBMITTED, AppState.SUBMITTED, AppState.PENDING)


@dataclass(frozen=True)
class Habits:
    """In what `run` of another launcher's may differ."""

    make_runner: Callable[[], Runner] = get_runner
    ends_local: bool = False
    """An app on this host is shown while it runs, and ends with the command."""


def main(arguments: list[str], habits: Habits = Habits()) -> int:  # noqa: B008 it is frozen
    """Run; gives the exit code."""
    parser = make_parser()
    wanted: _Wanted | None = None
    flags: dict[str, str] = {}
    try:
        own, flags, component, rest = split(parser, arguments, _configured_component)
        options = parser.parse_args(own)
        if component is None and not options.stdin:
            component = options.component
        wanted = _Wanted(
            component=component,
            arguments=rest,
            scheduler=options.scheduler,
            cfg=_merge(options.scheduler_args or [], flags),
            workspace=options.workspace,
            parent_run_id=options.parent_run_id,
            dryrun=options.dryrun,
            wait=options.wait or options.log or options.tee_logs,
            log=options.log or options.tee_logs,
        )
        if options.stdin:
            if component is not None or flags or {"-s", "--scheduler", "-cfg"} & {*own}:
                parser.error("with --stdin, give the component, scheduler and options as JSON")
            wanted = _from_stdin(wanted)
        if wanted.component is None and flags:
            parser.error(f"unknown option --{next(iter(flags))}, or missing component")
        _notice_torchx_config()
        if wanted.component is None:
            parser.error("missing component; list components with 'phalanx builtins'")
        return _run(wanted, habits)
    except HelpWanted as text:
        print(text)
        return 0
    except ComponentError as error:
        return _refuse(_cut_option(own, component, str(error)) or error, 1)
    except UnknownScheduler as error:
        return _refuse(error, 1)
    except UsageError as error:
        if parser.find(error.option) is None:
            return _refuse(_too_early(wanted, flags, habits) or error, 2)
        return _refuse(
            f"{error.component} has no option {error.option!r}. It is an option of run: put it "
            "before the component.",
            2,
        )
    except ConfigError as error:
        return _refuse(_too_early(wanted, flags, habits) or error, 2)
    except (PhalanxError, LookupError) as error:
        return _refuse(error, 1)


def _too_early(wanted: _Wanted | None, flags: Mapping[str, str], habits: Habits) -> str:
    """What to say of a flag before the component that only the component has."""
    if wanted is None or not wanted.component or not flags:
        return ""
    from phalanx._runner import catalog

    with contextlib.suppress(PhalanxError), habits.make_runner() as runner:
        known = catalog.find(wanted.component).parameters
        scheduler = wanted.scheduler or runner.default_scheduler
        schedulers = {option.name for option in runner.scheduler_run_opts(scheduler)}
        for name in flags:
            if name in known and name not in schedulers:
                return (
                    f"unknown option --{name}. It is an option of {wanted.component}: put it after "
                    "the component."
                )
    return ""


def _cut_option(own: list[str], component: str | None, error: str) -> str:
    """What to say when a space has cut the scheduler's options: the rest is no component."""
    *_, flag, value = ["", "", *own]
    if not component or flag not in ("-cfg", "--scheduler_args") or "Did you mean" in error:
        return ""
    if any(mark in component for mark in "./:"):
        return ""
    whole = f"{value.rstrip(',')},{component}"
    return (
        f"{component!r} is not a component. If it belongs to {flag}, leave out the space: {whole}"
    )


def make_parser() -> parsing.Parser:
    """What `run` takes before the component."""
    parser = parsing.make("run", _DESCRIPTION, usage=_USAGE, epilog=_EPILOG)
    parser.config_only = ("component",)
    parser.set_defaults(component=None)
    parser.add_argument(
        "-s",
        "--scheduler",
        action=parsing.StoreOnce,
        help="scheduler to submit to (default: local_cwd)",
    )
    parser.add_argument(
        "-cfg",
        "--scheduler_args",
        action="append",
        metavar="KEY=VALUE,…",
        help="scheduler options; lists: k=a,b; dicts: k=a:1,b:2",
    )
    parser.add_argument(
        *parsing.DRY_RUN,
        action="store_true",
        help="print the app and the request without submitting it",
    )
    parser.add_argument("--wait", action="store_true", help="wait until the app ends")
    parser.add_argument(
        "--log", action="store_true", help="print the output of its replicas to stderr, and wait"
    )
    parser.add_argument("--tee_logs", action="store_true", help="same as --log")
    parser.add_argument(
        "--workspace",
        action=parsing.StoreOnce,
        metavar="DIR",
        help="directory to run in, or to copy into images ('' for none) (default: the current one)",
    )
    parser.add_argument(
        "--parent_run_id",
        action=parsing.StoreOnce,
        metavar="ID",
        help="id of the run that this app is part of",
    )
    parser.add_argument(
        "--stdin",
        action="store_true",
        help="read the request as JSON: component_name, component_args (a list or an object), "
        "scheduler, scheduler_args, workspace, parent_run_id, dryrun, wait, log",
    )
    return parser


@dataclass
class _Wanted:
    """What is to be run, and how."""

    component: str | None
    arguments: Any
    scheduler: str | None = None
    cfg: dict[str, Any] = field(default_factory=dict)
    workspace: str | None = None
    parent_run_id: str | None = None
    dryrun: bool = False
    wait: bool = False
    log: bool = False


def _configured_component() -> Component | None:
    """The one that runs when none is named; one that cannot be used is told when it is."""
    from phalanx._runner import catalog, config

    try:
        found = config.load().section("command", "run", ["component"]).get("component")
        return None if found is None else catalog.find(str(found.value))
    except PhalanxError:
        return None


def split(
    parser: parsing.Parser,
    arguments: list[str],
    configured: Callable[[], Component | None] = lambda: None,
) -> tuple[list[str], dict[str, str], str | None, list[str]]:
    """Our own words, flags that may be the scheduler's, the component, and all behind it.

    A flag that only the `configured` component has begins its arguments.
    """
    own: list[str] = []
    flags: dict[str, str] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        action = parser.find(flag)
        if word == "--" and words and words[0].startswith("-"):
            default = configured()
            return own, flags, None if default is None else default.name, words
        if not word.startswith("-") or word in ("-", "--"):
            return own, flags, *_component([word, *words])
        if action is not None:
            own.append(parser.in_full(flag) + equals + value)
            if action.nargs != 0 and not equals and words:
                own.append(words.pop(0))
            continue
        default = configured()
        if default is not None and flag.lstrip("-").replace("-", "_") in default.parameters:
            return own, flags, default.name, [word, *words]
        if not flag.startswith("--"):
            dotted = (w for w in words if "." in w and not w.startswith("-"))
            after = next((w for w in dotted if not w.endswith(".py")), "the component")
            parser.error(f"unknown option {flag}. If it is the component's, put it after {after}.")
        if near := closest(flag, parser._option_string_actions, cutoff=0.8):
            parser.error(f"unknown option {flag}.{did_you_mean(near, quoted=False)}")
        if not equals:
            if not words:
                parser.error(
                    f"{flag} is neither an option of run nor a scheduler option with a value"
                )
            value = words.pop(0)
        name = flag[2:].replace("-", "_")
        if name in flags:
            parser.error(f"{flag} is given twice")
        flags[name] = value
    return own, flags, None, []


def _component(words: list[str]) -> tuple[str | None, list[str]]:
    if words[0] == "--":
        words = words[1:]
    return (words[0], words[1:]) if words else (None, [])


def _merge(texts: list[str], flags: dict[str, str]) -> dict[str, Any]:
    """All options of the scheduler, each given once."""
    merged: dict[str, Any] = dict(flags)
    for text in texts:
        for key, value in parse(text).items():
            if key in merged:
                raise ConfigError(f"option {key!r} is given twice.")
            merged[key] = value
    return merged


_STDIN: dict[str, tuple[type[Any], ...]] = {
    "component_name": (str,),
    "component_args": (dict, list),
    "component_args_str": (list,),
    "scheduler": (str,),
    "scheduler_args": (dict, str),
    "workspace": (str,),
    "parent_run_id": (str,),
    "dryrun": (bool,),
    "wait": (bool,),
    "log": (bool,),
    "tee_logs": (bool,),
}
"""What may be read from stdin, and of which types."""


def _notice_torchx_config() -> None:
    from phalanx._runner import config

    if (path := config.unread_torchx_file()) is not None:
        print(
            f"phalanx run: {path} is not read; convert it with: phalanx configure --from-torchx",
            file=sys.stderr,
        )


def _from_stdin(wanted: _Wanted) -> _Wanted:
    given = _read_stdin()
    cfg = given.get("scheduler_args", {})
    log = wanted.log or given.get("log", False) or given.get("tee_logs", False)
    return _Wanted(
        component=given["component_name"],
        arguments=given.get("component_args") or given.get("component_args_str") or [],
        scheduler=given.get("scheduler", wanted.scheduler),
        cfg=parse(cfg) if isinstance(cfg, str) else cfg,
        workspace=given.get("workspace", wanted.workspace),
        parent_run_id=given.get("parent_run_id", wanted.parent_run_id),
        dryrun=wanted.dryrun or given.get("dryrun", False),
        wait=wanted.wait or given.get("wait", False) or log,
        log=log,
    )


def _read_stdin() -> dict[str, Any]:
    """What is there that is not null, each of its type. Raises `ConfigError`."""
    try:
        given = json.load(sys.stdin) if sys.stdin is not None else None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--stdin: invalid JSON: {error}.") from None
    if not isinstance(given, dict) or not isinstance(given.get("component_name"), str):
        raise ConfigError("--stdin: must be a JSON object with a component_name.")
    found = {key: value for key, value in given.items() if value is not None}
    for key, value in found.items():
        if key not in _STDIN:
            raise ConfigError(f"--stdin: unknown key {key!r}; choose from {', '.join(_STDIN)}.")
        texts = value if key.startswith("component_args") and isinstance(value, list) else ()
        if not isinstance(value, _STDIN[key]) or not all(isinstance(t, str) for t in texts):
            names = " or ".join(kind.__name__ for kind in _STDIN[key])
            raise ConfigError(f"--stdin: {key}: {value!r} must be of type {names}.")
    return found


def _run(wanted: _Wanted, habits: Habits) -> int:
    with habits.make_runner() as runner:
        with stdout_to_stderr():
            info = _dryrun(runner, wanted)
        if info is None:
            return 1
        for key, other in runner.foreign_options(info.scheduler, wanted.cfg).items():
            print(
                f"phalanx run: {info.scheduler} does not use {key!r}, an option of {other}",
                file=sys.stderr,
            )
        if wanted.dryrun:
            with asking(info.scheduler):  # whose plugin may have a form of its own
                shown = info.describe()
            print(shown)
            return 0
        handle = ""
        is_ended = habits.ends_local and info.scheduler.startswith("local")
        if is_ended:
            wanted.wait = wanted.log = True
        try:
            taken: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if not isinstance(info.request, AppRequest):  # its supervisor is forked: no threads
                taken = say_if_long("run", f"{info.scheduler} to accept the app")
            with stdout_to_stderr(), taken:
                handle = runner.schedule(info)
            printed = _print_handle(handle)
            for note in _placement_notes(info, typed="hosts" in wanted.cfg):
                print(f"phalanx run: {note}", file=sys.stderr)
            code = _wait(runner, handle, show=wanted.log) if wanted.wait else 0
            return code if printed else code or 1
        except KeyboardInterrupt:
            if handle and is_ended:
                runner.cancel(handle)
                return 130
            text = f"{handle} keeps running. To cancel it: phalanx cancel {handle}"
            unsure = (
                "interrupted during submission; check whether it was submitted: phalanx list -s "
                f"{info.scheduler}"
            )
            print(f"phalanx run: {text if handle else unsure}", file=sys.stderr)
            return 130


def _placement_notes(info: AppDryRunInfo, *, typed: bool) -> Iterator[str]:
    """Where replicas and hosts are not as many; hosts of a configuration need not all be used."""
    cfg = info.cfg
    hosts = cfg.get("hosts") if isinstance(cfg, Mapping) else getattr(cfg, "hosts", None)
    if not hosts or not isinstance(info.request, AppRequest):
        return
    for role in info.request.roles:
        counts = Counter(replica.hostname for replica in role.replicas)
        total = len(role.replicas)
        if total > len(hosts):
            several = [f"{host} runs {n}" for host, n in counts.items() if n > hosts.count(host)]
            most = ", ".join(several[:_SHOWN])
            yield f"{total} replicas on {_counted(len(hosts), 'host')}: {most}"
    used = {replica.hostname for replica in info.request.replicas}
    if typed and (unused := [host for host in hosts if host not in used]):
        names = ", ".join(unused[:_SHOWN]) + (" is" if len(unused) == 1 else " are")
        replicas = _counted(max(len(role.replicas) for role in info.request.roles), "replica")
        yield f"{names} not used: {replicas} for {len(hosts)} hosts"


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _print_handle(handle: str) -> bool:
    """Whether it was taken, or nobody is there to take it."""
    try:
        print(handle, flush=True)
    except OSError as error:
        print(
            f"phalanx run: {handle} was submitted; cannot write to stdout: {error.strerror}",
            file=sys.stderr,
        )
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # said once
        return isinstance(error, BrokenPipeError)
    return True


def _dryrun(runner: Runner, wanted: _Wanted) -> AppDryRunInfo | None:
    """What would be submitted; None when the component's own code is broken, which is shown."""
    assert wanted.component is not None
    try:
        return runner.dryrun_component(
            wanted.component,
            wanted.arguments,
            wanted.scheduler,
            wanted.cfg,
            wanted.workspace,
            wanted.parent_run_id,
        )
    except (PhalanxError, HelpWanted):
        raise
    except SystemExit as stop:
        print(f"phalanx run: {wanted.component} called sys.exit({stop.code!r})", file=sys.stderr)
        return None
    except Exception as error:
        if isinstance(error, ValueError) and is_raised_outright(error):
            raise ConfigError(f"{wanted.component}: {error}") from error
        print_users_part(error)
        return None


def _wait(runner: Runner, handle: str, *, show: bool) -> int:
    shown: deque[str] | None = deque(maxlen=_REMEMBERED) if show else None
    taken = True if shown is None else _show_lines(runner, handle, shown)
    status = _until(runner, handle, AppStatus.is_terminal)
    if status is None:
        print(f"phalanx run: {handle} no longer exists", file=sys.stderr)
        return 1
    with contextlib.suppress(OSError):  # a full disk is not how the app ended
        for text in status.warnings:
            print(f"phalanx run: warning: {text}", file=sys.stderr)
        if status.state is not AppState.SUCCEEDED:
            _report(runner, handle, status, shown)
        elif show:
            print(f"phalanx run: {handle}: {status.state.value}", file=sys.stderr)
    return _exit_code(status) or int(not taken)


def _show_lines(runner: Runner, handle: str, shown: deque[str]) -> bool:
    """Print what replicas print, until the app ends; False when stderr takes no more.

    Then nothing can be said there either: it is in the exit code. `shown` gets the last lines.
    """
    from phalanx._cli.replica_log import Printer, bars, everyone, lines

    _until(runner, handle, lambda status: status.state not in _NOT_BEGUN)
    printer = Printer(sys.stderr)
    chosen = everyone(runner, handle)
    with bars(runner, handle, chosen):
        for line in lines(runner, handle, chosen, follow=True):
            shown.append(line.text.strip())
            try:
                printer.print(line)
            except BrokenPipeError:
                raise
            except OSError:
                return False
    return True


def _until(runner: Runner, handle: str, reached: Callable[[AppStatus], bool]) -> AppStatus | None:
    """Wait for a state, and say meanwhile, if there is a terminal, how the app stands."""
    began = time.monotonic()
    shown, said, status = False, False, None
    for status in runner.watch(handle):
        if status is None or reached(status):
            break
        seconds = time.monotonic() - began
        if seconds > _QUIET:
            text = f"{status.state.value}: {status.message}".removesuffix(": ")
            _show_status(runner, f"phalanx: {status.app}: {text} ({seconds:.0f} s)")
            shown = True
        if seconds > _LONG and status.state is AppState.PENDING and status.message and not said:
            said = True
            _say_without_terminal(f"phalanx run: {status.app}: {text}")
    if shown:
        _show_status(runner, "")
    return status


def _say_without_terminal(text: str) -> None:
    """Say what a status line would: there is none without a terminal."""
    from phalanx._logs.console import is_terminal

    if not is_terminal(sys.stderr):
        print(text, file=sys.stderr, flush=True)


def _show_status(runner: Runner, text: str) -> None:
    from phalanx._logs.console import STATUS  # not for what ends at once

    STATUS.show(runner, text)


def _report(runner: Runner, handle: str, status: AppStatus, shown: Collection[str] | None) -> None:
    """How it ended; with the cause in full, where lines are shown and it was not among them."""
    print(f"phalanx run: {handle}: {status.state.value}", file=sys.stderr)
    replicas = [r for role in status.roles for r in role.replicas]
    failed = [r for r in replicas if r.state is AppState.FAILED]
    texts = [f"{r.role}/{r.id} {r.describe()}" for r in failed]
    for text in [status.message] if status.message else texts:
        print(f"  {text}", file=sys.stderr)
    told = (r for r in replicas if status.message.startswith(f"{r.role}/{r.id} "))
    if shown is not None and (cause := next(told, None)) is not None:
        lines = cause.traceback.splitlines()
        if lines and lines[-1].strip() not in shown:
            print("", *(f"    {line}" for line in lines), "", sep="\n", file=sys.stderr)
        if cause.log is not None and _has_text(cause.log):
            print(f"  Full log: {cause.log}", file=sys.stderr)
    log = f"; phalanx log {status.app}" if _has_printed(runner, handle) else ""
    print(f"  phalanx status {status.app}{log}", file=sys.stderr)


def _has_text(path: str) -> bool:
    """It is there to be read: a replica that never started has no file."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _has_printed(runner: Runner, handle: str) -> bool:
    """There is something to read of its replicas."""
    from phalanx._cli.replica_log import everyone, lines

    try:
        found = lines(runner, handle, everyone(runner, handle), follow=False)
        return next(iter(found), None) is not None
    except (PhalanxError, LookupError):
        return True  # whoever asks is told why not


def _exit_code(status: AppStatus) -> int:
    if status.state is not AppState.FAILED:
        return 0 if status.state is AppState.SUCCEEDED else 1
    codes = [r.exit_code for role in status.roles for r in role.replicas]
    return status.exit_code or next(filter(None, codes), 1)


def _refuse(error: BaseException | str, code: int) -> int:
    print(f"phalanx run: {error}", file=sys.stderr)
    return code
