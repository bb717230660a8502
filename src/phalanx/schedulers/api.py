"""TorchX's interface of schedulers, in the module where it has it: for plugins written for it.

A plugin that imports from here instead of `torchx.schedulers.api`, and is registered under
`phalanx.schedulers`, runs as it is. New ones are written for `phalanx.schedulers.Scheduler`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from phalanx._core.lazy import loader
from phalanx._logs.lines import Stream
from phalanx._schedulers.torchx.dryrun_info import AppDryRunInfo
from phalanx._schedulers.torchx.interface import (
    DescribeAppResponse,
    ListAppResponse,
    TorchxScheduler,
)
from phalanx._schedulers.torchx.runopts import runopts
from phalanx._specs import AppState

Scheduler = TorchxScheduler

__all__ = [
    "AppDryRunInfo",
    "AppState",
    "DescribeAppResponse",
    "ListAppResponse",
    "Scheduler",
    "Stream",
    "filter_regex",
    "runopts",
    "split_lines",
    "split_lines_iterator",
]


def filter_regex(regex: str, data: Iterable[str]) -> Iterator[str]:
    """Texts in which a regular expression is found.

    Args:
        regex: The expression.
        data: The texts.
    """
    wanted = re.compile(regex)
    return (text for text in data if wanted.search(text))


def split_lines(text: str) -> list[str]:
    """A text's lines, with their ends.

    Args:
        text: The text.
    """
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def split_lines_iterator(chunks: Iterable[str]) -> Iterator[str]:
    """The lines of each piece, with their ends.

    Args:
        chunks: The pieces.
    """
    for chunk in chunks:
        yield from split_lines(chunk)


__getattr__ = loader(
    __name__,
    {},
    {
        "WorkspaceMixin": "subclass phalanx.schedulers.Scheduler: its roles have a workspace",
        "DAYS_IN_2_WEEKS": "write 14",
    },
)
