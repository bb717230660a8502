"""Packages that this host does not have: which interpreter lacks them, and the way out."""

from __future__ import annotations

import importlib.util
import os
import sys

from phalanx._core.ranks import HOST


def describe(message: str, host: str, python: str, option: str) -> str:
    """What an import said that found nothing, with where that was and how to choose another."""
    return (
        f"{message} on {host} ({python}). Install it there, or choose another interpreter "
        f"with {option}"
    )


def explain(error: BaseException) -> str | None:
    """Have an exception that was raised for want of a package say where that was looked for.

    Gives the package's name; None for any other exception.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name or "." in error.name:
        return None
    try:
        if importlib.util.find_spec(error.name) is not None:
            return None
    except ValueError:  # it is half loaded
        return None
    host = os.environ.get(HOST, "this host")
    error.msg = describe(error.msg, host, sys.executable, "python= (--python)")
    error.args = (error.msg,)
    return error.name
