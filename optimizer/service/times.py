"""Service time of every batch size at one memory size, from a profile (docs/model.md, section 2.4).

Rules. The service time of a batch has the quantile function that is linear between the profile's points and constant beyond the
outermost; without points it is its mean, also beside batch sizes that have some. Each quantile, the overhead and the billed
duration are interpolated linearly between the measured batch sizes; nothing is extrapolated, neither beyond the largest measured
size (or ``max_batch_size``) nor below the smallest. A larger batch cannot be quicker: a mean at most ``NOISE``, or a
millisecond, which is what is billed, below the largest before it is taken for noise and levelled, one further below is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import ProfilePoint, ServiceProfile
from sluice.batching.errors import NOT_GIVEN, InvalidInput
from sluice.optimizer.arrays import Array

NOISE = 0.10  # the part by which a larger batch may measure quicker
_MEASURED_GRANULARITY = 0.001  # s; what a measured billed duration was already rounded up to


@dataclass(frozen=True, eq=False)
class ServiceTimes:
    """Service times of a function at one memory size.

    Parameters
    ----------
    memory_mb : int
    seconds : array, shape (max_batch_size, n_levels)
        ``seconds[n - 1]`` is the quantile function of the service time of a batch of ``n`` at ``quantile_levels``, ascending and
        linear in between; one column where service times are deterministic.
    overhead : array, shape (max_batch_size,)
        Mean seconds that an invocation takes beyond its service time, as its client sees it; with the profile's ``way``, where it
        has one, as the client of the buffer does.
    billed_duration : array, shape (max_batch_size,)
        Mean seconds that are paid for.
    quantile_levels : array, shape (n_levels,), optional
        Ascending from 0 to 1; by default equally spaced.
    """

    memory_mb: int
    seconds: Array
    overhead: Array
    billed_duration: Array
    quantile_levels: Array = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if not len(self.quantile_levels):
            object.__setattr__(self, "quantile_levels", np.linspace(0.0, 1.0, self.seconds.shape[1]))

    @property
    def max_batch_size(self) -> int:
        """The largest batch the profile speaks of."""
        return len(self.seconds)

    @property
    def deterministic(self) -> bool:
        """Whether a batch of a given size always takes the same time."""
        return len(self.quantile_levels) == 1

    @property
    def response(self) -> Array:
        """Seconds from dispatch to answer at ``quantile_levels``, (max_batch_size, n_levels): service time and overhead."""
        return self.seconds + self.overhead[:, None]

    @property
    def mean_response(self) -> Array:
        """Mean seconds from dispatch to answer, (max_batch_size,)."""
        if self.deterministic:
            return self.response[:, 0]
        return np.asarray(np.trapezoid(self.response, self.quantile_levels, axis=1))

    def up_to(self, batch_size: int) -> ServiceTimes:
        """The same for batches of at most ``batch_size``.

        Raises
        ------
        InvalidInput
            Beyond what was measured: nothing is extrapolated.
        """
        if not 1 <= batch_size <= self.max_batch_size:
            raise InvalidInput("batch_size", batch_size, f"1 to {self.max_batch_size}, as the profile measured")
        parts = (self.seconds[:batch_size], self.overhead[:batch_size], self.billed_duration[:batch_size])
        return ServiceTimes(self.memory_mb, *parts, self.quantile_levels)

    def at_levels(self, levels: Array) -> ServiceTimes:
        """The same with its quantile functions at other ``levels``, (n_levels,), those that it has among them."""
        seconds = np.array([np.interp(levels, self.quantile_levels, row) for row in self.seconds])
        return replace(self, seconds=seconds, quantile_levels=levels)

    def mean_billed(self, granularity: float) -> Array:
        """Mean billed seconds by batch size, (max_batch_size,), each invocation rounded up to a multiple of ``granularity`` (s).

        A random duration that was measured is the mean of durations already rounded to 1 ms, and stands as it is there.
        """
        if not 0 < granularity < np.inf:
            raise InvalidInput("granularity", granularity, "a number of seconds > 0")
        if self.deterministic:
            # 0.1 s is a whole number of milliseconds though 0.1 / 0.001 is not a whole number in binary
            return np.asarray(np.ceil(self.billed_duration / granularity - 1e-9) * granularity)
        if granularity <= _MEASURED_GRANULARITY:
            return self.billed_duration
        beyond = self.billed_duration - np.trapezoid(self.seconds, self.quantile_levels, axis=1)
        steps = (self.seconds + beyond[:, None]) / granularity - 1e-9
        return np.asarray(granularity * _mean_ceil(steps, self.quantile_levels))

    def quantile(self, q: float) -> Array:
        """Seconds from dispatch to answer that a fraction ``q`` of the batches do not exceed, (max_batch_size,)."""
        return np.array([np.interp(q, self.quantile_levels, row) for row in self.response])

    def seconds_at(self, batch_size: int, level: float) -> float:
        """Service time (s), without the overhead, that a fraction ``level`` of the batches of ``batch_size`` do not exceed."""
        return float(np.interp(level, self.quantile_levels, self.seconds[batch_size - 1]))


def service_times(profile: ServiceProfile, memory_mb: int, max_batch_size: int | None = None) -> ServiceTimes:
    """Service times of a profile at ``memory_mb`` for batches of 1 to ``max_batch_size`` (by default all it speaks of).

    Raises
    ------
    InvalidInput
        A memory size that was not measured; a batch size beyond the measured; no measurement of a single request; a linear
        profile without an end; a service time that falls with the batch size by more than noise; a profile with sizes, whose
        requests are of a mix (``by_size``).
    """
    if profile.sizes:
        ends = f"{profile.sizes[0]:g} to {profile.sizes[-1]:g}"
        needed = f"how large requests are (--sizes, --size-column), as the profile tells them apart ({ends})"
        raise InvalidInput("sizes", NOT_GIVEN, needed)
    if memory_mb < 1:
        raise InvalidInput("memory_mb", memory_mb, "an integer >= 1")
    way = 0.0 if profile.way is None else profile.way.mean
    if profile.service_time is not None:
        largest = max_batch_size or profile.max_batch_size
        if largest is None:
            raise InvalidInput("max_batch_size", None, "a largest batch size, as a linear profile names none itself")
        if profile.max_batch_size is not None and largest > profile.max_batch_size:
            raise InvalidInput("batch_size", largest, f"1 to {profile.max_batch_size}, the profile's max_batch_size")
        sizes = np.arange(1, largest + 1, dtype=np.float64)
        law: Array = profile.service_time.intercept + profile.service_time.slope * sizes
        return ServiceTimes(memory_mb, law[:, None], np.full(largest, way), law)
    points = profile.points_at(memory_mb)
    measured = np.array([point.batch_size for point in points])
    if measured[0] != 1:
        raise InvalidInput("points", f"memory_mb {memory_mb}, batch_size {measured[0]} first", "batch_size 1 measured as well")
    largest = int(min(measured[-1], profile.max_batch_size or measured[-1]))
    _refuse_falling(points)
    levels = _common_levels(points)
    quantiles = np.maximum.accumulate([_quantiles(point, levels) for point in points], axis=0)
    sizes = np.arange(1, largest + 1, dtype=np.float64)
    seconds = np.column_stack([np.interp(sizes, measured, column) for column in quantiles.T])
    overhead = way + np.interp(sizes, measured, [point.overhead for point in points])
    billed = np.interp(sizes, measured, np.maximum.accumulate([point.billed_duration for point in points]))
    times = ServiceTimes(memory_mb, seconds, overhead, billed, levels)
    return times if max_batch_size is None else times.up_to(max_batch_size)


def service_times_up_to(profile: ServiceProfile, memory_mb: int, batch_size: int) -> ServiceTimes:
    """Service times of a profile for batches as large as it speaks of, and at most ``batch_size``.

    Raises
    ------
    InvalidInput
        As ``service_times``; a linear profile that names no largest batch ends at ``batch_size``.
    """
    endless = profile.service_time is not None and profile.max_batch_size is None
    service = service_times(profile, memory_mb, batch_size if endless else None)
    return service.up_to(min(batch_size, service.max_batch_size))


def _common_levels(points: list[ProfilePoint]) -> Array:
    """Every level at which some point was measured, with 0 and 1; one alone where all are means."""
    levels = {q for point in points for q, _ in point.service_time.quantiles}
    return np.array(sorted(levels | {0.0, 1.0})) if levels else np.zeros(1)


def _quantiles(point: ProfilePoint, levels: Array) -> Array:
    """The quantile function of a measured service time at ``levels``."""
    if not point.service_time.quantiles:
        return np.full(len(levels), point.service_time.mean)
    q, seconds = zip(*point.service_time.quantiles, strict=True)
    return np.asarray(np.interp(levels, q, seconds))


def falls_beyond_noise(mean: Array | float, before: Array | float) -> NDArray[np.bool_]:
    """Whether a mean (s) is quicker than that of less work by more than noise."""
    return np.asarray(mean < before - np.maximum(NOISE * np.asarray(before), _MEASURED_GRANULARITY))


def _refuse_falling(points: list[ProfilePoint]) -> None:
    slowest = points[0]
    for point in points:
        mean = slowest.service_time.mean
        if falls_beyond_noise(point.service_time.mean, mean):
            raise InvalidInput(
                f"service_time.mean at memory_mb {point.memory_mb}, batch_size {point.batch_size}",
                point.service_time.mean,
                f"at most 10 %, or {_MEASURED_GRANULARITY:g} s, below that of batch_size {slowest.batch_size} ({mean:g} s); "
                "measuring again for longer, or on a quieter machine, may help",
            )
        slowest = max(slowest, point, key=lambda candidate: candidate.service_time.mean)


def _mean_ceil(quantiles: Array, levels: Array) -> Array:
    """Mean of the next larger integer under quantile functions linear between ``levels``: (rows,) of (rows, n_levels)."""
    low, high = quantiles[:, :-1], quantiles[:, 1:]
    narrow = high - low < 1e-9
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.where(narrow, np.ceil(low), (_integral_of_ceil(high) - _integral_of_ceil(low)) / (high - low))
    return np.asarray(mean @ np.diff(levels))


def _integral_of_ceil(x: Array) -> Array:
    whole = np.floor(x)
    return np.asarray(whole * (whole + 1) / 2 + (x - whole) * (whole + 1))
