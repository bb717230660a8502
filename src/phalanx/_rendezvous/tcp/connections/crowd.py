"""Who may stay when more come than there is room for. Pure.

By standing first: one of a higher standing has one of the lowest go. Among equals by origin: the
origin with the most has to give one up, so that whoever floods competes with itself. Of an origin,
those go first that have not begun to prove themselves.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Standing(enum.IntEnum):
    """What is known of one that has connected."""

    STRANGER = 0
    PROVEN = 1
    """From where a host has proved itself."""
    OWN = 2
    """A process of this user on this machine, or of another that may be there."""


@dataclass
class _Group(Generic[T]):
    """Those of one origin, in the order of their coming."""

    standing: Standing
    new: dict[T, None] = field(default_factory=dict)
    advanced: dict[T, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.new) + len(self.advanced)

    @property
    def oldest(self) -> T:
        return next(iter(self.new or self.advanced))


class Crowd(Generic[T]):
    """Those that are in, at most `room`, of whom at most `strangers` are strangers.

    Once all of an origin have come further, the next of it takes the place of the oldest, or with
    `keeps` of nobody.
    """

    def __init__(self, room: int, strangers: int, *, keeps: bool = False) -> None:
        """Nobody is in."""
        self.room = room
        self.strangers = strangers
        self._keeps = keeps
        self._groups: dict[tuple[Standing, Hashable], _Group[T]] = {}
        self._keys: dict[T, tuple[Standing, Hashable]] = {}
        self._numbers = dict.fromkeys(Standing, 0)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, one: object) -> bool:
        return one in self._keys

    def enter(self, one: T, origin: Hashable, standing: Standing) -> T | None:
        """Let one in; gives who has to go for it, which may be that one itself."""
        victim = self._victim(one, (standing, origin)) if self._is_full(standing) else None
        if victim is not None:
            self.leave(victim)
        if victim != one:
            group = self._groups.setdefault((standing, origin), _Group(standing))
            group.new[one] = None
            self._keys[one] = standing, origin
            self._numbers[standing] += 1
        return victim

    def advance(self, one: T) -> None:
        """It has come further than those that have only connected; idempotent."""
        if (key := self._keys.get(one)) is not None:
            group = self._groups[key]
            if group.new.pop(one, self) is not self:
                group.advanced[one] = None

    def leave(self, one: T) -> None:
        """It is gone; idempotent."""
        if (key := self._keys.pop(one, None)) is None:
            return
        group = self._groups[key]
        group.new.pop(one, None)
        group.advanced.pop(one, None)
        self._numbers[key[0]] -= 1
        if not len(group):
            del self._groups[key]

    def _is_full(self, standing: Standing) -> bool:
        is_stranger = standing is Standing.STRANGER
        too_many = is_stranger and self._numbers[standing] >= self.strangers
        return too_many or len(self._keys) >= self.room

    def _victim(self, one: T, key: tuple[Standing, Hashable]) -> T:
        lowest = next((s for s in Standing if self._numbers[s]), None)
        if lowest is None or lowest > key[0]:
            return one
        equals = [group for group in self._groups.values() if group.standing is lowest]
        heaviest = max(equals, key=lambda group: (len(group), bool(group.new)))
        own = self._groups.get(key)
        if lowest < key[0] or len(heaviest) > (0 if own is None else len(own)):
            return heaviest.oldest
        assert own is not None  # it is one of the heaviest
        return one if self._keeps and not own.new else own.oldest
