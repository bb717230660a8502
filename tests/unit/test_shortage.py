"""Which limit an error is of."""

import errno
import os
import resource

import pytest

from phalanx._system import shortage

MANY = 63_000


@pytest.mark.parametrize(
    ("error", "user", "limit", "words"),
    [
        (OSError(errno.EMFILE, ""), 1, MANY, "which is 63000: ulimit -n"),
        (
            OSError(errno.ENFILE, ""),
            1,
            MANY,
            "on this machine. Raise its limit: sysctl fs.file-max",
        ),
        (OSError(errno.EAGAIN, ""), 1, MANY, "which is 63000: ulimit -u; or the control group's"),
        (
            RuntimeError("can't start new thread"),
            1,
            -1,
            "Raise the control group's limit: pids.max",
        ),
        (RuntimeError("can't start new thread"), 0, MANY, "threads. Raise the control group's"),
        (RuntimeError("something else"), 1, MANY, "something else"),
        (OSError(errno.EPERM, "no"), 1, MANY, "no"),
    ],
)
def test_the_limit_is_named_that_was_met(error, user, limit, words, monkeypatch):
    """Root has none of its own; a control group's may be met before a user's."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert words in shortage.describe(error)
    assert shortage.is_shortage(error) == (words not in ("something else", "no"))
