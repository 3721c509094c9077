"""Who may wait at the queue of one route: which bound on the wait holds, and what this process tells it.

What may live here: the bounds (``admission.py``) that a rule asks for, how much is at work for this process at elastic functions,
and how much it has put off until they take more. What may not: a clock, I/O, a batch, a caller.

    the rule has              a request is refused where it would wait for too long
    ------------              -----
    servers alone             for them, behind all that wait at the queue
    elastic tables alone      for what they refused, behind what this process has put off for that
    both                      for the servers, but not while an elastic function takes what its table releases; while no function
                              with servers is asked, as if there were elastic tables alone

Those who came since the queue was asked last stand before a newcomer in every row. A call to an elastic function counts until it
ends, whichever function its plan has by then; what it says of how much the function takes counts only if the plan has it still.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sluice.batching import Policy
from sluice.batching.errors import Overloaded
from sluice.buffer_service.admission import Admission
from sluice.buffer_service.batch_state import Cause, Failure, Part
from sluice.buffer_service.route_functions import RouteFunctions
from sluice.buffer_service.store import Outcome


class RouteAdmission:
    """Of a route of ``model`` under ``rule``, whose batches ``functions`` serve.

    ``patience`` (s) is how long a caller waits for his answer, ``slo`` (s) what the plan promises him.
    """

    def __init__(self, model: str, functions: RouteFunctions, rule: Policy, patience: float, slo: float | None) -> None:
        self._model = model
        self._functions = functions
        self._patience = patience
        self._calls = self._at_work = 0  # of elastic functions, under way; and their items
        self._computed = 0  # items that elastic functions have answered
        self._put_off = 0  # items whose function is busy
        self._bound = Admission(rule, patience, slo)  # for elastic functions where there are any, else for servers
        self._bound_each(rule, slo)

    def follow(self, rule: Policy, slo: float | None) -> None:
        """Another table, function or promise is in force."""
        self._bound.follow(rule, self._patience, slo)
        self._bound_each(rule, slo)

    def _bound_each(self, rule: Policy, slo: float | None) -> None:
        self._elastic = rule.elastic
        self._of_servers: Admission | None = None if self._elastic else self._bound
        self._bounds = [self._bound]
        of_servers = [table for table in rule.tables if table.servers is not None]
        if self._elastic and of_servers:
            first, *beside = of_servers
            self._of_servers = Admission(replace(first, beside=beside, drop_after=rule.drop_after), self._patience, slo)
            self._bounds.append(self._of_servers)

    # -- facts of the queue and of callers

    def heard(self, now: float, outcome: Outcome) -> None:
        """The queue answered a call."""
        if self._functions.all_open:
            self.lost()  # what leaves the queue to be refused says nothing of the rate of service
        elif self._of_servers is not None:
            self._of_servers.heard(now, outcome.queue_length, outcome.taken, outcome.busy, outcome.behind)

    def lost(self) -> None:
        """The queue began anew."""
        for bound in self._bounds:
            bound.lost()

    def left(self, now: float, waited: float, slack: float) -> None:
        """A caller gave up after so many seconds, with such a slack (s), which an elastic function does not regard."""
        for bound in self._bounds:
            bound.left(now, waited, slack if bound is self._of_servers else 0.0)

    # -- facts of batches

    def asked(self, items: int) -> None:
        """An elastic function is asked for so many items."""
        self._calls += 1
        self._at_work += items

    def ended(self, items: int) -> None:
        """Such a call has ended."""
        self._calls -= 1
        self._at_work -= items

    def heard_of_elastic(self, now: float, part: Part, failure: Failure | None) -> None:
        """How a call to an elastic function of the plan ended says how much it takes."""
        if failure is None:
            self._computed += len(part.items)
            self._bound.worked(now - part.asked_at)
            self._bound.took(self._calls + 1)
        elif failure.cause is Cause.BUSY:
            self._bound.throttled(now, self._calls, self._at_work)
        self._bound.put_off(now, self._put_off, self._computed)

    def served(self, seconds: float, wasted: float) -> None:
        """A batch that a server was given took so long, and so large a part of its callers here had left by then."""
        assert self._of_servers is not None
        self._of_servers.worked(seconds, wasted)

    def put_off(self, items: int) -> None:
        """So many items more wait until their function is less busy."""
        self._put_off += items

    def put_off_no_more(self, items: int) -> None:
        """So many of these are asked for, or need not be."""
        self._put_off -= items

    def looked_at(self, now: float) -> None:
        """What is put off was looked at; nothing may be any more, with no call under way that would tell."""
        if self._elastic and not self._put_off and not self._calls:
            self._bound.put_off(now, 0, self._computed)

    # -- answers

    @property
    def refuses_nobody(self) -> bool:
        """Whether no function has servers, and an elastic one has taken all that it was asked for."""
        return self._of_servers is None and not self._bound.put_off_any

    def refuses(
        self,
        now: float,
        waiting: int,
        coming: int,
        at_most: Callable[[float], Sequence[tuple[int, int]]],
        slack: float = 0.0,
        part: float = 1.0,
    ) -> Overloaded | None:
        """Why one more must not wait where so many did when the queue was heard of last, and so many came since; or ``None``.

        ``at_most`` says how many batches are taken now from tables of elastic functions that take no more. With a ``slack`` (s)
        above 0 he is left so large a ``part`` of the service.
        """
        servers = self._of_servers
        if servers is None or (self._elastic and not self._functions.asks_servers(now)):
            has_room = self._bound.has_room(self._calls, coming)
            return None if has_room else self._bound.refuses(now, self._put_off + coming, self._model, slack, part)
        if self._elastic and self._functions.takes_more(now, at_most(now)):
            return None
        return servers.refuses(now, waiting + coming, self._model, slack, part)

    def stale(self, now: float) -> bool:
        """Whether the queue should be asked how many wait before more are refused for that."""
        servers = self._of_servers
        return servers is not None and servers.stale(now) and (not self._elastic or self._functions.asks_servers(now))

    def backoff(self, shortest: float) -> float:
        """Seconds within which what a busy function refused is asked for again."""
        return self._bound.backoff(shortest)

    def is_left(self, age: float) -> bool:
        """Whether the callers of so old a batch (s) will hardly stay until it is answered."""
        return self._bound.is_left(age)
