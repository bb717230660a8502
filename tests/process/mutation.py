"""Real frames, changed: other types, ranges, order, numbers of times, and broken bytes."""

import dataclasses
import random

import msgpack

from phalanx import _wire as wire
from phalanx._wire import codec

NUMBERS = (-1, 0, 1, 2, 7, 255, 65536, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))
OTHERS = (None, True, False, "", "x" * 300, b"\xff", [], {}, [[]], {"a": 1}, 0.5, float("inf"))
OTHERS += (float("nan"), "\x1b[2J\udcff", "../../etc", [1, 2], {0: 1, 1: 1}, 10**18)


class Mutator:
    """Changes frames by a seed; most of them not at all."""

    def __init__(self, seed, rate=0.15):
        self.random = random.Random(seed)
        self.rate = rate
        self.seen = []
        self.held = None

    def change(self, frame):
        """The bytes to send in the place of a frame: none, one or several."""
        chance = self.random
        raw = wire.encode(frame)
        self.seen = [*self.seen[-200:], raw]
        if chance.random() > self.rate:
            return [raw]
        match chance.randrange(9):
            case 0:
                return []
            case 1:
                return [raw] * chance.choice((2, 3, 50))
            case 2:
                return [chance.choice(self.seen), raw]
            case 3:
                held, self.held = self.held, raw
                return [raw if held is None else held]
            case 4:
                return [self._broken(raw)]
            case 5:
                return [wire.encode(self._forged(frame))]
            case _:
                return [self._other(frame)]

    def _broken(self, raw):
        at = self.random.randrange(len(raw))
        if self.random.random() < 0.2:
            return raw[:at]
        return raw[:at] + bytes([self.random.randrange(256)]) + raw[at + 1 :]

    def _forged(self, frame):
        """As if it were of another rank or round."""
        if frame.rank is None or self.random.random() < 0.2:
            return dataclasses.replace(frame, round=frame.round + self.random.choice((-1, 1)))
        rank = self.random.choice((0, 0, 1, 2, frame.rank + 1))
        if isinstance(frame, wire.WorkerEnded):
            outcome = dataclasses.replace(frame.outcome, rank=rank)
            return dataclasses.replace(frame, rank=rank, outcome=outcome)
        return dataclasses.replace(frame, rank=rank)

    def _other(self, frame):
        """Some field, however deep, with another value."""
        fields = {f.name: codec._plain(getattr(frame, f.name)) for f in dataclasses.fields(frame)}
        data = fields.pop("data", b"")
        if isinstance(frame, wire.Piece | wire.LogData) and self.random.random() < 0.3:
            data = data[: self.random.randrange(len(data) + 1)] * self.random.choice((1, 2))
        else:
            self._put(fields)
        name = type(frame).__name__
        if self.random.random() < 0.05:
            name = self.random.choice([kind.__name__ for kind in wire.MESSAGES])
        head = msgpack.packb([name, fields], unicode_errors="surrogateescape", datetime=False)
        return codec._HEADER.pack(codec._MAGIC, codec.VERSION, len(head), len(data)) + head + data

    def _put(self, fields):
        chance = self.random
        key = chance.choice([k for k in fields if k != "app" or chance.random() < 0.2] or [*fields])
        value = fields[key]
        if isinstance(value, dict) and value and chance.random() < 0.8:
            self._put(value)
        elif isinstance(value, bool):
            fields[key] = not value
        elif isinstance(value, int) and chance.random() < 0.7:
            near = (0, 1, value + 1, value - 1, -value)  # above all, other ranks and rounds
            fields[key] = chance.choice((*NUMBERS, *near, *near))
        elif isinstance(value, float) and chance.random() < 0.7:
            fields[key] = chance.choice((0.0, -1.0, value * 2, 1e300, float("nan"), float("inf")))
        else:
            fields[key] = chance.choice((*NUMBERS, *OTHERS))
