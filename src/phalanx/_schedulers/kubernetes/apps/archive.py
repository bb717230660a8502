"""Files that travel in the cluster's own objects: a project, and Phalanx itself.

A gzipped tar, cut into pieces that fit into Secrets; a shell in the pod puts them together and
unpacks them, with tar or Python, whichever the image has.
"""

from __future__ import annotations

import base64
import gzip
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx._images.context import BuildContext, list_files
from phalanx.errors import ConfigError

MOST = 1 << 20
"""Bytes, compressed, of a project that needs neither a registry nor a volume."""
_HOPELESS = 64 << 20
"""Bytes of a project that nobody need compress to know."""
_PIECE = 180 << 10
"""Bytes in one Secret: `kubectl apply` notes an object in an annotation, which has 256 KiB."""


@dataclass(frozen=True)
class PackedFiles:
    """An archive in pieces."""

    name: str
    """Of its Secrets, but for their number."""
    data: bytes

    @property
    def pieces(self) -> list[bytes]:
        """In order."""
        return [self.data[at : at + _PIECE] for at in range(0, len(self.data), _PIECE)]

    @property
    def secrets(self) -> list[str]:
        """The names of its Secrets."""
        return [f"{self.name}-{number}" for number in range(len(self.pieces))]

    def objects(self, metadata: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Its Secrets."""
        return [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {**metadata, "name": name},
                "type": "Opaque",
                "data": {"piece": base64.b64encode(piece).decode()},
            }
            for name, piece in zip(self.secrets, self.pieces, strict=True)
        ]

    def volume(self, name: str) -> dict[str, Any]:
        """A volume of a pod with all pieces, named so that their order is that of names."""
        sources = [
            {"secret": {"name": secret, "items": [{"key": "piece", "path": f"piece-{number:03}"}]}}
            for number, secret in enumerate(self.secrets)
        ]
        return {"name": name, "projected": {"sources": sources}}


def pack_project(project: str) -> bytes:
    """A project's files, as hosts are sent them. Raises `ConfigError` where they are too many."""
    context = list_files(project, None)
    if context.size > _HOPELESS:
        raise _too_large(context, "")
    packed = _pack(context)
    if len(packed) > MOST:
        raise _too_large(context, f", {len(packed) / MOST:.1f} MiB compressed")
    return packed


def _too_large(context: BuildContext, compressed: str) -> ConfigError:
    return ConfigError(
        f"{context.project} is too large to travel in the cluster's own objects: "
        f"{len(context.files)} files, {context.size / MOST:.1f} MiB{compressed}; the maximum is "
        "1 MiB compressed. Set image_repo=REGISTRY/NAME to put it into an image, mount a volume "
        "that has it and run with --workspace '', or exclude files in .phalanxignore"
    )


def _pack(context: BuildContext) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in context.files:
            info = tarfile.TarInfo(file.path)
            info.mode, info.mtime, info.size = file.mode, file.mtime, file.size
            if file.link is not None:
                info.type, info.linkname = tarfile.SYMTYPE, file.link
                tar.addfile(info)
            else:
                tar.addfile(info, io.BytesIO(context.read(file)))
    return buffer.getvalue()


def pack_phalanx() -> bytes:
    """Phalanx itself, for programs that need it."""
    from phalanx._launcher.transport.bundle import make_bundle

    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, data in sorted(make_bundle().files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
