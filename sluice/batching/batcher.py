"""The executable specification of the live buffer: events with their time in, batches and the next wake time out.

What may live here: the queue of one model and the count of its batches in flight, by the table that released them. What may not: a
clock, a timer, payloads' contents, a network. Whoever owns a ``Batcher`` owns the time, which should not run back. Where it does,
nobody arrived after now: as soon as the oldest is dated after now, all that wait are dated now, and their holds run from there. Who
is brought some time after he came stands behind those who were brought before him, and his hold runs from when he came. A
batch in flight of a table that the policy has no more, or not yet, counts as one of the first table's.

Members with a slack, each there once, stand in a line of their own, in the order in which their holds begin, of equals the least
member first; those without in the order in which they came. The next to leave is the head of the line whose head's hold begins
first, of equals that of those without. Each line is dated by itself where its head arrived after now.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Generic, TypeVar

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import MAX_BESIDE, Policy, decide

Member = TypeVar("Member")


@dataclass(frozen=True, slots=True)
class Step(Generic[Member]):
    """What an event led to.

    ``batches`` leave now, in this order, each as they stood in line, who arrived at the times of ``arrived`` (seconds on the
    owner's clock, and with the slack of who has one); ``dropped`` were given up; at ``wake_at`` (s, ``None``: not before the next
    event) the owner must call ``tick``. ``tables`` says which table released each batch, by its place in ``Policy.tables``.
    """

    batches: tuple[tuple[Member, ...], ...]
    arrived: tuple[tuple[float, ...], ...]
    dropped: tuple[Member, ...]
    wake_at: float | None
    tables: tuple[int, ...] = ()


def no_slack(member: object) -> float:
    """Of members that have none."""
    return 0.0


class Batcher(Generic[Member]):
    """Groups members into batches as a policy's table says.

    ``slack`` tells that of a member in seconds (``policy.py``); members that have one can be compared and hashed.
    """

    def __init__(self, policy: Policy, slack: Callable[[Member], float] = no_slack) -> None:
        self.policy = policy
        self._slack = slack
        self.in_flight = 0
        """Batches in flight, of all tables."""
        self._beside = [0] * MAX_BESIDE  # of these, by the place of their table in ``Policy.beside``
        self._waiting: deque[tuple[float, Member]] = deque()  # when each came
        self._with_slack: list[tuple[float, Any]] = []  # when the hold of each begins, ascending
        self._lined_up: set[Member] = set()  # who these are
        self._patient = 0  # of these, with a slack above 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._with_slack)

    def behind(self, now: float) -> int:
        """How many wait who stand behind one who comes now without a slack."""
        if not self._with_slack:
            return 0
        return len(self._with_slack) - bisect_left(self._with_slack, now, key=lambda entry: entry[0])

    def arrive(self, now: float, members: Iterable[Member], ages: Sequence[float] = ()) -> Step[Member]:
        """``members`` are brought together, in this order; each came so many seconds before, without ``ages`` now."""
        return self.advance(now, arrivals=members, ages=ages)

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
        self,
        now: float,
        arrivals: Iterable[Member] = (),
        completed: int = 0,
        at_most: Sequence[tuple[int, int]] = (),
        ages: Sequence[float] = (),
        ejected: Sequence[tuple[int, int]] = (),
    ) -> Step[Member]:
        """Everything that happened at ``now``: first the completions, of the first table, then the arrivals, then the rule.

        ``at_most`` are places of tables and how many batches each of these releases, which has ``ended`` then (``policy.py``).
        ``ejected`` are places of tables and how many of their servers are ejected: these are not free, whoever has the others.
        """
        self.accept(now, arrivals, completed, ages=ages)
        batches: list[tuple[Member, ...]] = []
        arrived: list[tuple[float, ...]] = []
        dropped: list[Member] = []
        tables: list[int] = []
        while True:
            ended = {place for place, most in at_most if tables.count(place) >= most} if at_most else ()
            busy, oldest = self.busy(ejected), self._oldest(now)
            decision = decide(self.policy, len(self), oldest, now, *busy, ended=ended, patient=self._patient)
            if decision.drop:
                dropped.append(self._next()[1])
            elif decision.take:
                leave = self._next if self._with_slack else self._waiting.popleft
                times, members = zip(*[leave() for _ in range(decision.take)], strict=True)
                arrived.append(times)
                batches.append(members)
                tables.append(decision.table)
                self._count(decision.table, 1)
            else:
                return Step(tuple(batches), tuple(arrived), tuple(dropped), decision.wake_at, tuple(tables))

    def busy(self, ejected: Sequence[tuple[int, int]] = ()) -> list[int]:
        """What each of the policy's tables is charged with: its batches in flight, and its servers that are ``ejected``.

        One of its servers at least is not, and an elastic table has none.
        """
        beside = self._beside[: len(self.policy.beside)]
        busy = [self.in_flight - sum(beside), *beside]
        for place, servers in ejected:
            if place < len(busy) and (bound := self.policy.tables[place].servers) is not None:
                busy[place] += min(servers, bound - 1)
        return busy

    def _count(self, table: int, batches: int) -> None:
        self.in_flight += batches
        if table:
            self._beside[table - 1] += batches

    def _oldest(self, now: float) -> float:
        """When the hold of the next to leave begins, ``now`` where nobody waits."""
        if self._waiting and self._waiting[0][0] > now:
            self._waiting = deque((now, member) for _, member in self._waiting)
        oldest = self._waiting[0][0] if self._waiting else math.inf
        if not self._with_slack:
            return oldest if self._waiting else now
        if self._with_slack[0][0] > now + self._slack(self._with_slack[0][1]):
            self._with_slack = sorted((now + self._slack(member), member) for _, member in self._with_slack)
        return min(oldest, self._with_slack[0][0])

    def set_back(self, now: float) -> None:
        """The owner's clock was set back to ``now``: of those with a slack none arrived later, also behind a head that did not."""
        self._with_slack = sorted((min(begins, now + self._slack(member)), member) for begins, member in self._with_slack)

    def _next(self) -> tuple[float, Member]:
        """The next to leave, who is in no line any more."""
        if not self._with_slack or (self._waiting and self._waiting[0][0] <= self._with_slack[0][0]):
            return self._waiting.popleft()
        self._lined_up.remove(self._with_slack[0][1])
        self._patient -= self._slack(self._with_slack[0][1]) > 0
        return self._with_slack.pop(0)

    def _line_up(self, begins: float, member: Member) -> None:
        """A member with a slack takes its place; who is there already stays."""
        if member not in self._lined_up:
            self._lined_up.add(member)
            self._patient += self._slack(member) > 0
            insort(self._with_slack, (begins, member))

    def accept(
        self, now: float, arrivals: Iterable[Member] = (), completed: int = 0, table: int = 0, ages: Sequence[float] = ()
    ) -> None:
        """Take events without applying the rule, which the next event will do; ``table`` released the completed batches."""
        if math.isnan(now):
            raise InvalidInput("now", now, "a number of seconds")
        self._end("completed", completed, table)
        slack_of, append = self._slack, self._waiting.append
        for member, age in zip(arrivals, ages, strict=True) if ages else zip(arrivals, repeat(0.0)):
            came = now - age if age > 0 else now
            if slack := slack_of(member):
                self._line_up(came + slack, member)
            else:
                append((came, member))

    def withdraw(self, leaves: Callable[[Member], bool]) -> None:
        """Those of whom ``leaves`` says so, asked once for each, line by line, wait no more; the rule is not applied."""
        self._waiting = deque(entry for entry in self._waiting if not leaves(entry[1]))
        self._with_slack = [entry for entry in self._with_slack if not leaves(entry[1])]
        self._lined_up = {member for _, member in self._with_slack}
        self._patient = sum(self._slack(member) > 0 for member in self._lined_up)

    def take_back(self, batches: int, members: Iterable[tuple[float, Member]], table: int = 0) -> None:
        """``batches`` in flight, of ``table``, are lost; those of their ``members`` to be served again return to the head.

        ``members`` are ``(arrival time, member)`` as ``Step.arrived`` has the times, oldest first; their age counts from when they
        first arrived. Who has a slack returns to his place. The rule is not applied before the next event.
        """
        self._end("batches", batches, table)
        back = list(members)
        for entry in back:
            if self._slack(entry[1]):
                self._line_up(*entry)
        self._waiting.extendleft(entry for entry in reversed(back) if not self._slack(entry[1]))

    def _end(self, field: str, batches: int, table: int) -> None:
        in_flight = self._beside[table - 1] if table else self.in_flight - sum(self._beside)
        if not 0 <= batches <= in_flight:
            raise InvalidInput(field, batches, f"from 0 to the {in_flight} batches in flight")
        self._count(table, -batches)
