"""`phalanx chaos`: break a running app on purpose, and report how it recovers."""

from __future__ import annotations

import argparse
import itertools
import math
import random
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from phalanx._chaos.experiment import Experiment
from phalanx._chaos.fault_history import FaultRecord
from phalanx._chaos.faults import DURATIONS, Kind, PlannedFault, Rate, parse_rate, plan
from phalanx._chaos.hosts import ChaosHost, ChaosHosts
from phalanx._chaos.tries import ReplicaTries
from phalanx._cli import parsing
from phalanx._cli.app_argument import find_app, launches_below, only_running
from phalanx._registry.recorded_app import RecordedApp
from phalanx._specs import AppState

_TEXTS = {
    Kind.KILL_WORKER: "kill a worker (SIGKILL)",
    Kind.KILL_AGENT: "kill the agent of a host (SIGKILL)",
    Kind.PAUSE_WORKER: "stop a worker (SIGSTOP), and continue it",
    Kind.LOSE_HOST: "kill everything of the app on a host at once",
    Kind.CUT: "drop the packets between a host and the others (iptables; root)",
    Kind.FILL_DISK: "fill the disk of a host's temporary directory",
    Kind.SLOW_NETWORK: "limit the network of a host (tc; root)",
}
_SEEDS = 1 << 32
_SHOWN = 20
"""Faults of a plan that are shown where it has no end."""


def main(arguments: list[str]) -> int:
    """Break an app; gives the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    rates = _rates(parser, options)
    if not rates:
        parser.error("name at least one fault, such as --kill-worker 30s")
    if bool(options.cut_command) != bool(options.mend_command):
        parser.error("give --cut-command and --mend-command together")
    seed = random.randrange(_SEEDS) if options.seed is None else options.seed  # noqa: S311
    duration = math.inf if options.duration is None else options.duration
    if options.dryrun:
        return _print_plan(seed, rates, duration, as_json=options.json)
    try:
        app, status = _find(options.app)
    except LookupError as error:
        print(f"phalanx chaos: {error}", file=sys.stderr)
        return 1
    commands = {
        "lose": options.lose_host_command,
        "cut": options.cut_command,
        "mend": options.mend_command,
    }
    hosts = ChaosHosts(
        [ChaosHost(name, target) for name, target in _targets(app).items()],
        fill_limit=options.fill_limit,
        rate=options.rate,
        commands={what: command for what, command in commands.items() if command},
    )
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    experiment = None
    code = 0
    try:
        if not _may_begin(hosts, rates):
            return 1
        print(f"phalanx chaos: {app.id}, seed {seed}", file=sys.stderr)
        experiment = Experiment(status, hosts, _tell)
        experiment.run(plan(seed, rates), duration, options.settle)
    except KeyboardInterrupt:
        print("phalanx chaos: interrupted; mending what is broken", file=sys.stderr)
        code = 130
    finally:
        hosts.mend()
    if experiment is None:
        return code
    report = {"app": app.id, "seed": seed, **experiment.history.report()}
    if options.json:
        parsing.print_json(report)
    else:
        _print(report)
    healthy = experiment.history.has_recovered and report["state"] != AppState.FAILED.value
    return code or (0 if healthy else 1)


def _parser() -> parsing.Parser:
    parser = parsing.make(
        "chaos",
        "Break a running launch at random times, and report how long it took to recover.\n\n"
        "  phalanx chaos train-1a2b --kill-worker 30s --kill-agent 2m --duration 20m\n\n"
        "--kill-worker 30s kills a worker every 30 s on average. A second TIME says how long a\n"
        "fault lasts: --pause-worker 1m:5s. A seed gives the same faults at the same times.\n"
        "Temporary faults are undone at the end, also after Ctrl-C.\n"
        "Exits with 1 if the app failed or did not recover.",
    )
    parser.add_argument(
        "app", nargs="?", help="handle or id, or a unique prefix of it (default: the running app)"
    )
    for kind in Kind:
        lasts = f"; it lasts {DURATIONS[kind]:g} s by default" if kind.lasts else ""
        parser.add_argument(
            f"--{kind}",
            metavar="TIME[:TIME]" if kind.lasts else "TIME",
            help=f"{_TEXTS[kind]}{lasts}",
        )
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the faults of a seed")
    parser.add_argument(
        "--duration",
        type=parsing.duration,
        metavar="TIME",
        help="stop after this time (default: when the app ends)",
    )
    parser.add_argument(
        "--settle",
        type=parsing.duration,
        default=60.0,
        metavar="TIME",
        help="time to wait at the end until the app runs again (default: 1m)",
    )
    parser.add_argument(
        "--fill-limit",
        type=parsing.size,
        default=20 << 30,
        metavar="SIZE",
        help="do not fill disks with more free space than this (default: 20GiB)",
    )
    parser.add_argument(
        "--rate",
        default="1mbit",
        help="network rate for --slow-network, as tc writes it (default: 1mbit)",
    )
    parser.add_argument(
        "--lose-host-command",
        metavar="COMMAND",
        help="run this shell command for --lose-host; PHALANX_HOST names the host",
    )
    parser.add_argument(
        "--cut-command", metavar="COMMAND", help="run this for --cut, with PHALANX_HOST"
    )
    parser.add_argument("--mend-command", metavar="COMMAND", help="run this when a cut is over")
    parser.add_argument(
        *parsing.DRY_RUN,
        action="store_true",
        help="print the faults of a seed, and break nothing",
    )
    parsing.add_json(parser)
    return parser


def _rates(parser: parsing.Parser, options: argparse.Namespace) -> list[Rate]:
    rates = []
    for kind in Kind:
        text = getattr(options, kind.replace("-", "_"))
        if text is None:
            continue
        try:
            rates.append(parse_rate(kind, text))
        except ValueError as error:
            parser.error(f"--{kind}: {error}")
    return rates


def _interrupt() -> None:
    raise KeyboardInterrupt


def _find(text: str | None) -> tuple[RecordedApp, Callable[[], dict[str, Any]]]:
    """The launch to break, and what says how it stands. Raises `LookupError`."""
    found = find_app(only_running().handle if text is None else text)
    app = whole = found.record
    if app is not None and app.scheduler == "local_cwd" and not app.state.is_final:
        launches = launches_below(app) if app.facts["owner"] else []
        if len(launches) > 1:
            names = ", ".join(one.id for one in launches)
            raise LookupError(f"{app.id} runs several launches; name one of: {names}")
        app = launches[0] if launches else app
    if app is None or not app.is_launch:
        scheduler = found.handle.partition("://")[0]
        raise LookupError(
            f"{found.handle} runs on {scheduler}. phalanx chaos breaks launches (phalanx launch, "
            "Launcher.run, phalanx torchrun) of this machine. If the app runs 'phalanx torchrun', "
            "run phalanx chaos where that command runs; or kill processes by "
            f"{scheduler}'s own means."
        )
    if app.calls:
        raise LookupError(f"{app.id} is a map of many calls, which phalanx chaos does not break")
    if app.state.is_final:
        raise LookupError(f"{app.id} has ended: {app.state.value}")
    if not app.is_local:
        owner = app.facts["owner"]["host"]
        raise LookupError(f"{app.id} was launched on {owner}: run phalanx chaos there")
    if whole is None or whole is app:
        return app, app.status
    return app, ReplicaTries(whole, app, launches_below).status


def _targets(app: RecordedApp) -> dict[str, Any]:
    """How each host is reached; None for this machine."""
    return {replica["hostname"]: replica.get("target") for replica in app.replicas}


def _may_begin(hosts: ChaosHosts, rates: Sequence[Rate]) -> bool:
    """Say what cannot be done where; False if a kind of fault can be made nowhere."""
    may = True
    for kind, problems in hosts.find_out([rate.kind for rate in rates]).items():
        for name, why in problems.items():
            said = why if why.startswith(f"{name}: ") else f"{name}: {why}"
            print(f"phalanx chaos: --{kind} is not possible on {said}", file=sys.stderr)
        if not hosts.allow(kind):
            may = False
            print(f"phalanx chaos: --{kind} is possible on no host", file=sys.stderr)
    if not may:
        print("phalanx chaos: nothing was broken", file=sys.stderr)
    return may


def _tell(fault: FaultRecord) -> None:
    """A line for a fault, and one for its end."""
    if fault.recovery is not None:
        line = f"recovered from {fault.kind} after {fault.recovery:.1f} s"
        print(f"{fault.at + fault.recovery:8.1f} s  {line}", file=sys.stderr)
        return
    what = f"skipped: {fault.problem}" if fault.problem else fault.where
    effect = f": {fault.effect}" if fault.effect else ""
    lasting = f" for {fault.seconds:g} s" if fault.seconds and not fault.problem else ""
    print(f"{fault.at:8.1f} s  {fault.kind}  {what}{lasting}{effect}", file=sys.stderr)


def _print_plan(seed: int, rates: Sequence[Rate], duration: float, *, as_json: bool) -> int:
    faults = list(_planned(seed, rates, duration))
    if as_json:
        rows = [{"at": f.at, "kind": f.kind, "seconds": f.seconds, "pick": f.pick} for f in faults]
        parsing.print_json({"seed": seed, "faults": rows})
        return 0
    print(f"seed {seed}")
    rows_ = [(f"{f.at:.1f} s", f.kind, f"{f.seconds:g} s" if f.seconds else "-") for f in faults]
    parsing.print_table(("AT", "FAULT", "LASTS"), rows_)
    return 0


def _planned(seed: int, rates: Sequence[Rate], duration: float) -> Any:
    """The faults of a plan; the first few where it has no end."""

    def is_within(fault: PlannedFault) -> bool:
        return fault.at <= duration

    faults = plan(seed, rates)
    if duration == math.inf:
        return itertools.islice(faults, _SHOWN)
    return itertools.takewhile(is_within, faults)


def _print(report: dict[str, Any]) -> None:
    rows = [
        (
            f"{fault['at']:.1f} s",
            fault["kind"],
            fault["where"] or "-",
            f"skipped: {fault['problem']}"
            if fault["problem"]
            else "not recovered"
            if fault["recovery_seconds"] is None
            else f"{fault['recovery_seconds']:.1f} s",
        )
        for fault in report["faults"]
    ]
    if rows:
        parsing.print_table(("AT", "FAULT", "WHERE", "RECOVERED AFTER"), rows)
    done = sum(not fault["problem"] for fault in report["faults"])
    print(
        f"{report['app']}: {parsing.coloured(report['state'] or 'UNKNOWN')}, seed {report['seed']}"
    )
    print(
        f"  faults: {done} in {parsing.ago(report['seconds'])}, recovered from "
        f"{report['recovered']}; new rounds: {report['rounds']}, restarts: {report['restarts']}"
    )
    if report["median_recovery_seconds"] is not None:
        print(
            f"  recovery: median {report['median_recovery_seconds']:.1f} s, "
            f"longest {report['longest_recovery_seconds']:.1f} s"
        )
    print(f"  goodput: {report['goodput']:.1%} of the time all workers ran")
