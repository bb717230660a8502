"""Turn what the function did into bytes on disk and an `Outcome`, whatever it did.

Values and exceptions are pickled into a file of the rank's directory. An exception is pickled
without calling its class's constructor when it is read back: constructors have any signature, and
may have changed the message. Attributes that cannot be pickled are replaced by their `repr`.
"""

from __future__ import annotations

import builtins
import copyreg
import errno
import functools
import importlib
import io
import os
import pickle
import re
import stat
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import IO, Any, Self

from phalanx._core.rounds import Ended, ExceptionInfo, Outcome
from phalanx.errors import NoTerminal

PAYLOAD = "payload"
"""The file in a rank's directory that holds the pickled value or exception."""

REPORT = "report"
"""The file in a rank's directory that holds the report, where it could not be sent."""

RAISED = "raised"
"""The file in a rank's directory, and the stream, of the traceback that its worker has printed."""

SMALL = 32 << 10
"""Bytes of a payload that a report carries; it must fit into one message, with a traceback."""

LARGE = 4 << 20
"""Bytes up to which a payload stays in the launcher's memory; a larger one is in a file there."""

_TEXT_LIMIT = 32 << 10
_WRITE = 1 << 20
_NOT_RAISED_AGAIN = (KeyboardInterrupt, SystemExit, GeneratorExit)
_NOT_RAISED_BY_NAME = ("CancelledError", "BdbQuit")
"""Of modules that need not be loaded. IPython keeps quiet about what a debugger quits by."""
_COMMUNICATION = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|broken pipe|tcpstore|socket (closed|timeout)",
    re.IGNORECASE,
)


def returned(rank: int, value: object, sink: Sink) -> Outcome:
    """Store the value; if that cannot be done, the outcome says why."""
    try:
        sink.dump(value)
    except Exception as error:  # noqa: BLE001 reducers are the user's code: they raise anything
        reason = f"{type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        exception = ExceptionInfo(type_name(value), _clip(reason), _clip(text), result=True)
        return Outcome(rank, Ended.RAISED, time.monotonic(), os.getpid(), exception=exception)
    return Outcome(rank, Ended.RETURNED, time.monotonic(), os.getpid())


def raised(rank: int, error: BaseException, sink: Sink | None) -> Outcome:
    """Store the exception as well as it can be; describe it in any case."""
    clock = time.monotonic()
    exception = ExceptionInfo(
        type_name=type_name(error),
        message=_clip(error.short if isinstance(error, NoTerminal) else _message(error)),
        traceback=_clip(format_traceback(error)),
        communication=_is_communication(error),
        reraise=not isinstance(error, _NOT_RAISED_AGAIN)
        and type(error).__name__ not in _NOT_RAISED_BY_NAME,
    )
    for careful in (False, True):
        try:
            if sink is not None:
                # As itself where that is by our rules: what refers to it must find it again.
                carried = error if _reduces_by_default(error) else _Carried(error)
                sink.dump(carried, careful=careful)
            break
        except Exception:  # noqa: BLE001, S112 in the end, the description above is what is left
            continue
    return Outcome(rank, Ended.RAISED, clock, os.getpid(), code=1, exception=exception)


def exited(rank: int, code: int) -> Outcome:
    """The function called `sys.exit` with a code other than 0."""
    return Outcome(rank, Ended.EXITED, time.monotonic(), os.getpid(), code=code)


def load(file: IO[bytes]) -> Any:
    """Read a payload back. Runs code of the sender: only for those we started ourselves."""
    return pickle.load(file)  # noqa: S301


def open_regular(path: str) -> io.FileIO:
    """Open a worker's file to read, and nothing that would block or be without end. Raises
    `OSError`.
    """
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "not a file", path)
    return io.FileIO(number, "rb")


def is_exhausted(error: OSError) -> bool:
    """A file could not be opened for want of descriptors or memory: it may well be there."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def type_name(value: object) -> str:
    """The qualified name of a value's type, without `builtins` and `__main__`."""
    kind = type(value)
    module = kind.__module__
    if module in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{module}.{kind.__qualname__}"


def format_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, from the first frame that is not ours."""
    return "".join(traceback.format_exception(type(error), error, users_part(error.__traceback__)))


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from its first frame that is not ours."""
    here = os.path.dirname(__file__)
    step = trace
    while step is not None and (
        os.path.dirname(step.tb_frame.f_code.co_filename) == here
        or step.tb_frame.f_globals.get("__name__") == "runpy"
    ):
        step = step.tb_next
    return step


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 a broken __str__ must not hide the failure
        return f"<{type(second).__name__} in __str__>"


def _is_communication(error: BaseException) -> bool:
    if isinstance(error, ConnectionError):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"DistError", "DistNetworkError", "DistBackendError", "DistStoreError"}:
        return True
    return type(error) is RuntimeError and bool(_COMMUNICATION.search(_message(error)))


def _clip(text: str) -> str:
    """Text that fits into a report, whatever characters it is made of."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) > _TEXT_LIMIT:
        half = _TEXT_LIMIT // 2
        mark = f"\n… {len(data) - 2 * half} bytes left out …\n".encode()
        data = data[:half] + mark + data[-half:]
    return data.decode("utf-8", "replace")


class Sink:
    """Where a rank's payload goes: into the report if it is small, otherwise into a file, which is
    opened before the function runs.

    The function may give up its rights, or close every descriptor; one of the two ways stays open.
    """

    def __init__(self, directory: str) -> None:
        """Create the file."""
        self.small = b""
        """The payload, if it is not in the file."""
        self._path = os.path.join(directory, PAYLOAD)
        self._number = _private(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self._identity = _identity(self._number)

    def dump(self, value: object, *, careful: bool = False) -> None:
        """Pickle it; whatever is raised, nothing is left of it."""
        with _Payload(self._open) as payload:
            try:
                pickler_class()(payload, _Probes(careful=careful)).dump(value)
            except BaseException:
                payload.clear()
                raise
        self.small = payload.held

    def _open(self) -> IO[bytes]:
        try:
            kept = _identity(self._number) == self._identity
        except OSError:
            kept = False
        if kept:
            return open(os.dup(self._number), "wb", buffering=_WRITE)
        return open(self._path, "wb", buffering=_WRITE, opener=_private)


class _Payload:
    """What a pickler writes to: kept as long as it is small, then in a file."""

    def __init__(self, open_file: Callable[[], IO[bytes]]) -> None:
        self.held = b""
        self._open_file = open_file
        self._file: IO[bytes] | None = None

    def write(self, data: bytes | memoryview) -> int:
        if self._file is None and len(self.held) + memoryview(data).nbytes <= SMALL:
            self.held += data
            return len(data)
        if self._file is None:
            self._file = self._open_file()
            self._file.write(self.held)
            self.held = b""
        return self._file.write(data)

    def clear(self) -> None:
        self.held = b""
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 the user's code, or one that contains itself
        return f"<{type_name(value)}>"


def _identity(number: int) -> tuple[int, int]:
    status = os.fstat(number)
    return status.st_dev, status.st_ino


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Probes:
    """What has been found out about values while one of them is pickled."""

    def __init__(self, *, careful: bool) -> None:
        """A careful one replaces what cannot be pickled of an exception by its `repr`, and so what
        refers back to one that is being looked at.
        """
        self.careful = careful
        self.under_way: set[int] = set()
        # With the value: its id must stay its own.
        self._verdicts: dict[int, tuple[object, bool]] = {}

    def probe(self, value: object) -> bool:
        if id(value) not in self._verdicts:
            try:
                pickler_class()(io.BytesIO(), self).dump(value)
                self._verdicts[id(value)] = value, True
            except Exception:  # noqa: BLE001 any refusal means no
                self._verdicts[id(value)] = value, False
        return self._verdicts[id(value)][1]

    def keep(self, value: object) -> object:
        return value if self.probe(value) else _repr(value)


@functools.cache
def pickler_class() -> Any:
    """A pickler that takes by value what lives in `__main__`, and exceptions by our rules.

    Made when it is first asked for, since few processes have cloudpickle; a zygote asks for it, so
    that its forks need not.
    """
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def __init__(self, file: Any, probes: _Probes) -> None:
            super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
            self._probes = probes

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, _Carried):
                obj = obj.error
            elif not isinstance(obj, BaseException) or not _reduces_by_default(obj):
                if _has_lost_its_slots(obj):
                    new = copyreg.__newobj__  # type: ignore[attr-defined]
                    return new, (type(obj),), vars(obj), None, None, set_attributes
                if type(obj).__module__ == "torch.storage":
                    module: Any = importlib.import_module("phalanx._torch.tensors")
                    reduced = module.reduce_storage(obj) if hasattr(obj, "dtype") else None
                    if reduced is not None:
                        return reduced
                return super().reducer_override(obj)
            probes = self._probes
            if not probes.careful:
                return _reduce_exception(obj, lambda value: value, lambda _: True)
            if id(obj) in probes.under_way:
                return str, (_repr(obj),)
            probes.under_way.add(id(obj))
            try:
                return _reduce_exception(obj, probes.keep, probes.probe)
            finally:
                probes.under_way.discard(id(obj))

    return Pickler


class _Carried:
    """An exception on its way home: pickled as itself, by our rules, even if it has its own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _reduces_by_default(error: BaseException) -> bool:
    kind = type(error)
    own = [k for k in kind.__mro__ if k.__module__ != builtins.__name__]
    return not any("__reduce__" in vars(k) or "__reduce_ex__" in vars(k) for k in own)


def _reduce_exception(
    error: BaseException, keep: Callable[[Any], Any], probe: Callable[[Any], bool]
) -> tuple[Any, ...]:
    by_default = _reduces_by_default(error)
    if not by_default:
        # The class has rules of its own: keep to them where they work.
        try:
            own = error.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if isinstance(own, tuple) and probe(own):
                return own
        except Exception:  # noqa: BLE001 then by ours
            pass
    reduced = error.__reduce__() if by_default else BaseException.__reduce__(error)
    _, args, *rest = reduced if isinstance(reduced, tuple) else (None, error.args)
    state = dict(rest[0]) if rest and isinstance(rest[0], dict) else {}
    state |= {name: getattr(error, name) for name in _slots(error) if hasattr(error, name)}
    args = tuple(map(keep, args))
    state = {name: keep(value) for name, value in state.items()}
    return rebuild_exception, (type(error), args), state, None, None, set_attributes


def _slots(value: object) -> list[str]:
    slots = (vars(kind).get("__slots__", ()) for kind in type(value).__mro__)
    return [n for names in slots for n in ([names] if isinstance(names, str) else names)]


def _has_lost_its_slots(value: object) -> bool:
    """An instance of a class with slots that cloudpickle has rebuilt here, where it has none.

    Its attributes are in a `__dict__` that the class does not have where the instance is going.
    """
    kind: Any = type(value)
    return (
        "__slots__" in vars(kind)
        and "__dict__" not in kind.__slots__
        and hasattr(value, "__dict__")
        and kind.__reduce_ex__ is object.__reduce_ex__
        and not {"__reduce__", "__getstate__", "__setstate__"} & vars(kind).keys()
        and not any("__dict__" in vars(base) for base in kind.__mro__[1:])
    )


def set_attributes(value: object, state: dict[str, Any]) -> None:
    """Give an object its attributes, wherever its class keeps them, whatever it says to that."""
    for name, item in state.items():
        try:
            object.__setattr__(value, name, item)
        except (AttributeError, TypeError):
            vars(value)[name] = item  # a property of the class's own


def rebuild_exception(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Make an exception of `kind` without running its own constructor, only the built-in one."""
    base = next(k for k in kind.__mro__ if k.__module__ == builtins.__name__)
    try:
        error: BaseException = base.__new__(kind, *args)
        base.__init__(error, *args)  # type: ignore[misc]
    except Exception:  # noqa: BLE001 arguments that the built-in does not take stay as they are
        error = BaseException.__new__(kind, *args)
    object.__setattr__(error, "args", error.args or args)
    return error
