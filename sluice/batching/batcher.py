"""The executable specification of the live buffer: events with their time in, batches and the next wake time out.

What may live here: the queue of one model and the count of its batches in flight, by the table that released them. What may not: a
clock, a timer, payloads' contents, a network. Whoever owns a ``Batcher`` owns the time, which should not run back. Where it does,
nobody arrived after now: as soon as the oldest is dated after now, all that wait are dated now, and their holds run from there. A
batch in flight of a table that the policy has no more, or not yet, counts as one of the first table's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import MAX_BESIDE, Policy, decide

Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class Step(Generic[Member]):
    """What an event led to.

    ``batches`` leave now, in this order, each oldest first, who arrived at the times of ``arrived`` (seconds on the owner's clock);
    ``dropped`` were given up; at ``wake_at`` (s, ``None``: not before the next event) the owner must call ``tick``. ``tables`` says
    which table released each batch, by its place in ``Policy.tables``.
    """

    batches: tuple[tuple[Member, ...], ...]
    arrived: tuple[tuple[float, ...], ...]
    dropped: tuple[Member, ...]
    wake_at: float | None
    tables: tuple[int, ...] = ()


class Batcher(Generic[Member]):
    """Groups members into batches as a policy's table says."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.in_flight = 0
        """Batches in flight, of all tables."""
        self._beside = [0] * MAX_BESIDE  # of these, by the place of their table in ``Policy.beside``
        self._waiting: deque[tuple[float, Member]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, now: float, members: Iterable[Member]) -> Step[Member]:
        """``members`` arrive together, in this order."""
        return self.advance(now, arrivals=members)

    def complete(self, now: float, batches: int = 1, table: int = 0) -> Step[Member]:
        """``batches`` of those in flight are done, which the table at this place released."""
        self.accept(now, completed=batches, table=table)
        return self.advance(now)

    def tick(self, now: float) -> Step[Member]:
        """The wake time of an earlier step has come."""
        return self.advance(now)

    def swap(self, now: float, policy: Policy) -> Step[Member]:
        """Another table rules from now on, also over those who wait already."""
        self.policy = policy
        return self.advance(now)

    def advance(
        self, now: float, arrivals: Iterable[Member] = (), completed: int = 0, at_most: Sequence[tuple[int, int]] = ()
    ) -> Step[Member]:
        """Everything that happened at ``now``: first the completions, of the first table, then the arrivals, then the rule.

        ``at_most`` are places of tables and how many batches each of these releases, which has ``ended`` then (``policy.py``).
        """
        self.accept(now, arrivals, completed)
        batches: list[tuple[Member, ...]] = []
        arrived: list[tuple[float, ...]] = []
        dropped: list[Member] = []
        tables: list[int] = []
        while True:
            ended = {place for place, most in at_most if tables.count(place) >= most}
            decision = decide(self.policy, len(self._waiting), self._oldest(now), now, *self.busy(), ended=ended)
            if decision.drop:
                dropped.append(self._waiting.popleft()[1])
            elif decision.take:
                times, members = zip(*(self._waiting.popleft() for _ in range(decision.take)), strict=True)
                arrived.append(times)
                batches.append(members)
                tables.append(decision.table)
                self._count(decision.table, 1)
            else:
                return Step(tuple(batches), tuple(arrived), tuple(dropped), decision.wake_at, tuple(tables))

    def busy(self) -> list[int]:
        """The batches in flight that each of the policy's tables is charged with."""
        beside = self._beside[: len(self.policy.beside)]
        return [self.in_flight - sum(beside), *beside]

    def _count(self, table: int, batches: int) -> None:
        self.in_flight += batches
        if table:
            self._beside[table - 1] += batches

    def _oldest(self, now: float) -> float:
        """When the oldest arrived, ``now`` where nobody waits."""
        if not self._waiting:
            return now
        if self._waiting[0][0] > now:
            self._waiting = deque((now, member) for _, member in self._waiting)
        return self._waiting[0][0]

    def accept(self, now: float, arrivals: Iterable[Member] = (), completed: int = 0, table: int = 0) -> None:
        """Take events without applying the rule, which the next event will do; ``table`` released the completed batches."""
        if math.isnan(now):
            raise InvalidInput("now", now, "a number of seconds")
        self._end("completed", completed, table)
        self._waiting.extend((now, member) for member in arrivals)

    def withdraw(self, leaves: Callable[[Member], bool]) -> None:
        """Those of whom ``leaves`` says so, asked once for each, oldest first, wait no more; the rule is not applied."""
        self._waiting = deque(entry for entry in self._waiting if not leaves(entry[1]))

    def take_back(self, batches: int, members: Iterable[tuple[float, Member]], table: int = 0) -> None:
        """``batches`` in flight, of ``table``, are lost; those of their ``members`` to be served again return to the head.

        ``members`` are ``(arrival time, member)``, oldest first; their age counts from when they first arrived. The rule is not
        applied before the next event.
        """
        self._end("batches", batches, table)
        self._waiting.extendleft(reversed(list(members)))

    def _end(self, field: str, batches: int, table: int) -> None:
        in_flight = self._beside[table - 1] if table else self.in_flight - sum(self._beside)
        if not 0 <= batches <= in_flight:
            raise InvalidInput(field, batches, f"from 0 to the {in_flight} batches in flight")
        self._count(table, -batches)
