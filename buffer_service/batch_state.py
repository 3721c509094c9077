"""The state of one released batch on its way to answers: the parts that are still to be asked for, the answers so far.

What may live here: the members of one batch and how it is split. What may not: a clock, I/O, who waits for the answers.

    a part is answered              its answers are kept, the next part is asked
    a part fails                    it is halved, the first half is asked next; an item that stands alone gets the error
    a part is without an answer     splitting would not help: all its items get the error, or are moved, or are asked for again
    a defect of the buffer          every item that has no answer yet gets 500

Parts are asked one after the other: whoever bounds the servers has paid for one. When no part is left, the answers for callers at
other processes are sent and what could not be served is moved; the batch is complete when all of that is done. Where some of it
failed, the batch is given up: it is never complete, and the next sweep takes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from sluice.lambda_fn.contract import Answer, Item, failed


class Cause(Enum):
    """Why an invocation has no answers, by what helps."""

    UNAVAILABLE = auto()  # no answer came, and no item is to blame
    TOO_LARGE = auto()  # a smaller batch may pass
    FAILED = auto()  # the function ran and failed; one item may be the culprit
    DEFECT = auto()  # of the buffer; nothing helps


class Failure(NamedTuple):
    """What came of an invocation instead of answers."""

    cause: Cause
    detail: str


class BatchState:
    """One batch under way; ``items`` are those of its ``members`` that somebody waits for, ``epoch`` the life of its queue.

    The queue gave it away at ``taken_at`` (s).
    """

    __slots__ = ("answers", "epoch", "function", "given_up", "members", "moving", "outstanding", "parts", "taken_at")

    def __init__(self, members: list[bytes], items: list[Item], epoch: str | None, taken_at: float = 0.0) -> None:
        self.members = members
        self.epoch = epoch
        self.taken_at = taken_at
        self.parts = [items] if items else []  # the next to be asked is the last
        self.function = ""  # that was asked last
        self.answers: list[Answer] = []
        self.moving: list[bytes] = []  # members for other routes
        self.outstanding = 0  # messages and moves under way
        self.given_up = 0  # of these, those that failed

    def next_part(self, wanted: Callable[[str], bool]) -> list[Item] | None:
        """The items to ask the function for now, but for those that nobody waits for any more; ``None``: all parts are done."""
        if self.parts and not self.function:
            return self.parts[-1]  # it has just left the queue
        while self.parts:
            self.parts[-1] = [item for item in self.parts[-1] if wanted(item.id)]
            if self.parts[-1]:
                return self.parts[-1]
            self.parts.pop()
        return None

    def answered(self, answers: list[Answer]) -> None:
        """The part that was asked for has its answers."""
        self.parts.pop()
        self.answers += answers

    def halve(self) -> None:
        """The part that was asked for failed, and one half of it may pass."""
        part = self.parts.pop()
        half = (len(part) + 1) // 2
        self.parts += (part[half:], part[:half])

    def refuse(self, status: int, title: str, detail: str) -> None:
        """The part that was asked for fails, every item of it."""
        self.answers += [failed(item.id, status, title, detail) for item in self.parts.pop()]

    def refuse_all(self, status: int, title: str, detail: str) -> None:
        """Every item without an answer fails."""
        while self.parts:
            self.refuse(status, title, detail)
