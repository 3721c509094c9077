"""A function of several studies: the perceptron of the policy zoo, as long as it takes on a share of a core."""

from __future__ import annotations

import itertools

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime

CORE = 1769  # MB of memory that have one core
MEMORY_SIZES = (885, CORE)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
INTERCEPT, SLOPE = 0.0056, 0.00074  # s of a batch on one core
INIT = 0.5  # s


def profile() -> ServiceProfile:
    """Service times in proportion to the share of a core."""
    points = []
    for memory_mb, n in itertools.product(MEMORY_SIZES, BATCH_SIZES):
        seconds = (INTERCEPT + SLOPE * n) * CORE / memory_mb
        points.append(ProfilePoint(memory_mb, n, ServiceTime(seconds), seconds))
    init = {memory_mb: ServiceTime(INIT) for memory_mb in MEMORY_SIZES}
    return ServiceProfile(function="perceptron-{memory_mb}", points=points, init=init)
