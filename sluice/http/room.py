"""How many bytes and connections may be held at once: what is taken, and by whom it was.

What may live here: counts. A room knows nothing of what fills it; who takes bytes gives them back.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import TracebackType


class Room:
    """At most ``limit`` bytes at once."""

    __slots__ = ("limit", "taken")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    @classmethod
    def without_end(cls) -> Room:
        """Room for whatever comes."""
        return cls(sys.maxsize)

    def share(self) -> Share:
        """A part of the room, of no bytes yet."""
        return Share(self)


class Share:
    """What one holder has taken; given back when it closes."""

    __slots__ = ("_room", "size")

    def __init__(self, room: Room) -> None:
        self.size = 0
        self._room = room

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.resize(0)

    def fits(self, size: int) -> bool:
        """Whether there is room for this share to become ``size`` bytes."""
        return self._room.taken - self.size + size <= self._room.limit

    def resize(self, size: int) -> None:
        """The share is ``size`` bytes from now on, whether they fit or not."""
        self._room.taken += size - self.size
        self.size = size


@dataclass(slots=True)
class Connections:
    """Of clients: how many there may be, how many there are, and how many were refused as one too many."""

    most: int
    open: int = 0
    refused: int = 0
