"""With which chance a window of few requests breaks a promise, as requests are late by batches (docs/control.md).

Batches with late requests are taken to come at random among the requests, at the rate ``r`` a request at which they came, with as
many late in one as were. How many are late in a window of ``n`` requests is then a compound Poisson sum, whose law has Panjer's
recursion (Panjer, ASTIN Bulletin 12 (1981) 22): with ``f_j`` the share of these batches that have ``j`` late,

    P(0) = exp(-r n)                        P(s) = (r n / s) sum_{j <= s} j f_j P(s - j)

The window breaks the promise if more are late than the part of ``n`` that it allows. An interval on the means of blocks does not
see that: with one late batch of three in a thousand requests 0.3 % are late, and a window of 33 breaks a p95 once in 31 times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array, Indices

MOST = 32  # late requests that a window may have: where more are allowed a batch breaks none, and the means of blocks tell more
ROUNDING = 1e-9  # of what a window allows: a whole number may be just below it


def may_be_late(error_budget: float, n: Array) -> Array:
    """How many of ``n`` a promise allows to be late."""
    return np.floor(max(error_budget, 0.0) * n + ROUNDING)


class LateBatches(NamedTuple):
    """What was late among so many ``requests``: how many in each batch that has late ones, shape (late batches,)."""

    late_in: Indices
    requests: int

    @classmethod
    def of(cls, late: NDArray[np.bool_], batch_of: Indices) -> LateBatches:
        """Of requests in order of arrival, and the batch of each; who is in none (-1) is one by himself."""
        of = batch_of[late]
        by_batch = np.bincount(of[of >= 0])
        alone = np.ones(np.count_nonzero(of < 0), dtype=np.int64)
        return cls(np.concatenate([by_batch[by_batch > 0], alone]), len(late))

    def chance_of_breaking(self, windows: Array, error_budget: float) -> float:
        """With which chance a window breaks a promise that allows so much to be late, in the mean of windows.

        Parameters
        ----------
        windows : array, shape (windows,)
            Requests in each.
        """
        n, times = np.unique(windows[(windows > 0) & (error_budget * windows < MOST + 1)], return_counts=True)
        if not (len(self.late_in) and len(n)):
            return 0.0
        allowed = may_be_late(error_budget, n).astype(np.int64)
        most = int(allowed.max())
        by_size = np.bincount(np.minimum(self.late_in, most + 1), minlength=most + 2)[: most + 1] / self.requests
        weights = np.arange(most + 1) * by_size  # of j late in a batch, j times the rate of such batches
        law = np.zeros((most + 1, len(n)))
        law[0] = np.exp(-n * len(self.late_in) / self.requests)
        for s in range(1, most + 1):
            law[s] = n / s * (weights[1 : s + 1] @ law[s - 1 :: -1][:s])
        kept = np.cumsum(law, axis=0)[allowed, np.arange(len(n))]
        return float((times * (1 - kept).clip(min=0.0)).sum() / len(windows))
