"""Latency in front of one server whose service times are fixed, by batch size (docs/model.md, section 4.6).

The notation is that of ``latency``. A request that finds a service with ``r`` seconds left meets ``x`` waiting with the
density

    W(x; r) = sum_q D(q) P(Poisson(lambda (l(a(q)) - r)) = x - q + a(q)) 1[r < l(a(q))],                                (4.25)

so that, going down in ``r``, W is convolved with a Poisson law, and at ``r = l(a)`` the services of ``a`` that begin there come
in. Of the x ahead, m full batches go first until i = x - m A < Q are left, at ``r + m l(A)``. From there the latency of (i, n) is
a mixture of sums ``c`` of service times, each with the wait for ``k`` arrivals, an Erlang law E_k. With h_{c,k}(r) what all x, m
and n together give to (c, k), everything counted from the arrival,

    P(R <= t) = sum_{c,k} integral_0^{t-c} h_{c,k}(r) P(E_k <= t - c - r) dr + the same, without r, of who finds it idle,   (4.26)

and the latter with k = 0 are atoms. W is analytic between two service times: so is h, and (4.26) is summed by Gauss-Legendre panels
that end there and at t - c, no wider than one mean gap, with an error below 1e-11.

The mixtures are made in ``fixed_outcomes``, W and h in ``fixed_density``, the sum in
``fixed_integral``.
"""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.server.epochs import DecisionEpochs
from sluice.optimizer.server.fixed_density import (
    FullBatches,
    Panels,
    arrivals_during,
    densities,
    full_batches_of,
    met,
    panels_of,
)
from sluice.optimizer.server.fixed_integral import Densities, Idle, Law, integrated, probabilities_within, rule
from sluice.optimizer.server.fixed_outcomes import Outcomes, outcomes_of, too_many

_MOST = 2**25  # numbers kept: a quarter of a gigabyte


class FixedServiceLatency:
    """Latency of a request, s, where a batch of ``b`` takes exactly ``service[b - 1]`` seconds.

    Parameters
    ----------
    epochs : DecisionEpochs
    service : array, shape (max_batch_size,)
        Seconds.

    Raises
    ------
    BeyondTheExactLaw
        Where the table's partial batches add up to so many different sums that they do not fit into memory.
    """

    def __init__(self, epochs: DecisionEpochs, service: Array) -> None:
        rate = epochs.arrival_rate
        outcomes = outcomes_of(epochs, service, arrivals_during(rate, service, len(epochs.actions)))
        panels, full = panels_of(epochs, service), full_batches_of(epochs, service)
        if (len(outcomes.seconds) * full.settled + full.most) * len(panels.nodes) > _MOST:
            raise too_many(epochs)
        idle = _from_idle(epochs.idle, outcomes, full)
        found = _densities(met(epochs, service, panels), panels, outcomes, full)
        self._law = Law(rate, idle, found, panels, rule())
        # E R = E r + c + k / lambda, term by term.
        busy = found.summed[:, -1] @ (found.seconds + found.awaited / rate) + (found.values @ (panels.weights * panels.nodes)).sum()
        self.mean = float(busy + idle.weight @ (idle.seconds + idle.awaited / rate))
        at_once = idle.awaited == 0
        self.atoms = np.unique(idle.seconds[at_once])
        self.atom_weights = np.array([idle.weight[at_once & (idle.seconds == c)].sum() for c in self.atoms])

    def cdf(self, times: Array) -> Array:
        """(4.26) at ``times`` (s), same shape."""
        times = np.asarray(times, dtype=np.float64)
        return np.asarray(probabilities_within(self._law, times.ravel()).reshape(times.shape))


def _densities(found: Array, panels: Panels, outcomes: Outcomes, full: FullBatches) -> Densities:
    """h by the pairs (c, k): those of all outcomes after 0, 1, ... full batches, and those of full batches alone."""
    early, late = densities(found, panels, outcomes, full)
    seconds = [full.seconds * m + outcomes.seconds for m in range(full.settled)]
    return integrated(
        np.concatenate([*seconds, full.seconds * np.arange(full.most)]),
        np.concatenate([outcomes.awaited] * full.settled + [np.zeros(full.most, dtype=np.int64)]),
        np.concatenate([early.reshape(-1, len(panels.nodes)), late]),
        panels,
    )


def _from_idle(probabilities: Array, outcomes: Outcomes, full: FullBatches) -> Idle:
    """The pairs of those who find the server idle, at ``probabilities`` (Q,): no time in service lies before them."""
    found: list[tuple[float, int, float]] = []
    for i in np.flatnonzero(probabilities):
        found += [(c, k, float(probabilities[i]) * p) for c, k, p in _alone(int(i), outcomes, full)]
    found = [pair for pair in found if pair[2] > 0]
    seconds, awaited, weight = zip(*found, strict=True) if found else ((), (), ())
    return Idle(np.array(seconds, dtype=np.float64), np.array(awaited, dtype=np.int64), np.array(weight, dtype=np.float64))


def _alone(i: int, outcomes: Outcomes, full: FullBatches) -> list[tuple[float, int, float]]:
    """c, k and the probability of each outcome with i ahead and nobody behind."""
    if outcomes.known[i] == 0:
        return [((i // full.size + 1) * full.seconds, 0, 1.0)]
    number = outcomes.first[i]
    entries = slice(outcomes.begin[number], outcomes.begin[number + 1])
    which = outcomes.outcome[entries]
    parts = outcomes.seconds[which].tolist(), outcomes.awaited[which].tolist(), outcomes.weight[entries].tolist()
    return list(zip(*parts, strict=True))
