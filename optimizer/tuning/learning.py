"""What is known of a function without a profile, and what may be tried next (docs/control.md)."""

from __future__ import annotations

from msgspec.structs import replace

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime


def grown(profile: ServiceProfile, max_batch_size: int) -> ServiceProfile:
    """A measured profile with batches twice as large as the largest measured: these take twice as long, at most.

    Whoever computes a batch of ``2 n`` may compute ``n`` twice. So a table for the larger batches keeps what it promises, and once
    they were measured the next ones may be tried.
    """
    points = list(profile.points)
    for memory_mb in profile.memory_sizes:
        largest = profile.points_at(memory_mb)[-1]
        size = min(2 * largest.batch_size, max_batch_size)
        if size > largest.batch_size:
            factor = size / largest.batch_size
            time = largest.service_time
            longer = ServiceTime(time.mean * factor, [(q, seconds * factor) for q, seconds in time.quantiles], time.n)
            points.append(ProfilePoint(memory_mb, size, longer, largest.billed_duration * factor, largest.overhead))
    return replace(profile, points=points, max_batch_size=max_batch_size)
