"""Profiles over batch and size, and mixes, for the tests of requests of different size."""

from __future__ import annotations

import math

import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.optimizer.arrays import Array
from sluice.optimizer.service import SizeMix

SIZES = (8.0, 32.0, 128.0, 512.0)
SPREAD = [(0.05, 0.93), (0.25, 0.96), (0.5, 0.99), (0.75, 1.02), (0.95, 1.1), (0.99, 1.3)]


def seconds(batch_size: int, size: float) -> float:
    """What the profiled network takes at 1769 MB: a fixed part, weights that are read once, and work by the token."""
    return 0.002 + 0.004 * (size > 0) + 0.00002 * batch_size * size


def sized_profile(
    spread: bool = False, memory_sizes: tuple[int, ...] = (1769,), batch_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
) -> ServiceProfile:
    """With quantiles of what was measured where ``spread``, else means alone."""
    points = []
    for memory_mb in memory_sizes:
        for size in SIZES:
            for batch_size in batch_sizes:
                mean = seconds(batch_size, size) * 1769 / memory_mb
                time = ServiceTime(mean, [(q, mean * by) for q, by in SPREAD] if spread else [], 50)
                billed = math.ceil(mean * 1000) / 1000 if spread else mean
                points.append(ProfilePoint(memory_mb, batch_size, time, billed, 0.001 + 1e-6 * size, size=size))
    return ServiceProfile(function="encoder-{memory_mb}:live", points=points)


def long_tailed(n: int = 4000, seed: int = 1, largest: float = 512) -> Array:
    """Lognormal sizes, whole and cut."""
    return np.clip(np.ceil(np.random.default_rng(seed).lognormal(3.5, 1.2, n)), 1, largest)


MIXES = {
    "long-tailed": SizeMix.of(long_tailed()),
    "two sizes": SizeMix(np.array([20.0, 400.0]), np.array([0.9, 0.1])),
    "one size": SizeMix(np.array([100.0]), np.array([1.0])),
    "most are cut": SizeMix.of(np.minimum(20 * long_tailed(seed=2), 512)),
}
