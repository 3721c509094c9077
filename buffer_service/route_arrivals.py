"""Who came to a route at this process and is not at its queue yet: when they are brought to it, and who leaves past it.

What may live here: what is known of them, of who waits at the queue as it said last, and what follows from that for when to ask it.
What may not: a clock, I/O, the call itself, what becomes of a batch.

Who is brought. His hold runs from when he came, so a call for each would be for nothing where nothing could leave the queue with
him. Where one table rules, as far as is known here:

    all servers have batches of this process, or  he is brought by the call that ends one, or ``FRESH`` after the last answer;
    are ejected                                   where holds are spans of time, ``GATHERED`` after the first at most, as who
                                                  comes later elsewhere and is brought before him has the hold that counts
    with him a batch is due, or he has a slack    at once
    they come so fast that a batch fills here     with that: when it is due, ``FILLED`` after the first of them at most
    another came within ``GATHERED`` before him   with those: when a batch is due, ``GATHERED`` after the first of them at most
    nobody did                                    at once

Where batches fill here a call brings, besides those who are due, as many as leave with who waits at the queue, and no others: who
would wait there for those who come here next waits here for them. So a process whose batches fill brings nobody before long. All
are brought where without those behind others would leave: when a hold ends at the queue, as the row may hold longer with them, and
by a table that has full batches in other sizes where fewer wait.

Who leaves past the queue. Those who came and were not brought yet leave as batches of this process, and the queue hears of it with
a later call, where it would release them at once if it held them alone: one table rules, no servers bound it, nobody waited at the
queue when it answered last, and a call that is under way brings nobody there. So a process alone sends the batches that the queue
would have, without asking it first; of several each sends its own, and who waits at the queue does so until his hold ends at the
latest, as without them. While a call is under way full batches leave, and others wait for its end. Who dies takes with him what
left so, with its callers. A process that was alone at the queue when it swept last leaves past one whose servers are bounded too,
where a batch of it has ended and the queue has not heard of that: in its place, in which the queue has that batch until the last in
it ends, and by no more than one batch. Requests whose answers are kept, which others are to serve then, and those with a slack or
a size take the way through the queue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sluice.batching import Policy
from sluice.buffer_service.admission import FRESH
from sluice.buffer_service.hold_lateness import HoldLateness
from sluice.buffer_service.members import member_id
from sluice.buffer_service.results import ADDRESS
from sluice.buffer_service.route_batches import RouteBatches
from sluice.buffer_service.route_facts import Caller, RouteFacts
from sluice.buffer_service.route_instructions import AT_ONCE, NEVER
from sluice.buffer_service.told import NOTHING_TOLD

LARGEST_CALL = 512  # arrivals, new or moved, that one call carries at most: bounds the time a script holds the server
MOST_LEFT = 4096  # of those who left past the queue, that one call tells of at most
GATHERED = 0.001  # seconds in which those who come one soon after the other are brought by one call
FILLED = 0.0025  # seconds, and half of the hold of one, in which those who come so fast are to fill a batch by themselves
AVERAGED = 1 / 256  # what the last time between two who came weighs in how fast they come


class RouteArrivals:
    """Of the route of ``facts``; who leaves past its queue joins its ``batches``."""

    def __init__(self, facts: RouteFacts, batches: RouteBatches) -> None:
        self._facts = facts
        self._batches = batches
        self.callers: list[Caller] = []
        """Who are to be brought, in the order in which they came."""
        self.patient = 0
        """Of these, those with a slack above 0."""
        self.left: list[float] = []
        """When those came who left past the queue, which has not heard of it (s)."""
        self.sizes_told = self.slacks_told = False
        """Whether one ever told its size, or had a slack."""
        self.bring_at = NEVER
        """When a call is due for those who came, whatever else there is to ask for (s)."""
        self.waited = 0
        """How many waited at the queue when it answered last."""
        self.answered_at = AT_ONCE
        """When that was (s)."""
        self.ejected = 0
        """How many servers of the one table were, at the last call."""
        self._wakes_at = NEVER  # when the hold ends of who is to leave it next, as far as is known
        self._hold_began = -math.inf  # and when that began
        self._came_at = -math.inf  # when the last did
        self._between = FILLED  # seconds between two of them, on average; where it is longer, so long
        self._lateness = HoldLateness()
        self.follow(facts.rule)

    def follow(self, rule: Policy) -> None:
        """This rule is in force; what of it is asked for each who comes is said here."""
        self._alone = table = rule if not rule.beside and rule.columns == 1 else None
        # Whether a row releases neither at once nor never: it hangs on when he came who is next to leave.
        self._spans = any(0 < hold < math.inf for hold in rule.hold)
        self._full = math.inf  # so many leave at once
        self._filled = 0.0  # seconds in which a batch may fill here, 0 where it is not waited for
        self._fast = 0.0  # seconds between two who come so fast that one does
        if table is not None and table.servers is None and 0.0 in table.hold:
            self._full = table.hold.index(0.0)
            self._filled = min(FILLED, table.hold[1] / 2)
            self._fast = self._filled / self._full
        holds = table.hold if self.elastic and table is not None else ()
        self._lateness.follow(min((hold for hold in holds if 0 < hold < math.inf), default=0.0))

    @property
    def early(self) -> float:
        """Seconds by which the holds of those who come run early, as batches would leave so much later than they end."""
        return 0.0 if self.slacks_told else self._lateness.seconds

    @property
    def elastic(self) -> bool:
        """Whether one table rules, and no servers bound it."""
        return self._alone is not None and self._alone.servers is None

    def came(self, now: float, caller: Caller, asking: bool) -> None:
        """A caller is here; ``asking``: a call is under way, whose answer says when he is due."""
        self.callers.append(caller)
        if (told := caller.told) is not NOTHING_TOLD:
            self.patient += told.slack > 0
            self.slacks_told |= told.slack != 0
            self.sizes_told |= told.size is not None
        since, self._came_at = now - self._came_at, now
        self._between += ((since if since < FILLED else FILLED) - self._between) * AVERAGED
        if not asking and self.bring_at > AT_ONCE and (brings_at := self._brings_at(since > GATHERED)) < self.bring_at:
            self.bring_at = brings_at

    def again(self, callers: list[Caller]) -> None:
        """These come again, before all others; some may have come from another route."""
        self.callers = callers + self.callers
        self.patient += _patient(callers)
        self.sizes_told |= any(caller.told.size is not None for caller in callers)
        self.slacks_told |= any(caller.told.slack != 0 for caller in callers)

    def gone(self, caller: Caller) -> bool:
        """A caller waits no more; whether he was to be brought."""
        callers = [other for other in self.callers if other.item.id != caller.item.id]
        found = len(callers) < len(self.callers)
        self.callers = callers
        self.patient -= found and caller.told.slack > 0
        return found

    def clear(self) -> list[Caller]:
        """Nobody is to be brought any more; who was."""
        callers, self.callers = self.callers, []
        self.patient, self.bring_at = 0, NEVER
        return callers

    # -- when they are brought

    def _brings_at(self, comes_alone: bool = False) -> float:
        """When those who came are to be brought, of whom the last ``comes_alone`` or soon after another."""
        table, callers = self._alone, self.callers
        if table is None or not self._facts.serving:
            return AT_ONCE
        if table.servers is not None and len(self._batches.under_way) + self.ejected >= table.servers:
            return callers[0].came + GATHERED if self._spans else self.answered_at + FRESH
        fast = self._between < self._fast
        if (comes_alone and not fast) or self.slacks_told:
            return AT_ONCE
        first_came = callers[0].came
        hold = table.hold[min(self.waited + len(callers), len(table.hold) - 1)]  # as Policy.row
        latest = first_came + (self._filled if fast else GATHERED)
        began = min(self._hold_began, first_came) if self.waited else first_came  # who waits may have a slack
        return latest if hold == math.inf else min(latest, began + hold)

    def look_again(self) -> None:
        """Say anew when who is left is due."""
        self.bring_at = self._brings_at() if self.callers else NEVER

    def due(self, now: float) -> int:
        """How many of them a call at ``now`` brings, of which it may carry less."""
        table, callers = self._alone, self.callers
        fills_here = self._between < self._fast and not self.slacks_told and self._facts.serving
        if table is None or not callers or not fills_here or now >= self._wakes_at:
            return len(callers)
        leave = _full_batches(table, self.waited + len(callers))
        due = sum(leave) - self.waited
        if due <= 0:
            return len(callers) if now >= self._brings_at() else 0
        others_may_stay = due < len(callers) and now < callers[due].came + self._filled
        return due if others_may_stay and _full_batches(table, sum(leave)) == leave else len(callers)

    def next(self, due: int) -> tuple[list[tuple[float, bytes]], int]:
        """When they came and what the queue gets, of those ``due`` whom one call carries; how many of them have a slack above 0."""
        n = min(due, LARGEST_CALL)
        callers, self.callers = self.callers[:n], self.callers[n:]
        patient = _patient(callers) if self.patient else 0
        self.patient -= patient
        return [(caller.came, self._facts.encoded(caller)) for caller in callers], patient

    def heard(self, now: float, waited: int, wake_at: float) -> None:
        """The queue answered: so many wait, and it is to be asked again at ``wake_at`` (s)."""
        self.answered_at, self.waited, self._wakes_at = now, waited, wake_at
        self._hold_began = -math.inf
        if wake_at < NEVER and self._alone is not None:
            self._hold_began = wake_at - self._alone.hold[self._alone.row(waited)]

    def released(self, now: float, members: Sequence[bytes]) -> None:
        """These are who waited, and left at a call that brought nobody: as their hold ended, where that was said and came."""
        first = self._facts.waiting.get(member_id(members[0]))
        if self._alone is None or not self.elastic or self.slacks_told or first is None:
            return
        if len(members) == self.waited and self._wakes_at <= now:
            self._lateness.seen(now - first.came - self._alone.hold[self._alone.row(len(members))])

    # -- who leaves past the queue

    @property
    def ready(self) -> bool:
        """Whether those who came are a full batch, which waits for nobody, or may take the place of one that has ended."""
        return not self.waited and (len(self.callers) >= self._full or self._takes_over())

    def _takes_over(self) -> bool:
        """Whether the queue has not heard of the end of a batch here, and all who came would be the next in its place."""
        table, came = self._alone, self.callers
        if table is None or table.servers is None or not (came and self._batches.vacant and self._facts.alone_until > AT_ONCE):
            return False
        ejected = min(self.ejected, table.servers - 1)  # as the script has it
        return len(self._batches.under_way) + ejected < table.servers and table.take[table.row(len(came))] == len(came)

    def leave_directly(self, now: float) -> bool:
        """Those who came leave as many as the queue would release now if they waited there, alone; whether any did."""
        table, came = self._alone, self.callers
        if table is None or self.waited or any(map(_is_for_the_queue, came)):
            return False
        bounded = table.servers is not None
        if bounded and not (now <= self._facts.alone_until and self._takes_over()):
            return False
        left, longest = 0, self._facts.longest_wait()
        while left < len(came):
            row, first_came = table.row(len(came) - left), came[left].came
            if not first_came + table.hold[row] <= now <= first_came + longest:
                break  # before his hold ends, or as the queue drops him
            self._batches.take_directly(now, came[left : left + table.take[row]], bounded)
            left += table.take[row]
        if left:
            self.left += [caller.came for caller in came[:left]]
            self.callers = came[left:]
            self.look_again()
        return left > 0

    def next_left(self) -> list[float]:
        """When those came whom the next call tells of as left."""
        left, self.left = self.left[:MOST_LEFT], self.left[MOST_LEFT:]
        return left


def _full_batches(table: Policy, waiting: int) -> list[int]:
    """The sizes of the batches that leave at once where so many wait, however short they have."""
    batches = []
    while table.hold[row := table.row(waiting)] == 0:
        batches.append(table.take[row])
        waiting -= table.take[row]
    return batches


def _is_for_the_queue(caller: Caller) -> bool:
    """Whether the queue orders his request, or keeps it for others to serve."""
    told, headers = caller.told, caller.item.headers
    return (told is not NOTHING_TOLD and (told.slack != 0 or told.size is not None)) or bool(headers and ADDRESS in headers)


def _patient(callers: list[Caller]) -> int:
    """How many of these have a slack above 0."""
    return sum(caller.told.slack > 0 for caller in callers)
