"""What a replica finds in its filesystem, and the `type=bind,src=…,dst=…` way to write it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx._core.suggestions import closest, did_you_mean
from phalanx.errors import ConfigError, UnknownName


@dataclass(frozen=True)
class BindMount:
    """A path of the host."""

    src_path: str
    """The path on the host."""
    dst_path: str
    """The path that the replica sees."""
    read_only: bool = False
    """The replica cannot write to it."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        _check_texts(self, "src_path", "dst_path")


@dataclass(frozen=True)
class VolumeMount:
    """A volume that the scheduler knows by name."""

    src: str
    """The volume's name."""
    dst_path: str
    """The path that the replica sees."""
    read_only: bool = False
    """The replica cannot write to it."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        _check_texts(self, "src", "dst_path")


@dataclass(frozen=True)
class DeviceMount:
    """A device of the host."""

    src_path: str
    """The device on the host."""
    dst_path: str
    """The path that the replica sees."""
    permissions: str = "rwm"
    """Some of r (read), w (write) and m (make)."""

    def __post_init__(self) -> None:
        """Raises `ConfigError`."""
        _check_texts(self, "src_path", "dst_path", "permissions")
        if not self.permissions or not set(self.permissions) <= set("rwm"):
            raise ConfigError(
                f"DeviceMount.permissions: {self.permissions!r} must consist of r, w and m."
            )


def _check_texts(mount: object, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(mount, name), str) or not getattr(mount, name):
            where = f"{type(mount).__name__}.{name}"
            raise ConfigError(f"{where}: {getattr(mount, name)!r} is not a string.")


Mount = BindMount | VolumeMount | DeviceMount

KINDS: dict[str, type[BindMount | VolumeMount | DeviceMount]] = {
    "bind": BindMount,
    "volume": VolumeMount,
    "device": DeviceMount,
}

_ALIASES = {
    "src": "src",
    "source": "src",
    "dst": "dst",
    "destination": "dst",
    "target": "dst",
    "readonly": "readonly",
    "read_only": "readonly",
    "perm": "perm",
}
_EXAMPLE = "Example: type=bind,src=/data,dst=/data,readonly"


def parse_mounts(words: Iterable[str]) -> list[Mount]:
    """Mounts from words such as `["type=bind", "src=/a", "dst=/b", "readonly", "type=volume", …]`.

    Args:
        words: Each mount's words, `type=` first.

    Raises:
        UnknownName: A key that is unknown or missing.
        ConfigError: A key that is given twice, or a value that is wrong.
    """
    given: list[dict[str, str]] = []
    for word in words:
        key, _, value = word.strip().partition("=")
        if key == "type":
            given.append({"type": value})
        elif not given:
            raise UnknownName(f"mounts: {word!r} comes before any type=. {_EXAMPLE}")
        else:
            _add(given[-1], key, value, word)
    return [_make(mount) for mount in given]


def _add(mount: dict[str, str], key: str, value: str, word: str) -> None:
    if key not in _ALIASES:
        hint = did_you_mean(closest(key, _ALIASES), _EXAMPLE)
        raise UnknownName(f"mounts: unknown key {key!r}.{hint}")
    if _ALIASES[key] in mount:
        raise ConfigError(f"mounts: {word!r}: {key!r} is given twice. {_EXAMPLE}")
    mount[_ALIASES[key]] = value


def _make(given: dict[str, str]) -> Mount:
    kind = given["type"]
    if kind not in KINDS:
        raise ConfigError(f"mounts: unknown type {kind!r}; choose bind, volume or device.")
    unfit = {"device": "readonly"}.get(kind, "perm")
    if unfit in given:
        raise ConfigError(f"mounts: a {kind} mount has no {unfit!r}.")
    if not given.get("src") or not (given.get("dst") or kind == "device"):
        missing = "src" if not given.get("src") else "dst"
        raise UnknownName(f"mounts: a {kind} mount needs {missing}=. {_EXAMPLE}")
    src, dst = given["src"], given.get("dst") or given["src"]
    if kind == "bind" and src.startswith("~"):
        src = os.path.expanduser(src)
    if kind == "device":
        return DeviceMount(src, dst, given.get("perm", "rwm"))
    read_only = _read_only(given.get("readonly"))
    return BindMount(src, dst, read_only) if kind == "bind" else VolumeMount(src, dst, read_only)


def _read_only(text: str | None) -> bool:
    if text is None:
        return False
    if text.lower() in ("", "true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ConfigError(f"mounts: readonly={text!r}: must be true or false.")
