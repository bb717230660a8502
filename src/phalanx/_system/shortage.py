"""Errors that come of a limit on processes, threads or open files, in words that name the limit."""

from __future__ import annotations

import errno


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

    if isinstance(error, OSError) and error.errno != errno.EAGAIN:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"too many open files. Raise the limit, which is {limit}: ulimit -n"
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit == resource.RLIM_INFINITY:
        return "too many processes and threads. Raise the control group's limit: pids.max"
    return f"too many processes and threads. Raise the user's limit, which is {limit}: ulimit -u"
