"""What is known of a route on one process to all that decides about it: its plan, its life, that of its queue, and who waits here.

What may live here: facts, and what follows from them alone. What may not: what is to be done (``route_state.py``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.batching.documents import Route
from sluice.buffer_service.members import encode_member, encode_ticket, member_id
from sluice.buffer_service.route_life import ENDING, LIVES, RETIRED, Fact, Life
from sluice.buffer_service.store import PROCESS_LENGTH, Limits, queue_name
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.lambda_fn.contract import Answer, Item

TOLD = ""
"""The queue of a caller whose answer is at hand; no queue has this name."""


@dataclass(slots=True)
class Caller:
    """Who waits at this process for an answer to ``item``, of which he ``told`` this; ``queue`` is where, ``came`` is when (s).

    ``taken`` (s) is when his request left the queue last in a batch of this process, or ``inf``; ``batch_size`` is that of it.
    ``brought``: his request was brought to a queue, of which ``has_ticket`` says that it has a ticket in its place.
    """

    queue: str
    item: Item
    came: float
    told: Told = NOTHING_TOLD
    taken: float = math.inf
    batch_size: int = 0
    brought: bool = False
    has_ticket: bool = False


def member_of(caller: Caller) -> bytes:
    """What the queue has of a caller's request."""
    return (encode_ticket if caller.has_ticket else encode_member)(caller.item, caller.told)


class RouteFacts:
    """Of one route of ``model`` on ``process``; the arguments are those of ``RouteState``."""

    def __init__(
        self, model: str, route: Route, limits: Limits, process: str, waiting: Mapping[str, Caller], patience: float, digest: str
    ) -> None:
        self.name = queue_name(model, route.name)
        self.model = model
        self.limits = limits
        self.process = process
        self.waiting = waiting
        self.patience = patience
        self._enter(Life.SERVING)
        self.epoch: str | None = None
        """The life of the queue, where it was heard of."""
        self.all_lend = False
        """Whether every process that was heard of lately reads tickets; a ticket is written where it does."""
        self.alone_until = -math.inf
        """Until when no other process takes this one's batches back, as the last sweep heard of none (s)."""
        self.follow(route, digest)

    def follow(self, route: Route, digest: str) -> None:
        """The plan of this digest has the route so."""
        self.route, self.rule, self.digest = route, route.rule(), digest

    def live(self, fact: Fact) -> None:
        """This happened."""
        self._enter(LIVES[self.life][fact])

    def _enter(self, life: Life) -> None:
        """What is asked for every request is said here: to look up a member of ``Enum`` takes four times as long."""
        self.life = life
        self.serving, self.closed = life is Life.SERVING, life is Life.CLOSED
        self.retired = life in RETIRED
        """Whether the plan in force has this route no more."""
        self.ending = life in ENDING
        """Whether this process is leaving."""

    @property
    def asked_for(self) -> str:
        """The model as the function knows it."""
        return self.route.variant or self.model

    def encoded(self, caller: Caller) -> bytes:
        """The member that a request comes as: a large body stays here, where all can ask for it."""
        caller.brought = True
        caller.has_ticket = self.all_lend and len(caller.item.body) > self.limits.carried
        return member_of(caller)

    def longest_wait(self) -> float:
        """Seconds after which nobody is served any more, by the route's table or for the patience of callers."""
        drop_after = self.route.policy.drop_after
        return self.patience if drop_after is None else min(self.patience, drop_after)

    def waits_here(self, request_id: str) -> bool:
        caller = self.waiting.get(request_id)
        return caller is not None and caller.queue == self.name

    def wanted(self, request_id: str) -> bool:
        """Whether somebody may still wait for an answer: of another process's callers only that process knows."""
        caller = self.waiting.get(request_id)
        return caller.queue != TOLD if caller is not None else request_id[:PROCESS_LENGTH] != self.process

    def all_wanted(self, members: list[bytes]) -> list[bytes]:
        return [member for member in members if self.wanted(member_id(member))]

    def at_hand(self, answers: list[Answer]) -> tuple[list[Answer], dict[str, list[Answer]]]:
        """The answers whose callers wait here, and the others by the process where they do.

        Nobody who has his answer at hand is computed for again, nor gets another.
        """
        here: list[Answer] = []
        elsewhere: defaultdict[str, list[Answer]] = defaultdict(list)
        for answer in answers:
            caller = self.waiting.get(answer.id)
            if caller is None:
                elsewhere[answer.id[:PROCESS_LENGTH]].append(answer)
            elif caller.queue != TOLD:
                caller.queue = TOLD
                here.append(answer)
        elsewhere.pop(self.process, None)  # they have gone
        return here, elsewhere
