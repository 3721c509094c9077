"""Size-or-timeout batching of given arrivals, without an event loop: a second road to ``event_loop`` for this one policy."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from optimizer.arrivals.map import Array


def simulate_size_or_timeout(times: Array, batch_size: int, timeout: float) -> tuple[Array, NDArray[np.int64]]:
    """Waits (s) of the requests that arrive at ascending ``times`` (s), and the sizes of their batches in order of dispatch.

    The last batch is counted as if it left by timeout.
    """
    arrivals = times.tolist()
    n = len(arrivals)
    starts, leaves = [], []
    first = 0
    while first < n:
        deadline = arrivals[first] + timeout
        last = min(first + batch_size, n)
        full = last == first + batch_size and arrivals[last - 1] <= deadline
        starts.append(first)
        leaves.append(arrivals[last - 1] if full else deadline)
        first = last if full else bisect_right(arrivals, deadline, first, last)
    sizes = np.diff([*starts, n])
    return np.repeat(leaves, sizes) - times, sizes
