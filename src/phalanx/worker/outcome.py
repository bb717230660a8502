"""Turn what the function did into bytes on disk and an `Outcome`, whatever it did.

Values and exceptions are pickled into a file of the rank's directory. An exception is pickled
without calling its class's constructor when it is read back: constructors have any signature, and
may have changed the message. Attributes that cannot be pickled are replaced by their `repr`.
"""

from __future__ import annotations

import builtins
import copyreg
import io
import os
import pickle
import re
import time
import traceback
from types import TracebackType
from typing import IO, Any

from phalanx.rounds import Ended, Fault, Outcome

PAYLOAD = "payload"
"""The file in a rank's directory that holds the pickled value or exception."""

REPORT = "report"
"""The file in a rank's directory that holds the report, where it could not be sent."""

_TEXT_LIMIT = 32 << 10
_WRITE = 1 << 20
_NOT_RAISED_AGAIN = (KeyboardInterrupt, SystemExit, GeneratorExit)
_COMMUNICATION = re.compile(
    r"gloo|nccl|connection (closed|reset|refused)|broken pipe|tcpstore|socket (closed|timeout)",
    re.IGNORECASE,
)


def returned(rank: int, value: object, directory: str) -> Outcome:
    """Store the value; if that cannot be done, the outcome says why."""
    try:
        _dump(value, os.path.join(directory, PAYLOAD))
    except Exception as error:  # noqa: BLE001 reducers are the user's code: they raise anything
        reason = f"{type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        fault = Fault(type_name(value), _clip(reason), _clip(text), result=True)
        return Outcome(rank, Ended.RAISED, time.monotonic(), os.getpid(), fault=fault)
    return Outcome(rank, Ended.RETURNED, time.monotonic(), os.getpid())


def raised(rank: int, error: BaseException, directory: str) -> Outcome:
    """Store the exception as well as it can be; describe it in any case."""
    clock = time.monotonic()
    fault = Fault(
        type_name=type_name(error),
        message=_clip(_message(error)),
        traceback=_clip(format_traceback(error)),
        communication=_is_communication(error),
        reraise=not isinstance(error, _NOT_RAISED_AGAIN)
        and type(error).__name__ != "CancelledError",
    )
    try:
        _dump(_Carried(error), os.path.join(directory, PAYLOAD))
    except Exception:  # noqa: BLE001 the description above is what is left
        _remove(os.path.join(directory, PAYLOAD))
    return Outcome(rank, Ended.RAISED, clock, os.getpid(), code=1, fault=fault)


def exited(rank: int, code: int) -> Outcome:
    """The function called `sys.exit` with a code other than 0."""
    return Outcome(rank, Ended.EXITED, time.monotonic(), os.getpid(), code=code)


def load(file: IO[bytes]) -> Any:
    """Read a payload back. Runs code of the sender: only for those we started ourselves."""
    return pickle.load(file)  # noqa: S301


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
    while step is not None and os.path.dirname(step.tb_frame.f_code.co_filename) == here:
        step = step.tb_next
    return step if step is not None else trace


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


def _dump(value: object, path: str) -> None:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        """Pickles by value what lives in `__main__`, exceptions without their constructors."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, _Carried):
                return _reduce_exception(obj.error, self.probe)
            if isinstance(obj, BaseException) and _reduces_by_default(obj):
                return _reduce_exception(obj, self.probe)
            if _has_lost_its_slots(obj):
                return copyreg.__newobj__, (type(obj),), vars(obj), None, None, set_attributes  # type: ignore[attr-defined]
            return super().reducer_override(obj)

        @classmethod
        def probe(cls, obj: object) -> bool:
            try:
                cls(io.BytesIO(), protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
            except Exception:  # noqa: BLE001 any refusal means no
                return False
            return True

    try:
        with open(path, "wb", buffering=_WRITE, opener=_private) as file:
            Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except BaseException:
        _remove(path)
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


class _Carried:
    """An exception on its way home: pickled as itself, by our rules, even if it has its own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _reduces_by_default(error: BaseException) -> bool:
    kind = type(error)
    own = [k for k in kind.__mro__ if k.__module__ != builtins.__name__]
    return not any("__reduce__" in vars(k) or "__reduce_ex__" in vars(k) for k in own)


def _reduce_exception(error: BaseException, probe: Any) -> tuple[Any, ...]:
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
    args = tuple(arg if probe(arg) else repr(arg) for arg in args)
    state = {k: v if probe(v) else repr(v) for k, v in state.items()}
    return rebuild_exception, (type(error), args, state)


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
    """Give an object its attributes, wherever its class keeps them."""
    for name, item in state.items():
        object.__setattr__(value, name, item)


def rebuild_exception(
    kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    """Make an exception of `kind` without running its own constructor, only the built-in one."""
    base = next(k for k in kind.__mro__ if k.__module__ == builtins.__name__)
    try:
        error: BaseException = base.__new__(kind, *args)
        base.__init__(error, *args)  # type: ignore[misc]
    except Exception:  # noqa: BLE001 arguments that the built-in does not take stay as they are
        error = BaseException.__new__(kind, *args)
    error.args = error.args or args
    for name, item in state.items():
        try:
            BaseException.__setattr__(error, name, item)
        except (AttributeError, TypeError):
            error.__dict__[name] = item  # a property of the class's own
    return error
