"""Whether one more request may wait at a queue: the wait is bounded, not the count.

What may live here: the measured rate of service, whether more comes than is served, how long callers have waited before they left.
What may not: a clock, I/O, the queue itself. Times are seconds on the clock of the process.

    measured                    from
    --------                    ----
    the rate of service         members that left the queue while all servers were busy: between calls after which they were, where
                                no more left than one batch on every server, or than had waited
    before there is one         the largest batch on every server in the time that the last batch took here; more than the truth
    the wait of a newcomer      the members before him by that rate

Before an elastic function nobody waits but for what it refuses for want of concurrency, and nobody is refused while nothing of this
process is put off for that. While something is, the function is servers: as many as had a batch of this process when it refused one
last. Then this is measured instead:

    the rate of service         members that were answered while something was put off
    before there is one         none: what has lasted for so long is taken to last for as long again, and nobody waits longer
    the wait of a newcomer      the members that are put off by that rate; where fewer batches are at work than there are servers,
                                nobody is refused

A newcomer is refused where he would wait for longer than a bound. As many as are in one batch on every server may always wait, so
that no server is idle for it; but where half of a batch's callers left before it ended, under overload only half as many may, and
so on, for smaller batches end sooner; and a few more with each batch that hardly anybody left:

    state       bound                                                                 until
    -----       -----                                                                 -----
    ordinary    ``patience`` less the time of a batch: he would be told 504           more comes than is served
    overload    ``STANDING`` or three batches, the longer, but not more than the      nobody was refused for so long
                SLO, or the time after which callers leave, allows beside a batch

A table's own ``drop_after`` is the bound in both states, where it is shorter than ``patience``.

Who has a slack stands behind others, and goes before those who are urgent and come now when he has waited beyond it. Where it is
not longer than the bound of overload that is before he leaves, for everybody waits for about as long then: he is as urgent as they.
Who has a longer one is patient, and has a state of his own, from the whole queue; the others theirs from who stands before them:

    state       bound of who is patient                                                   until
    -----       -----------------------                                                   -----
    ordinary    as above; where others of less slack are served, his slack, and           more comes than is served, or one is
                ``STANDING`` or three batches, the longer                                 refused
    overload    that of overload above, or his slack less what may be wrong with it       the whole queue was within the bound of
                (``MARGIN``), the longer, by the rate that others leave (``slack_line``)  overload above for so long

Before an elastic function there is no line, and one state: who is patient may wait in overload where the wait by the rate that
others leave is within the bound, behind so large a part of as many as may always wait.

More comes than is served when the wait has exceeded the bound of overload for ``BURST`` at least, and the queue has grown since
by more than chance has it: by a batch on every server and ``DEVIATIONS`` standard deviations of a Poisson count of what came
since, with those who left. At three times the capacity that is seen in a few batches, at 1.1 times later, and a queue near its
capacity that only fluctuates is left alone. A queue beyond the bound of overload serves nobody better: as many are answered, all
later, and whose callers leave, for nothing.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from sluice.batching import Policy
from sluice.batching.errors import Overloaded

STANDING = 0.25  # s that a queue may stand under overload
BURST = 0.1  # s; what comes in less is let in whole
THROTTLE, OF_PATIENCE = 5.0, 0.25  # s, and part of the time that callers have: so long an elastic function may refuse batches
SETTLES = 0.5  # s for which the rate of an elastic function is measured before it counts
DEVIATIONS = 3.0
FADES = 1.0  # s after which what was measured counts for 1/e, at least five batches
MARGIN = 1.25  # times its measured time that a batch may take
LEFT = 5, 10.0  # so many must have left in so many seconds for the median of how long they stayed to count
WASTED, SAVED = 0.5, 0.05  # parts of a batch whose callers left before it ended, from which on fewer, below which more may wait
GROWTH = 1.05
RETRY = 10.0  # s after which who is refused is told to come again, at most
FRESH = 0.02  # s for which what the queue said is taken for true: who refuses all brings it nothing, and hears nothing
NEVER = -math.inf


class _Watch:
    """Of those who are urgent, or of those who are patient: how long they stay, and whether more comes than is served."""

    def __init__(self) -> None:
        self.departures: deque[tuple[float, float]] = deque(maxlen=32)  # when callers left, and after how long
        self.stay = math.inf  # s after which they do
        self.begin()

    def begin(self) -> None:
        """The queue begins anew, or is another."""
        self.gone = 0  # callers
        self.grows_since: tuple[float, int, int] | None = None  # when; who waited or had left, and who had been taken, by then
        self.overload = False
        self.refused_at = NEVER

    def left(self, now: float, waited: float) -> None:
        """A caller gave up after so many seconds."""
        self.departures.append((now, waited))
        enough, within = LEFT
        lately = [stayed for at, stayed in self.departures if now - at <= within]
        self.stay = median(lately) if len(lately) >= enough else math.inf

    def forget(self, now: float) -> None:
        """Who left long ago, as nothing hangs on it."""
        if self.departures and not self.overload and now - self.departures[-1][0] > LEFT[1]:
            self.departures.clear()
            self.stay = math.inf


class Admission:
    """Of one queue. ``patience`` (s): how long a caller waits for his answer; ``slo`` (s): what the plan promises him."""

    def __init__(self, policy: Policy, patience: float, slo: float | None) -> None:
        self._urgent, self._patient = _Watch(), _Watch()
        self.follow(policy, patience, slo)

    def follow(self, policy: Policy, patience: float, slo: float | None) -> None:
        """Another table, function or promise is in force; what was measured says nothing of it."""
        self._elastic = policy.elastic
        # Where a table is elastic, it takes what the servers of the others do not: they are no part of what is measured.
        tables = [table for table in policy.tables if table.servers is None or not self._elastic]
        self._largest = max(table.max_batch_size for table in tables)
        self._servers = sum(table.servers or 0 for table in tables)
        at_work = [table.max_batch_size * (table.servers or 1) for table in tables]
        self._full = max(at_work) if self._elastic else sum(at_work)  # members at work while all servers are
        self._takes = math.inf  # batches at once, of an elastic function that refused one more
        self._floor = float(self._full)  # members that may always wait
        self._drop_after = policy.drop_after if policy.drop_after is not None and policy.drop_after < patience else None
        self._patience = patience
        self._promise = patience if slo is None else min(slo, patience)
        self._batch_time = 0.0
        self._forget_the_rate()
        self.lost()

    def _forget_the_rate(self) -> None:
        self._taken_in = self._time_in = 0.0  # members and seconds while all servers were busy, faded
        self._measured = False

    def lost(self) -> None:
        """The queue begins anew, or is another."""
        self._heard_at = self._busy_for = self._throttled_at = 0.0
        self._waiting = self._taken = 0
        self._busy = False  # all servers, when the queue was heard of last
        for watch in (self._urgent, self._patient):
            watch.begin()

    # -- facts

    def heard(self, now: float, waiting: int, taken: int, busy: int, behind: int = 0) -> None:
        """The queue said that so many wait, how many have left it in batches in all, and how many servers are ``busy``.

        Of those who wait so many stand ``behind`` a newcomer without a slack.
        """
        if not self._elastic:
            self._note(now, waiting, taken, busy >= self._servers, behind)

    def throttled(self, now: float, calls: int, at_work: int) -> None:
        """An elastic function refused a batch for want of concurrency; so many others are at work, of so many members in all."""
        if not self._waiting and now - self._heard_at > FADES:
            self._forget_the_rate()
            self._throttled_at, self._takes = now, math.inf
        if calls <= self._takes:  # else some of these are about to be refused too
            full = max(self._largest, at_work)
            self._floor *= full / self._full
            self._full, self._takes = full, calls

    def took(self, calls: int) -> None:
        """An elastic function answered one of so many batches, and takes as many."""
        self._takes = max(self._takes, calls)

    def put_off(self, now: float, waiting: int, answered: int) -> None:
        """So many wait as an elastic function is busy, and it has answered so many in all."""
        if self._takes < math.inf and (waiting or self._waiting):  # else what refused them was another table's function
            self._note(now, waiting, answered, waiting > 0)

    @property
    def put_off_any(self) -> bool:
        """Whether somebody waited, when the queue, or what a busy elastic function left, was heard of last."""
        return self._waiting > 0

    def has_room(self, calls: int, coming: int) -> bool:
        """Whether an elastic function that has so many batches, and so many members coming, is known to take one more.

        Whether it takes more than is known, what waits finds out, and nobody is let in for that.
        """
        return not self._waiting or (calls + 1 <= self._takes and coming < self._largest)

    def backoff(self, shortest: float) -> float:
        """Seconds within which what an elastic function refused is asked for again: about as many ask in vain as are answered."""
        return max(shortest, 2 * self._wait(self._waiting)) if self._elastic and self._measured else math.inf

    def is_left(self, age: float) -> bool:
        """Whether the callers of so old a batch (s) will hardly stay until it is answered."""
        return age + MARGIN * self._batch_time > self._urgent.stay

    def _note(self, now: float, waiting: int, taken: int, busy: bool, behind: int = 0) -> None:
        left = taken - self._taken
        was_busy, self._busy = self._busy, busy
        if not was_busy or not self._busy or not 0 <= left <= max(self._waiting, self._full):
            self._busy_for = 0.0
        else:
            self._busy_for += now - self._heard_at
            if left:
                self._measure(self._busy_for, left)
                self._busy_for = 0.0
        self._heard_at, self._waiting, self._taken = now, waiting, taken
        self._look(self._urgent, now, waiting - behind, taken)
        self._look(self._patient, now, waiting, taken)
        if self._patient.overload and waiting > self._floor and self._wait(waiting) > self._bound():
            self._patient.refused_at = now  # or would have been

    def _look(self, watch: _Watch, now: float, waiting: int, taken: int) -> None:
        """Whether more comes than is served, of whom so many wait, with those before them."""
        watch.forget(now)
        if waiting <= self._floor or self._wait(waiting) <= self._bound():
            watch.grows_since = None
        elif watch.grows_since is None:
            watch.grows_since = now, waiting + watch.gone, taken
        elif self._grew(watch.grows_since, now, waiting + watch.gone, taken):
            watch.overload, watch.refused_at = True, now
        if watch.overload and now - watch.refused_at > max(STANDING, self._bound()):
            watch.overload = False

    def worked(self, seconds: float, wasted: float = 0.0) -> None:
        """A batch took so long, from the queue to its answers; so large a part of its callers had left by then."""
        self._batch_time = seconds
        if wasted >= WASTED:
            self._floor = max(self._floor / 2, self._full / self._largest)
        elif wasted < SAVED:
            self._floor = min(self._floor * GROWTH, self._full)

    def left(self, now: float, waited: float, slack: float = 0.0) -> None:
        """A caller gave up after so many seconds, with such a slack (s)."""
        patient = self._is_patient(slack)
        (self._patient if patient else self._urgent).left(now, waited)
        self._patient.gone += 1
        self._urgent.gone += not patient

    def stale(self, now: float) -> bool:
        """Whether the queue should be asked how many wait, as it was not heard of for a while."""
        return not self._elastic and now - self._heard_at > FRESH

    # -- the answer

    def refuses(self, now: float, waiting: int, model: str, slack: float = 0.0, part: float = 1.0) -> Overloaded | None:
        """Why one more must not wait behind so many, or ``None``.

        With a ``slack`` (s) above the bound of overload he is left so large a ``part`` of the service.
        """
        if not (patient := self._is_patient(slack)):
            part = 1.0
        elif self._elastic:
            patient = False  # what the function refused is asked for oldest first, whatever his slack
        watch = self._patient if patient else self._urgent
        enough = self._floor if watch.overload else self._full
        if waiting < (part * enough if watch.overload and self._elastic else enough):
            return None
        wait, longest = self._wait(waiting), self._patience - MARGIN * self._wait(self._full)
        if watch.overload:
            wait /= part
        if watch.overload or self._drop_after is not None:
            longest = min(max(self._bound(), slack / MARGIN), watch.stay, longest) if patient else self._bound()
        elif patient and part < 1:
            longest = min(slack + max(STANDING, 3 * self._wait(self._full)), longest)
        if wait <= longest:
            return None
        watch.refused_at = now
        watch.overload |= patient and part < 1
        return Overloaded(model, waiting, wait, min(wait - longest, RETRY))

    # -- what is measured

    def _grew(self, began: tuple[float, int, int], now: float, came_or_left: int, taken: int) -> bool:
        """Whether more came than chance has it since the queue ``began`` to be too long."""
        since, were, had_been_taken = began
        grown = came_or_left - were
        came = grown + taken - had_been_taken
        return now - since >= self._burst() and grown > self._floor + DEVIATIONS * math.sqrt(max(0, came))

    def _measure(self, seconds: float, taken: int) -> None:
        a_batch = self._full / self._settled_rate()
        if a_batch > 0:
            seconds = min(seconds, 2 * a_batch)  # the rest of it nobody worked: a hang says nothing of the rate after it
        fade = math.exp(-seconds / max(FADES, 5 * a_batch))
        self._taken_in = fade * self._taken_in + taken
        self._time_in = fade * self._time_in + seconds
        settled = self._taken_in >= 2 * self._full and (not self._elastic or self._time_in >= SETTLES)
        self._measured = self._measured or settled

    def _settled_rate(self) -> float:
        """Members a second, when something left the queue last."""
        if self._measured and self._time_in > 0:
            return self._taken_in / self._time_in
        return self._full / self._batch_time if self._batch_time > 0 else math.inf

    def _rate(self) -> float:
        """Members a second, less where nothing has left the queue for longer than it takes."""
        rate = self._settled_rate()
        hangs_for = max(0.0, self._busy_for - 2 * self._full / rate)
        return self._taken_in / (self._time_in + hangs_for) if self._measured and hangs_for else rate

    def _burst(self) -> float:
        """Seconds for which more may come than is served."""
        if not self._elastic:
            return BURST
        return max(BURST, min(THROTTLE, OF_PATIENCE * min(self._patience, self._urgent.stay)))

    def _wait(self, waiting: float) -> float:
        if self._elastic and not self._measured:
            return self._heard_at - self._throttled_at
        rate = self._rate()
        return waiting / rate if rate > 0 else math.inf

    def _is_patient(self, slack: float) -> bool:
        """Whether a slack (s) lasts for longer than anybody waits under overload; else who has it is as urgent by then."""
        return slack > 0 and slack > self._bound()

    def _bound(self) -> float:
        """Of overload, in seconds."""
        if self._drop_after is not None:
            return self._drop_after
        full, limit = self._wait(self._full), min(self._promise, self._urgent.stay)
        # Before him are the rest of the batch at work and full ones; or that rest, and he is in a batch of all who wait.
        promised = max(limit - 2 * MARGIN * full, min(full, limit / (2 * MARGIN)))
        return min(max(STANDING, 3 * full), promised)
