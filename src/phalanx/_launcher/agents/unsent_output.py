"""What workers on this machine have printed and their agent, which was killed, has not sent.

The files are opened before what runs there is ended and the agent's directory removed, and read
after that: then nothing is added any more.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping

from phalanx import _wire as wire
from phalanx._agent.rounds import output_files
from phalanx._core.rounds import Member

Received = Callable[[int, int, str], int]
"""How much has come of a stream, by its round, rank and name."""


class UnsentOutput:
    """The files of an agent's rounds, held open."""

    def __init__(
        self,
        spool: str,
        app: str,
        members: Mapping[int, Member],
        records: Callable[[Member], tuple[int, ...]],
    ) -> None:
        """Open those that are there. Raises `OSError` when that cannot be done."""
        self._streams: list[tuple[int, output_files.OutputFile]] = []
        try:
            for number, member in members.items():
                directory = os.path.join(spool, f"{app}-{number}")
                if number == max(members) and not os.path.isdir(directory):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), directory)
                ranks = {member.first_rank + local for local in records(member)}
                for stream in output_files.streams(directory, member.ranks, records=ranks):
                    if stream.open():
                        self._streams.append((number, stream))
        except OSError:
            self.close()
            raise

    def frames(self, received: Received) -> Iterator[wire.LogData]:
        """What has not come, as the agent would have sent it."""
        for number, stream in self._streams:
            stream.skip(received(number, stream.rank, stream.name))
            while data := stream.read(final=True):
                yield wire.LogData(round=number, rank=stream.rank, stream=stream.name, data=data)

    def close(self) -> None:
        """Let go of the files."""
        for _, stream in self._streams:
            stream.close()
