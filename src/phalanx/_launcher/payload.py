"""The function on its way out, values and exceptions on their way home."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import io
import os
import pickle
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import IO, Any

from phalanx import _wire as wire
from phalanx._core.rounds import Ended, ExceptionInfo, Outcome
from phalanx._launcher.planning.imports import Needs
from phalanx._worker import outcome
from phalanx._worker.outcome import LARGE
from phalanx.errors import ConfigError, WireError


@dataclass(frozen=True)
class Function:
    """A function and its arguments, pickled once for all ranks."""

    data: bytes
    digest: str
    uses_torch: bool
    """It is named, and installed here."""
    names_torch: bool

    def pieces(self) -> Iterator[wire.Piece]:
        """The frames that carry it."""
        total = len(self.data)
        for offset in range(0, total, wire.PIECE):
            data = self.data[offset : offset + wire.PIECE]
            yield wire.Piece(key=self.digest, offset=offset, total=total, data=data)


def pack(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    needs: Needs,
) -> Function:
    """Pickle a call. Raises `ConfigError` that names what cannot be pickled."""
    try:
        data = _pickle(function, (function, tuple(args), dict(kwargs)))
    except Exception as error:
        name = getattr(function, "__qualname__", None) or repr(function)
        raise ConfigError(
            f"{name} or its arguments cannot be pickled: {type(error).__name__}: {error}. "
            "Create what cannot be pickled inside the function."
        ) from error
    return Function(data, hashlib.sha256(data).hexdigest(), needs.torch, needs.names_torch)


def pack_check(name: str, check: Callable[[], Any]) -> bytes:
    """Pickle a check of hosts. Raises `ConfigError` that names it."""
    try:
        return _pickle(check, check)
    except Exception as error:
        raise ConfigError(
            f"the host check {name} cannot be pickled: {type(error).__name__}: {error}."
        ) from error


def _pickle(function: Callable[..., Any], value: object) -> bytes:
    """Pickle something that has a function in it; its module by value if workers have none such."""
    import cloudpickle

    with _by_value(sys.modules.get(getattr(function, "__module__", None) or "")):
        data: bytes = cloudpickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return data


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Have a module that workers could not import pickled by value; the list is global."""
    import cloudpickle

    with _REGISTERING:
        known = cloudpickle.list_registry_pickle_by_value()
        mine = module is not None and module.__name__ not in known and not _is_importable(module)
        if mine:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            if mine:
                cloudpickle.unregister_pickle_by_value(module)


_REGISTERING = threading.Lock()


def _is_importable(module: Any) -> bool:
    """Another process with the same `sys.path` finds this very module under its name."""
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" or file is None:
        return True  # cloudpickle takes __main__ by value anyway, and a built-in is everywhere
    if module.__name__.partition(".")[0] in sys.stdlib_module_names:
        return True  # frozen ones do not say where they come from
    parent = sys.modules.get(module.__name__.rpartition(".")[0])
    if parent is not None and not _is_importable(parent):
        return False
    path = getattr(parent, "__path__", None)
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        spec = find(module.__name__, path) if find is not None else None
        if spec is not None:
            return os.path.realpath(str(spec.origin)) == os.path.realpath(str(file))
    return False


class Inboxes(dict[int, "Inbox"]):
    """What ranks have sent, by global rank."""

    def __init__(self) -> None:
        """Nothing was sent."""
        super().__init__()
        self._refused: dict[int, tuple[int, str]] = {}
        """The sizes of what could not be kept, and why."""

    def collect(self, piece: wire.Piece, rank: int) -> None:
        """Take the next piece of a rank's payload. Raises `WireError` for one that is not it."""
        if rank in self._refused:
            return
        try:
            if rank not in self:
                self[rank] = Inbox(piece.total)
            self[rank].add(piece)
        except OSError as error:
            self.forget((rank,))
            self._refused[rank] = piece.total, error.strerror or str(error)

    def adopt(self, file: wire.PayloadFile, rank: int, spool: str) -> None:
        """Take a rank's payload from where its agent has put it, on this machine."""
        path = os.path.join(spool, file.name)
        self.forget((rank,))
        try:
            opened = outcome.open_regular(path)
            os.unlink(path)
            self[rank] = Inbox(file.total, io.BufferedReader(opened))
        except OSError as error:
            self._refused[rank] = file.total, error.strerror or str(error)

    def complete(self, ended: Outcome) -> Outcome:
        """The outcome of a rank that has returned: a failure unless its value is here, whole."""
        rank = ended.rank
        if rank in self and self[rank].is_whole:
            return ended
        size, why = self._refused.get(rank, (0, "it arrived incomplete"))
        if rank in self._refused:
            why = f"cannot store it: {why}"
        name = f"value of {size} bytes" if size else "value"
        exception = ExceptionInfo(name, why, "", reraise=False, result=True)
        return dataclasses.replace(ended, kind=Ended.RAISED, exception=exception)

    def forget(self, ranks: Container[int] | None) -> None:
        """What these ranks, or all, gave in another round does not count any more."""
        for rank in [rank for rank in self._refused if ranks is None or rank in ranks]:
            del self._refused[rank]
        for rank in [rank for rank in self if ranks is None or rank in ranks]:
            self.pop(rank).close()


class Inbox:
    """Collects the pieces of one rank's payload, in memory or, if large, in a nameless file."""

    def __init__(self, total: int, whole: IO[bytes] | None = None) -> None:
        """Expect so many bytes, unless a file has them. Raises `OSError` if there is no room."""
        self._total = total
        self._size = 0 if whole is None else min(total, os.fstat(whole.fileno()).st_size)
        self._file: IO[bytes] = io.BytesIO() if whole is None else whole
        if whole is None and total > LARGE:
            if total > shutil.disk_usage(tempfile.gettempdir()).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 closed by `close`

    @property
    def is_whole(self) -> bool:
        """All of it is here."""
        return self._size == self._total

    def add(self, piece: wire.Piece) -> None:
        """Take the next piece. Raises `WireError` for any other, and `OSError`."""
        end = piece.offset + len(piece.data)
        if piece.total != self._total or piece.offset != self._size or not self._size < end:
            raise WireError(f"a piece at {piece.offset} of {piece.total} bytes out of its turn")
        if end > self._total:
            raise WireError(f"{end} bytes of a value of {self._total}")
        self._file.write(piece.data)
        self._file.flush()  # else a full disk would be noticed by whoever reads it
        self._size = end

    def load(self) -> Any:
        """Unpickle it. Never on the loop's thread: it runs the user's code."""
        self._file.seek(0)
        return outcome.load(self._file)

    def close(self) -> None:
        """Free it."""
        with contextlib.suppress(OSError):  # what a full disk has not taken is tried once more
            self._file.close()
