"""How many requests arrive during a service while the phase shifts: (4.8) and (4.9) of docs/model.md, section 4.5."""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp.modulated_kernels import mixed
from sluice.optimizer.smdp.problem import SmdpProblem

NEGLIGIBLE = 1e-18  # probability of so many arrivals, or more
_MOST_NUMBERS = 2**22  # probabilities of the numbers of jumps of the uniformized process, by batch size


def counts_of_services(problem: SmdpProblem) -> tuple[Array, Array]:
    """(4.8), (max_batch_size, n_counts, n_phases, n_phases), as far as it matters, and (4.9), (max_batch_size, n_phases)."""
    D0, D1 = problem.arrivals.D0, problem.arrivals.D1
    rate = float(-D0.diagonal().min())
    jumps = _events(problem, rate)
    most = _events(problem, float(D1.sum(axis=1).max())).shape[1]  # arrivals if the busiest phase lasted
    silent, arrival = np.eye(len(D0)) + D0 / rate, D1 / rate
    counts = mixed(jumps, silent, arrival, most)
    n_counts = int(np.flatnonzero(counts.max(axis=(0, 2, 3)) >= NEGLIGIBLE)[-1]) + 1
    step, inflow = silent + arrival, D1.sum(axis=1)
    held = np.zeros((jumps.shape[1], len(D0)))  # r^2 times the integral of N given the number of jumps
    total = np.zeros(len(D0))
    for m in range(1, len(held)):
        held[m] = held[m - 1] + total
        total = total + inflow
        inflow = step @ inflow
    return np.ascontiguousarray(counts[:, :n_counts]), jumps @ held / rate**2


def _events(problem: SmdpProblem, rate: float) -> Array:
    """Probabilities of 0, 1, ... events of ``rate`` during a service of each batch size, as far as they matter."""
    expected = rate * float(problem.service.mean[-1])
    n_events = 64
    while n_events * problem.max_batch_size <= _MOST_NUMBERS:
        events = problem.service.counts(rate, n_events)
        if n_events > 2 * expected and events[-1, -1] < NEGLIGIBLE:
            last = int(np.flatnonzero(events.max(axis=0) >= NEGLIGIBLE)[-1])
            return np.ascontiguousarray(events[:, : last + 1])
        n_events *= 2
    raise InvalidInput(
        "arrivals and service",
        f"{expected:.4g} shifts of the phase and arrivals in the longest service",
        f"at most {_MOST_NUMBERS // problem.max_batch_size} in all services but one in 10^18",
    )
