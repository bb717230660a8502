"""From a host's name to an agent that waits for its first frame: logging in, and what comes before.

Blocking, in a thread for each host. What the login shell prints before our words begin is kept, and
shown in the agent's log. A refusal that may pass is tried again for a few seconds.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from phalanx import arrival
from phalanx.errors import StartFailed
from phalanx.launcher.bundle import Bundle
from phalanx.launcher.children import Child
from phalanx.launcher.targets import Target

_RETRIED = 5.0
"""Seconds for which a refusal that may pass is tried again."""

_PASSING = re.compile(
    "Connection refused|Connection reset|Connection closed|kex_exchange_identification|"
    "Connection timed out during banner|Broken pipe|Resource temporarily unavailable"
)
"""What an sshd says that is just starting, or has too many logins at once."""

_LINE_LIMIT = 1 << 20


@dataclass(frozen=True)
class Errand:
    """What an agent on another host needs before its first frame."""

    bundle: Bundle
    env_file: dict[str, str] | None

    def request(self) -> bytes:
        """The line that says so."""
        wanted = {
            "python": list(sys.version_info[:2]),
            "code": self.bundle.digest,
            "env_file": self.env_file,
        }
        return json.dumps(wanted).encode() + b"\n"


class Dial:
    """One host being dialled, on a thread of its own. The future gives the agent."""

    def __init__(self, target: Target, errand: Errand, turns: threading.Semaphore) -> None:
        """Begin, as soon as it is its turn."""
        self.target = target
        self.future: Future[Child] = Future()
        self._errand = errand
        self._turns = turns
        self.is_taken = False
        """Somebody else sees to the agent now."""
        self._line: Line | None = None
        self._given_up = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._run, name=f"phalanx-{target.name}", daemon=True).start()

    def give_up(self) -> None:
        """End it, wherever it is, unless its agent was taken. Idempotent."""
        with self._lock:
            self._given_up.set()
            landed = self.future.done()
        if landed and not self.is_taken and self.future.exception() is None:
            self.future.result().end(0.0)
        elif not landed and self._line is not None:
            self._line.child.process.kill()  # its thread sees the end

    def _run(self) -> None:
        try:
            with self._turns:
                child = self._dial()
            with self._lock:
                if not self._given_up.is_set():
                    self.future.set_result(child)
                    return
            child.end(0.0)
            raise self._failure("it was given up")
        except BaseException as error:  # noqa: BLE001 whoever waits gets it
            self.future.set_exception(error)

    def _failure(self, reason: str) -> StartFailed:
        return StartFailed(reason, hostname=self.target.name)

    def _dial(self) -> Child:
        began = time.monotonic()
        pause = 0.2
        while True:
            if self._given_up.is_set():
                raise self._failure("it was given up")
            try:
                self._line = Line.open(self.target, "arrive", inspect.getsource(arrival))
                if self._given_up.is_set():
                    self._line.child.process.kill()
                return self._converse(self._line, began)
            except LineEnded as ended:
                over = time.monotonic() - began + pause > _RETRIED
                if (
                    over
                    or ended.begun
                    or not _PASSING.search(ended.text)
                    or self._given_up.is_set()
                ):
                    raise self._failure(ended.describe()) from None
            self._given_up.wait(pause)
            pause *= 2

    def _converse(self, line: Line, began: float) -> Child:
        try:
            line.write(self._errand.request())
            answer = line.read_message()
            if answer["state"] == "want":
                archive = self._errand.bundle.archive()
                line.write(b"%d\n" % len(archive) + archive)
                answer = line.read_message()
            if answer["state"] != "ready":
                raise self._failure(answer["message"])
        except BaseException:
            line.child.end(0.0)
            raise
        child = line.child
        child.early = line.early
        assert child.abroad is not None
        child.abroad = dataclasses.replace(
            child.abroad,
            changed=frozenset(answer["changed"]),
            processors=answer["processors"],
            gpus=answer["gpus"],
            seconds={"login": line.begun_at - began, "ready": time.monotonic() - began},
        )
        return child


class LineEnded(Exception):
    """The command that led to a host has ended, or said what makes no sense."""

    def __init__(self, code: int, text: str, tool: str, *, begun: bool) -> None:
        super().__init__(code, text)
        self.code, self.text, self.tool, self.begun = code, text, tool, begun

    def describe(self) -> str:
        """For a user."""
        if self.code == arrival.NO_PYTHON and self.begun:
            return "there is no Python. Name one with python=..., by its path on that host."
        said = self.text or "it said nothing"
        if self.tool == "ssh" and self.code == 255:
            prefix = "" if said.startswith("ssh") else "ssh: "
            return f"{prefix}{said}{_advice(said)}"
        return f"{self.tool} ended with code {self.code}: {said}"


def _advice(said: str) -> str:
    if "Permission denied" in said:
        return (
            "\nPhalanx never asks for passwords. Set up a key that works without one (ssh-copy-id, "
            "ssh-agent), and try: ssh -o BatchMode=yes HOST true"
        )
    if "Host key verification failed" in said:
        return "\nLog in once by hand to accept the host's key, or add it to your known hosts."
    return ""


class Line:
    """A command on another host that speaks to us, from its first word on. Blocks."""

    def __init__(self, child: Child, tool: str) -> None:
        """Use `open`."""
        self.child = child
        self.early = b""
        """What came outside of the conversation."""
        self.begun_at = 0.0
        self._tool = tool
        self._buffer = bytearray()
        self._errors = bytearray()

    @classmethod
    def open(cls, target: Target, entry: str, program: str) -> Line:
        """Run a text there, once our words begin. Raises `LineEnded`, or `StartFailed`."""
        marker = f"phalanx-{secrets.token_hex(8)}"
        command = target.command(marker, entry)
        try:
            child = Child.remote(command, target.name)
        except OSError as error:
            raise StartFailed(
                f"{command[0]} could not be started: {error}", hostname=target.name
            ) from error
        line = cls(child, command[0])
        try:
            line._await_marker(marker.encode() + b"\n")
            source = program.encode()
            line.write(b"%d\n" % len(source) + source)
        except BaseException:
            child.end(0.0)
            raise
        return line

    def _await_marker(self, marker: bytes) -> None:
        self._wait(lambda: marker in self._buffer)
        noise, _, rest = bytes(self._buffer).partition(marker)
        self.early += noise
        self._buffer = bytearray(rest)
        self.begun_at = time.monotonic()

    def read_message(self) -> dict[str, Any]:
        """The next line of JSON."""
        self._wait(lambda: b"\n" in self._buffer or len(self._buffer) > _LINE_LIMIT)
        raw, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            message = json.loads(raw)
            if isinstance(message, dict):
                return message
        except ValueError:
            pass
        raise LineEnded(0, f"it sent {raw[:80]!r}", self._tool, begun=True)

    def write(self, data: bytes) -> None:
        """Send all of it."""
        view = memoryview(data)
        while view:
            self._turn(writing=True)
            try:
                view = view[os.write(self.child.descriptors[1], view) :]
            except BlockingIOError:
                continue
            except OSError:
                self._wait(lambda: False)  # it has ended: hear what it still says

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._turn(writing=False)

    def _turn(self, *, writing: bool) -> None:
        """Wait for something to come, or for room to write, and take what has come."""
        read, write, errors = self.child.descriptors
        poll = select.poll()
        poll.register(read, select.POLLIN)
        poll.register(errors, select.POLLIN)
        if writing:
            poll.register(write, select.POLLOUT)
        for number, _ in poll.poll(1000):
            if number == write:
                continue
            data = _read(number)
            if number == read and not data:
                self._end()
            elif number == read:
                self._buffer += data
            else:
                self._errors += data
                self.early += data
                if not data and self.child.process.poll() is not None:
                    self._end()

    def _end(self) -> None:
        """It is over: say why."""
        code = self.child.process.wait()
        while select.select([self.child.descriptors[2]], [], [], 0.05)[0]:
            data = _read(self.child.descriptors[2])
            self._errors += data
            if not data:
                break
        text = self._errors.decode("utf-8", "replace").strip()
        raise LineEnded(code, text, self._tool, begun=self.begun_at > 0)


def _read(number: int) -> bytes:
    try:
        return os.read(number, 1 << 16)
    except BlockingIOError:
        return b""


def sweep(target: Target, app: str, spool: str) -> None:
    """End and remove what an agent that was lost may have left on its host; tries once."""
    try:
        line = Line.open(target, "sweep", inspect.getsource(arrival))
    except (LineEnded, StartFailed):
        return  # then there is nobody who could be asked
    try:
        line.write(json.dumps({"app": app, "spool": spool}).encode() + b"\n")
        line.read_message()
    except LineEnded:
        pass
    finally:
        line.child.end(1.0)


def dial_all(targets: Sequence[Target], errand: Errand, parallel: int) -> list[Dial]:
    """Dial all of them, so many at a time; does not wait."""
    turns = threading.BoundedSemaphore(parallel)
    return [Dial(target, errand, turns) for target in targets]
