"""A function whose batches take longer, or less long, all in one proportion."""

from __future__ import annotations

from msgspec.structs import replace

from sluice.batching.documents import LinearServiceTime, ServiceProfile, ServiceTime


def stretched(profile: ServiceProfile, factor: float) -> ServiceProfile:
    """The same function, whose batches take ``factor`` times as long."""
    if factor == 1:
        return profile
    if profile.service_time is not None:
        law = profile.service_time
        return replace(profile, service_time=LinearServiceTime(law.intercept * factor, law.slope * factor))
    points = [
        replace(
            point,
            service_time=ServiceTime(
                point.service_time.mean * factor, [(q, s * factor) for q, s in point.service_time.quantiles], point.service_time.n
            ),
            billed_duration=point.billed_duration * factor,
        )
        for point in profile.points
    ]
    return replace(profile, points=points)
