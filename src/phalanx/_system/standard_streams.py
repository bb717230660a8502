"""Descriptors 0 to 2 where they were closed, as a service or `<&- >&- 2>&-` has it."""

from __future__ import annotations

import os
import sys


def fill() -> None:
    """Have something on 0 to 2 that goes nowhere.

    What is opened next would be given these numbers otherwise, a connection perhaps, and what a
    library prints would go into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    # Python has None there, and prints to stdout what is meant for a stderr that is None.
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 it stays
