"""Sequential tests on arrivals: their rate, or their burstiness, is another one (docs/watching.md, docs/model.md, section 10)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log2, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.tuning.dispersion import SCALES
from sluice.optimizer.tuning.level_scan import LevelScan

DAY = 86_400.0  # s
WIDTHS = (-3, 0)  # doublings of a second: counts are of 1/8 s to 1 s
PER_COUNT = 4.0  # arrivals that a count should hold, where its width lets it
FIRST = 32  # arrivals from which the first width is taken
LEAST_RATIO = 1.1
SET_BACK = 60.0  # s; a clock that goes further back was set, and what is between is not known
MOST_COUNTS = 1 << 20  # of one call: a silence of twelve days
HORIZON = 9  # doublings of a second: bursts of up to some minutes belong to a rate, and what varies more slowly changes it
LONGEST_EXPECTED = 2048.0  # s over which a fit is believed
AFTERWARDS = 120.0  # s whose rate tells whether an alarm was of a change, or of what came back
RECENT = 1024  # values whose times are known
EXCUSED = DAY  # s in which what is excused of bursts falls to its square root


@dataclass(frozen=True)
class Alarm:
    """What a test has found.

    Parameters
    ----------
    kind : str
        ``rate`` (requests/s), ``burstiness`` (dispersion of neighbouring counts), ``promise`` (share of late requests),
        ``service`` and ``invocation`` (seconds over those of the profile).
    at, since : float
        When it was noticed, and since when it is so, as far as the test can tell; s, by the clock of what was seen.
    before, after : float
        In the unit of the kind.
    words : str
        A sentence.
    """

    kind: Literal["rate", "burstiness", "promise", "service", "invocation"]
    at: float
    before: float
    after: float
    words: str
    since: float


class _Counts:
    """Arrivals as counts of successive equal times; what is given late or twice at one time counts in the one that is open."""

    def __init__(self) -> None:
        self.width = 0.0  # s; 0 until it is set
        self.opened = np.nan  # when the count began that is open
        self._inside = 0

    def begin(self, at: float, width: float) -> None:
        """Count anew from ``at`` on."""
        self.opened, self.width, self._inside = at, width, 0

    def complete(self, times: Array, until: float) -> Array:
        """The counts that are complete at ``until``, (n,), with the arrivals at ``times``, ascending."""
        n = min(max(0, floor((until - self.opened) / self.width)), MOST_COUNTS)
        places = np.minimum(np.maximum((times - self.opened) / self.width, 0), n).astype(np.int64)
        counts = np.bincount(places, minlength=n + 1)
        counts[0] += self._inside
        self._inside = int(counts[n])
        self.opened += n * self.width
        if n == MOST_COUNTS:
            self.opened = max(self.opened, until)
        return counts[:n].astype(np.float64)


class _ArrivalTest:
    """What both tests share: the first width, holes, and clocks that are set."""

    def __init__(self) -> None:
        self.alarm: Alarm | None = None
        self._counts = _Counts()
        self._first: list[Array] = []
        self._latest = -np.inf

    def clear(self) -> None:
        """The alarm is taken note of."""
        self.alarm = None

    def resume(self, at: float) -> None:
        """What came before ``at`` since the last arrival seen is not known: the record has a hole, or the clock was set."""
        self._first = []
        self._latest = at
        if self._counts.width:
            self._counts.begin(at, self._counts.width)

    def see(self, times: Array, until: float | None = None) -> None:
        """Take in arrivals, s, those of earlier calls before them; ``until`` then all are known, by default until the last.

        Raises
        ------
        InvalidInput
            A time that is none.
        """
        times = np.sort(np.asarray(times, dtype=np.float64))
        require(bool(np.isfinite(times).all()), "times", times, "seconds")
        end = max(float(times[-1]) if len(times) else -np.inf, -np.inf if until is None else until)
        if not np.isfinite(end):
            return
        if end < self._latest - SET_BACK:
            self.resume(float(times[0]) if len(times) else end)
        self._latest = max(self._latest, end)
        if self._counts.width:
            self._step(times, end)
            return
        if len(times):
            self._first.append(times)
        if sum(map(len, self._first)) >= FIRST:
            known = np.sort(np.concatenate(self._first))
            self._first = []
            self._begin(float(known[0]), (len(known) - 1) / max(end - float(known[0]), 1e-3))
            self._step(known, end)

    def _begin(self, at: float, rate: float) -> None:
        """Count from ``at`` on, what comes at about this rate."""
        raise NotImplementedError

    def _step(self, times: Array, until: float) -> None:
        raise NotImplementedError


def _width_for(rate: float) -> float:
    low, high = WIDTHS
    return float(2.0 ** min(max(ceil(log2(PER_COUNT / max(rate, 1e-9))), low), high))


@dataclass
class _Aftermath:
    """The time after an alarm up to ``ends`` (s), in which its rate is seen to be another than ``before`` (requests/s), or not."""

    before: float
    ends: float
    requests: int = 0
    alarms: int = 0
    seconds: float = 0.0  # of the longest window over which an alarm was seen

    def came_back(self, least: float) -> bool:
        """When it is over: whether the rate was within a factor of ``least`` of that before."""
        return self.before / least <= self.requests / AFTERWARDS <= self.before * least


class RateTest(_ArrivalTest):
    """The arrival rate is another than that at which it stood.

    A window-limited likelihood-ratio scan of counts over their measured dispersion (``level_scan``), so that arrivals may come in
    bursts of whatever length; from the first change on against the rate since then. An alarm after which the rate of two minutes
    is what it was before was of a burst or a stall: the next must be twice as strong, where it is as long (``excuse``), for a day.

    Parameters
    ----------
    expected : ArrivalProcess, optional
        A fit, by whose dispersion windows are judged of which few were seen yet; ``expect`` tells another.
    least : float
        Ratio of two rates up to which they count as the same, >= 1.
    false_alarms : float
        A day of a steady rate, at most (docs/watching.md has what was measured).
    """

    def __init__(self, expected: ArrivalProcess | None = None, least: float = LEAST_RATIO, false_alarms: float = 0.1) -> None:
        require(0 < false_alarms < np.inf, "false_alarms", false_alarms, "a number a day > 0")
        super().__init__()
        self._expected, self._least = expected, least
        self._scan = LevelScan("poisson", least, DAY / 2.0 ** WIDTHS[0] / false_alarms, HORIZON)
        self._after: _Aftermath | None = None
        self.false = 0  # alarms after which the rate was what it had been

    @property
    def rate(self) -> float:
        """Requests/s since the last change; ``nan`` before the first counts."""
        return self._scan.level / self._counts.width if self._counts.width else np.nan

    @property
    def seconds(self) -> float:
        """For how long that rate was seen."""
        return self._scan.length * self._counts.width

    def dispersion(self, window: float) -> float:
        """Index of dispersion of the counts in ``window`` seconds, or the shortest that are counted; 1 before any is known."""
        require(0 < window < np.inf, "window", window, "a number of seconds > 0")
        width = self._counts.width or 1.0
        return self._scan.dispersion.at(max(0, round(log2(window / width))))

    def at_most(self, confidence: float) -> float:
        """Ratio of the rate that it may be, with this one-sided confidence, to ``rate``; 1 before the first counts."""
        seen = self.rate * self.seconds
        return 1.0 + NormalDist().inv_cdf(confidence) * sqrt(self.dispersion(self.seconds) / seen) if seen > 0 else 1.0

    def expect(self, expected: ArrivalProcess) -> None:
        """Arrivals are, by a newer fit, as this process has them."""
        self._expected = expected
        if self._counts.width:
            windows = self._counts.width * 2.0 ** np.arange(SCALES)
            self._scan.dispersion.expect(dispersion_of_counts(expected, windows[windows <= LONGEST_EXPECTED]))

    def resume(self, at: float) -> None:
        super().resume(at)
        self._after = None

    def _begin(self, at: float, rate: float) -> None:
        width = _width_for(rate)
        self._scan.dispersion.rescale(round(log2(width)))
        self._counts.begin(at, width)
        if self._expected is not None:
            self.expect(self._expected)

    def _step(self, times: Array, until: float) -> None:
        while True:
            after = self._after
            end = until if after is None else min(until, after.ends)
            inside = times[: np.searchsorted(times, end, side="right")]
            alarm = self._look(inside, end)
            seen = int(np.searchsorted(times, alarm.at)) if alarm is not None else len(inside)
            times = times[seen:]
            if after is not None:
                after.requests += seen
            if alarm is not None:
                self.alarm = alarm
                after = self._after = after or _Aftermath(alarm.before, alarm.at + AFTERWARDS)
                after.alarms += 1
                after.seconds = max(after.seconds, alarm.at - alarm.since)
            elif after is None or end < after.ends:
                return
            else:
                self._after = None
                if after.came_back(self._least):
                    self.false += after.alarms
                    self._scan.dispersion.excuse(after.seconds / self._counts.width)

    def _look(self, times: Array, until: float) -> Alarm | None:
        """Scan what is complete at ``until``, up to the first change, from which on is counted anew."""
        width, opened = self._counts.width, self._counts.opened
        counts = self._counts.complete(times, until)
        self._scan.dispersion.forget(1 - 0.5 ** (len(counts) * width / EXCUSED))
        found = self._scan.see(counts)
        if found is None:
            return None
        at = opened + found.consumed * width
        before, after = found.before / width, found.after / width
        since = at - found.length * width
        words = f"the arrival rate went from {before:.4g} to {after:.4g} requests/s within the last {at - since:.3g} s"
        wider = _width_for(after)
        doublings = round(log2(wider / width))
        self._scan.dispersion.rescale(doublings)
        self._scan.restart(found.after * 2.0**doublings, found.length / 2.0**doublings)
        self._counts.begin(at, wider)
        return Alarm("rate", at, before, after, words, since)


class BurstinessTest(_ArrivalTest):
    """Neighbouring counts of ``window`` seconds differ by more, or less, than they did.

    Of neighbouring counts a and b, (a - b)^2 / (a + b) has the mean 2 I(w) - I(2 w), I being the index of dispersion and w the
    window: 1 for Poisson, and hardly moved where the rate drifts. Ratios over eight pairs in which a request came go through the
    scan of ``level_scan``, over their own measured dispersion: pairs in which none came say nothing of how requests lie.

    Parameters
    ----------
    window : float
        s; of the order in which a batch fills.
    least : float
        Ratio of two indices up to which they count as the same, >= 1.
    false_alarms : float
        A day of steady burstiness, at most (docs/watching.md has what was measured).
    """

    TOGETHER = 8

    def __init__(self, window: float = 1.0, least: float = 1.25, false_alarms: float = 0.1) -> None:
        require(0 < window < np.inf, "window", window, "a number of seconds > 0")
        require(0 < false_alarms < np.inf, "false_alarms", false_alarms, "a number a day > 0")
        super().__init__()
        self.window = window
        values = 2 * window * self.TOGETHER  # s of one, where requests come in every pair
        horizon = max(round(HORIZON - log2(values)), 2)
        self._scan = LevelScan("gamma", least, max(1.0, DAY / values / false_alarms), horizon)
        self._odd = np.empty(0)  # a count whose neighbour is not complete
        self._pairs = np.empty((0, 3))  # when they ended, s, squares of the differences and sums; fewer than are put together
        self._began = np.full(RECENT, np.nan)  # s, of the latest values

    @property
    def dispersion(self) -> float:
        """2 I(w) - I(2 w) since the last change; ``nan`` before the first."""
        return self._scan.level

    def resume(self, at: float) -> None:
        super().resume(at)
        self._odd, self._pairs = np.empty(0), np.empty((0, 3))

    def _begin(self, at: float, rate: float) -> None:
        self._counts.begin(at, self.window)

    def _step(self, times: Array, until: float) -> None:
        counts = np.concatenate([self._odd, self._counts.complete(times, until)])
        n = len(counts) // 2
        self._odd = counts[2 * n :]
        a, b = counts[: 2 * n].reshape(n, 2).T
        ended = self._counts.opened - (len(self._odd) + 2 * np.arange(n)[::-1]) * self.window
        pairs = np.concatenate([self._pairs, np.array([ended, (a - b) ** 2, a + b]).T[a + b > 0]])
        n = len(pairs) // self.TOGETHER
        self._pairs = pairs[n * self.TOGETHER :]
        if not n:
            return
        ended, squares, sums = pairs[: n * self.TOGETHER].reshape(n, self.TOGETHER, 3).transpose(2, 0, 1)
        values, ends = squares.sum(axis=1) / sums.sum(axis=1), ended[:, -1]
        began = np.concatenate([self._began, ended[:, 0] - 2 * self.window])
        self._began = began[-RECENT:]
        seen = 0
        while (found := self._scan.see(values[seen:])) is not None:
            seen += found.consumed
            at, since = float(ends[seen - 1]), float(began[max(0, len(began) - len(values) + seen - found.length)])
            words = (
                f"the dispersion of neighbouring counts of {self.window:g} s went from {found.before:.3g} to {found.after:.3g} "
                f"within the last {at - since:.3g} s"
            )
            self.alarm = Alarm("burstiness", at, found.before, found.after, words, since)
