"""Where the token of a run comes from, for the hosts of a rendezvous.

| asked in this order                                   | who made it                            |
|-------------------------------------------------------|----------------------------------------|
| $PHALANX_RDZV_TOKEN                                   | the scheduler, or the user             |
| the file $PHALANX_RDZV_TOKEN_FILE                     | the scheduler, or the user             |
| the setting token_file                                | the user                               |
| rendezvous.token in $XDG_CONFIG_HOME/phalanx          | the user, in a home that hosts share   |
| loopback.token in $XDG_STATE_HOME/phalanx             | we, for a rendezvous at loopback      |

Without any, whoever reaches the port and knows the run id can take part, as with torchrun.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

from phalanx._channel import tokens
from phalanx._system.user_directories import user_directory

VARIABLE = "PHALANX_RDZV_TOKEN"
FILE_VARIABLE = f"{VARIABLE}_FILE"
"""Where the environment can be read by others, it names a file instead."""


def _may_be_there(path: str) -> bool:
    """A file that cannot be seen, or a link to none, was put there for a reason."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def find_token(environ: Mapping[str, str], token_file: str | None, *, local: bool) -> str | None:
    """The token of a run; `local`: all its hosts are this machine. Raises `ConfigError`."""
    if VARIABLE in environ:
        return tokens.check_token(environ[VARIABLE], VARIABLE)
    if FILE_VARIABLE in environ:
        return tokens.read_token(environ[FILE_VARIABLE], is_private=False)
    if token_file is not None:
        return tokens.read_token(os.path.expanduser(token_file))
    with contextlib.suppress(RuntimeError):  # nowhere to keep one
        config = user_directory(environ, "XDG_CONFIG_HOME", ".config")
        shared = os.path.join(config, "phalanx", "rendezvous.token")
        if _may_be_there(shared):
            return tokens.read_token(shared)
    with contextlib.suppress(RuntimeError):
        state = user_directory(environ, "XDG_STATE_HOME", ".local/state")
        if local:
            return tokens.own_token(os.path.join(state, "phalanx", "loopback.token"))
    return None
