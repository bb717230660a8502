"""Hosts before a launch, checked: what `phalanx hosts check` and `Launcher.check` tell."""

from __future__ import annotations

import dataclasses
import inspect
import os
import platform
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from phalanx._core.sanitize import sanitize_line
from phalanx._launcher.planning.check_list import read_checks
from phalanx._launcher.planning.listed_hosts import ListedHost, list_hosts
from phalanx._launcher.transport import targets
from phalanx._launcher.transport.targets import Target
from phalanx._logs import logger
from phalanx._remote import probe
from phalanx._system import network
from phalanx.errors import StartFailed

if TYPE_CHECKING:
    from phalanx._launcher.launch_options import LaunchOptions
    from phalanx._launcher.transport.login import Login
    from phalanx._schedulers.leases import LeaseStatus

_PINGS = 5
_PATIENCE = 60.0
"""Seconds for a host to answer everything."""
_LONG = 2.0
"""Seconds of waiting for hosts after which that is said."""
_GIB = 1 << 30
_GPUS = 1 << 12
"""More than any host has."""


@dataclass(frozen=True)
class HostReport:
    """What is known of one host."""

    hostname: str
    """As it was asked for."""
    problem: str | None = None
    """Why it cannot be used; the rest is then not known."""
    address: str = ""
    login_seconds: float = 0.0
    python_seconds: float = 0.0
    """From the login until Python had answered."""
    python: str = ""
    executable: str = ""
    torch: str | None = None
    cuda: str | None = None
    gpus: tuple[str, ...] = ()
    processors: int = 0
    memory: int = 0
    memory_free: int = 0
    disk_free: int = 0
    memlock: int = 0
    """In bytes; -1 without a limit."""
    clock_offset: float = 0.0
    """Seconds that its clock is ahead of this machine's."""
    round_trip: float = 0.0
    unreached: dict[str, str] = field(default_factory=dict)
    """The other hosts that it does not reach, and why."""
    failed_checks: dict[str, str] = field(default_factory=dict)
    """The checks of `host_checks` that it failed, and why."""


@dataclass(frozen=True)
class HostsReport:
    """What is known of all of them."""

    hosts: tuple[HostReport, ...]
    warnings: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """A launch on all of them can start, and its workers meet."""
        ours = _minor(platform.python_version())
        return all(
            host.problem is None
            and not host.unreached
            and not host.failed_checks
            and _minor(host.python) == ours
            for host in self.hosts
        )


def _minor(version: str) -> str:
    return version.rpartition(".")[0]


def check(options: LaunchOptions) -> HostsReport:
    """Ask all hosts at once; blocks until all have answered."""
    from phalanx._launcher.planning.validation import check as check_fields

    check_fields(options)
    if options.scheduler is None:
        return _check_hosts(options, list_hosts(options, os.environ))
    from phalanx._launcher.borrowed_hosts import find_lender
    from phalanx._launcher.warm import contexts

    borrowed = contexts.borrow(options, find_lender(options, "check"))
    began = time.monotonic()
    said = False

    def tell(status: LeaseStatus) -> None:
        nonlocal said
        if not said and status.reason and time.monotonic() - began > _LONG:
            said = True
            logger.warning("phalanx: waiting for hosts from %s", borrowed.describe(status))

    try:
        return _check_hosts(options, borrowed.wait(threading.Event(), tell))
    finally:
        borrowed.let_go()


def _check_hosts(options: LaunchOptions, hosts: Sequence[ListedHost]) -> HostsReport:
    turns = threading.BoundedSemaphore(options.parallel_logins)
    patience = min(options.start_timeout, _PATIENCE)
    checks = read_checks(options.host_checks)
    visits = [HostCheck(host, turns, patience, checks.values) for host in dict.fromkeys(hosts)]
    try:
        _all(visits, HostCheck.arrive)
        peers = _peers(visits)
        _all(visits, lambda visit: visit.try_peers(peers))
    finally:
        for visit in visits:
            visit.leave()
    reports = tuple(visit.report for visit in visits)
    found = warnings(reports, platform.python_version())
    found += [f"host check {name} runs when workers start, not here" for name in checks.functions]
    return HostsReport(reports, tuple(found))


def _peers(visits: Sequence[HostCheck]) -> list[tuple[str, str, int]]:
    """Where each is found by the others; this machine, by the address that leads to them."""
    others = [v.peer[1] for v in visits if v.peer is not None and not v.is_local]
    for visit in visits:
        if visit.peer is not None and visit.is_local and others:
            name, address, port = visit.peer
            visit.peer = (name, network.address_towards(others[0]) or address, port)
    return [visit.peer for visit in visits if visit.peer is not None]


def _all(visits: Sequence[HostCheck], what: Callable[[HostCheck], None]) -> None:
    threads = [threading.Thread(target=what, args=(visit,), daemon=True) for visit in visits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class HostCheck:
    """One host, from the login on."""

    def __init__(
        self,
        host: ListedHost,
        turns: threading.Semaphore,
        patience: float,
        checks: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Nothing is asked yet. `checks` are our own, and what they go by."""
        self.report = HostReport(host.name)
        self.peer: tuple[str, str, int] | None = None
        self._target = host.target or _here(host.name)
        self.is_local = host.target is None
        self._checks = checks
        self._turns = turns
        self._patience = patience
        self._login: Login | None = None

    def arrive(self) -> None:
        """Log in and ask for the facts."""
        from phalanx._launcher.transport.login import Login, LoginEnded

        began = time.monotonic()
        try:
            with self._turns:
                login = self._login = Login(self._target, "probe", self._patience)
                login.begin(inspect.getsource(probe))
            facts = login.ask(ask="facts")
            python = time.monotonic() - login.begun_at
            offset, trip = self._compare_clocks(login)
            known, self.peer = read_facts(facts, self.report.hostname)
            failed = self._run_checks(login)
        except LoginEnded as ended:
            self._fail(ended.describe())
        except StartFailed as error:
            self._fail(str(error))
        except ValueError as error:
            self._fail(f"it sent {sanitize_line(str(error))}")
        else:
            self.report = dataclasses.replace(
                self.report,
                **known,
                address=self.peer[1],
                login_seconds=login.begun_at - began,
                python_seconds=python,
                clock_offset=offset,
                round_trip=trip,
                failed_checks=failed,
            )

    def _run_checks(self, login: Login) -> dict[str, str]:
        asked = {
            name: login.ask(ask="check", name=name, value=value, clock=time.time()).get("problem")
            for name, value in self._checks.items()
        }
        return {name: sanitize_line(str(problem)) for name, problem in asked.items() if problem}

    def _compare_clocks(self, login: Login) -> tuple[float, float]:
        """The offset, and the round trip, of the quickest of a few. Raises `ValueError`."""
        best = (0.0, float("inf"))
        for _ in range(_PINGS):
            sent = time.time()
            clock = _number(login.ask(ask="ping"), "clock", float)
            received = time.time()
            best = min(best, (clock - (sent + received) / 2, received - sent), key=lambda b: b[1])
        return best

    def try_peers(self, peers: Sequence[tuple[str, str, int]]) -> None:
        """Have it try whether it reaches the others."""
        from phalanx._launcher.transport.login import LoginEnded

        if self.peer is None or self._login is None:
            return
        others = [peer for peer in peers if peer != self.peer]
        try:
            reached = self._login.ask(ask="peers", peers=others).get("reached")
        except LoginEnded as ended:
            self._fail(ended.describe())
            return
        if not isinstance(reached, dict):
            self._fail("no answer on whether it reaches the other hosts")
            return
        said = {name: reached.get(name, "no answer") for name, _, _ in others}
        unreached = {name: sanitize_line(str(problem)) for name, problem in said.items() if problem}
        self.report = dataclasses.replace(self.report, unreached=unreached)

    def leave(self) -> None:
        """Let it end."""
        if self._login is not None:
            self._login.child.end(0.0)

    def _fail(self, reason: str) -> None:
        self.report = HostReport(self.report.hostname, problem=reason)


def read_facts(
    facts: Mapping[str, Any], hostname: str
) -> tuple[dict[str, Any], tuple[str, str, int]]:
    """What a host says of itself: the fields of its report, and where others find it.

    Raises `ValueError` for what no host says. Pure.
    """
    gpus = facts.get("gpus")
    if not isinstance(gpus, list) or len(gpus) > _GPUS or not all(isinstance(g, str) for g in gpus):
        raise ValueError(f"gpus={gpus!r:.80}")
    known: dict[str, Any] = {"gpus": tuple(map(sanitize_line, gpus))}
    for name in ("python", "executable"):
        known[name] = _text(facts, name)
    for name in ("torch", "cuda"):
        known[name] = None if facts.get(name) is None else _text(facts, name)
    for name in ("processors", "memory", "memory_free", "disk_free", "memlock"):
        known[name] = int(_number(facts, name, int))
    address, port = _text(facts, "address"), int(_number(facts, "port", int))
    if not 0 < port < 1 << 16 or not re.fullmatch(r"[\w.:%-]*", address):
        raise ValueError(f"address={address!r} and port={port}")
    return known, (hostname, address or _text(facts, "name"), port)


def _text(facts: Mapping[str, Any], name: str) -> str:
    if not isinstance(facts.get(name), str):
        raise ValueError(f"{name}={facts.get(name)!r:.80}")  # noqa: TRY004 one error for all of it
    return sanitize_line(facts[name])


def _number(facts: Mapping[str, Any], name: str, kind: type[int | float]) -> float:
    value: Any = facts.get(name)
    if isinstance(value, bool) or not isinstance(value, int | kind) or not -2 < value < 1 << 62:
        raise ValueError(f"{name}={value!r:.80}")
    return float(value) if kind is float else value


def _here(name: str) -> Target:
    """The very same for this machine, but for the login."""
    return Target(name, targets.pythons(None, name), (), through_shell=False)


def warnings(reports: Sequence[HostReport], python: str) -> list[str]:
    """What may make a launch fail, or run otherwise than meant. Pure."""
    known = [report for report in reports if report.problem is None]
    found: list[str] = []
    for report in known:
        if _minor(report.python) != _minor(python):
            found.append(
                f"{report.hostname} has Python {report.python}, the launcher has {python}: "
                "choose another interpreter with python=... (--python)"
            )
        if report.torch is None:
            found.append(
                f"{report.hostname} has no torch for {report.executable}: install it there, "
                "or choose another interpreter with python=... (--python)"
            )
        if report.disk_free < _GIB:
            free = report.disk_free / (1 << 20)
            found.append(
                f"{report.hostname} has only {free:.0f} MiB of disk space left in its home"
            )
        if report.gpus and 0 <= report.memlock < _GIB:
            found.append(
                f"{report.hostname} may lock only {report.memlock >> 10} KiB of memory, too "
                "little for InfiniBand (set memlock in limits.conf)"
            )
        if abs(report.clock_offset) > 1.0:
            found.append(
                f"the clock of {report.hostname} is {abs(report.clock_offset):.1f} s "
                f"{'ahead' if report.clock_offset > 0 else 'behind'}: log times will differ"
            )
        for name, problem in report.unreached.items():
            found.append(f"{report.hostname} cannot reach {name}: {problem}")
    with_torch = [report for report in known if report.torch is not None]
    found += _differences(with_torch, "torch", lambda r: r.torch or "")
    found += _differences(known, "CUDA", lambda r: r.cuda or "none")
    found += _differences(known, "GPUs", lambda r: describe_gpus(r.gpus) or "none")
    return found


def _differences(
    reports: Sequence[HostReport], what: str, of: Callable[[HostReport], str]
) -> list[str]:
    """One line if hosts differ in something: who is unlike most."""
    values = Counter(of(report) for report in reports)
    if len(values) < 2:
        return []
    usual = values.most_common(1)[0][0]
    others = [f"{r.hostname}: {of(r)}" for r in reports if of(r) != usual]
    return [f"{what} differ: most have {usual}; {', '.join(others)}"]


def describe_gpus(gpus: Sequence[str]) -> str:
    """`8 × H200`, for people."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(gpus).items())
