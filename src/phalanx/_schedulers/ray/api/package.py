"""The zip files that travel to a cluster: a project, and Phalanx with what its driver is told."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from phalanx._images.context import BuildContext, list_files
from phalanx._schedulers.ray.api.dashboard import Dashboard
from phalanx.errors import ConfigError

LIMIT = 256 << 20
"""Bytes of a package that a cluster keeps in the memory of its head."""
DRIVER = "phalanx_on_ray"
"""The module that a job runs. Phalanx is in a directory of its own below it, so that it, and the
packages it comes with, are not in the way of those that Ray's own processes import."""
CODE, REQUEST = "code", "request.json"
_MAIN = f"""import os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), {CODE!r}))
from phalanx._schedulers.ray.cluster.driver import main
main(os.path.join(os.path.dirname(os.path.abspath(__file__)), {REQUEST!r}))
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Package:
    """A zip file, named by its content, so that what a cluster has is not sent again."""

    data: bytes

    @property
    def name(self) -> str:
        """As a cluster keeps it."""
        return f"_ray_pkg_{hashlib.sha256(self.data).hexdigest()[:32]}.zip"

    @property
    def uri(self) -> str:
        """As nodes ask for it."""
        return f"gcs://{self.name}"

    def provide(self, dashboard: Dashboard) -> str:
        """Have the cluster keep it; gives the URI."""
        if not dashboard.has_package(self.name):
            dashboard.put_package(self.name, self.data)
        return self.uri


def plan_project(project: str, only: Collection[str] | None = None) -> BuildContext:
    """The files of a project, or `only` some. Raises `ConfigError` where they are too many."""
    context = list_files(project, None, only)
    if context.size > LIMIT:
        raise ConfigError(
            f"ray: {project} is too large to travel: {len(context.files)} files, "
            f"{context.size / (1 << 20):.0f} MiB; the maximum is {LIMIT >> 20} MiB. Exclude files "
            "in .phalanxignore, or name a zip file that nodes can load: working_dir=s3://…"
        )
    return context


def pack_project(context: BuildContext) -> Package:
    """A project's files. Links become what they lead to: zip files of Ray's have none."""
    entries = []
    for file in context.files:
        if file.link is None:
            entries.append((file.path, context.read(file), file.mode))
            continue
        full = os.path.join(context.project, file.path)
        if os.path.isfile(full):
            with open(full, "rb") as opened:
                entries.append((file.path, opened.read(), 0o644))
    # Ray takes no empty package.
    return _pack(entries or [(".phalanx-empty", b"", 0o644)])


def executables(context: BuildContext) -> list[str]:
    """The files that may be executed, which Ray forgets when it unpacks them."""
    return [file.path for file in context.files if file.link is None and file.mode & 0o100]


def pack_driver(request: dict[str, Any]) -> Package:
    """Phalanx itself, and what the driver is told."""
    from phalanx._launcher.transport.bundle import make_bundle

    files = sorted(make_bundle().files.items())
    return _pack(
        [
            (f"{DRIVER}/__init__.py", b"", 0o644),
            (f"{DRIVER}/__main__.py", _MAIN.encode(), 0o644),
            (f"{DRIVER}/{REQUEST}", json.dumps(request).encode(), 0o600),
            *((f"{DRIVER}/{CODE}/{name}", data, 0o644) for name, data in files),
        ]
    )


def _pack(entries: Iterable[tuple[str, bytes, int]]) -> Package:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data, mode in entries:
            info = zipfile.ZipInfo(path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = mode << 16
            archive.writestr(info, data)
    return Package(buffer.getvalue())


def read_requirements(path: str | None) -> list[str]:
    """The lines of a requirements file. Raises `ConfigError`."""
    if path is None:
        return []
    try:
        with open(os.path.expanduser(path)) as file:
            lines = [line.partition(" #")[0].strip() for line in file]
    except OSError as error:
        raise ConfigError(f"ray: cannot read requirements {path}: {error.strerror}.") from None
    return [line for line in lines if line and not line.startswith("#")]
