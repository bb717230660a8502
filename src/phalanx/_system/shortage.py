"""Errors that come of a limit on processes, threads or open files, in words that name the limit."""

from __future__ import annotations

import errno
import os


def is_shortage(error: BaseException) -> bool:
    """The error says that this process may have no more of something."""
    if isinstance(error, OSError):
        return error.errno in (errno.EAGAIN, errno.EMFILE, errno.ENFILE)
    return type(error) is RuntimeError and str(error) == "can't start new thread"


def describe(error: BaseException) -> str:
    """The error; of one that comes of a limit, which limit that is and how to raise it."""
    if not is_shortage(error):
        return str(error)
    import resource

    if isinstance(error, OSError) and error.errno == errno.ENFILE:
        return "too many open files on this machine. Raise its limit: sysctl fs.file-max"
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"too many open files. Raise the limit, which is {limit}: ulimit -n"
    what, group = "too many processes and threads", "the control group's limit: pids.max"
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY or os.geteuid() == 0:  # root has no other
        return f"{what}. Raise {group}"
    return f"{what}. Raise the user's limit, which is {limit}: ulimit -u; or {group}"
