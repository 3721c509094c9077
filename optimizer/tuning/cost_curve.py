"""What a plan costs per request, by the rate of the requests: what a decision predicts (docs/control.md).

The latest arrivals are run at several rates. First their own rate is taken out, window by window: time runs by how many have come,
so that each window has the rate that is asked about, and its bursts stay. Otherwise most requests would be of the busiest windows,
which are the cheapest, and a window of the mean rate would seem to cost less than it does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.batch_means import Estimate, mean_of_next
from sluice.optimizer.simulation.deployment import Deployment

RATIOS = tuple(2.0 ** (k / 2) for k in range(-6, 7))  # of the rates to that of now
FREE = 1e-30  # USD, of what costs nothing


@dataclass(frozen=True)
class CostCurve:
    """USD per request by rate.

    Parameters
    ----------
    rates : tuple of float
        Requests/s, ascending.
    usd : tuple of Estimate
        At each: the mean, and between which values that of one window is, with 95 % confidence, where its rate is this.
    """

    rates: tuple[float, ...] = ()
    usd: tuple[Estimate, ...] = ()

    def at(self, rate: float) -> Estimate:
        """At so many requests/s; ``nan`` where nothing was rehearsed.

        The logarithm of the mean, and the ends in proportion to it, are linear in the logarithm of the rate between those that were
        rehearsed, and what they are at the first and the last beyond them.
        """
        if not self.rates:
            return Estimate(np.nan, np.nan, np.nan)
        mean, low, high = np.maximum(np.array(self.usd).T, FREE)
        by_rate = np.log(rate), np.log(self.rates)
        value = float(np.exp(np.interp(*by_rate, np.log(mean))))
        return Estimate(value, value * float(np.interp(*by_rate, low / mean)), value * float(np.interp(*by_rate, high / mean)))


def cost_curve(deployment: Deployment, times: Array, rate: float, window: float) -> CostCurve:
    """The curve of a deployment on the latest arrivals.

    Parameters
    ----------
    times : array, shape (n_requests,)
        s, ascending; at least as many as intervals need.
    rate : float
        Requests/s of now, around which the rates are.
    window : float
        s, of which each has a rate of its own.
    """
    from sluice.optimizer.tuning.rehearsal import usd_by_block  # with the simulator, which who watches does without

    counted = evened(times, window)
    rates = tuple(rate * ratio for ratio in RATIOS)
    found = []
    for each in rates:
        found.append(mean_of_next(*usd_by_block(deployment, counted / each), max(1.0, each * window)))
    return CostCurve(rates, tuple(found))


def evened(times: Array, window: float) -> Array:
    """The same arrivals in time that runs by how many have come, linear within each window (s), the latest of which is whole."""
    n_windows = int(np.ceil((times[-1] - times[0]) / window))
    edges = times[-1] - window * np.arange(n_windows, -1.0, -1.0)
    edges[0] = times[0]
    came = np.searchsorted(times, edges, side="right").astype(np.float64)
    came[0] = 0.0
    return np.asarray(np.interp(times, edges, came))
