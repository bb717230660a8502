"""A channel that outlives the streams that carry it.

The end of a stream is the end of the channel only where the peer has said so (`EndOfFrames`). One
that merely breaks is replaced by another with `resume`, and both sides go on where they were; who
makes that stream, and for how long it is waited for, is the concern of others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import IO

from phalanx._channel.channel import PipeChannel
from phalanx._channel.ledger import FrameLedger
from phalanx._wire import Decoder, EndOfFrames, Frame, FramesReceived, encode
from phalanx.errors import WireError

_CONFIRMED_AFTER = 0.2
"""Seconds after which the peer is told what has come."""
_LAST_WORDS = 1.0
"""Seconds for which one is listened to that does not read any more."""


@dataclass
class ChannelState:
    """Where both directions stand; it outlives a channel that leaves its stream to another."""

    ledger: FrameLedger = field(default_factory=FrameLedger)
    decoder: Decoder = field(default_factory=Decoder)


class ResumableChannel(PipeChannel):
    """A channel over one pair of descriptors after another."""

    def __init__(self, state: ChannelState, on_break: Callable[[ResumableChannel], None]) -> None:
        """Use `over` instead. `on_break` is called when a stream has broken, on the loop."""
        super().__init__(state.decoder)
        self.state = state
        self.streams = 0
        """How many streams it has had."""
        self._on_break = on_break
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._confirmed = asyncio.Event()
        self._confirming: asyncio.TimerHandle | None = None
        self._is_closed = self._has_parted = self._has_said_end = False

    @classmethod
    async def over(
        cls,
        read: IO[bytes],
        write: IO[bytes],
        state: ChannelState,
        on_break: Callable[[ResumableChannel], None],
        held: Iterable[Frame] = (),
    ) -> ResumableChannel:
        """Take two descriptors over. The frames `held` have come before, and are counted."""
        channel = cls(state, on_break)
        channel._frames.extend(held)
        channel.streams = 1
        await channel._connect(read, write)
        return channel

    @property
    def is_connected(self) -> bool:
        """There is a stream."""
        return self._reader is not None and not self._is_closed

    @property
    def congested(self) -> bool:
        """The peer does not read as fast as we write, or cannot be written to."""
        return not self.is_connected or self.state.ledger.is_full or super().congested

    @property
    def is_written(self) -> bool:
        """There is a stream, and it has been given everything; or the channel has ended."""
        return self.has_ended or (self.is_connected and super().is_written)

    async def send_encoded(self, data: bytes) -> None:
        """Send a frame; waits while too much is kept. `ConnectionError` when the channel ended."""
        self._put(data)
        if self.state.ledger.is_full:
            self._has_room.clear()
        await self._writable.wait()
        await self._has_room.wait()

    def post(self, frame: Frame) -> None:
        """Send one frame without waiting; nothing when closed."""
        if not self._is_closed and not self.has_ended:
            self._put(encode(frame))

    def _put(self, data: bytes) -> None:
        if self._is_closed or self.has_ended:
            raise ConnectionResetError("the channel is closed")
        self.state.ledger.keep(data)
        self.send_raw(data)

    async def finish(self) -> None:
        """Say that nothing follows, and wait until the peer has everything, or the channel ends."""
        if self._is_closed or self.has_ended:
            self.part()
            return
        self._has_said_end = True
        self._put(encode(EndOfFrames()))
        while not (self.state.ledger.is_confirmed or self.has_ended or self._is_closed):
            self._confirmed.clear()
            await self._confirmed.wait()

    def part(self) -> None:
        """Tell the peer that nothing follows, and miss no stream that breaks from now on."""
        self._has_parted = True
        if not self._is_closed and not self._has_said_end:
            self._has_said_end = True
            self.send_raw(encode(EndOfFrames()))

    # ── streams ───────────────────────────────────────────────────────────────

    def break_off(self) -> bool:
        """Do without the stream that there is, for another: `on_break` is called."""
        if self.is_connected and not self.has_ended:
            self._drop()
            self._on_break(self)
        return not self.has_ended

    def detach(self) -> int:
        """Let go of the stream, if there is one, for another; gives how many frames have come."""
        self._drop()
        return self.state.ledger.received

    async def resume(
        self, read: IO[bytes], write: IO[bytes], count: int, early: bytes = b""
    ) -> None:
        """Go on over other descriptors, whose other side has so many frames of ours.

        What was read of it `early` comes first. Raises `WireError` for a number that cannot be.
        """
        self._drop()
        self.state.ledger.confirm(count)
        self._make_room()
        self.state.decoder = self._decoder = Decoder()
        self.streams += 1
        self._received(early)
        await self._connect(read, write)
        # Now, not sooner: more may have been sent while it was opened.
        for data in self.state.ledger.kept:
            self.send_raw(data)
        if self.state.ledger.is_owing:
            self._confirm()  # what came meanwhile could not be

    def give_up(self) -> None:
        """There will be no other stream: the channel has ended."""
        self._drop()
        self._end()

    def close(self) -> None:
        """Tell the peer that nothing follows, and close. Idempotent."""
        self.part()
        self._shut()
        super().close()

    def abort(self) -> None:
        """Close without a word: the stream may go on with another channel."""
        self._shut()
        self._abort_writer()
        super().close()

    def _shut(self) -> None:
        self._is_closed = True
        if self._confirming is not None:
            self._confirming.cancel()
        self._release()

    def _received(self, data: bytes) -> None:
        was = self.has_ended
        super()._received(data)
        if self._error is not None or (self.has_ended and not was):
            self._release()

    def _decode(self, data: bytes) -> list[Frame]:
        ledger = self.state.ledger
        taken: list[Frame] = []
        due = False
        frames = super()._decode(data)
        for frame in frames:
            if isinstance(frame, FramesReceived):
                ledger.confirm(frame.count)
                self._make_room()
                continue
            if self._ended:
                raise WireError(f"{type(frame).__name__} after the last frame")
            due |= ledger.receive(len(data) // len(frames))
            if isinstance(frame, EndOfFrames):
                self._ended = due = True
            else:
                taken.append(frame)
        if due:
            self._confirm()
        elif ledger.is_owing and self._confirming is None:
            loop = asyncio.get_running_loop()
            self._confirming = loop.call_later(_CONFIRMED_AFTER, self._confirm)
        return taken

    def _confirm(self) -> None:
        if self._confirming is not None:
            self._confirming.cancel()
            self._confirming = None
        if self.is_connected and self._writer is not None:
            self.send_raw(encode(FramesReceived(count=self.state.ledger.tell())))

    def _make_room(self) -> None:
        if not self.state.ledger.is_full:
            self._has_room.set()
        if self.state.ledger.is_confirmed:
            self._confirmed.set()

    def _closed(self) -> None:
        if self.has_ended or self._is_closed or self._has_parted:
            self._end()
        else:
            self.break_off()

    def _unwritable(self) -> None:
        # What can be read is heard first: it may be the last of the peer's words.
        super()._unwritable()
        asyncio.get_running_loop().call_later(_LAST_WORDS, self._check, self.streams)

    def _check(self, stream: int) -> None:
        if stream == self.streams and self._writer is None:
            self.break_off()

    def _end(self) -> None:
        self._ended = True
        self._changed.set()
        self._release()

    def _release(self) -> None:
        """Nobody waits any more for what will not come."""
        self._has_room.set()
        self._confirmed.set()
        self._writable.set()
