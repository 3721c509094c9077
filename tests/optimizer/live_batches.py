"""A function whose profile is known, and batches that it answers live."""

from __future__ import annotations

import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.measured import MeasuredBatch
from sluice.batching.quantiles import quantile_points

SCV, OVERHEAD = 0.02, 0.003
_SHAPE = np.random.default_rng(99).gamma(1 / SCV, SCV, 1000)


def mean_time(size: int, memory_mb: int = 512) -> float:
    return (0.010 + 0.004 * size) * 512 / memory_mb


def profile(memory_sizes: tuple[int, ...] = (512, 1024), sizes: tuple[int, ...] = (1, 2, 4, 8, 16)) -> ServiceProfile:
    points = []
    for memory_mb in memory_sizes:
        for size in sizes:
            mean = mean_time(size, memory_mb)
            time = ServiceTime(mean, [(q, x * mean / float(_SHAPE.mean())) for q, x in quantile_points(_SHAPE.tolist())], 100)
            points.append(ProfilePoint(memory_mb, size, time, mean + 0.0005, OVERHEAD))
    return ServiceProfile(function="model-{memory_mb}", points=points, init={512: ServiceTime(0.4)})


def batches(
    n: int,
    seed: int,
    factor: float = 1.0,
    sizes: tuple[int, ...] = (1, 2, 3, 4),
    begin: float = 0.0,
    memory_mb: int = 512,
    cold: float = 0.0,
    overhead: float = OVERHEAD,
) -> list[MeasuredBatch]:
    """Ten a second, ``factor`` times as long as the profile says; a share of them cold, with an INIT of 0.5 s."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(sizes, n)
    service = factor * (0.010 + 0.004 * chosen) * 512 / memory_mb * rng.gamma(1 / SCV, SCV, n)
    new = rng.random(n) < cold
    seconds = service + overhead * rng.gamma(4.0, 0.25, n) + 0.5 * new
    rows = zip(chosen.tolist(), seconds.tolist(), service.tolist(), new.tolist(), strict=True)
    return [
        MeasuredBatch(begin + i / 10, "", 0, f"model-{memory_mb}", "", size, invocation, own, own + 0.0005, cold_one, 0, ())
        for i, (size, invocation, own, cold_one) in enumerate(rows)
    ]
