"""A simulator of its own: one batch after the other, by the definition of size or timeout."""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled

from .settings import Setting

WARM_UP = 10_000  # requests


def simulate(setting: Setting, n_requests: int, rng: np.random.Generator) -> Array:
    """Latencies (s), (n_requests,), after a warm-up."""
    arrivals = setting.arrivals
    rates = -arrivals.D0.diagonal()
    jumps = np.hstack([arrivals.D0 + np.diag(rates), arrivals.D1]) / rates[:, None]
    cumulated = np.cumsum(jumps, axis=1)
    cumulated[cumulated >= cumulated[:, -1:]] = 1.0  # whatever the rounding, some jump is drawn
    phase = int(rng.choice(arrivals.n_phases, p=arrivals.embedded))
    service = setting.service
    return simulated_latencies(
        np.ascontiguousarray(cumulated),
        np.ascontiguousarray(rates),
        phase,
        setting.timeout,
        np.ascontiguousarray(service.response),
        np.ascontiguousarray(service.quantile_levels),
        WARM_UP + n_requests,
        rng,
    )[WARM_UP:]


@compiled
def simulated_latencies(
    jumps: Array,
    rates: Array,
    phase: int,
    timeout: float,
    response: Array,
    levels: Array,
    n_requests: int,
    rng: np.random.Generator,
) -> Array:
    """Latencies (s) of ``n_requests`` successive requests, the first of which opens a batch in ``phase``.

    Parameters
    ----------
    jumps : array, shape (n_phases, 2 n_phases)
        Cumulated probabilities of where a phase jumps to: silently, then with an arrival.
    rates : array, shape (n_phases,)
        1/s at which phases are left.
    response : array, shape (batch_size, n_levels)
        Quantile functions at ``levels``.
    """
    batch_size = len(response)
    latencies = np.empty(n_requests)
    came = np.zeros(batch_size)  # s after the batch opened
    done = 0
    while True:
        size, clock, late = 1, 0.0, False
        while size < batch_size and not late:
            gap, phase = next_arrival(jumps, rates, phase, rng)
            clock += gap
            late = clock > timeout  # then it opens the next batch
            if not late:
                came[size] = clock
                size += 1
        leaves = timeout if late else clock
        draw = rng.random()
        piece = max(0, min(int(np.searchsorted(levels, draw)), len(levels) - 1) - 1)
        service = response[size - 1, piece]
        if len(levels) > 1:
            part = (draw - levels[piece]) / (levels[piece + 1] - levels[piece])
            service += part * (response[size - 1, piece + 1] - service)
        for i in range(size):
            latencies[done] = leaves - came[i] + service
            done += 1
            if done == n_requests:
                return latencies
        if not late:
            _, phase = next_arrival(jumps, rates, phase, rng)


@compiled
def next_arrival(jumps: Array, rates: Array, phase: int, rng: np.random.Generator) -> tuple[float, int]:
    """Seconds to the next arrival, and the phase after it."""
    elapsed = 0.0
    while True:
        elapsed += rng.standard_exponential() / rates[phase]
        target = int(np.searchsorted(jumps[phase], rng.random(), side="right"))
        if target >= len(rates):
            return elapsed, target - len(rates)
        phase = target
