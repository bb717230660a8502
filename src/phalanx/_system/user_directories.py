"""Where a user's own files are, as the XDG specification has it; and whose count as own ones."""

from __future__ import annotations

import os
from collections.abc import Mapping


def user_directory(environ: Mapping[str, str], variable: str, default: str) -> str:
    """The directory that a variable names, or the default below the home directory.

    A path that is not absolute counts as none: it would be what the working directory offers.
    Raises `RuntimeError` where nobody knows what the home directory is.
    """
    path = environ.get(variable, "")
    if os.path.isabs(path):
        return path
    home = environ.get("HOME", "")
    if not os.path.isabs(home):
        import pwd

        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            raise RuntimeError(f"no home directory: set HOME or {variable}") from None
    return os.path.join(home, default)


def is_own(user: int) -> bool:
    """Whether a user's files are this one's own: those of whose home is used are as well.

    Another user's home is used on purpose: root's with `sudo`, a mounted one in a container.
    """
    return user in (os.geteuid(), _owner_of_home())


def _owner_of_home() -> int | None:
    try:
        return os.stat(user_directory(os.environ, "HOME", "")).st_uid
    except (OSError, RuntimeError):
        return None
