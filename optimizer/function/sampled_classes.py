"""Batch sizes, and the latency of every class, from drawn arrivals of classes that share a table (docs/model.md, 2.7 and 2.10).

A batch takes all who wait, so that how many one that opens with the ``i``-th request would hold follows from the arrivals alone, as
it does for one class: no more come once the first of its members must leave. All of ``sampled_batches`` holds with that moment in
the place of the first member's.

The first request of a part is of class ``c`` with its share of the arrivals, and its process is in equilibrium just after an
arrival; the others are as at any time. So is every request that follows, by the law of superpositions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.function.class_latency import longest_wait
from sluice.optimizer.function.latency import LatencyPrediction, simulated_latency
from sluice.optimizer.function.sampled_batches import SEED, Draw, DrawnParts, SampledHolds, even_draws, requests_of_part
from sluice.optimizer.service.times import ServiceTimes

_BEYOND = 1.1  # of the time in which a part should be over


class ClassSample(DrawnParts):
    """Parts of all classes together, ``of`` (parts, requests) being each request's class.

    Parameters
    ----------
    classes : sequence of ArrivalProcess
        Independent of each other.
    max_batch_size : int
        The largest batch that will be asked for.
    draw : Draw
    """

    def __init__(self, classes: Sequence[ArrivalProcess], max_batch_size: int, draw: Draw) -> None:
        length, rng = requests_of_part(max_batch_size, draw), np.random.default_rng(SEED)
        rates = np.array([arrivals.arrival_rate for arrivals in classes])
        first = rng.permutation(even_draws(rates / rates.sum(), draw.parts, rng))
        after, at_any_time = (
            [rng.permutation(even_draws(law, draw.parts, rng)) for law in laws]
            for laws in ([of.embedded for of in classes], [of.stationary for of in classes])
        )
        times, self.of = np.zeros((draw.parts, length)), np.empty((draw.parts, length), dtype=np.int64)
        for part, opens in enumerate(first.tolist()):
            phases = [int((after if c == opens else at_any_time)[c][part]) for c in range(len(classes))]
            times[part, 1:], self.of[part, 1:] = _merged(classes, phases, length - 1, rng)
            self.of[part, 0] = opens
        super().__init__(times, max_batch_size, rng)


class SampledClasses:
    """What tables do to drawn classes with slacks, for every largest batch up to ``len(holds) + 1``.

    Parameters
    ----------
    sample : ClassSample
        For batches of that size at least.
    slacks : array, shape (n_classes,)
        Seconds >= 0 that a request of the class may wait longer than the table says.
    holds : array, shape (max_batch_size - 1,)
        ``holds[n - 1]`` is the hold (s) with ``n`` waiting.
    """

    def __init__(self, sample: ClassSample, slacks: Array, holds: Array) -> None:
        self.max_batch_size = len(holds) + 1
        self._sample, self._slacks = sample, slacks
        self._batches = SampledHolds(sample, holds, sample.times + slacks[sample.of])

    @property
    def batch_size_pmf(self) -> Array:
        """``[b - 1, n - 1]``: share of the batches that have size ``n`` when at most ``b`` are taken; square, lower triangular."""
        return self._batches.batch_size_pmf

    @property
    def mean_batch_size(self) -> Array:
        """Mean size of a batch, by largest batch: (max_batch_size,)."""
        return self._batches.mean_batch_size

    def latency(self, of: int, service: ServiceTimes) -> LatencyPrediction:
        """Latency of a request of class ``of`` under the largest batch; ``batch_size_pmf`` of it is that of all batches.

        Raises
        ------
        InvalidInput
            A batch size beyond the profile's.
        """
        service = service.up_to(self.max_batch_size)
        latencies = self._batches.latencies(service.response, service.quantile_levels, self._sample.of == of)
        hold = longest_wait(self._batches.holds, self._slacks[of])
        return simulated_latency(latencies, self.batch_size_pmf[-1], hold, float(service.response.max()) + hold)


def _merged(classes: Sequence[ArrivalProcess], phases: list[int], n: int, rng: np.random.Generator) -> tuple[Array, Indices]:
    """The first ``n`` arrivals after 0, where each process is in its phase, and whose they are."""
    until = _BEYOND * n / sum(arrivals.arrival_rate for arrivals in classes)
    runs = [_Run(arrivals, phase, n, until, rng) for arrivals, phase in zip(classes, phases, strict=True)]
    while sum(run.count(until) for run in runs) < n:
        until *= 1.5
    times = np.concatenate([run.times[: run.count(until)] for run in runs])
    of = np.repeat(np.arange(len(runs)), [run.count(until) for run in runs])
    order = np.argsort(times, kind="stable")[:n]
    return times[order], of[order]


class _Run:
    """Arrivals of one process from a phase on, as many as are asked for and ``most`` at most."""

    def __init__(self, arrivals: ArrivalProcess, phase: int, most: int, until: float, rng: np.random.Generator) -> None:
        size = min(most, int(arrivals.arrival_rate * until) + 16)
        self._chunks = arrivals.sample_chunks(most, size, rng, phase)
        self._most, self.times = most, np.empty(0)

    def count(self, until: float) -> int:
        """How many come by then (s): all of them that are among the first ``most``."""
        while len(self.times) < self._most and (not len(self.times) or self.times[-1] < until):
            last = self.times[-1] if len(self.times) else 0.0
            self.times = np.append(self.times, last + np.cumsum(next(self._chunks)))
        return int(np.searchsorted(self.times, until, side="right"))
