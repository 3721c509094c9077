"""How long the batches of a model took, by their size, and what energy: a bounded sample, as a profile document.

Of each size the last ``SAMPLE`` service times are kept for the quantiles, and all count for the mean; of more than ``SIZES`` sizes
those that came first are. Quantiles are given at the levels of ``LEVELS`` beyond which at least one of the sample is expected,
interpolated between order statistics, median-unbiased (Hyndman & Fan 1996, type 8): as `sluice profile` gives them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime

SAMPLE = 500
SIZES = 256
LEVELS = (0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)


@dataclass(slots=True)
class OfSize:
    """Batches of one size; seconds and joules are sums."""

    count: int = 0
    seconds: float = 0.0
    overhead: float = 0.0
    measured_energy: int = 0  # batches
    joules: float = 0.0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLE))


class Measurements:
    """The service times of one model since it was loaded first."""

    def __init__(self) -> None:
        self.by_size: dict[int, OfSize] = {}
        self.requests = 0
        self.seconds = 0.0

    def add(self, batch_size: int, seconds: float, overhead: float, joules: float | None = None) -> None:
        """A batch of so many requests took ``seconds`` to compute, ``overhead`` seconds to read and write, and so much energy."""
        self.requests += batch_size
        self.seconds += seconds
        measured = self.by_size.get(batch_size)
        if measured is None:
            if len(self.by_size) >= SIZES:
                return
            measured = self.by_size[batch_size] = OfSize()
        measured.count += 1
        measured.seconds += seconds
        measured.overhead += overhead
        measured.recent.append(seconds)
        if joules is not None:
            measured.measured_energy += 1
            measured.joules += joules

    @property
    def seconds_per_request(self) -> float:
        """Mean over all batches; 0 before the first."""
        return self.seconds / self.requests if self.requests else 0.0

    def profile(self, function: str, memory_mb: int, largest: int | None) -> ServiceProfile | None:
        """The profile document; ``None`` before the first batch. ``largest`` batch that the memory takes, where that is known."""
        points = [_point(size, self.by_size[size], memory_mb) for size in sorted(self.by_size)]
        if not points:
            return None
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return ServiceProfile(function=function, points=points, max_batch_size=largest, measured_at=now)


def quantile_points(seconds: Sequence[float]) -> list[tuple[float, float]]:
    """Points of the quantile function of a sample, at those of ``LEVELS`` that its size allows."""
    ordered = sorted(seconds)
    n = len(ordered)
    return [(q, _quantile(ordered, q)) for q in LEVELS if n * min(q, 1 - q) >= 1 - 1e-9]


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = min(max((len(ordered) + 1 / 3) * q + 1 / 3, 1.0), float(len(ordered)))
    below = math.floor(position)
    low = ordered[below - 1]
    high = ordered[min(below, len(ordered) - 1)]
    return low + (position - below) * (high - low)


def _point(batch_size: int, measured: OfSize, memory_mb: int) -> ProfilePoint:
    mean = measured.seconds / measured.count
    energy = measured.joules / measured.measured_energy if measured.measured_energy else None
    service_time = ServiceTime(mean, quantile_points(measured.recent), measured.count)
    return ProfilePoint(memory_mb, batch_size, service_time, mean, measured.overhead / measured.count, energy)
