"""Where the output of many calls goes: a directory for all of them, a file for each that prints."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from phalanx._core.rounds import Member
from phalanx._logs.lines import sources
from phalanx._logs.spec import LOG_DIR, LogSpec, RankFile, timestamp, warn_unwritable


class CallLogSpec(LogSpec):
    """The files of one call, made when something is printed: `{item}.log`, or one for each rank."""

    def __init__(self, directory: Path | None, item: int) -> None:
        """For the item of this number; without a directory nothing is kept."""
        self.log_dir = directory
        self._item = item

    def get_map(self) -> dict[str, list[logging.Handler]]:
        """Nothing without members."""
        return {}

    def for_members(self, members: Sequence[Member]) -> dict[str, list[logging.Handler]]:
        """A file for each worker; what agents say of themselves is not kept."""
        if self.log_dir is None:
            return {}
        table: dict[str, list[logging.Handler]] = {}
        several = sum(member.workers for member in members) > 1
        for source in sources(members):
            handlers = table.setdefault(source.name, [])
            if source.rank is not None:
                rank = f"[{source.rank}]" if several else ""
                path = self.log_dir / f"{self._item}{rank}.log"
                handlers.append(RankFile(path, key=source.key))
        return table


def new_directory(title: str) -> Path | None:
    """A name for the directory of a map that begins now; it is made with its first file.

    None, with a warning, where no file can be written.
    """
    path = Path(LOG_DIR).absolute() / f"{timestamp()}-{title}"
    try:
        path.mkdir(parents=True)
        path.rmdir()
    except OSError as error:
        warn_unwritable(Path(LOG_DIR), error)
        return None
    return path
