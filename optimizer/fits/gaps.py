"""The gaps that likelihoods are made of: all of them > 0, part of them where there are many, and the shortest time that shows.

A likelihood needs a density at every gap, so that gaps of 0, which a clock's grid makes, are spread over its tick first. Part of a
long trace is taken as stretches of successive gaps, since what follows what is what is fitted.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.traces.trace import Trace

# What happens faster does not show in batching, but predictions pay for the fastest rate: a hundredth of the mean gap, less where
# most gaps are much shorter than the mean, as in bursts between silences, but not for ever, as some arrive at one time.
SHORTEST_OF_MEAN = 1 / 100
SHORTEST_OF_MEDIAN = 1 / 20
SHORTEST_OF_ALL = 1 / 2000


def positive_gaps(trace: Trace, rng: np.random.Generator) -> Array:
    """Gaps > 0. A trace that ticks itself, no two arrivals at once and none much sooner than the mean gap, is no clock's grid."""
    gaps = trace.interarrivals
    return gaps if 5 * float(gaps.min()) > float(gaps.mean()) else trace.dithered(rng)


def checked_gaps(interarrivals: Array) -> Array:
    """Gaps as floats, all of them finite and > 0."""
    gaps = np.ascontiguousarray(interarrivals, dtype=float)
    bad = np.flatnonzero(~(np.isfinite(gaps) & (gaps > 0)))
    if len(bad):
        raise InvalidInput(f"inter-arrival time {bad[0] + 1}", float(gaps[bad[0]]), "a number of seconds > 0 (Trace.dithered)")
    if len(gaps) < 2:
        raise InvalidInput("inter-arrival times", len(gaps), "at least 2")
    return gaps


def stretches(gaps: Array, n: int, count: int = 40) -> Array:
    """About ``n`` of the gaps: ``count`` stretches of successive ones, spread evenly; all where there are no more than ``n``."""
    if len(gaps) <= n:
        return gaps
    length = n // count
    starts = np.linspace(0, len(gaps) - length, count).astype(int)
    return np.concatenate([gaps[start : start + length] for start in starts])


def shortest_stage(gaps: Array) -> float:
    """The shortest mean (s) that a stage of a fit may have."""
    mean, median = float(gaps.mean()), float(np.quantile(gaps, 0.5))
    return min(SHORTEST_OF_MEAN * mean, max(SHORTEST_OF_MEDIAN * median, SHORTEST_OF_ALL * mean))
