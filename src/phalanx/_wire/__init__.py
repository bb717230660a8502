"""Frames: what launcher, agent and zygote say to each other, and how it is written down.

A frame is a small frozen dataclass; each carries app, round and rank, so that what is stale can be
dropped.
"""

from phalanx._wire.codec import PIECE, VERSION, Decoder, encode
from phalanx._wire.frames import *  # noqa: F403 every frame there is
from phalanx._wire.frames import Frame

__all__ = ["PIECE", "VERSION", "Decoder", "Frame", "encode"]  # and the frames, by their names
