"""Service times of several functions as of one: the size of a batch says which of them serves it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.service.times import ServiceTimes


def composed(services: Sequence[ServiceTimes], function_of: Sequence[int]) -> ServiceTimes:
    """Service times where a batch of ``n`` goes to the function ``services[function_of[n - 1]]``.

    For latencies alone: a bill needs the memory size of each, and ``memory_mb`` is that of the largest batch.

    Raises
    ------
    InvalidInput
        A size that was not measured of the function that serves it.
    """
    for n, j in enumerate(function_of, 1):
        largest = services[j].max_batch_size
        require(n <= largest, "batch_size", n, f"1 to {largest}, as the profile measured at {services[j].memory_mb} MB")
    levels = np.unique(np.concatenate([services[j].quantile_levels for j in set(function_of)]))
    spread = {j: services[j].at_levels(levels) for j in set(function_of)}
    parts = [spread[j] for j in function_of]
    return ServiceTimes(
        parts[-1].memory_mb,
        np.array([part.seconds[n] for n, part in enumerate(parts)]),
        np.array([part.overhead[n] for n, part in enumerate(parts)]),
        np.array([part.billed_duration[n] for n, part in enumerate(parts)]),
        levels,
    )
