"""Batches as a process of their own: when a request opens one, how many come with it, and how often one meets another (3.2).

A request opens a batch with a probability that depends on its phase, one over the mean size of the batches that it opens, these
being held for an exponential time that gives the mean size of all. So taken they meet more often than they do: who waits for others
comes at least so much later than the one before, and a full batch more regularly. So of those that find others under way a part is
left out, in each phase by how far its batches are filled: those of a silence are held, and alone.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.under_way import seen

_LEAST_PART = 1e-9  # of a phase that is left out: its passages stay passages


class OpenedBatches:
    """Batches of ``requests`` in the mean of an arrival process.

    Attributes
    ----------
    arrivals, process : ArrivalProcess
        Of the requests, and of those that open a batch.
    sizes : array, shape (n_phases,)
        Mean size of the batches that a request opens, by its phase.
    """

    def __init__(self, arrivals: ArrivalProcess, requests: float) -> None:
        self.arrivals, self.process = arrivals, in_batches(arrivals, requests)
        came, opened = arrivals.D1.sum(axis=0), self.process.D1.sum(axis=0)
        self.sizes = np.divide(came, opened, out=np.ones(len(opened)), where=opened > 0)

    @property
    def mean_size(self) -> float:
        """Of all batches."""
        return self.arrivals.arrival_rate / self.process.arrival_rate

    def beside(self, part: float | Array) -> Array:
        """Which of them are taken to come while others are under way, by phase: ``part`` of the fullest's, (..., n_phases)."""
        return np.maximum(np.multiply.outer(part, self._filled), _LEAST_PART)

    def meet(self, busy: float, parts: Array) -> Array:
        """The shares of the batches that so find another under way that takes ``busy`` seconds, alone: as ``parts``, (n,)."""
        load = self.beside(parts) * seen(self.process, busy)
        return np.asarray((load / (1 + load)) @ self._opened)

    @cached_property
    def _filled(self) -> Array:
        waiting = self.sizes - 1
        return np.asarray(waiting / waiting.max()) if waiting.max() > 0 else np.ones(len(waiting))

    @cached_property
    def _opened(self) -> Array:
        """The share of the batches that each phase opens."""
        opened = self.process.stationary @ self.process.D1
        return np.asarray(opened / opened.sum())


def in_batches(arrivals: ArrivalProcess, requests: float) -> ArrivalProcess:
    """The arrivals that open batches of ``requests`` in the mean, each held for an exponential time."""
    if requests <= 1:
        return arrivals
    flow, rate = arrivals.stationary @ arrivals.D1, arrivals.arrival_rate / requests
    high = 2 * requests / arrivals.arrival_rate  # of the seconds held
    while float((flow / (1 + seen(arrivals, high))).sum()) > rate:
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if float((flow / (1 + seen(arrivals, middle))).sum()) > rate else (low, middle)
    opening = arrivals.D1 / (1 + seen(arrivals, high))
    return ArrivalProcess(arrivals.D0 + arrivals.D1 - opening, opening)
