"""How a host is named, and the command that leads there. Pure.

What is run there goes through the user's login shell, which may be csh or fish: single quotes alone
mean the same to all of them, so what we have within has none, nor `!`, backslash or newline.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx._remote.bootstrap import NO_BIN_PYTHON, NO_PYTHON
from phalanx._schedulers.leases import GroupCommand
from phalanx.errors import ConfigError

CONNECT_TIMEOUT = 8
"""Seconds for a host to answer."""

# The channel gets descriptors of its own, 3 and 4; nothing else that runs there can touch it. Then
# the marker, behind which our words begin. Arguments: marker, program, version, interpreters.
_STUB = (
    "exec 3<&0 4>&1 0</dev/null 1>&2; "
    'echo "$1" >&4; program=$2 version=$3; shift 3; '
    f"code={NO_PYTHON}; "
    "for python; do "
    'case $python in "~/"*) python=$HOME/${python#"~/"};; esac; '
    'if [ -d "$python" ]; then '
    f'python=$python/bin/python; [ -e "$python" ] || code={NO_BIN_PYTHON}; fi; '
    'if command -v "$python" >/dev/null 2>&1; then '
    # The one that is meant by a general name may be of another version than one beside it.
    'if [ "$python" = python3 ] && command -v "python$version" >/dev/null 2>&1; then '
    'python3 -c "import sys; sys.exit(0 if sys.version.startswith(sys.argv[1]) else 1)" '
    '"$version." || python=python$version; fi; '
    'exec "$python" -c "$program" 3<&3 4>&4; fi; done; '
    'exit "$code"'
)

_PROGRAM = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    'incoming = open(3, "rb", closefd=False); '
    'exec(compile(incoming.read(int(incoming.readline())), "phalanx", "exec")); '
    "{entry}(incoming)"
)


_NO_PYTHON_S = re.compile(r"syntax error|sys\.path\[:\]|\bimport: ", re.IGNORECASE)


def is_of_no_python(said: str) -> bool:
    """Something that is no Python was given our program, and complains of it, or shows it."""
    return 'File "' not in said and _NO_PYTHON_S.search(said) is not None


@dataclass(frozen=True)
class Target:
    """A host, as the user names it, and the interpreters to try there, in order."""

    name: str
    pythons: tuple[str, ...]
    transport: tuple[str, ...]
    """The command that runs another one there, given behind it."""
    through_shell: bool = True
    """What is given is read by a shell there; otherwise it is taken as it is."""
    without: frozenset[str] = frozenset()
    """Environment variables that the command must not have."""
    reconnect_timeout: float | None = None
    """The default of the launcher's option; None where what was started there ends with the command
    that led to it."""
    gone_code: int | None = None
    """The command's exit code where there is no such host any more."""
    group: GroupCommand | None = None
    """What leads there and to others by one start."""

    @property
    def tool(self) -> str:
        """What leads there."""
        return self.transport[0] if self.transport else "sh"

    def trial(self, *, may_ask: bool) -> str:
        """A command for the user to try: as we do, or so that it asks, as ssh does by itself."""
        given = dict(zip(self.transport[1::2], self.transport[2::2], strict=False))
        kept = [word for flag in ("-F", "-p") if flag in given for word in (flag, given[flag])]
        host = f"{given['-l']}@{self.transport[-1]}" if "-l" in given else self.transport[-1]
        batch = () if may_ask else ("-o", "BatchMode=yes")
        return shlex.join(["ssh", *kept, *batch, host, "true"])

    def words(self, marker: str, entry: str) -> list[str]:
        """What runs a text of ours on the host: the function `entry` of it is called."""
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        words = ["/bin/sh", "-c", _STUB, "phalanx", marker, _PROGRAM.format(entry=entry), version]
        return [*words, *self.pythons]

    def command(self, marker: str, entry: str) -> list[str]:
        """The command that leads there and runs them."""
        words = self.words(marker, entry)
        if self.through_shell:
            return [*self.transport, "exec " + " ".join(map(_quoted, words))]
        return [*self.transport, *words]


def to_record(target: Target) -> dict[str, Any]:
    """A way to a host as data, for another process of the same user."""
    fields = {name: getattr(target, name) for name in ("name", "pythons", "transport")}
    return {**fields, "through_shell": target.through_shell, "without": sorted(target.without)}


def from_record(facts: Mapping[str, Any]) -> Target:
    """The way to a host that another process has recorded."""
    return Target(
        str(facts["name"]),
        tuple(map(str, facts["pythons"])),
        tuple(map(str, facts["transport"])),
        through_shell=bool(facts["through_shell"]),
        without=frozenset(map(str, facts["without"])),
    )


def _quoted(word: str) -> str:
    """In single quotes, whatever it is: some shells want it for characters that others do not."""
    return shlex.quote(word) if "'" in word else f"'{word}'"


def ssh_target(
    name: str, pythons: Sequence[str], *, config_file: str | None, host_timeout: float
) -> Target:
    """A host that the user's ssh knows: `host`, `user@host`, `host:port`, `user@host:port`."""
    user, host, port = parse(name)
    alive = max(1, round(host_timeout / 3))
    options = [
        "BatchMode=yes",
        f"ConnectTimeout={CONNECT_TIMEOUT}",
        f"ServerAliveInterval={alive}",
        "ServerAliveCountMax=3",
        "ControlMaster=no",  # one that is there is used; ours would end with us, and with it others
        "ForwardX11=no",
        "ClearAllForwardings=yes",
        "RemoteCommand=none",
        "RequestTTY=no",
    ]
    transport = ["ssh"]
    if config_file is not None:
        # The program may change its directory before it dials again.
        transport += ["-F", os.path.abspath(os.path.expanduser(config_file))]
    for option in options:
        transport += ["-o", option]
    if user is not None:
        transport += ["-l", user]
    if port is not None:
        transport += ["-p", port]
    return Target(name, tuple(pythons), (*transport, "--", host), reconnect_timeout=0.0)


def parse(name: str) -> tuple[str | None, str, str | None]:
    """User, host and port of a name. Raises `ConfigError` for what is none."""
    found = re.fullmatch(
        r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^@\[\]\s]+?))"
        r"(?::(?P<port>\d+))?",
        name,
    )
    if found is not None and found["host"] and ":" in found["host"]:
        # More than one colon: an address of version 6, which has no port unless in brackets.
        found = re.fullmatch(
            r"(?:(?P<user>[^@\s]+)@)?(?P<host>[^@\[\]\s]+)(?P<six>)(?P<port>)", name
        )
    host = found and (found["six"] or found["host"])
    if (
        found is None
        or not host
        or name.startswith("-")
        or host.startswith("-")
        or {",", "\0"} & {*name}
    ):
        hint = "Write host, user@host or user@host:port."
        if "," in name:
            names = [part.strip() for part in name.split(",") if part.strip()]
            hint = f"Name each host by itself: {names}; in a shell: {' '.join(names)}"
        raise ConfigError(f"{name!r} is not a valid host. {hint}")
    return found["user"], host, found["port"] or None


def pythons(wanted: object, name: str, otherwise: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The interpreters to try on a host: the one named for it or for all, or one like this."""
    chosen = wanted.get(name) if isinstance(wanted, Mapping) else wanted
    if chosen is None:
        return otherwise or (sys.executable, "python3")
    return (str(chosen),)
