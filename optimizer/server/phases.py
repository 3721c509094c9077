"""Latency in front of one server where service times are of phase type (docs/model.md, section 4.6).

The notation is that of ``latency``. A service of ``b`` is the time to absorption of a chain that starts in phase f with
probability alpha_f and has the generator S_b = S / l(b). The probability to find it in its phases with ``x`` waiting is

    y_b(x) = [ lambda y_b(x - 1) + alpha sum_{q: a(q) = b, q - b = x} D(q) ] (lambda I - S_b)^-1.                        (4.27)

A request with ``i >= Q`` ahead does not care what arrives behind it: full batches go. Its chain is (i, phase), i falling by A,
until i < Q; uniformized at a rate r that no service exceeds, c_k(i) is the probability that it gets there at the k-th event. The n
behind it are Poisson all that time, so seen at the rate r + lambda, of whose events a share p = r / (r + lambda) are of the
service, it gets to (i, n) at the event k + n with

    c_k(i) C(k + n - 1, n) p^k (1 - p)^n.                                                                              (4.28)

From there (i, n, phase) is a chain that a table with few partial batches keeps small. Where n is so large that only the last row
is met, floor(i / A) + 1 full batches follow; that is assumed of all in the first chain, and those of (4.28) with smaller n are
taken out of it and put into the second. With a_k and u_k the shares answered after k events of the first and the second,

    P(R <= t) = sum_k P(Poisson(r t) = k) a_k + sum_k P(Poisson((r + lambda) t) = k) u_k.                               (4.29)

Nothing is discretized; what is cut off are the last 1e-13 of the requests. The first chain is in ``phases_full``,
the second in ``phases_table``.
"""

from __future__ import annotations

from math import exp, lgamma, log, sqrt

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled
from sluice.optimizer.server.epochs import DecisionEpochs
from sluice.optimizer.server.phases_full import through_full_batches
from sluice.optimizer.server.phases_table import through_the_table
from sluice.optimizer.server.uniformized_services import PhaseType


class PhaseTypeLatency:
    """Latency of a request, s, where service times have one phase-type shape.

    Parameters
    ----------
    epochs : DecisionEpochs
    service : array, shape (max_batch_size,)
        Mean service times, s.
    initial : array, shape (n_phases,)
        Probabilities of the phases at the start.
    generator : array, shape (n_phases, n_phases)
        Of the shape, whose mean is 1.

    Raises
    ------
    NotConverged
        Where arrivals are so rare, or services of some size so short, that the chain takes millions of events.
    """

    atoms = np.zeros(0)
    atom_weights = np.zeros(0)

    def __init__(self, epochs: DecisionEpochs, service: Array, initial: Array, generator: Array) -> None:
        shape = PhaseType(initial, generator)
        self.service_rate = float(-generator.diagonal().min() / service[epochs.sizes - 1].min())
        self.rate = self.service_rate + epochs.arrival_rate
        reached, self._full = through_full_batches(epochs, service, shape, self.service_rate)
        self._rest = through_the_table(epochs, service, shape, self.service_rate, reached)
        # The mean of the number of events at which a request is still there, in seconds.
        left = (self._full[-1] - self._full).sum() / self.service_rate + (self._rest[-1] - self._rest).sum() / self.rate
        self.mean = float(left)

    def cdf(self, times: Array) -> Array:
        """(4.29) at ``times`` (s), same shape."""
        times = np.asarray(times, dtype=np.float64)
        seconds = np.maximum(times.ravel(), 0.0)
        result = _mixed(self._full, self.service_rate * seconds) + _mixed(self._rest, self.rate * seconds)
        return np.asarray(np.clip(result, 0.0, 1.0).reshape(times.shape))


@compiled
def _mixed(series: Array, events: Array) -> Array:
    """``sum_k P(Poisson(events[j]) = k) series[k]``, the series being constant beyond its end.

    From the middle of the Poisson law outwards, nine standard deviations and 30 terms each way; the probabilities met are made to
    sum to 1.
    """
    result = np.empty(len(events))
    end = len(series) - 1
    for j in range(len(events)):
        expected = events[j]
        around = 9 * sqrt(expected) + 30
        first, last = max(0, int(expected - around)), int(expected + around)
        if first >= end:
            result[j] = series[end]
            continue
        middle = int(expected)
        weight = exp(middle * log(expected) - expected - lgamma(middle + 1.0)) if expected > 0 else 1.0
        total, mass = weight * series[min(middle, end)], weight
        up = weight
        for k in range(middle + 1, last + 1):
            up *= expected / k
            total += up * series[min(k, end)]
            mass += up
        down = weight
        for k in range(middle, first, -1):
            down *= k / expected
            total += down * series[min(k - 1, end)]
            mass += down
        result[j] = total / mass
    return result
