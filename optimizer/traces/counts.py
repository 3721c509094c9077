"""Arrivals out of counts per bin, as public data sets give them (docs/traces.md).

The arrivals of a bin are placed in it independently and uniformly at random. That is the law of a Poisson process given how many
came, at whatever rate the bin had; it adds no order that the counts do not show. Even spacing would make batches fill more
regularly than any real source, and one point in time would fill them at once. What the counts did not keep stays lost: within a bin
the trace is as variable as Poisson, and only windows of several bins have the dispersion of the source.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.traces.columns import Column

MAX_ARRIVALS = 200_000_000  # 1.6 GB of times


def spread_counts(column: Column, bin_width: float, source: str, rng: np.random.Generator, bins: Indices | None = None) -> Array:
    """Arrival times in seconds, ascending, from the start of the first bin.

    Parameters
    ----------
    column : Column
        Counts of successive bins.
    bin_width : float
        Seconds.
    bins : array of int, ascending, optional
        The bin that each count is of; by default none is left out.

    Raises
    ------
    InvalidInput
        A count that is negative or not whole, with its line; more arrivals than can be held.
    """
    if not 0 < bin_width < np.inf:
        raise InvalidInput("bin", bin_width, "a number of seconds > 0")
    bad = np.flatnonzero((column.values < 0) | (column.values != np.floor(column.values)))
    if len(bad):
        where, text = column.place(int(bad[0]))
        raise InvalidInput(where, text, "a count: a whole number >= 0")
    total = float(column.values.sum(dtype=np.float64))
    if total > MAX_ARRIVALS:
        raise InvalidInput(f"{source}: arrivals", f"{total:.4g}", f"at most {MAX_ARRIVALS}: take fewer bins")
    bins = np.arange(len(column.values)) if bins is None else bins
    begins = np.repeat(bins.astype(np.float64), column.values.astype(np.int64))
    return np.asarray(np.sort(begins + rng.random(len(begins))) * bin_width)
