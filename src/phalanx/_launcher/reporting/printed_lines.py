"""What workers have printed, read back from their log files."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from phalanx._core.rounds import Member
from phalanx._logs.lines import LogLine, rank_line
from phalanx._registry.log_reader import LogReader


def read_lines(
    files: Mapping[int, Path],
    members: Mapping[int, Member],
    ended: threading.Event,
    *,
    follow: bool,
) -> Iterator[LogLine]:
    """The lines of these ranks' files; with `follow`, also those that come until it has `ended`."""
    readers = {rank: LogReader(path) for rank, path in files.items()}
    while True:
        final = ended.is_set()
        for rank, reader in readers.items():
            member = members[rank]
            for _, text in reader.read(final=final):
                yield rank_line(rank, member.hostname, rank - member.first_rank, text)
        if final or not follow:
            return
        ended.wait(0.05)
