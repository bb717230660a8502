"""The agent's code, with the packages it needs, as it travels to hosts that do not have it."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

_PACKAGES = ("phalanx", "msgpack", "cloudpickle")
"""Pure Python, or, as msgpack, with a part in Python that does without the rest."""


@dataclass(frozen=True)
class Bundle:
    """Some files, and the digest that names them: see `bootstrap.digest_of`."""

    files: dict[str, bytes]
    digest: str

    @classmethod
    def of(cls, files: dict[str, bytes]) -> Bundle:
        """These, by their paths."""
        digest = hashlib.sha256()
        for name in sorted(files):
            digest.update(f"{name} {hashlib.sha256(files[name]).hexdigest()}\n".encode())
        return cls(files, digest.hexdigest())

    def archive(self) -> bytes:
        """As a zip file; made once for all hosts."""
        with _MAKING:
            if self.digest not in _MADE:
                _MADE.clear()
                _MADE[self.digest] = self._pack()
            return _MADE[self.digest]

    def _pack(self) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self.files.items():
                archive.writestr(name, data)
        return buffer.getvalue()


_MAKING = threading.Lock()
_MADE: dict[str, bytes] = {}


def make_bundle() -> Bundle:
    """The code as it is on this machine now."""
    files = {}
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        root = Path(spec.origin).parent
        for path in root.rglob("*.py"):
            files[os.path.join(package, path.relative_to(root))] = path.read_bytes()
    return Bundle.of(files)
