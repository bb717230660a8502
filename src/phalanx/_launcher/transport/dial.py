"""From a host's name to an agent that waits for its first frame, on a thread for each host.

A refusal that may pass is tried again for a few seconds.
"""

from __future__ import annotations

import dataclasses
import hmac
import inspect
import json
import re
import secrets
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from phalanx import _wire as wire
from phalanx._channel.trust import resume_proof
from phalanx._core.ids import HostIndex
from phalanx._core.sanitize import sanitize, sanitize_line
from phalanx._launcher.transport.agent_process import AgentProcess, RemoteInfo
from phalanx._launcher.transport.bundle import Bundle
from phalanx._launcher.transport.group_start import Connection, GroupStart, NotConnected
from phalanx._launcher.transport.login import Login, LoginEnded
from phalanx._launcher.transport.start_errors import not_started
from phalanx._launcher.transport.targets import Target
from phalanx._logs import logger
from phalanx._logs.console import STATUS
from phalanx._remote import bootstrap
from phalanx.errors import StartFailed

_RETRIED = 5.0
"""Seconds for which a refusal that may pass is tried again."""
_SWEEPING = 30.0
GROUP_SIZE = 16
"""So many hosts are started together, where they can be: for fewer it costs as much as it saves."""
_MOMENT, _TOLD_EVERY = 0.9, 0.5
_PROCESSORS, _GPUS = 1 << 16, 1 << 12
"""More than any host has: workers are counted by them."""

_PASSING = re.compile(
    "Connection refused|Connection reset|Connection closed|kex_exchange_identification|"
    "Connection timed out during banner|Broken pipe|Resource temporarily unavailable"
)
"""What an sshd says that is just starting, or has too many logins at once."""
_FINAL = re.compile("Permission denied|Host key verification failed|Too many authentication")
"""What is not tried again, whatever else was said."""


@dataclass(frozen=True)
class RemoteSetup:
    """What an agent on another host needs before its first frame, and how long that may take."""

    bundle: Bundle
    env_file: dict[str, str] | None
    patience: float


class Dial:
    """One host being dialled. The future gives the agent: `take` it, or it is ended."""

    def __init__(
        self,
        target: Target,
        remote_setup: RemoteSetup,
        turns: threading.Semaphore,
        group: GroupStart | None = None,
    ) -> None:
        """Begin, as soon as it is its turn, or the host has come by a group's start."""
        self.future: Future[AgentProcess] = Future()
        self.is_silent = False
        """It failed because nothing was heard of the host: who knows what is there."""
        self.name = target.name
        self._target = target
        self._remote_setup = remote_setup
        self._turns = turns
        self._group = group
        self._connection: Connection | None = None
        self._login: Login | None = None
        self._taken = False
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=f"phalanx-{target.name}", daemon=True).start()

    def take(self) -> AgentProcess:
        """Have the agent, which must be there. Raises `StartFailed` if it was given up."""
        with self._lock:
            if self._given_up.is_set():
                raise self._failure("the login was cancelled")
            self._taken = True
        return self.future.result()

    def give_up(self) -> None:
        """End it, wherever it is, unless its agent was taken. Idempotent."""
        with self._lock:
            if self._taken or self._given_up.is_set():
                return
            self._given_up.set()
            landed, login = self.future.done(), self._login
        if self._group is not None:
            self._group.give_up(self.name)
        if landed and self.future.exception() is None:
            self.future.result().end(0.0)
        elif not landed and login is not None:
            login.kill()  # its thread sees the end

    def _run(self) -> None:
        try:
            if self._group is not None:
                self._connection = self._wait_for(self._group)
            with self._turns:
                child = self._dial()
            with self._lock:
                if not self._given_up.is_set():
                    self.future.set_result(child)
                    return
            child.end(0.0)
            raise self._failure("the login was cancelled")
        except BaseException as error:  # noqa: BLE001 whoever waits gets it
            if self._connection is not None:
                self._connection.close()
            self.future.set_exception(error)

    def _failure(self, reason: str) -> StartFailed:
        return StartFailed(reason, hostname=self._target.name)

    def _wait_for(self, group: GroupStart) -> Connection | None:
        """The host's connection; None where it has to be dialled by itself."""
        patience = self._remote_setup.patience
        try:
            return group.connection(self.name).result(patience)
        except NotConnected as error:
            logger.info("phalanx: %s did not connect (%s); dialling it", self.name, error)
            return None
        except TimeoutError:
            self.is_silent = True
            group.give_up(self.name)
            raise self._failure(f"it did not connect within {patience:g} s") from None

    def _dial(self) -> AgentProcess:
        began = time.monotonic()
        pause = 0.2
        while True:
            try:
                return self._call()
            except LoginEnded as ended:
                self.is_silent = ended.silent
                passing = _PASSING.search(ended.reason) and not _FINAL.search(ended.reason)
                over = time.monotonic() - began + pause > _RETRIED
                if over or ended.begun or not passing:
                    raise self._failure(ended.describe()) from None
            self._given_up.wait(pause)
            pause = min(2 * pause, 1.0)

    def _call(self) -> AgentProcess:
        with self._lock:
            if self._given_up.is_set():
                raise self._failure("the login was cancelled")
            connection, self._connection = self._connection, None
            run = None if connection is None else connection.run
            patience = self._remote_setup.patience
            login = self._login = Login(self._target, "bootstrap", patience, run)
        try:
            login.begin(inspect.getsource(bootstrap))
            answer = self._converse(login)
        except BaseException:
            login.child.end(0.0)
            raise
        child = login.child
        child.early = bytes(login.early)
        assert child.remote_info is not None
        child.remote_info = dataclasses.replace(child.remote_info, **answer)
        return child

    def _converse(self, login: Login) -> dict[str, Any]:
        """Have the agent's code in place there; gives what is known of the host."""
        remote_setup = self._remote_setup
        answer = login.ask(
            python=list(sys.version_info[:2]),
            code=remote_setup.bundle.digest,
            env_file=remote_setup.env_file,
        )
        if answer.get("state") == "want":
            archive = remote_setup.bundle.archive()
            login.write(b"%d\n" % len(archive) + archive)
            answer = login.read_message()
        match answer:
            case {
                "state": "ready",
                "changed": list(changed),
                "processors": int(processors),
                "gpus": int(gpus),
                "pid": int(pid),
                "start": int(start),
            } if all(isinstance(name, str) for name in changed):
                if not (0 < processors <= _PROCESSORS and 0 <= gpus <= _GPUS):
                    raise self._failure(f"it claims {processors} CPUs and {gpus} GPUs")
                known = {"processors": processors, "gpus": gpus, "pid": pid, "start": start}
                python = sanitize_line(str(answer.get("python", "")))
                return {"changed": frozenset(changed), "python": python, **known}
            case {"state": "refused", "message": str(message)}:
                raise self._failure(sanitize(message))
        raise self._failure(f"it sent {sanitize_line(json.dumps(answer))!r}")


def sweep(target: Target, code: str, agent: RemoteInfo, hello: wire.Hello | None) -> bool:
    """End and remove what an agent that was lost may have left on its host; tries once.

    Gives whether the host has said that nothing of it runs any more.
    """
    try:
        login = Login(target, "sweep", _SWEEPING)
    except StartFailed:
        return False
    spool, tree = ("", "") if hello is None else (hello.spool, hello.tree)
    try:
        login.begin(inspect.getsource(bootstrap))
        answer = login.ask(code=code, pid=agent.pid, start=agent.start, spool=spool, tree=tree)
        return answer.get("state") == "done"
    except LoginEnded:
        return False  # then there is nobody who could be asked
    finally:
        login.child.end(0.0)


class ReattachRefused(Exception):
    """The host can be reached, and the agent is not there, or does not take us back."""


@dataclass(frozen=True)
class Reattached:
    """Another stream to an agent."""

    child: AgentProcess
    received: int
    """How many frames of ours the agent has."""
    early: bytes
    """What has come over the stream already."""


def reattach(target: Target, spool: str, key: str, received: int, patience: float) -> Reattached:
    """Make another stream to an agent, of whose frames we have so many.

    Raises `ReattachRefused`, `LoginEnded`, `StartFailed`.
    """
    login = Login(target, "attach", patience)
    try:
        login.begin(inspect.getsource(bootstrap))
        own = secrets.token_hex(32)
        answer = login.ask(spool=spool, number=own, received=received)
        match answer:
            case {"number": str(theirs)}:
                numbers = (own, theirs)
            case _:
                raise ReattachRefused(sanitize(str(answer.get("message"))))
        answer = login.ask(proof=resume_proof(key, "launcher", numbers, received))
        match answer:
            case {"state": "attached", "received": int(count), "proof": str(proof)}:
                wanted = resume_proof(key, "agent", numbers, count)
                if not hmac.compare_digest(proof.encode(), wanted.encode()):
                    raise ReattachRefused("it could not prove that it is the agent of this app")
            case _:
                raise ReattachRefused(sanitize(str(answer.get("message"))))
    except BaseException:
        login.child.end(0.0)
        raise
    login.child.early = bytes(login.early)
    return Reattached(login.child, count, login.take_rest())


def _start_groups(targets: Iterable[Target]) -> dict[str, GroupStart]:
    """Start what leads to many hosts at once; gives which hosts will come so, by name."""
    members: dict[object, list[Target]] = {}
    for target in targets:
        if target.group is not None:
            common = (target.group, target.pythons, target.without)
            members.setdefault(common, []).append(target)
    found = {}
    for group in members.values():
        if len(group) >= GROUP_SIZE and group[0].group is not None:
            try:
                start = GroupStart(group[0].group, group)
            except OSError as error:
                logger.info("phalanx: %s; dialling each host by itself", error)
                continue
            found.update({target.name: start for target in group})
    return found


class Dials:
    """The hosts of a launch that are being dialled. Who has it gives up what nobody takes."""

    def __init__(self) -> None:
        """None is."""
        self._by_host: dict[HostIndex, Dial] = {}

    def start(
        self, targets: Mapping[HostIndex, Target], remote_setup: RemoteSetup, parallel: int
    ) -> None:
        """Dial hosts, so many at a time; does not wait."""
        turns = threading.BoundedSemaphore(parallel)
        groups = _start_groups(targets.values())
        for index, target in targets.items():
            self._by_host[index] = Dial(target, remote_setup, turns, groups.get(target.name))

    def pop(self, index: HostIndex) -> Dial | None:
        """Hand over the dial to a host, if there is one."""
        return self._by_host.pop(index, None)

    def add(self, index: HostIndex, dial: Dial) -> None:
        """Take over a dial."""
        self._by_host[index] = dial

    def wait(self) -> dict[str, RemoteInfo]:
        """What all of them say of themselves, by name. Raises `StartFailed`, for all that failed.

        What takes longer than a moment is said on a terminal.
        """
        began = time.monotonic()
        try:
            while waiting := [d for d in self._by_host.values() if not d.future.done()]:
                futures.wait([dial.future for dial in waiting], _TOLD_EVERY)
                seconds = time.monotonic() - began
                if seconds > _MOMENT:
                    names = ", ".join(dict.fromkeys(dial.name for dial in waiting))
                    STATUS.show(self, f"phalanx: logging in to {names} ({seconds:.0f} s)")
        finally:
            STATUS.show(self, "")
        found, failures = {}, {}
        for dial in self._by_host.values():
            try:
                info = dial.future.result().remote_info
                assert info is not None
                found[dial.name] = info
            except StartFailed as error:
                failures[dial.name] = str(error)
        if failures:
            raise not_started(failures)
        return found

    def give_up(self) -> None:
        """End all of it, agents that were reached too. Idempotent."""
        for dial in self._by_host.values():
            dial.give_up()
