"""`phalanx hosts check`: whether hosts pass the checks for a launch."""

from __future__ import annotations

import dataclasses
import sys

from phalanx._cli import parsing
from phalanx._core.suggestions import closest
from phalanx._launcher.host_check import HostReport, HostsReport, check, describe_gpus
from phalanx._launcher.launcher import Launcher
from phalanx._schedulers.options import parse
from phalanx.errors import ConfigError, PhalanxError

_HEADS = (
    *(
        "HOST",
        "LOGIN",
        "PYTHON",
        "STARTED",
        "TORCH",
        "CUDA",
        "GPUS",
        "CORES",
        "MEMORY",
        "DISK FREE",
    ),
    *("MEMLOCK", "CLOCK", "ROUND TRIP", "REACHES"),
)


def main(arguments: list[str]) -> int:
    """Check; gives the exit code."""
    parser = parsing.make(
        "hosts",
        "Check that hosts can run a launch: log in, show Python, torch, GPUs, memory and disk,\n"
        "and test that hosts reach each other. Exits with 1 if a host cannot be used.",
        usage="phalanx hosts check [HOST ...] [OPTIONS]",
    )
    parser.add_argument("verb", metavar="check", nargs="?", help="log in to the hosts and report")
    parser.add_argument(
        "host",
        nargs="*",
        help="ssh host name, user@host or user@host:port (default: the allocation, or this "
        "machine)",
    )
    parser.add_argument("--python", help="interpreter or virtual environment on the hosts")
    parser.add_argument("--ssh-config-file", help="ssh configuration file (default: your own)")
    parser.add_argument("-s", "--scheduler", help="borrow the hosts from this scheduler")
    parser.add_argument(
        "--num-hosts", type=int, metavar="N", help="hosts to borrow from the scheduler (default: 1)"
    )
    parser.add_argument(
        "-cfg", "--scheduler_args", metavar="KEY=VALUE,…", help="options of the scheduler"
    )
    parser.add_argument(
        "--host-checks",
        nargs="+",
        default=[],
        metavar="CHECK",
        help="also check gpus or gpus=N, ecc, disk or disk=SIZE, clock or clock=TIME",
    )
    parsing.add_json(parser)
    parsed = parser.parse_intermixed_args(arguments)  # flags before the hosts, or behind them
    if parsed.verb is None:
        parser.error("missing command, as in: phalanx hosts check gpu-1 gpu-2.")
    if parsed.verb != "check":
        hosts = [] if closest(parsed.verb, ["check"]) else [parsed.verb]
        meant = " ".join(["phalanx hosts check", *hosts, *parsed.host])
        parser.error(f"unknown command {parsed.verb!r}. Did you mean: {meant}?")
    try:
        launcher = Launcher(
            hostnames=parsed.host or "auto",
            python=parsed.python,
            ssh_config_file=parsed.ssh_config_file,
            scheduler=parsed.scheduler,
            num_hosts=parsed.num_hosts,
            host_checks=parsed.host_checks,
            scheduler_options={} if parsed.scheduler_args is None else parse(parsed.scheduler_args),
        )
        found = check(launcher)
    except ConfigError as error:
        print(f"phalanx hosts: {error}", file=sys.stderr)
        return 2
    except PhalanxError as error:
        print(f"phalanx hosts: {error}", file=sys.stderr)
        return 1
    if parsed.json:
        parsing.print_json({**dataclasses.asdict(found), "usable": found.usable})
    else:
        _print(found)
    return 0 if found.usable else 1


def _print(found: HostsReport) -> None:
    known = [report for report in found.hosts if report.problem is None]
    rows = [_row(report, len(known)) for report in known]
    if rows:
        parsing.print_table(_HEADS, rows)
    for report in found.hosts:
        if report.problem is not None:
            print(f"{report.hostname}: not usable: {report.problem}")
        for name, why in report.failed_checks.items():
            print(f"{report.hostname}: not usable: host check {name} failed: {why}")
    for warning in found.warnings:
        print(f"warning: {warning}", file=sys.stderr)


def _row(report: HostReport, count: int) -> tuple[str, ...]:
    reached = count - 1 - len(report.unreached)
    return (
        report.hostname,
        f"{report.login_seconds:.2f} s",
        report.python,
        f"{report.python_seconds:.2f} s",
        report.torch or "–",
        report.cuda or "–",
        describe_gpus(report.gpus) or "–",
        str(report.processors),
        f"{report.memory / (1 << 30):.0f} GiB",
        f"{report.disk_free / (1 << 30):.0f} GiB",
        "unlimited" if report.memlock < 0 else f"{report.memlock >> 10} KiB",
        f"{report.clock_offset:+.3f} s",
        f"{report.round_trip * 1000:.1f} ms",
        "all" if reached == count - 1 else f"{reached} of {count - 1}",
    )
