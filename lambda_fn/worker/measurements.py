"""How long the batches of a model took, by their size, and what energy: a bounded sample, as a profile document.

Of each size the last ``SAMPLE`` service times are kept for the quantiles, and all count for the mean; of more than ``SIZES`` sizes
those that came first are.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.quantiles import quantile_points

SAMPLE = 500
SIZES = 256


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

    def mean(self, batch_size: int) -> float | None:
        """Seconds that a batch of this size took, the mean; ``None`` where none was measured."""
        measured = self.by_size.get(batch_size)
        return None if measured is None else measured.seconds / measured.count

    @property
    def seconds_per_request(self) -> float:
        """Mean over all batches; 0 before the first."""
        return self.seconds / self.requests if self.requests else 0.0

    def profile(self, function: str, model: str, memory_mb: int, largest: int | None) -> ServiceProfile | None:
        """The profile document; ``None`` before the first batch. ``largest`` batch that the memory takes, where that is known."""
        points = [_point(size, self.by_size[size], memory_mb) for size in sorted(self.by_size)]
        if not points:
            return None
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return ServiceProfile(function=function, model=model, points=points, max_batch_size=largest, measured_at=now)


def _point(batch_size: int, measured: OfSize, memory_mb: int) -> ProfilePoint:
    mean = measured.seconds / measured.count
    energy = measured.joules / measured.measured_energy if measured.measured_energy else None
    service_time = ServiceTime(mean, quantile_points(measured.recent), measured.count)
    return ProfilePoint(memory_mb, batch_size, service_time, mean, measured.overhead / measured.count, energy)
