"""The agent's hold on its zygote: starting it, speaking to it, burying it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Sequence

from phalanx import _wire as wire
from phalanx._agent.rounds.output_files import tail
from phalanx._core.environment import acts_at_start, defaults
from phalanx._core.ranks import RANK_VARIABLES, SPOOL
from phalanx._core.signals import signal_name
from phalanx._system.machine import python_command
from phalanx._worker import leftovers
from phalanx._worker.zygote import TITLE_ROOM


class ZygoteHandle:
    """One zygote and the socket to it. Starting does not wait for it to be warm."""

    def __init__(self, prepare: wire.Prepare, spool: str) -> None:
        """Start the zygote at once."""
        self._spool = spool
        self.environment = _environment(prepare)
        """What its workers find, but for what an app brings."""
        self.control, theirs = socket.socketpair()
        first = os.memfd_create("phalanx-prepare")
        os.write(first, wire.encode(prepare))
        os.lseek(first, 0, os.SEEK_SET)
        numbers = [str(theirs.fileno()), str(first)]
        launcher = str(os.getppid() if prepare.remote is None else 0)
        command = python_command("phalanx._worker.zygote", *numbers, spool, launcher, TITLE_ROOM)
        self._process = subprocess.Popen(
            command,
            env={**self.environment, SPOOL: spool},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), first),
        )
        leftovers.adopt(spool, self._process.pid)
        theirs.close()
        os.close(first)
        self._decoder = wire.Decoder()

    @property
    def pid(self) -> int:
        """The zygote's process."""
        return self._process.pid

    def receive(self) -> list[wire.Frame] | None:
        """What the zygote said; None when it is gone. Blocks unless the socket is readable."""
        try:
            data = self.control.recv(1 << 16)
        except ConnectionError:
            data = b""
        return self._decoder.feed(data) if data else None

    def send(self, frame: wire.Frame, descriptors: Sequence[int] = ()) -> None:
        """Say something; that the zygote is gone is heard elsewhere, as its end of file."""
        data = wire.encode(frame)
        try:
            sent = socket.send_fds(self.control, [data], descriptors)
            self.control.sendall(data[sent:])
        except OSError:
            pass

    def wake(self) -> None:
        """Have a zygote that was stopped go on: there is something for it to do."""
        self._process.send_signal(signal.SIGCONT)

    def is_alive(self) -> bool:
        """The zygote runs."""
        return self._process.poll() is None

    def end(self) -> None:
        """Have the zygote, which has no workers any more, end; does not wait."""
        self._process.kill()

    def kill(self) -> None:
        """End the zygote now; what was below it becomes the agent's. Idempotent."""
        # Before the socket ends: of an agent that has died the zygote removes the spool.
        self._process.kill()
        self._process.wait()
        self.control.close()

    def describe_end(self) -> str:
        """How the zygote ended, once its end of file was seen."""
        code = self._process.wait()
        how = f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}"
        with (
            contextlib.suppress(OSError),
            open(os.path.join(self._spool, leftovers.PRELOADING)) as file,
        ):
            if module := file.read():
                how += f", while importing {module}"
        last = tail(os.path.join(self._spool, "stderr"))
        return f"({how})" + (f":\n{last}\n" if last else "")


def _environment(prepare: wire.Prepare) -> dict[str, str]:
    """What must be there when the interpreter starts; the rest is set inside, unseen by `ps`."""
    environ = {k: v for k, v in os.environ.items() if k not in RANK_VARIABLES}
    environ |= {k: v for k, v in prepare.environment.items() if acts_at_start(k)}
    if prepare.workers > 1 and "OMP_NUM_THREADS" not in prepare.environment:
        environ |= defaults(environ, {"OMP_NUM_THREADS": "1"})
    return environ
