"""Latency of a request in front of one server under a table, exactly (docs/model.md, section 4.6).

Poisson arrivals of rate lambda, one server, a table of actions: with ``q`` waiting it takes ``a(q)`` of them, oldest first, or
waits for one more where ``a(q) = 0``; from row ``Q`` on, ``A = a(Q)``. A batch of ``b`` takes ``G_b`` of mean ``l(b)``. D(q) are
the decisions per second with q waiting (``epochs``). Arrivals being Poisson, a request finds the server

    idle with q waiting:                                        D(q) / lambda,                          a(q) = 0       (4.23)
    busy with a batch of b and x left behind when it began:     lambda l(b) D(x + b) / lambda,          a(x + b) = b

What becomes of it depends on the i ahead of it and the n behind it wherever the server decides: then q = i + 1 + n are waiting,

    a(q) = 0:       it waits for an arrival, n + 1;
    0 < a(q) <= i:  a service passes, i - a(q), n + K;                                                                 (4.24)
    a(q) > i:       it is in the batch that begins, and answered with it.

While i >= Q every decision is A whatever n is, so the time until i < Q depends on the services alone, and n is then Poisson over
that time. So the latency is that time, and what (4.24) makes of (i, n), with i < Q and as many n as tell one row from another.
Fixed service times give a mixture of sums of service times and Erlang waits (``fixed``), phase-type ones a Markov
chain (``phases``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.optimizer.arrays import Array
from sluice.optimizer.roots import find_root
from sluice.optimizer.server.epochs import decision_epochs
from sluice.optimizer.server.fixed import FixedServiceLatency
from sluice.optimizer.server.fixed_outcomes import BeyondTheExactLaw
from sluice.optimizer.server.phases import PhaseTypeLatency
from sluice.optimizer.service.law import MOST_PHASES, ServiceLaw

_SAME = 1e-13  # of a latency: a percentile is found to that


@dataclass(frozen=True, eq=False)
class ServerLatency:
    """Law of the latency, arrival to answer, in front of one server.

    Parameters
    ----------
    cdf : callable
        Maps seconds, any shape, to the probabilities not to exceed them.
    mean : float
        Seconds.
    atoms : array, shape (n_atoms,)
        Latencies (s), ascending, that a request has with a positive probability.
    atom_weights : array, shape (n_atoms,)
        These probabilities.
    """

    cdf: Callable[[Array], Array]
    mean: float
    atoms: Array
    atom_weights: Array

    def percentile(self, percentile: float) -> float:
        """The smallest latency (s) that at least ``percentile`` of a hundred requests do not exceed.

        Raises
        ------
        InvalidInput
            Outside (0, 100): the longest latency has no bound.
        """
        level = quantile_of(percentile)
        low, high = 0.0, np.inf
        # The first atom at which the level is reached, if any.
        first, end = 0, len(self.atoms)
        while first < end:
            middle = (first + end) // 2
            if self.probability_within(float(self.atoms[middle])) >= level:
                end = middle
            else:
                first = middle + 1
        if first > 0:
            low = float(self.atoms[first - 1])
        if first < len(self.atoms):
            high = float(self.atoms[first])
            if self.probability_within(high) - self.atom_weights[first] < level:
                return high
        else:
            high = 2 * max(self.mean, low)
            while self.probability_within(high) < level:
                low, high = high, 2 * high
        return find_root(lambda t: self.probability_within(t) - level, low, high, absolute=_SAME * high, relative=4e-15)

    def probability_within(self, latency: float) -> float:
        """Fraction of the requests answered within ``latency`` seconds."""
        return float(self.cdf(np.array([latency]))[0])


def server_latency(arrival_rate: float, service: ServiceLaw, actions: Sequence[int]) -> ServerLatency:
    """Exact law of the latency under a table in front of one server.

    Parameters
    ----------
    arrival_rate : float
        Requests per second, Poisson.
    service : ServiceLaw
        Fixed by batch size, or of phase type: exponential, Erlang, hyperexponential.
    actions : sequence of int, length Q + 1
        ``actions[q]`` of ``q`` waiting requests are taken, oldest first; 0 waits for the next arrival. The last row speaks for
        every longer queue.

    Raises
    ------
    BeyondTheExactLaw
        A law that is neither; fixed service times that partial batches add up in too many ways.
    InvalidInput
        A table that the law or the load does not allow.
    NotConverged
        A load too close to 1, or time scales too far apart.

    References
    ----------
    docs/model.md (4.20)-(4.29).
    """
    phases = _phases(service)
    epochs = decision_epochs(arrival_rate, service, actions)
    law: FixedServiceLatency | PhaseTypeLatency
    law = FixedServiceLatency(epochs, service.mean) if phases is None else PhaseTypeLatency(epochs, service.mean, *phases)
    return ServerLatency(law.cdf, law.mean, law.atoms, law.atom_weights)


def _phases(service: ServiceLaw) -> tuple[Array, Array] | None:
    """Initial law and generator of the service times' shape; ``None`` where they are fixed."""
    if service.fixed:
        return None
    if service.phases is None:
        allowed = f"fixed service times, or of phase type with at most {MOST_PHASES} phases; others can be simulated"
        raise BeyondTheExactLaw("service", type(service).__name__, allowed)
    return service.phases
