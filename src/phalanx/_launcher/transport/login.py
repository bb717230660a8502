"""A command on another host that speaks to us, from the login to its last word. Blocks.

What the login shell prints before our words begin is kept apart. Every wait has a deadline, and
whoever has the login may end it from another thread at any time: the wait then sees the end.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from phalanx._core.sanitize import sanitize
from phalanx._launcher.transport.agent_process import AgentProcess
from phalanx._launcher.transport.targets import Target, is_of_no_python
from phalanx._remote import bootstrap
from phalanx._system import shortage
from phalanx.errors import StartFailed

_REASON = 8 << 10
_LINE_LIMIT = 1 << 20
_NOISE_LIMIT = 16 << 20
"""How much a login shell may print."""
_ERRORS_KEPT = 64 << 10
_ENDING = 5.0
"""Seconds for a command whose stream has ended to end itself."""


class LoginEnded(Exception):
    """The command that led to a host has ended, or said what makes no sense."""

    def __init__(
        self,
        reason: str,
        target: Target,
        *,
        code: int = 0,
        begun: bool = False,
        silent: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason, self.target = sanitize(reason, _REASON), target
        self.code, self.begun = code, begun
        self.silent = silent
        """It did not end: it was not waited for any longer."""

    @property
    def is_gone(self) -> bool:
        """There is no such host any more, the command says."""
        return not self.begun and self.code != 0 and self.code == self.target.gone_code

    def describe(self) -> str:
        """For a user."""
        tool, tried = self.target.tool, " or ".join(self.target.pythons)
        if self.code in (bootstrap.NO_PYTHON, bootstrap.NO_BIN_PYTHON) and self.begun:
            is_missing = self.code == bootstrap.NO_PYTHON
            return (
                f"{f'no {tried} found' if is_missing else f'{tried} has no bin/python'}. "
                "Set python=... to the path of a Python interpreter there."
                f"{_tilde_hint(self.target.pythons)}"
            )
        if self.begun and is_of_no_python(self.reason):
            return f"{tried} is not a Python interpreter. It exited with code {self.code}."
        if self.reason:
            prefix = "" if self.reason.startswith(tool) else f"{tool}: "
            return f"{prefix}{self.reason}{_advice(self.reason, self.target)}"
        if self.begun:
            return f"{tried} exited with code {self.code}. Is it a Python interpreter?"
        if self.code == 0:
            return (
                "its login shell exited at once. Check its .bashrc and similar files for an exit."
            )
        return f"{tool} exited with code {self.code} without an error message"


def _tilde_hint(pythons: Sequence[str]) -> str:
    """A path below our own home: perhaps the user has written `~`, and meant that of the host."""
    home = os.path.expanduser("~")
    if len(pythons) != 1 or home == "/" or not pythons[0].startswith(f"{home}/"):
        return ""
    meant = "~" + pythons[0].removeprefix(home)
    return (
        f" If you wrote {meant}, your shell replaced ~ with this machine's home: put it in quotes."
    )


def _advice(said: str, target: Target) -> str:
    if target.tool != "ssh":
        return ""
    if "Permission denied" in said:
        return (
            "\nPhalanx never asks for passwords. Set up key-based login (ssh-copy-id, ssh-agent), "
            f"then try: {target.trial(may_ask=False)}"
        )
    if "HAS CHANGED" in said:
        return ""  # ssh says what that may mean
    if "Host key verification failed" in said:
        trial = target.trial(may_ask=True)
        return f"\nAccept the host key first, if it is the right one: {trial}"
    return ""


def _is_flat(value: object, depth: int = 2) -> bool:
    """There are no more lists within lists than we ever send: whoever shows it can."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return depth > 0 and all(_is_flat(item, depth - 1) for item in value)


class Login:
    """The command, as a process here, and the conversation with it."""

    def __init__(
        self,
        target: Target,
        entry: str,
        patience: float,
        run: Callable[[list[str]], AgentProcess] | None = None,
    ) -> None:
        """Start it: `entry` of a text that follows will be called there. Raises `StartFailed`.

        All of the conversation may take so many seconds. `run` runs a command on the host where
        there is a way to it already.
        """
        self.early = bytearray()
        """What came outside of the conversation; of much, the end."""
        self.begun_at = 0.0
        self._target = target
        self._limit = time.monotonic() + patience
        self._patience = patience
        self._marker = f"phalanx-{secrets.token_hex(8)}"
        self._buffer = bytearray()
        self._errors = bytearray()
        self._errors_ended = False
        try:
            if run is not None:
                self.child = run(target.words(self._marker, entry))
            else:
                command = target.command(self._marker, entry)
                self.child = AgentProcess.remote(command, target.name, without=target.without)
        except OSError as error:
            raise StartFailed(
                f"cannot start {target.tool}: {shortage.describe(error)}", hostname=target.name
            ) from error

    def begin(self, program: str) -> None:
        """Wait until our words begin, and send the text. Raises `LoginEnded`."""
        marker = self._marker.encode() + b"\n"
        seen = 0

        def found() -> bool:
            nonlocal seen
            at, seen = self._buffer.find(marker, seen), max(0, len(self._buffer) - len(marker))
            return at >= 0 or len(self._buffer) > _NOISE_LIMIT

        self._wait(found)
        noise, _, rest = bytes(self._buffer).partition(marker)
        if len(noise) > _NOISE_LIMIT:
            raise LoginEnded("its login shell prints endlessly", self._target)
        self._keep(noise)
        self._buffer = bytearray(rest)
        self.begun_at = time.monotonic()
        source = program.encode()
        self.write(b"%d\n" % len(source) + source)

    def allow(self, seconds: float) -> None:
        """All that follows may take so many seconds from now on."""
        self._limit = time.monotonic() + seconds
        self._patience = seconds

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send a line of JSON, and give the answer. Raises `LoginEnded`."""
        self.write(json.dumps(question).encode() + b"\n")
        return self.read_message()

    def read_message(self) -> dict[str, Any]:
        """The next line of JSON. Raises `LoginEnded`."""
        self._wait(lambda: b"\n" in self._buffer or len(self._buffer) > _LINE_LIMIT)
        raw, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            message = json.loads(raw)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not _is_flat(message):
            raise LoginEnded(f"it sent {raw[:80]!r}", self._target, begun=True)
        return message

    def take_rest(self) -> bytes:
        """What has come behind the last message: it is the business of others."""
        rest, self._buffer = bytes(self._buffer), bytearray()
        return rest

    def write(self, data: bytes) -> None:
        """Send all of it. Raises `LoginEnded`."""
        view = memoryview(data)
        while view:
            self._turn(writing=True)
            try:
                view = view[os.write(self.child.descriptors[1], view) :]
            except BlockingIOError:
                continue
            except OSError:
                self._wait(lambda: False)  # it has ended: hear what it still says

    def kill(self) -> None:
        """End the command, from any thread; whoever waits sees it."""
        self.child.process.kill()

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._turn(writing=False)

    def _turn(self, *, writing: bool) -> None:
        """Wait for something to come, or for room to write, and take what has come."""
        left = self._limit - time.monotonic()
        if left <= 0:
            awaited = "the answer" if self.begun_at else "the login"
            reason = f"{awaited} took more than {self._patience:g} s"
            raise LoginEnded(reason, self._target, begun=bool(self.begun_at), silent=True)
        read, write, errors = self.child.descriptors
        poll = select.poll()
        poll.register(read, select.POLLIN)
        if not self._errors_ended:
            poll.register(errors, select.POLLIN)
        if writing:
            poll.register(write, select.POLLOUT)
        for number, _ in poll.poll(min(left, 1.0) * 1000):
            if number == read:
                data = os.read(read, 1 << 16)
                if not data:
                    self._end()
                self._buffer += data
                if len(self._buffer) > _NOISE_LIMIT + _LINE_LIMIT:
                    reason = "it sends endlessly"
                    raise LoginEnded(reason, self._target, begun=bool(self.begun_at))
            elif number == errors:
                self._take_errors()

    def _take_errors(self) -> None:
        data = os.read(self.child.descriptors[2], 1 << 16)
        self._errors_ended = not data
        self._errors += data
        del self._errors[:-_ERRORS_KEPT]
        self._keep(data)

    def _keep(self, data: bytes) -> None:
        self.early += data
        del self.early[:-_NOISE_LIMIT]

    def _end(self) -> None:
        """It is over: say why."""
        try:
            code = self.child.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            reason = "it closed its channel but does not exit"
            raise LoginEnded(reason, self._target, begun=bool(self.begun_at)) from None
        limit = time.monotonic() + _ENDING
        while time.monotonic() < limit and (
            not self._errors_ended and select.select([self.child.descriptors[2]], [], [], 0.05)[0]
        ):
            self._take_errors()
        said = self._errors.strip() or (b"" if self.begun_at else self._buffer[-2000:])
        text = said.decode("utf-8", "replace").strip()
        raise LoginEnded(text, self._target, code=code, begun=bool(self.begun_at))
