"""The hosts of an app, as `phalanx chaos` breaks them: a saboteur on each, over a login."""

from __future__ import annotations

import contextlib
import inspect
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx._chaos.faults import Kind, PlannedFault
from phalanx._chaos.victims import Victim
from phalanx._core.sanitize import sanitize_line
from phalanx._launcher.transport.targets import Target, from_record, pythons
from phalanx._remote import saboteur
from phalanx.errors import StartFailed

if TYPE_CHECKING:
    from phalanx._launcher.transport.login import Login

_LOGIN, _ANSWER, _COMMAND = 20.0, 10.0, 60.0
"""Seconds for a login, an answer, and a command of the user's."""
_ASKED = {
    Kind.KILL_WORKER: "kill",
    Kind.KILL_AGENT: "kill",
    Kind.PAUSE_WORKER: "pause",
    Kind.LOSE_HOST: "lose",
    Kind.CUT: "cut",
    Kind.FILL_DISK: "fill",
    Kind.SLOW_NETWORK: "slow",
}


class NotDone(Exception):
    """A fault could not be made, and why."""


class ChaosHost:
    """One host. Not for several threads at once."""

    def __init__(self, name: str, target: Mapping[str, Any] | None) -> None:
        """`target` is how it was recorded to be reached; None: it is this machine."""
        self.name = name
        self.address = ""
        self.is_local = target is None
        self._target = _here(name) if target is None else from_record(target)
        self._login: Login | None = None

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask its saboteur. Raises `NotDone`."""
        from phalanx._launcher.transport.login import LoginEnded

        # A login that was there may have ended meanwhile, as when its host was cut off.
        for is_last in (True,) if self._login is None else (False, True):
            try:
                login = self._login or self._log_in()
                login.allow(_ANSWER)
                answer = login.ask(**question)
            except LoginEnded as ended:
                self.leave()
                if is_last:
                    raise NotDone(f"{self.name}: {sanitize_line(ended.describe())}") from None
            except StartFailed as error:
                raise NotDone(str(error)) from None
            else:
                break
        if answer.get("problem"):
            raise NotDone(f"{self.name}: {sanitize_line(str(answer['problem']))}")
        return answer

    def _log_in(self) -> Login:
        from phalanx._launcher.transport.login import Login

        login = self._login = Login(self._target, "saboteur", _LOGIN)
        login.begin(inspect.getsource(saboteur))
        return login

    def leave(self) -> None:
        """End the login: what is broken there is mended."""
        if self._login is not None:
            login, self._login = self._login, None
            login.child.end(_ANSWER)


def _here(name: str) -> Target:
    return Target(name, pythons(None, name), (), through_shell=False)


class ChaosHosts:
    """All of them: which faults they allow, making one, mending everything."""

    def __init__(
        self, hosts: Sequence[ChaosHost], *, fill_limit: int, rate: str, commands: Mapping[str, str]
    ) -> None:
        """`commands` are the user's own, by what they do: `lose`, `cut`, `mend`."""
        self._hosts = {host.name: host for host in hosts}
        self._fill_limit = fill_limit
        self._rate = rate
        self._commands = commands
        self._why_not: dict[str, dict[Kind, str]] = {}
        self._mending: dict[str, threading.Timer] = {}

    def find_out(self, kinds: Sequence[Kind]) -> dict[Kind, dict[str, str]]:
        """Log in everywhere at once; gives why each kind of fault cannot be made on which hosts."""
        _all(self._hosts.values(), self._ask_abilities)
        return {
            kind: {name: why for name in self._hosts if (why := self._problem(kind, name))}
            for kind in kinds
        }

    def _ask_abilities(self, host: ChaosHost) -> None:
        try:
            answer = host.ask(ask="abilities", limit=self._fill_limit)
        except NotDone as error:
            self._why_not[host.name] = dict.fromkeys(Kind, str(error))
            return
        host.address = str(answer.get("address", ""))
        why = {kind: str(answer[kind]) for kind in Kind if answer.get(kind)}
        if host.is_local:
            here = "it is this machine, where the launcher runs"
            why |= {Kind.CUT: here, Kind.SLOW_NETWORK: here}
        self._why_not[host.name] = why

    def _problem(self, kind: Kind, name: str) -> str:
        if _ASKED[kind] in self._commands:
            return ""
        return self._why_not[name].get(kind, "")

    def allow(self, kind: Kind) -> list[str]:
        """The hosts where a kind of fault can be made."""
        names = [name for name in self._hosts if not self._problem(kind, name)]
        return [name for name in names if name not in self._mending]

    def strike(self, fault: PlannedFault, victim: Victim) -> str:
        """Make a fault; gives what there is to say of it. Raises `NotDone`."""
        host = self._hosts[victim.hostname]
        asked = _ASKED[fault.kind]
        if asked in self._commands:
            self._run_command(asked, host.name)
            if asked == "cut":
                self._mend_later(host.name, fault.seconds)
            return "by its command"
        peers = [other.address for other in self._hosts.values() if other is not host]
        answer = host.ask(
            ask=asked,
            pid=victim.pid,
            seconds=fault.seconds,
            limit=self._fill_limit,
            rate=self._rate,
            peers=[address for address in peers if address],
        )
        if fault.kind is Kind.CUT:
            # It is not asked anything meanwhile: the answer could not come.
            self._mend_later(host.name, fault.seconds)
        return sanitize_line(str(answer.get("done", "")))

    def _run_command(self, what: str, name: str) -> None:
        try:
            done = subprocess.run(  # noqa: S602 it is the user's own command
                self._commands[what],
                shell=True,
                env={**os.environ, "PHALANX_HOST": name},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMMAND,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotDone(f"{name}: the {what} command took more than {_COMMAND:g} s") from None
        if done.returncode:
            said = sanitize_line(done.stderr)
            raise NotDone(f"{name}: the {what} command exited with {done.returncode}: {said}")

    def _mend_later(self, name: str, seconds: float) -> None:
        timer = threading.Timer(seconds, self._mended, [name])
        timer.daemon = True
        self._mending[name] = timer
        timer.start()

    def _mended(self, name: str) -> None:
        """A host is reached again: its saboteur has mended it, or the user's command does."""
        if self._mending.pop(name, None) is not None and "cut" in self._commands:
            with contextlib.suppress(NotDone):
                self._run_command("mend", name)

    def mend(self) -> None:
        """Undo everything now, and leave."""
        for name, timer in list(self._mending.items()):
            timer.cancel()
            self._mended(name)
        _all(self._hosts.values(), ChaosHost.leave)


def _all(hosts: Sequence[ChaosHost] | Any, what: Callable[[ChaosHost], None]) -> None:
    threads = [threading.Thread(target=what, args=(host,), daemon=True) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
