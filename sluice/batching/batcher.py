"""The executable specification of the live buffer: events with their time in, batches and the next wake time out.

What may live here: the queue of one model and the count of its batches in flight. What may not: a clock, a timer, payloads'
contents, a network. Whoever owns a ``Batcher`` owns the time, which should not run back. Where it does, nobody arrived after now:
as soon as the oldest is dated after now, all that wait are dated now, and their holds run from there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy, decide

Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class Step(Generic[Member]):
    """What an event led to.

    ``batches`` leave now, in this order, each oldest first, who arrived at the times of ``arrived`` (seconds on the owner's clock);
    ``dropped`` were given up; at ``wake_at`` (s, ``None``: not before the next event) the owner must call ``tick``.
    """

    batches: tuple[tuple[Member, ...], ...]
    arrived: tuple[tuple[float, ...], ...]
    dropped: tuple[Member, ...]
    wake_at: float | None


class Batcher(Generic[Member]):
    """Groups members into batches as a policy's table says."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.in_flight = 0
        self._waiting: deque[tuple[float, Member]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def arrive(self, now: float, members: Iterable[Member]) -> Step[Member]:
        """``members`` arrive together, in this order."""
        return self.advance(now, arrivals=members)

    def complete(self, now: float, batches: int = 1) -> Step[Member]:
        """``batches`` of those in flight are done."""
        return self.advance(now, completed=batches)

    def tick(self, now: float) -> Step[Member]:
        """The wake time of an earlier step has come."""
        return self.advance(now)

    def swap(self, now: float, policy: Policy) -> Step[Member]:
        """Another table rules from now on, also over those who wait already."""
        self.policy = policy
        return self.advance(now)

    def advance(self, now: float, arrivals: Iterable[Member] = (), completed: int = 0) -> Step[Member]:
        """Everything that happened at ``now``: first the completions, then the arrivals, then the rule."""
        self.accept(now, arrivals, completed)
        batches: list[tuple[Member, ...]] = []
        arrived: list[tuple[float, ...]] = []
        dropped: list[Member] = []
        while True:
            decision = decide(self.policy, len(self._waiting), self._oldest(now), now, self.in_flight)
            if decision.drop:
                dropped.append(self._waiting.popleft()[1])
            elif decision.take:
                times, members = zip(*(self._waiting.popleft() for _ in range(decision.take)), strict=True)
                arrived.append(times)
                batches.append(members)
                self.in_flight += 1
            else:
                return Step(tuple(batches), tuple(arrived), tuple(dropped), decision.wake_at)

    def _oldest(self, now: float) -> float:
        """When the oldest arrived, ``now`` where nobody waits."""
        if not self._waiting:
            return now
        if self._waiting[0][0] > now:
            self._waiting = deque((now, member) for _, member in self._waiting)
        return self._waiting[0][0]

    def accept(self, now: float, arrivals: Iterable[Member] = (), completed: int = 0) -> None:
        """Take events without applying the rule, which the next event will do."""
        if math.isnan(now):
            raise InvalidInput("now", now, "a number of seconds")
        if not 0 <= completed <= self.in_flight:
            raise InvalidInput("completed", completed, f"from 0 to the {self.in_flight} batches in flight")
        self.in_flight -= completed
        self._waiting.extend((now, member) for member in arrivals)

    def withdraw(self, leaves: Callable[[Member], bool]) -> None:
        """Those of whom ``leaves`` says so, asked once for each, oldest first, wait no more; the rule is not applied."""
        self._waiting = deque(entry for entry in self._waiting if not leaves(entry[1]))

    def take_back(self, batches: int, members: Iterable[tuple[float, Member]]) -> None:
        """``batches`` in flight are lost; those of their ``members`` to be served again return to the head.

        ``members`` are ``(arrival time, member)``, oldest first; their age counts from when they first arrived. The rule is not
        applied before the next event.
        """
        if not 0 <= batches <= self.in_flight:
            raise InvalidInput("batches", batches, f"from 0 to the {self.in_flight} batches in flight")
        self.in_flight -= batches
        self._waiting.extendleft(reversed(list(members)))
