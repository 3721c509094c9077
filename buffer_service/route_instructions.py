"""What the state of a route has the shell of its process do: the records that ``RouteState.turn`` answers with.

What may live here: what is to be done, and what is needed for it. What may not: why. Times are seconds on the one clock of the
process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sluice.batching import Policy
from sluice.batching.errors import DispatchFailed, StoreUnavailable
from sluice.buffer_service.store import Events
from sluice.lambda_fn.contract import Answer, Item

AT_ONCE, NEVER = -math.inf, math.inf


class Call(NamedTuple):
    """Tell the queue these events, after installing a table where one is given."""

    install: Policy | None
    events: Events


class Invocation(NamedTuple):
    """Ask a function for the answers to these items of a batch; ``model`` is what it calls them.

    ``part`` numbers what is asked for of the batch. ``again``: it is asked because a call failed; ``avoid`` is the worker that
    did, where others can be asked.
    """

    batch_id: str
    function: str
    model: str
    items: list[Item]
    part: int = 1
    again: bool = False
    avoid: str = ""


class Hasten(NamedTuple):
    """Give a part of a batch up that is not answered by then (s): who has it is not in the plan any more, or again (``NEVER``)."""

    batch_id: str
    part: int
    until: float


class Fetch(NamedTuple):
    """Ask other processes for these requests of a batch, by the process that has them; their bodies have so many ``bytes``."""

    batch_id: str
    requests: dict[str, list[str]]
    bytes: int


class Refusal(NamedTuple):
    """An error for a caller here."""

    request_id: str
    error: DispatchFailed


class Message(NamedTuple):
    """Answers for callers at another process, to be sent at ``due``; ``batch_id`` is ``""`` where no batch waits for that."""

    process: str
    answers: list[Answer]
    batch_id: str
    due: float = AT_ONCE
    tried: int = 0


class Move(NamedTuple):
    """Members of a batch for other routes of the model."""

    batch_id: str
    members: list[bytes]


@dataclass(frozen=True, eq=False, slots=True)
class Adoption:
    """Members that another route gives up; equal to itself alone, as one route may give the same members twice."""

    members: list[bytes]


class Adopted(NamedTuple):
    """How an adoption ended: taken, but for those that were refused for want of room; or with an error, and some may be taken."""

    adoption: Adoption
    error: StoreUnavailable | None


class Instructions(NamedTuple):
    """What is to be done now, in this order.

    ``tell`` are answers for callers here, ``log`` are lines with their level, ``unreadable`` says what was set aside. A turn is due
    again at ``wake_at`` (s; ``inf``: at a fact). ``drained``: nobody waits at the retired route any more; ``closed``: its lease is
    given up. ``queue_length`` is what the queue said, if it was heard of since the last turn. ``ended`` are batches that were asked
    for, or fetched, and are under way no more.
    """

    call: Call | None
    invoke: Sequence[Invocation]
    send: Sequence[Message]
    move: Sequence[Move]
    adopted: Sequence[Adopted]
    refuse: Sequence[Refusal]
    tell: Sequence[Answer]
    log: Sequence[tuple[int, str]]
    unreadable: Sequence[str]
    wake_at: float
    drained: bool
    closed: bool
    queue_length: int | None
    ended: Sequence[str]
    fetch: Sequence[Fetch] = ()
    hasten: Sequence[Hasten] = ()


class ToDo:
    """What no turn has said yet that is to be done; the lists are those of ``Instructions``."""

    __slots__ = ("adopted", "ended", "fetch", "hasten", "invoke", "log", "move", "refuse", "tell", "unreadable")

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.ended: list[str] = []
        self.invoke: list[Invocation] = []
        self.fetch: list[Fetch] = []
        self.hasten: list[Hasten] = []
        self.move: list[Move] = []
        self.adopted: list[Adopted] = []
        self.refuse: list[Refusal] = []
        self.tell: list[Answer] = []
        self.log: list[tuple[int, str]] = []
        self.unreadable: list[str] = []

    def clear(self) -> None:
        """All of it was said; who has the lists keeps them, and facts may come before he has done what they say."""
        some = self.invoke or self.tell or self.refuse or self.adopted or self.move or self.log or self.unreadable or self.fetch
        if some or self.hasten or self.ended:
            self._begin()  # else they are empty still
