"""Sequential tests on arrivals: their rate, or their burstiness, is another one (docs/watching.md, docs/model.md, section 10)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log2
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
EXPECTED_WEIGHT = 64.0  # differences that a fit's dispersion stands for


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
        places = np.clip(np.floor((times - self.opened) / self.width), 0, n).astype(np.int64)
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
            self._counts.begin(float(known[0]), self._width((len(known) - 1) / max(end - float(known[0]), 1e-3)))
            self._step(known, end)

    def _width(self, rate: float) -> float:
        raise NotImplementedError

    def _step(self, times: Array, until: float) -> None:
        raise NotImplementedError


def _width_for(rate: float) -> float:
    low, high = WIDTHS
    return float(2.0 ** min(max(ceil(log2(PER_COUNT / max(rate, 1e-9))), low), high))


class RateTest(_ArrivalTest):
    """The arrival rate is another than that at which it stood.

    A window-limited likelihood-ratio scan of counts over their measured dispersion (``level_scan``), so that arrivals may come in
    bursts of whatever length; from the first change on against the rate since then.

    Parameters
    ----------
    expected : ArrivalProcess, optional
        Where the dispersion begins, before it is measured: that of a fit.
    least : float
        Ratio of two rates up to which they count as the same, >= 1.
    false_alarms : float
        A day of a steady rate, at most (docs/watching.md has what was measured).
    """

    def __init__(self, expected: ArrivalProcess | None = None, least: float = LEAST_RATIO, false_alarms: float = 0.1) -> None:
        require(0 < false_alarms < np.inf, "false_alarms", false_alarms, "a number a day > 0")
        super().__init__()
        self._expected = expected
        self._scan = LevelScan("poisson", least, DAY / 2.0 ** WIDTHS[0] / false_alarms, HORIZON)

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

    def _width(self, rate: float) -> float:
        width = _width_for(rate)
        self._scan.dispersion.rescale(round(log2(width)))
        if self._expected is not None:
            windows = width * 2.0 ** np.arange(SCALES)
            phi = dispersion_of_counts(self._expected, windows[windows <= LONGEST_EXPECTED])
            self._scan.dispersion.expect(phi, EXPECTED_WEIGHT, self._expected.arrival_rate * width)
        return width

    def _step(self, times: Array, until: float) -> None:
        while True:
            width = self._counts.width
            opened = self._counts.opened
            counts = self._counts.complete(times, until)
            found = self._scan.see(counts)
            if found is None:
                return
            at = opened + found.consumed * width
            before, after = found.before / width, found.after / width
            since = at - found.length * width
            words = f"the arrival rate went from {before:.4g} to {after:.4g} requests/s within the last {at - since:.3g} s"
            self.alarm = Alarm("rate", at, before, after, words, since)
            wider = _width_for(after)
            doublings = round(log2(wider / width))
            self._scan.dispersion.rescale(doublings)
            self._scan.restart(found.after * 2.0**doublings, found.length / 2.0**doublings)
            self._counts.begin(at, wider)
            times = times[times >= at]


class BurstinessTest(_ArrivalTest):
    """Neighbouring counts of ``window`` seconds differ by more, or less, than they did.

    Of neighbouring counts a and b, (a - b)^2 / (a + b) has the mean 2 I(w) - I(2 w), I being the index of dispersion and w the
    window: 1 for Poisson, and hardly moved where the rate drifts. Ratios over eight pairs go through the scan of ``level_scan``,
    over their own measured dispersion.

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
        self._values = 2 * window * self.TOGETHER  # s of one
        horizon = max(round(HORIZON - log2(self._values)), 2)
        self._scan = LevelScan("gamma", least, max(1.0, DAY / self._values / false_alarms), horizon)
        self._kept = np.empty(0)

    @property
    def dispersion(self) -> float:
        """2 I(w) - I(2 w) since the last change; ``nan`` before the first."""
        return self._scan.level

    def resume(self, at: float) -> None:
        super().resume(at)
        self._kept = np.empty(0)

    def _width(self, rate: float) -> float:
        return self.window

    def _step(self, times: Array, until: float) -> None:
        counts = np.concatenate([self._kept, self._counts.complete(times, until)])
        together = 2 * self.TOGETHER
        n = len(counts) // together
        self._kept = counts[n * together :]
        end = self._counts.opened - len(self._kept) * self.window
        pairs = counts[: n * together].reshape(n, self.TOGETHER, 2)
        squares = (pairs[..., 0] - pairs[..., 1]) ** 2
        sums = pairs.sum(axis=2)
        values = squares.sum(axis=1) / np.maximum(sums.sum(axis=1), 1.0)
        while len(values):
            found = self._scan.see(values)
            if found is None:
                return
            values = values[found.consumed :]
            at = end - len(values) * self._values
            since = at - found.length * self._values
            words = (
                f"the dispersion of neighbouring counts of {self.window:g} s went from {found.before:.3g} to {found.after:.3g} "
                f"within the last {at - since:.3g} s"
            )
            self.alarm = Alarm("burstiness", at, found.before, found.after, words, since)
