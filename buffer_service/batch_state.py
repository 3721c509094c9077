"""The state of one released batch on its way to answers: the parts that are still to be asked for, the answers so far.

What may live here: the members of one batch and how it is split. What may not: a clock, I/O, who waits for the answers.

    a part is answered              its answers are kept, the next part is asked
    a part fails                    it is halved, the first half is asked next; an item that stands alone gets the error
    two items fail alone            while nothing of the batch was answered: they are not to blame, and the rest gets the error
    a part is refused for now       it is asked again when it is due, but for those whose time is over before
    a part is without an answer     splitting would not help: all its items get the error, are moved, or are asked for elsewhere
    another function is asked       for as many of the part's items as it takes at once, then for the others
    a defect of the buffer          every item that has no answer yet gets 500

Parts are asked one after the other where servers are bounded: whoever bounds them has paid for one; else two at a time. When no
part is left, the answers for callers at other processes are sent and what could not be served is moved; the batch is complete when
all of that is done. Where some of it failed, the batch is given up: it is never complete, and the next sweep takes it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from msgspec import structs

from sluice.batching.measured import FAILED_FROM
from sluice.lambda_fn.contract import Answer, Item, Measured, failed

HOPELESS = 2  # items that fail alone while nothing of the batch is answered


class Cause(Enum):
    """Why an invocation has no answers, by what helps."""

    UNAVAILABLE = auto()  # no answer came, and no item is to blame
    BUSY = auto()  # refused for now
    TOO_LARGE = auto()  # a smaller batch may pass
    CRASHED = auto()  # the connection broke under it; one item may be the culprit
    FAILED = auto()  # the function ran and failed; one item may be the culprit
    DEFECT = auto()  # of the buffer; nothing helps


class Failure(NamedTuple):
    """What came of an invocation instead of answers.

    ``worker`` is who failed, where others could be asked. ``retry_after`` (s) is when a busy function wants to be asked again.
    ``chance`` was drawn from 0 to 1, so that who was refused together returns apart.
    """

    cause: Cause
    detail: str
    worker: str = ""
    retry_after: float = 0.0
    chance: float = 1.0


@dataclass(slots=True)
class Part:
    """Some items of a batch that are asked for together."""

    items: list[Item]
    suspected: bool = False  # its one item failed alone before
    trial: bool = False  # of a function that was not asked for a while
    function: str = ""  # that was asked, or is to be in place of another
    tried: tuple[str, ...] = ()  # functions that left it without an answer since it last rested
    elastic: bool = False  # whether the function was, when it was asked
    failed: Failure | None = None  # what came of it where it was asked first
    refused: int = 0  # times, for now
    busy: bool = False  # the last time as the function had too much to do, not as its worker was away
    earliest: float = -math.inf  # s, from when on the function wants to be asked again
    due: float = -math.inf  # s, when it is asked again whatever else happens
    asked_at: float = -math.inf  # s, the last time
    until: float = math.inf  # s, when it is given up whose worker has left the plan


@dataclass(slots=True)
class Measurement:
    """What is measured of a batch while it is asked for: sums over its invocations (s), and the latencies (s) of its answers."""

    function: str = ""
    seconds: float = 0.0
    service: float | None = 0.0
    billed: float | None = 0.0
    cold: bool = False
    failed: int = 0
    rejected: bool = False
    latencies: list[float] = field(default_factory=list)  # of callers here whose requests did not fail

    def ended(self, function: str, seconds: float, told: Measured) -> None:
        """One invocation ended; a time that the function did not tell makes the sum unknown."""
        self.function = function
        self.seconds += seconds
        self.service = _sum(self.service, told.service)
        self.billed = _sum(self.billed, told.billed)
        self.cold |= told.cold

    def answered(self, statuses: Sequence[int], latencies: list[float]) -> None:
        """All its requests have answers."""
        self.failed = sum([status >= FAILED_FROM for status in statuses])
        self.rejected = any([300 <= status < FAILED_FROM for status in statuses])
        self.latencies = latencies


def _sum(seconds: float | None, more: float | None) -> float | None:
    return None if seconds is None or more is None else seconds + more


class BatchState:
    """One batch under way, which ``table`` released at ``taken_at`` (s) in the life ``epoch`` of the queue."""

    __slots__ = (
        *(
            "answers",
            "asked",
            "direct",
            "epoch",
            "failed_alone",
            "fetched",
            "given_up",
            "measured",
            "members",
            "moving",
            "outstanding",
        ),
        *("parts", "passed", "place", "put_off", "split", "table", "taken_at", "times_asked"),
    )

    def __init__(self, members: list[bytes], parts: list[Part], epoch: str | None, taken_at: float, table: int = 0) -> None:
        self.members = members
        self.table = table
        self.epoch = epoch
        self.taken_at = taken_at
        self.direct = False  # no queue knows of it; its members are ids alone
        self.place = ""  # the batch as which it is in flight at the queue: itself, or of one that is direct another, or none
        self.measured = Measurement()
        self.parts = parts  # the next to be asked is the last
        self.asked: dict[int, Part] = {}  # under way
        self.times_asked = 0
        self.passed = False  # something was answered
        self.failed_alone: list[Part] = []  # of one item each, but for suspects where others are left
        self.fetched = False  # other processes were asked for some of its bodies
        self.split = False
        self.answers: list[Answer] = []
        self.put_off = 0  # items that wait for a busy function
        self.moving: list[bytes] = []  # members for other routes
        self.outstanding = 0  # messages and moves under way
        self.given_up = 0  # of these, those that failed

    def next_part(self, now: float, wanted: Callable[[str], bool], at_once: int) -> Part | None:
        """The part to ask for now, but for items that nobody waits for any more; ``None``: none, or none before others end."""
        if self.parts and not self.times_asked:
            return self.parts.pop()  # it has just left the queue
        while self.parts and len(self.asked) < at_once:
            part = self.parts[-1]
            part.items = [item for item in part.items if wanted(item.id)]
            if part.items and part.due > now:
                return None
            self.parts.pop()
            if part.items:
                return part
        return None

    def ask(self, now: float, part: Part, function: str, elastic: bool = False) -> int:
        """The part is under way, by this number."""
        self.times_asked += 1
        part.function, part.elastic, part.asked_at, part.until = function, elastic, now, math.inf
        self.asked[self.times_asked] = part
        return self.times_asked

    def ended(self, number: int | None) -> Part:
        """The part that is under way no more; without a number, the only one."""
        return self.asked.pop(next(iter(self.asked)) if number is None else number)

    def answered(self, answers: list[Answer]) -> None:
        """A part has its answers."""
        self.passed = True
        self.answers += answers

    def halve(self, part: Part) -> None:
        """The part failed, and one half of it may pass."""
        self.split = True
        half = (len(part.items) + 1) // 2
        self.parts += (_of(part, part.items[half:]), _of(part, part.items[:half]))

    def set_apart(self, part: Part, items: int) -> Part:
        """The first so many items of a part, as a part; the others come next."""
        first, others = part.items[:items], part.items[items:]
        if not others:
            return part
        self.parts.append(_of(part, others))
        return _of(part, first)

    @property
    def hopeless(self) -> bool:
        """Whether no item of it seems to be to blame."""
        return not self.passed and len(self.failed_alone) >= HOPELESS

    @property
    def only_suspects_left(self) -> bool:
        """Whether what is still asked for, if anything, failed alone before."""
        return all(part.suspected for part in (*self.parts, *self.asked.values()))

    def refuse(self, items: list[Item], status: int, title: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        """These items fail."""
        answers = [failed(item.id, status, title, detail) for item in items]
        self.answers += [structs.replace(answer, headers=headers) for answer in answers] if headers else answers

    def refuse_rest(self, status: int, title: str, detail: str) -> None:
        """Every item that waits to be asked for fails."""
        for part in self.parts:
            self.refuse(part.items, status, title, detail)
        self.parts.clear()


def _of(part: Part, items: list[Item]) -> Part:
    """Some items of a part, for the function that it is for."""
    return Part(items, function=part.function, tried=part.tried)
