"""Size-or-timeout batching of given arrivals, batch by batch: a second road to ``event_loop`` for this one policy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled


def simulate_size_or_timeout(times: Array, batch_size: int, timeout: float) -> tuple[Array, NDArray[np.int64]]:
    """Waits (s) of the requests that arrive at ascending ``times`` (s), and the sizes of their batches in order of dispatch.

    The last batch is counted as if it left by timeout.
    """
    waits, sizes = np.empty(len(times)), np.empty(len(times), dtype=np.int64)
    n_batches = _fill_batches(np.ascontiguousarray(times, dtype=np.float64), batch_size, float(timeout), waits, sizes)
    return waits, np.array(sizes[:n_batches])


@compiled
def _fill_batches(times: Array, batch_size: int, timeout: float, waits: Array, sizes: NDArray[np.int64]) -> int:
    """Fill ``waits`` and the beginning of ``sizes``; the number of batches."""
    n = len(times)
    n_batches, first = 0, 0
    while first < n:
        deadline = times[first] + timeout
        end = first + 1
        while end < n and end < first + batch_size and times[end] <= deadline:
            end += 1
        leaves = times[end - 1] if end == first + batch_size else deadline
        for i in range(first, end):
            waits[i] = leaves - times[i]
        sizes[n_batches] = end - first
        n_batches += 1
        first = end
    return n_batches
