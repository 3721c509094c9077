"""What is kept of requests whose answers are fetched later, or asked for again: an entry each, bounded in number, bytes and time.

    begin     a request is waited for, unless there is an entry of its id already; one that is lost or was refused is replaced
    finish    its answer is there, and is kept for ``life``
    read      the entry, if there is one
    remove    nobody asks any more

An entry is over when its answer came, or when the process that waited must have told of one (``patience``): then it is lost. It is
forgotten ``life`` after it was over, and sooner where there is no room for another: the one that was over first goes first. While
nothing is over one more is refused. ``token`` says who waits, so that an answer that comes late changes no entry of somebody else.

``ResultsState`` is the executable specification, which serves the memory store; ``lua/results.lua`` does the same in Redis. A value
that is kept is its state, a token of ``TOKEN`` bytes, and what no store reads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

WAITING, DONE, REFUSED = b"w", b"d", b"r"
"""Of an entry: nobody has answered, somebody has, or there was an error after which the same may be asked again."""
TOKEN = 16
"""Bytes that say who waits."""
ADDRESS = "sluice-kept"
"""A header of an item whose answer is kept, which no client sets and no function sees: where (``kept_requests.py``)."""
SPARE = 64  # places of the order that may be of no entry, beside as many as there are


class Bounds(NamedTuple):
    """Of one model: entries at the most, their bytes together, seconds that one is kept when it is over, and that one may wait."""

    kept: int
    bytes: int
    life: float
    patience: float


class Entry(NamedTuple):
    """What is kept of a request; ``lost`` where it waits and its process has not told of an answer in time."""

    state: bytes
    record: bytes
    lost: bool = False

    @classmethod
    def of(cls, value: bytes, over: float, now: float) -> Entry:
        """As a store has it, ``now`` (s)."""
        return cls(value[:1], value[1 + TOKEN :], value[:1] == WAITING and over <= now)


class Full(Exception):
    """There is no room: everything that is kept waits, or one answer is more than all may be."""


class Results(Protocol):
    """The entries of a model. Each call raises ``StoreUnavailable`` where the store is away, and may then have been done or not."""

    async def begin(self, entry_id: str, token: bytes, record: bytes) -> Entry | None:
        """Keep an entry that waits; ``None``, or the one that is there already. Raises ``Full``."""

    async def finish(self, entry_id: str, token: bytes, state: bytes, record: bytes) -> bool:
        """The entry of this token is over; whether there was one. Raises ``Full``."""

    async def read(self, entry_id: str) -> Entry | None:
        """The entry of this id."""

    async def remove(self, entry_id: str, token: bytes = b"") -> bool:
        """Forget the entry, where a token is given only that of it; whether there was one."""


@dataclass(slots=True)
class _Kept:
    value: bytes
    over: float


class ResultsState:
    """The entries of a model as all processes share them; time (s) is given."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._order: list[tuple[float, str]] = []  # a heap of when entries are over, with some that are no more
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, now: float, bounds: Bounds, entry_id: str, value: bytes) -> tuple[bytes, float] | None:
        """``None``, or the value that is there and when it is over; raises ``Full``."""
        while self._forget_first(now - bounds.life):
            pass
        there = self._kept.get(entry_id)
        if there is not None:
            lost = there.value[:1] == WAITING and there.over <= now
            if there.value[:1] != REFUSED and not lost:
                return there.value, there.over
            self._drop(entry_id)
        while len(self._kept) >= bounds.kept or self.bytes + len(value) > bounds.bytes:
            if not self._forget_first(now):
                raise Full
        self._put(entry_id, value, now + bounds.patience)
        return None

    def finish(self, now: float, bounds: Bounds, entry_id: str, value: bytes) -> bool:
        """Whether there was an entry of this token that waits; raises ``Full``, and then it waits on."""
        there = self._kept.get(entry_id)
        if there is None or there.value[: 1 + TOKEN] != WAITING + value[1 : 1 + TOKEN]:
            return False
        self._drop(entry_id)
        while self.bytes + len(value) > bounds.bytes:
            if not self._forget_first(now):
                self._put(entry_id, there.value, there.over)
                raise Full
        self._put(entry_id, value, now)
        return True

    def read(self, now: float, bounds: Bounds, entry_id: str) -> tuple[bytes, float] | None:
        """The value, and when it is over."""
        there = self._kept.get(entry_id)
        return None if there is None or there.over <= now - bounds.life else (there.value, there.over)

    def remove(self, entry_id: str, token: bytes) -> bool:
        """Whether there was one."""
        there = self._kept.get(entry_id)
        if there is None or (token and there.value[1 : 1 + TOKEN] != token):
            return False
        self._drop(entry_id)
        return True

    def _forget_first(self, over: float) -> bool:
        """Forget the entry that was over first, if that was by then."""
        while self._order:
            at, entry_id = self._order[0]
            if (kept := self._kept.get(entry_id)) is not None and kept.over == at:
                break
            heapq.heappop(self._order)  # it is over at another time by now, or forgotten
        if not self._order or self._order[0][0] > over:
            return False
        self._drop(self._order[0][1])
        return True

    def _put(self, entry_id: str, value: bytes, over: float) -> None:
        self._kept[entry_id] = _Kept(value, over)
        self.bytes += len(value)
        heapq.heappush(self._order, (over, entry_id))
        if len(self._order) > 2 * len(self._kept) + SPARE:
            self._order = [(kept.over, entry_id) for entry_id, kept in self._kept.items()]
            heapq.heapify(self._order)

    def _drop(self, entry_id: str) -> None:
        self.bytes -= len(self._kept.pop(entry_id).value)


class MemoryResults:
    """The entries of a model in this process."""

    def __init__(self, state: ResultsState, bounds: Bounds, clock: Callable[[], float]) -> None:
        self._state = state
        self._bounds = bounds
        self._clock = clock

    async def begin(self, entry_id: str, token: bytes, record: bytes) -> Entry | None:
        now = self._clock()
        there = self._state.begin(now, self._bounds, entry_id, WAITING + token + record)
        return None if there is None else Entry.of(*there, now)

    async def finish(self, entry_id: str, token: bytes, state: bytes, record: bytes) -> bool:
        return self._state.finish(self._clock(), self._bounds, entry_id, state + token + record)

    async def read(self, entry_id: str) -> Entry | None:
        now = self._clock()
        there = self._state.read(now, self._bounds, entry_id)
        return None if there is None else Entry.of(*there, now)

    async def remove(self, entry_id: str, token: bytes = b"") -> bool:
        return self._state.remove(entry_id, token)
