"""A two-way stream of frames over two descriptors: pipes to a child, or an ssh's own streams.

It knows frames, not what they mean. Reading stops when frames are not taken; `send` waits when the
peer does not read. `heard` counts the bytes that came, whatever they were: each is a sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import IO, Protocol

from phalanx._channel.trust import ConnectionSeal
from phalanx._core.silence import Silence
from phalanx._wire import Decoder, Frame, encode
from phalanx.errors import WireError

_FLUSHED_EVERY = 0.005
_HELD_FRAMES = 64
"""How many frames may wait to be taken before reading pauses."""


class Channel(Protocol):
    """A stream of frames to and from one peer."""

    heard: int

    @property
    def congested(self) -> bool:
        """The peer does not read as fast as we write."""

    async def send(self, frame: Frame) -> None:
        """Send one frame; waits while the peer does not read. `ConnectionError` when closed."""

    def frames(self) -> AsyncIterator[Frame]:
        """Frames in order until the peer closes. Raises `WireError` for anything else."""

    def close(self) -> None:
        """Close both directions; idempotent."""

    def abort(self) -> None:
        """Close without waiting for what was sent."""


class PipeChannel:
    """A channel over a descriptor to read and one to write."""

    def __init__(self, decoder: Decoder | None = None) -> None:
        """Use `open` instead."""
        self.heard = 0
        self._decoder = decoder or Decoder()
        self._frames: deque[Frame] = deque()
        self._changed = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = False
        self._error: WireError | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._protocols: tuple[_Reading | _Writing, ...] = ()

    @classmethod
    async def open(
        cls,
        read: IO[bytes],
        write: IO[bytes],
        decoder: Decoder | None = None,
        held: Iterable[Frame] = (),
    ) -> PipeChannel:
        """Take two descriptors over; they are closed with the channel.

        Where reading has begun before, `decoder` and the frames `held` continue it.
        """
        channel = cls(decoder)
        channel._frames.extend(held)
        await channel._connect(read, write)
        return channel

    async def _connect(self, read: IO[bytes], write: IO[bytes]) -> None:
        loop = asyncio.get_running_loop()
        _OPEN[self] = (read.fileno(), write.fileno())
        self._protocols = reading, writing = _Reading(self), _Writing(self)
        self._reader, _ = await loop.connect_read_pipe(lambda: reading, read)
        self._writer, _ = await loop.connect_write_pipe(lambda: writing, write)
        self._writer.set_write_buffer_limits(high=1 << 20)

    @property
    def is_connected(self) -> bool:
        """There is a stream; always, but where one may break and be replaced."""
        return True

    def break_off(self) -> bool:
        """Do without the stream that there is, for another; False where none would come."""
        return False

    def part(self) -> None:
        """Tell the peer that nothing follows, where it would wait for it; it is heard on."""

    @property
    def congested(self) -> bool:
        """The peer does not read as fast as we write."""
        return not self._writable.is_set()

    @property
    def is_written(self) -> bool:
        """The peer has been sent everything, or is gone."""
        return self._writer is None or self._writer.get_write_buffer_size() == 0

    async def flush(self) -> None:
        """Wait until the peer has been sent everything, or is gone."""
        while not self.is_written:  # noqa: ASYNC110 a transport does not tell
            await asyncio.sleep(_FLUSHED_EVERY)

    async def send(self, frame: Frame) -> None:
        """Send one frame; waits while the peer does not read. `ConnectionError` when closed."""
        await self.send_encoded(encode(frame))

    async def send_encoded(self, data: bytes) -> None:
        """Send a frame that was written down before, as for several peers; otherwise as `send`."""
        if self._writer is None or self._writer.is_closing():
            raise ConnectionResetError("the channel is closed")
        self._writer.write(data)
        await self._writable.wait()

    def post(self, frame: Frame) -> None:
        """Send one frame without waiting; nothing when closed."""
        self.send_raw(encode(frame))

    def send_raw(self, data: bytes) -> None:
        """Send the rest of a frame whose beginning was written before the channel was opened."""
        if self._writer is not None and data:
            self._writer.write(data)

    @property
    def waiting(self) -> Sequence[Frame]:
        """The frames that have come and were not taken yet."""
        return self._frames

    @property
    def has_ended(self) -> bool:
        """No more will come than what is waiting."""
        return self._ended or self._error is not None

    async def wait_until(self, condition: Callable[[], bool], patience: float) -> None:
        """Wait so long for something that the waiting frames decide, or for the end of them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while not condition() and not self.has_ended:
                    self._changed.clear()
                    await self._changed.wait()

    async def frames(self) -> AsyncIterator[Frame]:
        """Frames in order until the peer closes. Raises `WireError` for anything else."""
        while True:
            while self._frames:
                yield self._frames.popleft()
                if self._reader is not None and len(self._frames) < _HELD_FRAMES // 2:
                    self._reader.resume_reading()
            if self._error is not None:
                raise self._error
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Close both directions; idempotent. What was sent is still written if the peer reads."""
        for transport in (self._reader, self._writer):
            if transport is not None:
                transport.close()
        _OPEN.pop(self, None)

    def abort(self) -> None:
        """Close without waiting for what was sent."""
        self._abort_writer()
        self.close()

    def _abort_writer(self) -> None:
        writer = self._writer
        # One that has nothing left to write is closed already: it cannot be closed twice.
        if writer is not None and not (writer.is_closing() and not writer.get_write_buffer_size()):
            writer.abort()

    def _drop(self) -> None:
        """Let go of the stream; what it still says is not heard."""
        for protocol in self._protocols:
            protocol.channel = None
        self._abort_writer()
        if self._reader is not None:
            self._reader.close()
        self._reader = self._writer = None
        self._writable.set()
        _OPEN.pop(self, None)

    def _decode(self, data: bytes) -> list[Frame]:
        return self._decoder.feed(data)

    def _received(self, data: bytes) -> None:
        self.heard += len(data)
        try:
            frames = self._decode(data)
        except WireError as error:
            self._error = error
            if self._reader is not None:
                self._reader.close()
        else:
            if not frames:
                return
            self._frames.extend(frames)
        if len(self._frames) > _HELD_FRAMES and self._reader is not None:
            self._reader.pause_reading()
        self._changed.set()

    def _closed(self) -> None:
        self._ended = True
        self._changed.set()

    def _unwritable(self) -> None:
        self._writer = None
        self._writable.set()


class SocketChannel(PipeChannel):
    """A channel over a connection to one that has proved itself."""

    session: ConnectionSeal
    take_at_once: Callable[[Frame], bool] | None = None
    """Whether a frame is taken as it comes, and by nobody else: nobody has to wake up for it."""

    @classmethod
    async def over(cls, connection: socket.socket, session: ConnectionSeal) -> SocketChannel:
        """Take a connected socket over; it is closed with the channel."""
        channel = cls()
        channel.session = session
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _OPEN[channel] = (connection.fileno(), connection.fileno())
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(lambda: _Both(channel), sock=connection)
        transport.set_write_buffer_limits(high=1 << 20)
        channel._reader, channel._writer = transport, transport
        return channel

    async def send_encoded(self, data: bytes) -> None:
        """Send a frame that was written down before, as for several peers; otherwise as `send`."""
        await super().send_encoded(self.session.seal(data))

    def post_encoded(self, *frames: bytes) -> None:
        """Send frames that were written down before, without waiting; nothing when closed."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(b"".join(map(self.session.seal, frames)))

    def _decode(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        for record in self.session.open(data):
            frames += self._decoder.feed(record)
            if self._decoder.has_begun:
                # Its length is bounded by that of a record: nobody gathers a long one in many.
                raise WireError("a record that ends within a frame")
        if (take := self.take_at_once) is not None:
            return [frame for frame in frames if not take(frame)]
        return frames


async def wait_for_silence(
    channel: Channel, limit: float, expected: Callable[[], bool], step: float = 0.5
) -> float:
    """Wait until nothing was heard for so long while something was `expected`; gives how long."""
    silence = Silence(channel.heard)
    while silence.seconds < limit:
        await asyncio.sleep(step)
        silence.pass_time(step, channel.heard, expected=expected())
    return silence.seconds


class _Reading(asyncio.Protocol):
    def __init__(self, channel: PipeChannel) -> None:
        self.channel: PipeChannel | None = channel
        """None once it has another stream: what is still said of this one is old."""

    def data_received(self, data: bytes) -> None:
        if self.channel is not None:
            self.channel._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.channel is not None:
            self.channel._closed()


class _Writing(asyncio.BaseProtocol):
    def __init__(self, channel: PipeChannel) -> None:
        self.channel: PipeChannel | None = channel

    def pause_writing(self) -> None:
        if self.channel is not None:
            self.channel._writable.clear()

    def resume_writing(self) -> None:
        if self.channel is not None:
            self.channel._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.channel is not None:
            self.channel._unwritable()


class _Both(_Reading, _Writing):
    def connection_lost(self, exc: Exception | None) -> None:
        _Reading.connection_lost(self, exc)
        _Writing.connection_lost(self, exc)


_OPEN: weakref.WeakKeyDictionary[PipeChannel, tuple[int, int]] = weakref.WeakKeyDictionary()


def _close_in_fork() -> None:
    """Let go of the channels of a process that was forked while they were open.

    Otherwise a child of the user's, born during a launch, would hold the agents' end of file back.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for numbers in list(_OPEN.values()):
        for number in numbers:
            os.dup2(null, number, inheritable=False)  # its owner will close it
    os.close(null)
    _OPEN.clear()


os.register_at_fork(after_in_child=_close_in_fork)
