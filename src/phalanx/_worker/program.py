"""A worker whose work is another program: what a replica on another host is."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from phalanx._core.environment import users
from phalanx._core.launch_guard import DEPTH
from phalanx._core.ranks import HOST, RANK_VARIABLES
from phalanx._system import processes
from phalanx._system.installed_files import is_installed
from phalanx._system.machine import program_path
from phalanx._system.network import address_towards, free_port, listen

ADDRESS = "PHALANX_ADDRESS"
"""The variable in which a replica finds the address that others reach it at."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""The variable that names the file in which a program reports its error, as for torchrun."""


def run(
    argv: Sequence[str], env: Mapping[str, str], first: str
) -> tuple[int, str, bytes, str, bool]:
    """Run a program to its end: its exit code (minus a signal's number), what is wrong with it if
    it could not be started, its error file, the interpreter that is `python` to it, and whether it
    was asked to end before it did.

    SIGTERM is passed on. `python` is the interpreter that this worker has. `first` is where the
    role's first replica is; the program learns under which address it is seen from there.
    """
    environ = _outside(os.environ)
    if (own := address_towards(first)) is not None:
        environ[ADDRESS] = own
    with tempfile.TemporaryDirectory() as directory:
        environ |= {ERROR_FILE: os.path.join(directory, "error.json"), **env}
        environ.setdefault("PYTHONUNBUFFERED", "1")
        environ["PATH"] = program_path(environ.get("PATH", os.defpath))
        # What has come to this host with us, for programs that use it; the user's own comes first.
        ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        if not is_installed(os.path.join(ours, "")):
            entries = (environ.get("PYTHONPATH"), ours)
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, entries))
        try:
            code, asked = _run(_resolve(argv, environ), environ)
        except OSError as error:
            text = f"cannot start {error.filename or argv[0]!r}: {error.strerror}"
            print(f"phalanx: {text}", file=sys.stderr)
            return 127, text, b"", sys.executable, False
        try:
            with open(environ[ERROR_FILE], "rb") as file:
                return code, "", file.read(1 << 20), sys.executable, asked
        except OSError:
            return code, "", b"", sys.executable, asked


def _outside(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment as if there were no worker around the program: it is nobody's rank, and what
    we have set for the worker is not what the user wants.
    """
    left_out = RANK_VARIABLES - {HOST}  # hosts keep the names that the user has for them
    environ = {k: v for k, v in users(environ).items() if k not in left_out}
    depth = environ.pop(DEPTH, "0")
    if depth.isdigit() and int(depth) > 1:
        environ[DEPTH] = str(int(depth) - 1)
    return environ


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, bool]:
    """Run a program in a group of its own. What it has started gets SIGTERM with it, and is waited
    for then; after the grace it is killed with us. Gives its code, and whether it was asked to end.
    """
    asked: list[int] = []
    heard: list[bool] = []
    """Each time before it had ended: whether it could answer."""

    def pass_on(number: int, _: object) -> None:
        asked.append(number)
        if not processes.has_died(process.pid):
            heard.append(not processes.dies_of(process.pid, number))
        _signal_group(process.pid, number)
        _signal_group(process.pid, signal.SIGCONT)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    process = subprocess.Popen(
        argv,
        env=environ,
        process_group=0,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]),  # noqa: PLW1509
    )
    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = process.wait()
    while asked and _signal_group(process.pid, 0):
        time.sleep(0.05)
    # What cannot answer dies of it, or has ended by itself.
    return code, bool(heard) and (heard[0] or code in (-signal.SIGTERM, -signal.SIGKILL))


def _signal_group(leader: int, number: int) -> bool:
    """Signal a group of processes; False when there is none any more."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return False
    return True


def _resolve(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    program = argv[0]
    if program in ("python", "python3"):
        program = sys.executable
    elif os.sep not in program:
        search_path = os.pathsep.join((environ["PATH"], os.getcwd()))
        program = shutil.which(program, path=search_path) or program
    return [program, *argv[1:]]


def rank0_endpoint() -> tuple[str, int, str]:
    """Where the first of the hosts is found by the others; on that one, with a port to meet at;
    and nothing that is wrong.
    """
    return os.environ["MASTER_ADDR"], free_port(), ""


def meeting_point(ports: Sequence[int], secret: str) -> tuple[str, int, str]:
    """As `rank0_endpoint`; and on the other hosts, why they do not reach the first one.

    The first host listens at those of the ports that are free there, and the others try all of
    them, with a greeting that nobody else knows.
    """
    address, rank = os.environ["MASTER_ADDR"], int(os.environ["RANK"])
    limit = time.monotonic() + _BEGINNING
    if rank != 0:
        return address, 0, why_unreached(address, ports, greeting_of(secret, rank), limit)
    others = range(1, int(os.environ["WORLD_SIZE"]))
    listening = [bound for bound in map(_listen, ports) if bound is not None]
    hear_greetings(listening, {greeting_of(secret, other) for other in others}, limit)
    return address, free_port(), ""


def greeting_of(secret: str, rank: int) -> bytes:
    """What a host says; all are of one length."""
    return f"{secret} {rank:010d}\n".encode()


def hear_greetings(listening: Sequence[socket.socket], awaited: set[bytes], limit: float) -> None:
    """Listen until each greeting has come, or the time is over; the sockets are closed then.

    Each host may come several times. Whoever says nothing, or something else, is not waited for.
    """
    size = max(map(len, awaited), default=0)
    heard: dict[socket.socket, bytes] = {}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for bound in listening:
            stack.enter_context(bound)
            bound.setblocking(False)
            selector.register(bound, selectors.EVENT_READ)

        def part_with(connection: socket.socket) -> None:
            awaited.discard(heard.pop(connection))
            selector.unregister(connection)
            connection.close()

        def take(bound: socket.socket) -> None:
            try:
                connection, _ = bound.accept()
            except BlockingIOError:
                raise
            except OSError:  # no descriptors are left: strangers have them
                if heard:
                    part_with(next(iter(heard)))
                else:
                    time.sleep(0.05)  # others of this process will be free
                return
            connection.setblocking(False)
            heard[connection] = b""
            selector.register(connection, selectors.EVENT_READ)
            if len(heard) > _STRANGERS:
                part_with(next(iter(heard)))

        def hear(connection: socket.socket) -> None:
            try:
                data = connection.recv(size - len(heard[connection]))
            except ConnectionError:
                data = b""
            heard[connection] += data
            if not data or len(heard[connection]) >= size:
                part_with(connection)

        def part_with_all() -> None:
            for connection in list(heard):
                part_with(connection)

        stack.callback(part_with_all)
        while listening and awaited and (left := limit - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                found = key.fileobj
                assert isinstance(found, socket.socket)
                with contextlib.suppress(BlockingIOError):
                    if found in listening:
                        take(found)
                    elif found in heard:  # else it has had to go for another just now
                        hear(found)


_STRANGERS = 256
"""How many connections at most have not said what they must; the oldest goes first."""
_BEGINNING = 20.0
"""Seconds within which the first host listens, however busy it is."""
_ANSWERING = 5.0
"""Seconds for a network to answer, whoever listens."""


def _listen(port: int) -> socket.socket | None:
    try:
        return listen(port)
    except OSError:
        return None


def why_unreached(address: str, ports: Sequence[int], greeting: bytes, limit: float) -> str:
    """Try until the first host listens; empty when it was reached."""
    while True:
        with ThreadPoolExecutor(len(ports)) as pool:
            problems = list(pool.map(lambda port: _greet(address, port, greeting), ports))
        if "" in problems:
            return ""
        others = [problem for problem in problems if problem != _REFUSED]
        if others or time.monotonic() > limit:
            return (others or problems)[0]
        time.sleep(0.05)


_REFUSED = os.strerror(errno.ECONNREFUSED)
"""A firewall may say so, and a host that does not listen yet."""


def _greet(address: str, port: int, greeting: bytes) -> str:
    try:
        with socket.create_connection((address, port), _ANSWERING) as connection:
            connection.sendall(greeting)
    except TimeoutError:
        return f"no answer within {_ANSWERING:g} s"
    except OSError as error:
        return error.strerror or str(error)
    return ""
