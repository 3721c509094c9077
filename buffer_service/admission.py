"""Whether one more request may wait at a queue: the wait is bounded, not the count.

What may live here: the measured rate of service, whether more comes than is served, how long callers have waited before they left.
What may not: a clock, I/O, the queue itself. Times are seconds on the clock of the process. An elastic function has no queue that
lasts, and nobody is refused before it.

    measured                    from
    --------                    ----
    the rate of service         members that left the queue while all servers were busy: between calls at which somebody waited,
                                where no more left than one batch on every server, or than had waited
    before there is one         the largest batch on every server in the time that the last batch took here; more than the truth
    the wait of a newcomer      the members before him by that rate

A newcomer is refused where he would wait for longer than a bound; as many as are in one batch on every server may always wait, so
that no server is idle for it:

    state       bound                                                                 until
    -----       -----                                                                 -----
    ordinary    ``patience`` less the time of a batch: he would be told 504           more comes than is served
    overload    ``STANDING`` or three batches, the longer, but not more than the      nobody was refused for so long
                SLO, or the time after which callers leave, allows beside a batch

A table's own ``drop_after`` is the bound in both states. More comes than is served when the wait has exceeded the bound of overload
ever since a moment from which on the queue has grown by more than chance has it: by a batch on every server and ``DEVIATIONS``
standard deviations of a Poisson count of what came since. At three times the capacity that is seen in a few batches, at 1.1 times
later, and a queue near its capacity that only fluctuates is left alone. A queue beyond the bound of overload serves nobody better:
as many are answered, all of them later, and whose callers leave meanwhile for nothing.
"""

from __future__ import annotations

import math

from sluice.batching import Policy
from sluice.batching.errors import Overloaded

STANDING = 0.25  # s that a queue may stand under overload
DEVIATIONS = 3.0
FADES = 1.0  # s after which what was measured counts for 1/e, at least five batches
MARGIN = 1.25  # times its measured time that a batch may take
LATER = 0.1  # part by which the shortest time after which callers left grows with each who stayed longer
FRESH = 0.02  # s for which what the queue said is taken for true: who refuses all brings it nothing, and hears nothing
NEVER = -math.inf


class Admission:
    """Of one queue. ``patience`` (s): how long a caller waits for his answer; ``slo`` (s): what the plan promises him."""

    def __init__(self, policy: Policy, patience: float, slo: float | None) -> None:
        self._stay = math.inf  # s after which callers leave
        self.follow(policy, patience, slo)

    def follow(self, policy: Policy, patience: float, slo: float | None) -> None:
        """Another table, function or promise is in force; what was measured says nothing of it."""
        self._elastic = policy.servers is None
        self._full = policy.max_batch_size * (policy.servers or 0)  # members at work while all servers are
        self._drop_after = policy.drop_after
        self._patience = patience
        self._promise = patience if slo is None else min(slo, patience)
        self._batch_time = 0.0
        self._taken_in = self._time_in = 0.0  # members and seconds while all servers were busy, faded
        self._measured = False
        self.lost()

    def lost(self) -> None:
        """The queue begins anew, or is another."""
        self._heard_at = self._busy_for = 0.0
        self._waiting = self._taken = 0
        self._grows_since: tuple[int, int] | None = None  # how many waited, and had been taken
        self._overload = False
        self._refused_at = NEVER

    # -- facts

    def heard(self, now: float, waiting: int, taken: int) -> None:
        """The queue said that so many wait, and how many have left it in batches in all."""
        if self._elastic:
            return
        left = taken - self._taken
        if not self._waiting or not waiting or left > max(self._waiting, self._full):
            self._busy_for = 0.0
        else:
            self._busy_for += now - self._heard_at
            if left:
                self._measure(self._busy_for, left)
                self._busy_for = 0.0
        self._heard_at, self._waiting, self._taken = now, waiting, taken
        if waiting <= self._full or self._wait(waiting) <= self._bound():
            self._grows_since = None
        elif self._grows_since is None:
            self._grows_since = waiting, taken
        elif self._grew(waiting, taken):
            self._overload, self._refused_at = True, now
        if self._overload and now - self._refused_at > max(STANDING, self._bound()):
            self._overload = False

    def worked(self, seconds: float) -> None:
        """A batch took so long, from the queue to its answers."""
        self._batch_time = seconds

    def left(self, waited: float) -> None:
        """A caller gave up after so many seconds."""
        self._stay = waited if waited < self._stay else self._stay + LATER * (waited - self._stay)

    def stale(self, now: float) -> bool:
        """Whether the queue should be asked how many wait, as it was not heard of for a while."""
        return now - self._heard_at > FRESH

    # -- the answer

    def refuses(self, now: float, waiting: int, model: str) -> Overloaded | None:
        """Why one more must not wait behind so many, or ``None``."""
        if self._elastic or waiting < self._full:
            return None
        wait = self._wait(waiting)
        bound = self._bound() if self._overload or self._drop_after is not None else self._patience - self._a_batch()
        if wait <= bound:
            return None
        self._refused_at = now
        return Overloaded(model, waiting, wait, min(wait - bound, self._patience))

    # -- what is measured

    def _grew(self, waiting: int, taken: int) -> bool:
        """Whether more came than chance has it."""
        assert self._grows_since is not None
        grown = waiting - self._grows_since[0]
        came = grown + taken - self._grows_since[1]
        return grown > self._full + DEVIATIONS * math.sqrt(max(0, came))

    def _measure(self, seconds: float, taken: int) -> None:
        fade = math.exp(-seconds / max(FADES, 5 * self._a_batch()))
        self._taken_in = fade * self._taken_in + taken
        self._time_in = fade * self._time_in + seconds
        self._measured = self._measured or self._taken_in >= 2 * self._full

    def _rate(self) -> float:
        """Members a second."""
        if self._measured:
            hangs_for = max(0.0, self._busy_for - 2 * self._full * self._time_in / self._taken_in)
            return self._taken_in / (self._time_in + hangs_for)
        return self._full / self._batch_time if self._batch_time > 0 else math.inf

    def _wait(self, waiting: int) -> float:
        rate = self._rate()
        return waiting / rate if rate > 0 else math.inf

    def _a_batch(self) -> float:
        """Seconds that a largest batch takes on a server of its own, with a margin; 0 where nothing is known."""
        return MARGIN * self._wait(self._full)

    def _bound(self) -> float:
        """Of overload, in seconds."""
        if self._drop_after is not None:
            return self._drop_after
        batch = self._a_batch()
        promised = min(self._promise, self._stay) - 2 * batch
        return min(max(STANDING, 3 * batch / MARGIN), max(promised, 0.0))
