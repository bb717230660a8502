"""Choose what a library accepts at a listening socket, on threads of its own.

A server inside a library calls `accept` itself, and asks nobody whom to serve. The kernel can have
another thread answer that call (seccomp's user notifications, Linux 5.0): ours takes the
connection, looks at it, and answers with its descriptor, or closes it and answers that there is
none. What is let in is the connection itself, so that serving it costs nothing more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import queue
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from phalanx._system.libc import libc


class _Architecture(NamedTuple):
    audit: int
    accept: int
    accept4: int
    seccomp: int


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 43, 288, 317),
    "aarch64": _Architecture(0xC00000B7, 202, 242, 277),
}
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
_ALLOW = 0x7FFF0000
_NOTIFY = 0x7FC00000

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_AT, _AUDIT_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_INSTRUCTION = struct.Struct("=HBBI")

_CALL = struct.Struct("=Q72x")
"""A number for the answer to refer to; the call itself is known by the filter."""
_ANSWER = struct.Struct("=QqiI")
_RECEIVE = 3 << 30 | _CALL.size << 16 | ord("!") << 8
_SEND = 3 << 30 | _ANSWER.size << 16 | ord("!") << 8 | 1


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def guard(listening: int, admits: Callable[[socket.socket], bool]) -> bool:
    """Have threads that this one starts from now on accept from `listening` what `admits` takes.

    It must be non-blocking for them, and so is what they get.
    Cannot be undone, and keeps this thread and those from gaining privileges by running a program:
    meant for a process that does nothing else. False where the kernel cannot do it: all is as
    before. The process ends if `admits` raises.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None or sys.maxsize < 1 << 32:
        return False
    ours = socket.socket(fileno=os.dup(listening))
    ours.setblocking(False)
    # The thread that answers must not be under the filter itself, so it is there before.
    opened: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    threading.Thread(target=_answer_all, args=(opened, ours, admits), daemon=True).start()
    try:
        opened.put(_install(architecture, listening))
    except OSError:
        opened.put(None)
        return False
    return True


def _install(architecture: _Architecture, listening: int) -> int:
    """Put the filter on this thread; gives where its calls are heard of. Raises `OSError`."""
    # Jumps are counted from the next instruction; all others lead to the one before the last.
    instructions = (
        (_LOAD, 0, 0, _AUDIT_AT),
        (_EQUAL, 0, 5, architecture.audit),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_EQUAL, 1, 0, architecture.accept),
        (_EQUAL, 0, 2, architecture.accept4),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_EQUAL, 1, 0, listening),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _NOTIFY),
    )
    code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*each) for each in instructions))
    program = _Program(len(instructions), ctypes.addressof(code))
    listener = -1
    if libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        listener = libc().syscall(
            architecture.seccomp, _SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program)
        )
    if listener < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(listener)


def _answer_all(
    opened: queue.SimpleQueue[int | None],
    listening: socket.socket,
    admits: Callable[[socket.socket], bool],
) -> None:
    listener = opened.get()
    if listener is None:
        listening.close()
        return
    try:
        _answer_calls(listener, listening, admits)
    except BaseException:  # noqa: BLE001 nobody would answer any more
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def _answer_calls(
    listener: int, listening: socket.socket, admits: Callable[[socket.socket], bool]
) -> NoReturn:
    taken: socket.socket | None = None
    while True:
        call = bytearray(_CALL.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, call)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):  # ENOENT: a signal has cut the call off
                continue
            raise
        failure = errno.EAGAIN
        if taken is None:
            # One for each call: the caller serves others before it asks for the next.
            try:
                taken = _take(listening, admits)
            except OSError as error:
                failure = error.errno or failure
        number, value = _CALL.unpack(call)[0], -1 if taken is None else taken.fileno()
        answer = _ANSWER.pack(number, max(value, 0), -failure if taken is None else 0, 0)
        # The call may have been cut off meanwhile: it is made again, and then gets this one.
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, _SEND, bytearray(answer))
            if taken is not None:
                taken.detach()
                taken = None


def _take(
    listening: socket.socket, admits: Callable[[socket.socket], bool]
) -> socket.socket | None:
    """The next connection, if it is let in. Raises `OSError`, as accepting does."""
    connection, _ = listening.accept()
    connection.setblocking(False)
    if admits(connection):
        return connection
    connection.close()
    return None
