"""The arrivals that are remembered: the latest one by one, and counts of two days (docs/control.md)."""

from __future__ import annotations

from collections import deque

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.tuning.day_counts import DAY, DayCounts


class RecentArrivals:
    """Arrival times, s since 1970, in a bounded past.

    Parameters
    ----------
    seconds : float
        For how long they are kept one by one.
    most, fewest : int
        How many of these, at most; and how many are kept longer, up to a day, where so few come.
    """

    def __init__(self, seconds: float, most: int, fewest: int = 0) -> None:
        self._seconds, self._most, self._fewest = seconds, most, fewest
        self._pieces: deque[Array] = deque()
        self._n, self._latest = 0, -np.inf
        self.counts = DayCounts()

    def see(self, times: Array) -> None:
        """Take in arrivals; what is dated before the latest is taken to have come with it, as a clock was set back."""
        if not len(times):
            return
        times = np.maximum(np.sort(np.asarray(times, dtype=np.float64)), self._latest)
        self._latest = float(times[-1])
        self._pieces.append(times[-self._most :])
        self._n += len(self._pieces[-1])
        while self._is_past(self._pieces[0], self._n - len(self._pieces[0])):
            self._n -= len(self._pieces.popleft())
        self.counts.see(times)

    def _is_past(self, piece: Array, behind: int) -> bool:
        """Whether none of a piece is remembered, behind which so many came."""
        age = self._latest - float(piece[-1])
        return behind >= self._most or age > DAY or (age > self._seconds and behind >= self._fewest)

    def __len__(self) -> int:
        return len(self.times())

    @property
    def span(self) -> float:
        """Seconds from the first to the last of them."""
        times = self.times()
        return float(times[-1] - times[0]) if len(times) else 0.0

    def forget(self) -> None:
        """The arrivals one by one: between them and what follows there is a hole. The counts stay."""
        self._pieces.clear()
        self._n = 0

    def times(self) -> Array:
        """The latest, ascending, (n,)."""
        if not self._pieces:
            return np.empty(0)
        kept = self._pieces[0] if len(self._pieces) == 1 else np.concatenate(list(self._pieces))
        day, lately = np.searchsorted(kept, [self._latest - DAY, self._latest - self._seconds]).tolist()
        first = max(day, len(kept) - self._most, min(lately, len(kept) - self._fewest))
        if first > 0 or len(self._pieces) > 1:  # once for all who ask between two arrivals
            kept = kept[max(first, 0) :].copy()  # and nothing stays of those before
            self._pieces, self._n = deque([kept]), len(kept)
        return kept
