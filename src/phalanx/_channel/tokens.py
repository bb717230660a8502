"""The secret that peers prove to each other: made, and read from files that only the user has.

Not in `trust`, which proves it: who only hands a token on needs no event loop.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile

from phalanx.errors import ConfigError

_SHORTEST = 16
"""Characters of a token: one that can be guessed proves nothing."""


def make_token() -> str:
    """A token that nobody can guess."""
    return os.urandom(32).hex()


def check_token(token: str, where: str) -> str:
    """The token, without the white space around it. Raises `ConfigError` for one too short."""
    token = token.strip()
    if len(token) < _SHORTEST:
        raise ConfigError(
            f"{where}: a token must have at least {_SHORTEST} characters. "
            "Create one with: openssl rand -hex 32"
        )
    return token


def read_token(path: str, *, is_private: bool = True) -> str:
    """The token in a file that nobody but its owner, the user, may read. Raises `ConfigError`.

    Args:
        path: The file.
        is_private: False where others may read it, but not write to it: in a container, where
            whoever runs belongs to the app.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not hold us up
    except OSError as error:
        raise ConfigError(f"cannot read token file {path}: {error.strerror}.") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigError(f"token file {path} is not a regular file.")
        forbidden = 0o077 if is_private else 0o022
        if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & forbidden:
            raise ConfigError(f"token file {path} is accessible by others. Run: chmod 600 {path}")
        text = os.read(descriptor, 4096).decode(errors="surrogateescape")
    finally:
        os.close(descriptor)
    return check_token(text, path)


def own_token(path: str) -> str | None:
    """The token in a file of the user's on this machine, made if it is not there.

    None where it cannot be kept. Raises `ConfigError` if others may read it.
    """
    if not os.path.lexists(path):
        with contextlib.suppress(OSError):
            directory = os.path.dirname(path)
            os.makedirs(directory, mode=0o700, exist_ok=True)
            descriptor, made = tempfile.mkstemp(prefix=".token-", dir=directory)
            try:
                with open(descriptor, "w") as file:
                    file.write(make_token())
                with contextlib.suppress(FileExistsError):
                    os.link(made, path)  # of several at once, all have the first one's
            finally:
                os.unlink(made)
    return read_token(path) if os.path.lexists(path) else None
