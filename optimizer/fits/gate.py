"""The gate: is batching under the model batching under the trace? (docs/model.md, section 1.4)

On a grid of (batch size, timeout) the waits that a model predicts are held against those of batching the trace itself, by two
errors:

    area   integral_0^T |F_model(w) - F_trace(w)| dw / T: the Wasserstein distance of the two laws in timeouts, 0 to 1
    p95    |w_model / w_trace - 1| of their 95th percentiles, at most 1

The second alone does not do: a percentile sticks to the timeout where many requests wait that long. Timeouts are short, the
median time the trace takes to fill a batch of middle size, and long, up to twice the mean time, so that small batches fill and
large ones leave as they are. They are the same for all batch sizes: one law of each timeout tells the waits of all of them.
Models are chosen on one grid and reported on another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.function.waiting_time import SizeOrTimeout, counting_from_arrivals
from sluice.optimizer.simulation.size_or_timeout import simulate_size_or_timeout

QUANTILE = 0.95
_POINTS = 64  # of a timeout


@dataclass(frozen=True)
class WaitError:
    """Means over a grid of the two errors, and the largest of the second."""

    area: float
    p95: float
    worst_p95: float

    @property
    def score(self) -> float:
        """What models are compared by."""
        return self.area + self.p95


@dataclass(frozen=True, eq=False)
class _Case:
    batch_size: int
    timeout: float
    waits: Array  # grid from 0 to the timeout, s
    observed: Array  # distribution function of the trace's waits there
    p95: float


class Gate:
    """Waits of batching gaps themselves, on a grid.

    Parameters
    ----------
    gaps : array, shape (n,)
        Seconds.
    batch_sizes : sequence of int
        Ascending; the one in the middle gives the timeouts.
    fill_quantile : float or None
        Of the time to fill a batch: the short timeout.
    mean_fills : iterable of float
        Further timeouts, in mean times to fill a batch.
    longest : float
        No timeout exceeds it (s): the cost of a prediction grows with the phase jumps in it.
    """

    def __init__(
        self, gaps: Array, batch_sizes: Sequence[int], fill_quantile: float | None, mean_fills: Iterable[float], longest: float
    ) -> None:
        times = np.concatenate([[0.0], np.cumsum(gaps)])
        self.n = len(gaps)
        self._batch_sizes = tuple(batch_sizes)
        middle = self._batch_sizes[len(self._batch_sizes) // 2]
        timeouts = [factor * middle * float(gaps.mean()) for factor in mean_fills]
        if fill_quantile is not None:
            fill = times[middle - 1 :] - times[: len(times) - middle + 1]
            timeouts.append(float(np.quantile(fill, fill_quantile)))
        self._timeouts = sorted({min(timeout, longest) for timeout in timeouts if timeout > 0})
        self._cases = [_case(times, size, timeout) for timeout in self._timeouts for size in self._batch_sizes]

    @property
    def grid(self) -> list[tuple[int, float]]:
        """(batch size, timeout in s) of every case."""
        return sorted((case.batch_size, case.timeout) for case in self._cases)

    @property
    def noise(self) -> float:
        """A score this small is the trace's own chance, measured on samples of Poisson processes, or the grid's."""
        return 2.5 / float(np.sqrt(self.n)) + 3e-4

    def error(self, arrivals: ArrivalProcess) -> WaitError | None:
        """How far the waits that ``arrivals`` predicts are from the trace's; ``None`` where they cannot be predicted, as phases
        jump too often within a timeout.
        """
        try:
            predicted = self._predicted(arrivals)
        except InvalidInput:
            return None
        areas, shares = [], []
        for case, cdf in zip(self._cases, predicted, strict=True):
            areas.append(float(np.abs(cdf - case.observed).mean()))
            p95 = _quantile(case.waits, cdf, case.timeout)
            shares.append(min(1.0, abs(p95 / case.p95 - 1)) if case.p95 > 0 else min(1.0, p95 / case.timeout))
        return WaitError(float(np.mean(areas)), float(np.mean(shares)), float(np.max(shares)))

    def _predicted(self, arrivals: ArrivalProcess) -> list[Array]:
        """The distribution functions of every case on its grid."""
        largest = self._batch_sizes[-1]
        counting = counting_from_arrivals(arrivals, largest, self._timeouts[-1])
        predicted: list[Array] = []
        for timeout in self._timeouts:
            waits = SizeOrTimeout(arrivals, largest, timeout, counting).waits_within(_POINTS)
            predicted += [waits[size - 1] for size in self._batch_sizes]
        return predicted


def _case(times: Array, batch_size: int, timeout: float) -> _Case:
    waits = simulate_size_or_timeout(times, batch_size, timeout)[0]
    cells = np.clip(np.ceil(waits * (_POINTS / timeout)), 0, _POINTS).astype(np.intp)  # of a wait on the grid: that very point
    observed = np.cumsum(np.bincount(cells, minlength=_POINTS + 1))[:_POINTS] / len(waits)
    grid = np.linspace(0, timeout, _POINTS + 1)[:-1]
    return _Case(batch_size, timeout, grid, observed, float(np.quantile(waits, QUANTILE)))


def _quantile(waits: Array, cdf: Array, timeout: float) -> float:
    """The 95th percentile of a law given on a grid, linear in between; the timeout where the rest waits that long."""
    after = int(np.searchsorted(cdf, QUANTILE))
    if after == len(cdf):
        return timeout
    if after == 0:
        return float(waits[0])
    share = (QUANTILE - cdf[after - 1]) / (cdf[after] - cdf[after - 1])
    return float(waits[after - 1] + share * (waits[after] - waits[after - 1]))
