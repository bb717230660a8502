"""One replica of an app on Slurm: runs its program, and writes into files how it stands.

A task of a job step, started by the app's batch script: `slurm_replica.py JOB_DIR INDEX -- WORD…`,
where INDEX is the role's. Like `bootstrap` it stands alone: no package has to be on the host, and
any Python from 3.6 on can read it. What it writes under JOB_DIR (names: see `layout`) is all that
status and logs are made from, so that nobody has to ask Slurm's controller.

It reads `control` about once a second, the one file by which the replicas of an app, on whatever
hosts, hear of each other. It is there from the start and only grows: network file systems look
again when a file is opened, but may take a minute to see that a new one is there. Its lines:

| line | by | |
|---|---|---|
| `try N` | the script | the first: how often the app has been started anew |
| `failed ROLE REPLICA CODE` | a replica | it has failed: the others end |
| `terminated ROLE REPLICA CODE` | a replica | it ended after a SIGTERM of Slurm's |
| `warn SIGNAL` | the script | the job's time is nearly over |
| `stop` | the script | end now |
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

STREAMS = ("stdout", "stderr")
PLACEHOLDER = "@PHALANX_REPLICA_ID@"
"""Stands for the replica's number in arguments and variables: the script is one for all."""
CANNOT_START = 127
_TICK = 0.25
"""Seconds between two looks at the files of the streams."""
_TERMINATED = 0.5
"""Seconds in which a SIGTERM of Slurm's reaches all processes of a step."""
_PATIENCE = 30.0
"""Seconds in which what cannot be written in the end is tried again: the host is paid for."""
_ROOM = 4096
"""Bytes that are kept on the disk for how the program ended."""
_REPLICAS_A_SECOND = 100
"""How many read `control` in a second: all of a very large app are not to do so each second."""
_TOLD = ("USR1", "USR2", "HUP", "INT")
"""Signals that the program gets only if it has a handler: they end one that has none."""


def main(arguments: "list[str]") -> int:
    """Run the program to its end. 0 whatever became of it, so that Slurm leaves others alone."""
    mark = arguments.index("--")
    job_dir, index = arguments[:mark]
    replica = Replica(job_dir, index, int(os.environ["SLURM_PROCID"]))
    return replica.run([_own(word, replica.number) for word in arguments[mark + 1 :]])


def free_port() -> int:
    """A port of this host that nobody listens at."""
    with socket.socket() as one:
        one.bind(("", 0))
        return int(one.getsockname()[1])


def _own(text: str, number: int) -> str:
    return text.replace(PLACEHOLDER, str(number))


class Replica:
    """The program, and the files about it."""

    def __init__(self, job_dir: str, index: str, number: int) -> None:
        self.job_dir = job_dir
        self.index = index
        self.role = os.environ["PHALANX_ROLE"]
        self.number = number
        self.grace = float(os.environ.get("PHALANX_STOP_GRACE", "5"))
        directory = os.path.join(job_dir, "logs", self.role, str(number))
        self.logs = {stream: os.path.join(directory, stream + ".log") for stream in STREAMS}
        self.error_file = os.path.join(directory, "error.json")
        self.stop_file = os.path.join(job_dir, "stop", f"{index}-{number}")
        tasks = int(os.environ.get("SLURM_NTASKS", "1"))
        self.pause = max(1.0, tasks / _REPLICAS_A_SECOND)
        self.facts: dict[str, Any] = {
            "role": self.role,
            "id": number,
            "hostname": os.environ.get("SLURMD_NODENAME", ""),
            "restarts": int(os.environ.get("PHALANX_RESTART_COUNT", "0")),
        }
        self.asked = False
        """It has been asked to end, since another has failed."""
        self.terminated = False
        """Slurm has sent SIGTERM: it takes the job away, or was asked to by the user."""
        self.is_written = True
        """What is in the status file is so."""
        self.kill_at: float | None = None
        self.sizes = dict.fromkeys(STREAMS, 0)

    def run(self, program: "list[str]") -> int:
        """Start the program, and see to it until it has ended."""
        heard = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        try:
            for path in (*self.logs.values(), self.stop_file, self._status_file(), self._times("")):
                os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            for path in (self.error_file, self.stop_file):
                _remove(path)
            with open(self._reserve(), "w") as file:
                file.write(" " * _ROOM)
        except OSError as error:
            _remove(self._reserve())
            print(f"phalanx: cannot write {error.filename or self.job_dir}: {error.strerror}")
            return 1
        self.sizes = {stream: _size(path) for stream, path in self.logs.items()}
        self.facts["told"] = self.sizes["stderr"]
        try:
            child = self._start(program, before)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            what = getattr(error, "filename", None) or program[0]
            return self._end(CANNOT_START, f"cannot start {what!r}: {reason}")
        self._write(state="RUNNING", began=time.time(), pid=child.pid)
        look = 0.0
        while child.poll() is None:
            number = signal.sigtimedwait(heard, _TICK)
            if number is not None and number.si_signo == signal.SIGTERM:
                # Slurm sends it to every process of a step: the program has it already.
                self.terminated = True
                self._ask_to_stop()
            if number is not None and number.si_signo == signal.SIGUSR1:
                self._warn(child.pid, "USR1")  # a step may be warned by hand
            self._note_times()
            if time.time() >= look:
                look = time.time() + self.pause
                self._obey(child.pid)
                if not self.is_written:
                    self._write()
            if self.kill_at is not None and time.time() >= self.kill_at:
                _signal_group(child.pid, signal.SIGKILL)
        _signal_group(child.pid, signal.SIGKILL)  # what it has left in its group
        if child.returncode != 0 and not self.asked:
            # Slurm signals one process after another: ours may be yet to come.
            self.terminated |= signal.sigtimedwait({signal.SIGTERM}, _TERMINATED) is not None
        return self._end(child.returncode)

    def _start(self, program: "list[str]", mask: "Any") -> "subprocess.Popen[bytes]":
        environ = {name: _own(value, self.number) for name, value in os.environ.items()}
        environ["PHALANX_REPLICA_ID"] = str(self.number)
        environ["PHALANX_STOP_FILE"] = self.stop_file
        environ["PHALANX_RDZV_TOKEN"] = _read(os.path.join(self.job_dir, "token")).strip()
        environ["TORCHELASTIC_ERROR_FILE"] = self.error_file
        environ["TORCHELASTIC_RESTART_COUNT"] = str(self.facts["restarts"])
        out, err = (
            os.open(self.logs[s], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666) for s in STREAMS
        )

        def prepare() -> None:
            os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        try:
            return subprocess.Popen(
                program,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environ,
                preexec_fn=prepare,  # noqa: PLW1509 there are no threads
            )
        finally:
            os.close(out)
            os.close(err)

    # ── what it is told ───────────────────────────────────────────────────────

    def _obey(self, pid: int) -> None:
        for line in _read(os.path.join(self.job_dir, "control")).splitlines():
            word, _, rest = line.partition(" ")
            if word in ("failed", "stop") and self.kill_at is None:
                self.asked = True
                self.kill_at = time.time() + self.grace
                _signal_group(pid, signal.SIGTERM)
                _signal_group(pid, signal.SIGCONT)
            elif word == "warn":
                self._warn(pid, rest)

    def _warn(self, pid: int, name: str) -> None:
        """Once: the host will be taken away."""
        if os.path.exists(self.stop_file):
            return
        self._ask_to_stop()
        number = getattr(signal, "SIG" + name, None)
        if number is not None and (name not in _TOLD or _catches(pid, number)):
            _signal(pid, number)

    def _ask_to_stop(self) -> None:
        """`phalanx.context().should_stop()` is true from now on."""
        try:
            with open(self.stop_file, "w"):
                pass
        except OSError:
            pass  # SIGTERM follows

    # ── what it tells ─────────────────────────────────────────────────────────

    def _end(self, code: int, error: str = "") -> int:
        """Say how it ended, as soon as that can be done; gives the exit code of this process."""
        if error:
            try:
                with open(self.logs["stderr"], "ab") as file:
                    file.write(f"phalanx: {error}\n".encode())
            except OSError:
                pass
        self._note_times()
        self.facts.update(
            state="ENDED",
            ended=time.time(),
            code=code,
            asked=self.asked or self.terminated,
            terminated=self.terminated,
            error=error,
        )
        is_told = not (self.terminated or (code != 0 and not self.asked))
        word = "terminated" if self.terminated else "failed"
        shell = 128 - code if code < 0 else code
        line = f"{word} {self.index} {self.number} {shell}\n"
        limit = time.time() + _PATIENCE
        self.is_written = False
        while True:
            is_told = is_told or self._tell(line)
            if (self.is_written or self._write(last=True)) and is_told:
                return 0
            if not os.path.isdir(self.job_dir):
                return 0  # the app was deleted
            if time.time() > limit:
                print(f"phalanx: cannot write to {self.job_dir} how the program ended ({shell})")
                return shell or 1
            time.sleep(1.0)

    def _tell(self, line: str) -> bool:
        """Add a line to what all replicas read: all of it, or nothing."""
        try:
            with open(os.path.join(self.job_dir, "control"), "ab", buffering=0) as file:
                size = file.tell()
                if file.write(line.encode()) != len(line):
                    file.truncate(size)  # what comes next would continue the line
                    return False
        except OSError:
            return False
        return True

    def _status_file(self) -> str:
        return os.path.join(self.job_dir, "replicas", f"{self.index}-{self.number}.json")

    def _reserve(self) -> str:
        return self._status_file() + ".reserve"

    def _write(self, *, last: bool = False, **facts: "Any") -> bool:
        """Replace the status file, or nothing; the last one has the room that was kept for it."""
        self.facts.update(facts)
        data = json.dumps(self.facts)
        path = self._status_file()
        self.is_written = _replace(path, path + ".new", "w", data)
        if not self.is_written:
            _remove(path + ".new")
            if last:
                self.is_written = _replace(path, self._reserve(), "r+", data.ljust(_ROOM))
        elif last:
            _remove(self._reserve())
        return self.is_written

    def _times(self, stream: str) -> str:
        name = f"{self.role}-{self.number}-{stream}"
        return os.path.join(self.job_dir, "times", name)

    def _note_times(self) -> None:
        """When what of the streams was written."""
        for stream, path in self.logs.items():
            try:
                found = os.stat(path)
                known = self.sizes[stream]
                if found.st_size > known:
                    with open(self._times(stream), "a") as file:
                        file.write(f"{known} {found.st_mtime:.3f} {found.st_size}\n")
                    self.sizes[stream] = found.st_size
            except OSError:
                pass  # it is noted the next time


def _replace(path: str, new: str, mode: str, data: str) -> bool:
    """Write a file, and put it in another's place."""
    try:
        with open(new, mode) as file:
            file.write(data)
        os.replace(new, path)
    except OSError:
        return False
    return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _catches(pid: int, number: int) -> bool:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass


def _signal_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except OSError:
        pass


if __name__ == "__main__":
    if sys.argv[1:] == ["--free-port"]:
        print(free_port())
    else:
        sys.exit(main(sys.argv[1:]))
