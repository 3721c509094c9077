"""How many batches must be in time for the next window to keep a promise: more than it says, where a window has few requests.

A table that waits to the last moment leaves each batch when it is just in time, by a quantile of what a batch takes and of the way.
With that of the promise itself five in a hundred are late of a p95: in the long run that is kept, and in most windows of a hundred
batches it is not. Let each batch be late with the chance ``x``, whatever the others are. A promise that allows the part ``p`` is
then kept in a window with the chance

    sum_n  Poisson(n; b)  P( Bin(n, x) <= floor(p n) )

where ``b`` batches are expected, and ``x`` is looked for that makes it the confidence that is asked for (the binomial tail is an
incomplete beta function: Johnson, Kemp, Kotz, Univariate Discrete Distributions, 3.6). Requests are late by batches: these count by
their mean size as requests see it. All are taken to be left to the last moment; some are full before, so that it is more than must
be in time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.batching.documents import Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.tuning.late_batches import may_be_late
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

DEVIATIONS = 6.0  # standard ones of the number of batches that are looked at
MOST_NUMBERS = 128  # of batches; of more evenly spaced ones
HALVINGS = 24


def kept_in_next(slos: Sequence[Slo], requests: float, batch_size: float, confidence: float) -> tuple[Slo, ...]:
    """The SLOs with the percentiles that batches must be in time at, for a window of so many requests to keep each of them.

    Parameters
    ----------
    batch_size : float
        Requests of a batch, in the mean as requests see it.
    confidence : float
        With which, of each SLO by itself.
    """
    batches = max(requests / batch_size, 1.0)
    return tuple(Slo(slo.latency, 100 * (1 - _late(slo.error_budget, batches, confidence))) for slo in slos)


def _late(error_budget: float, batches: float, confidence: float) -> float:
    """The ``x`` of above, at most the part that is allowed; bisection, as the chance falls with it."""
    away = DEVIATIONS * np.sqrt(batches)
    first, last = np.floor(max(batches - away, 1.0)), np.ceil(batches + away)
    n: Array = np.unique(np.round(np.linspace(first, last, min(int(last - first) + 1, MOST_NUMBERS))))
    weights = np.exp(n * np.log(batches) - batches - special.gammaln(n + 1))
    if batches - away <= 1:
        weights = np.append(weights, np.exp(-batches))  # no batch, which breaks nothing
    weights /= weights.sum()
    few = may_be_late(error_budget, n)
    least, most = 0.0, error_budget
    for _ in range(HALVINGS):
        middle = (least + most) / 2
        broken = float(weights[: len(n)] @ special.betainc(few + 1, n - few, middle))
        least, most = (middle, most) if broken <= 1 - confidence else (least, middle)
    return least
