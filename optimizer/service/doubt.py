"""What a profile may be wrong by: the sampling error of its quantiles, and how the way varies (docs/model.md, (3.8)).

A quantile q of a service time is known from n runs. Beyond its last but one quantile p1 the service time is taken to end as an
exponential one does, from there to its last one, p2, so that the scale of its tail and the standard error of the quantile are

    theta = ( Q(p2) - Q(p1) ) / ln( (1 - p1) / (1 - p2) )                  se(q) = theta sqrt( q / (n (1 - q)) )

(the density there being (1 - q) / theta). Beyond p2, where the profile itself stays as it is, Q(q) is greater by
theta ln( (1 - p2) / (1 - q) ). What is kept free is that and z(confidence) se(q): of a memory size the root mean square over its
batch sizes, each of which errs by itself while requests are in batches of many sizes; of several memory sizes the most.

To it comes the way: predictions have its mean, and of the oldest of a batch, who leaves at the last moment, so many must be in time
as are promised. So its own quantile q less its mean is kept free, and what that mean may be wrong by.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, sqrt

import numpy as np

from sluice.batching.documents import ServiceProfile, ServiceTime
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")


def seconds_in_doubt(
    profile: ServiceProfile, memory_sizes: Sequence[int], quantile: float, confidence: float, within: float = inf
) -> float:
    """Seconds that the quantile of a latency may be longer by than predicted, at a confidence (0.5 to 1); 0 of 0.5.

    Of a linear law nothing is known, nor of points that are means alone. What takes longer than ``within`` (s) in the mean is no
    part of it, as a promise of so long cannot have such batches.
    """
    z = float(special.ndtri(confidence))
    if z <= 0:
        return 0.0
    by_memory = [0.0]
    for memory_mb in memory_sizes:
        errors = [
            _of_tail(point.service_time, quantile, z)
            for point in profile.points
            if point.memory_mb == memory_mb and point.service_time.mean <= within
        ]
        by_memory.append(float(np.sqrt(np.mean(np.square(errors)))) if errors else 0.0)
    return max(by_memory) + (_of_way(profile.way, quantile, z) if profile.way is not None else 0.0)


def highest_quantile(profile: ServiceProfile) -> float:
    """Up to which quantile the service times of all batch sizes are known; 1 of a linear law, or of points that are means alone."""
    return min((point.service_time.quantiles[-1][0] for point in profile.points if point.service_time.quantiles), default=1.0)


def _of_tail(time: ServiceTime, quantile: float, z: float) -> float:
    upper = [(q, seconds) for q, seconds in time.quantiles if q >= 0.5]
    if len(upper) < 2 or time.n < 2:
        return 0.0
    (p1, below), (p2, last) = upper[-2:]
    if not 0 < 1 - p2 < 1 - p1:
        return 0.0
    theta = (last - below) / log((1 - p1) / (1 - p2))
    beyond = theta * log((1 - p2) / (1 - quantile)) if quantile > p2 else 0.0
    return beyond + z * theta * sqrt(quantile / (time.n * (1 - quantile)))


def _of_way(way: ServiceTime, quantile: float, z: float) -> float:
    if len(way.quantiles) < 2:
        return 0.0
    levels, seconds = np.array(way.quantiles).T
    spread = max(0.0, float(np.interp(quantile, levels, seconds)) - way.mean)
    error = float(np.interp(0.841, levels, seconds) - np.interp(0.159, levels, seconds)) / 2
    return spread + z * max(0.0, error) / sqrt(way.n)
