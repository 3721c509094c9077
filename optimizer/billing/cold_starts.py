"""How many invocations start cold, from how often they come and how long they run (docs/model.md, section 3.2).

An environment is kept for ``keep_alive`` seconds after its last use, so an invocation starts cold if more are running with it than
at any moment of the last ``keep_alive`` seconds. For Poisson invocations the number running is that of an infinite server: Poisson
with mean ``load = invocation_rate * busy_duration``, a birth and death process. An invocation that finds ``k`` running is cold if
the first passage back to ``k + 1`` took longer than ``keep_alive``:

    P(cold) = sum_k Poisson(k; load) P(T_k > keep_alive)

T_k, the passage time from k to k + 1, has a completely monotone density (Keilson 1979). It is taken as 0 with probability 1 - q,
else exponential, with its own first two moments: exact for k = 0, and close wherever ``keep_alive`` is long beside
``busy_duration``. With a = invocation_rate, m = 1 / busy_duration and m_k, s_k the first and second moments of T_k,

    m_k = (1 + k m m_{k-1}) / a
    s_k = [2 + 2 k m (m_{k-1} + m_k)] / (a (a + k m)) + k m (s_{k-1} + 2 m_{k-1} m_k) / a
"""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import ServiceTimes

KEEP_ALIVE = 300.0  # s; AWS promises none, and what was measured publicly lies between 5 and 60 minutes
_NEGLIGIBLE = 1e-12
SHORTEST = 1e-6  # s of an invocation, where the profile has none


def cold_start_probability(invocation_rate: float, busy_duration: float, keep_alive: float = KEEP_ALIVE) -> float:
    """Probability that an invocation starts cold; a lower bound where invocations come in bursts.

    Parameters
    ----------
    invocation_rate : float
        Invocations/s: the arrival rate over the mean batch size.
    busy_duration : float
        Mean seconds of an invocation.
    keep_alive : float
        Seconds that an unused environment is kept.
    """
    require(0 < invocation_rate < inf, "invocation_rate", invocation_rate, "invocations/s > 0")
    require(0 < busy_duration < inf, "busy_duration", busy_duration, "seconds > 0")
    require(0 < keep_alive < inf, "keep_alive", keep_alive, "seconds > 0")
    load = invocation_rate * busy_duration
    least = max(0, int(load - 8 * sqrt(load)))  # below, the load is found once in 10^15 times
    total, log_probability = 0.0, -load
    mean = second = 0.0
    for k in range(int(load + 10 * sqrt(load) + 30)):
        deaths = k / busy_duration
        mean, below = (1 + deaths * mean) / invocation_rate, mean
        second = (
            (2 + 2 * deaths * (below + mean)) / (invocation_rate + deaths) + deaths * (second + 2 * below * mean)
        ) / invocation_rate
        if k >= least:
            found = exp(log_probability)
            longer = 2 * mean * mean / second * exp(-2 * mean / second * keep_alive)
            total += found * min(longer, 1.0)
            if k > load and found < _NEGLIGIBLE * total:
                break
        log_probability += log(load / (k + 1))
    return min(total, 1.0)


def cold_start_probability_of(arrival_rate: float, batch_size_pmf: Array, service: ServiceTimes) -> float:
    """Probability that an invocation starts cold, by batch sizes: 1, 2, ... have these, where ``arrival_rate`` requests/s come."""
    mean_batch_size = float(batch_size_pmf @ np.arange(1, len(batch_size_pmf) + 1))
    busy = float(batch_size_pmf @ service.mean_response[: len(batch_size_pmf)])
    return cold_start_probability(arrival_rate / mean_batch_size, max(busy, SHORTEST))
