"""Mean times of a batch that one server can have, from measured ones (docs/model.md, section 4.1).

A larger batch is not quicker, and a server in larger batches serves no fewer: neither l(b) nor b / l(b) falls with b. Those of
measured means may, by their errors. Then the nearest means in order are taken, in least squares weighted by the errors: of l(b)
first, then of l(b) / b, which keeps the order that the first has made (pooling lowers the last of a pool and raises its first).
Means in order stay as they are. Where all are within their errors of a law in order, so is the nearest one in order, and a mean is
moved by both errors at the most: what asks for more is no noise, and is refused.

The error is the half-width of the 95 % confidence interval of the mean, relative to it: Student's, from the number of runs and the
spread that the quantiles show; and at least ``PRECISION``, as a profile tells neither how the overhead spreads nor how the machine
drifts.

Reference: Barlow, Bartholomew, Bremner, Brunk, Statistical Inference under Order Restrictions (1972), section 1.2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import ProfilePoint, ServiceProfile
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.isotonic import in_order
from sluice.optimizer.service.times import ServiceTimes, service_times_up_to
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

PRECISION = 0.03  # of a mean, relative: what `sluice profile` asks of itself
_SAID = 1e-9  # of a mean: moved by no more, it is not worth a word
_ROUNDING = 1e-14  # of a mean: moved by no more, it was in order
_SHOWN = 3  # moved means that a sentence names


@dataclass(frozen=True, eq=False)
class Smoothed:
    """Service times whose means are in order, and what was moved for it.

    Parameters
    ----------
    service : ServiceTimes
        The law of each batch size keeps its shape: its times and its overhead are stretched to the mean that is taken.
    sizes : array of int, shape (n,)
        The batch sizes that were measured.
    measured, taken : array, shape (n,)
        Mean seconds from dispatch to answer at these sizes.
    error : array, shape (n,)
        Half-width of the 95 % confidence interval of each measured mean, relative.
    """

    service: ServiceTimes
    sizes: NDArray[np.intp]
    measured: Array
    taken: Array
    error: Array

    @property
    def note(self) -> str:
        """What was moved and why it may be, in a sentence; empty where nothing was, but for rounding."""
        moved = np.flatnonzero(np.abs(self.taken / self.measured - 1) > _SAID)
        if not len(moved):
            return ""
        named = [
            f"{1e3 * self.taken[i]:.4g} ms for a batch of {self.sizes[i]} (measured {1e3 * self.measured[i]:.4g} ms "
            f"± {100 * self.error[i]:.2g} %)"
            for i in moved[:_SHOWN]
        ]
        more = f" and {len(moved) - _SHOWN} more" if len(moved) > _SHOWN else ""
        return (
            "the profile's means (service time and overhead) are out of order by their error, as a larger batch is neither quicker "
            f"nor serves fewer; taken are {', '.join(named)}{more}"
        )


def smoothed_profile(profile: ServiceProfile, memory_mb: int, batch_size: int | None = None) -> Smoothed:
    """The service times of a profile for batches of at most ``batch_size`` (by default all it speaks of), their means in order.

    Raises
    ------
    InvalidInput
        As ``service_times_up_to``; a mean that is out of order by more than twice its error.
    """
    largest = batch_size if batch_size is not None else max((point.batch_size for point in profile.points), default=None)
    service = service_times_up_to(profile, memory_mb, largest or profile.max_batch_size or 0)
    points = profile.points_at(memory_mb) if profile.points else []
    inside = [point for point in points if point.batch_size < service.max_batch_size]
    end = [point for point in points if point.batch_size >= service.max_batch_size][:1]
    sizes = [*(point.batch_size for point in inside), service.max_batch_size]
    error = [*map(_error, inside), _error(end[0]) if end else PRECISION]
    return smooth(service, np.array(sizes), np.array(error))


def smooth(service: ServiceTimes, sizes: NDArray[np.intp] | None = None, error: Array | None = None) -> Smoothed:
    """Service times with their means in order; by default every size counts as measured, with an error of ``PRECISION``.

    Raises
    ------
    InvalidInput
        A mean that is out of order by more than twice its error.
    """
    sizes = np.arange(1, service.max_batch_size + 1) if sizes is None else sizes
    error = np.full(len(sizes), PRECISION) if error is None else error
    measured = service.mean_response[sizes - 1]
    taken = _in_order(sizes, measured, error * measured)
    worst = int(np.argmax(np.abs(taken / measured - 1) / error))
    if abs(taken[worst] / measured[worst] - 1) > 2 * error[worst]:
        raise InvalidInput(
            f"mean of service time and overhead at batch size {sizes[worst]}",
            float(measured[worst]),
            f"{taken[worst]:.4g} s within twice its error of {100 * error[worst]:.2g} %, in order with the other sizes: a larger "
            "batch is not quicker and serves no fewer. Profile again (sluice profile --precision, --max-seconds), or leave out "
            "larger batches (--max-batch-size)",
        )
    if (np.abs(taken / measured - 1) <= _ROUNDING).all():
        return Smoothed(service, sizes, measured, measured, error)
    stretch = np.interp(np.arange(1, service.max_batch_size + 1), sizes, taken) / service.mean_response
    stretched = replace(service, seconds=service.seconds * stretch[:, None], overhead=service.overhead * stretch)
    return Smoothed(stretched, sizes, measured, taken, error)


def _in_order(sizes: NDArray[np.intp], mean: Array, error: Array) -> Array:
    """The means nearest to these of which neither l(b) nor b / l(b) falls; ``error`` in seconds."""
    rising = in_order(mean, error**-2.0)
    each = -in_order(-rising / sizes, (sizes / error) ** 2.0)
    return np.asarray(each * sizes)


def _error(point: ProfilePoint) -> float:
    """The error of a measured mean, relative (see above)."""
    time = point.service_time
    if len(time.quantiles) < 2 or time.n < 2 or time.mean <= 0:
        return PRECISION
    levels, seconds = np.array([(0.0, time.quantiles[0][1]), *time.quantiles, (1.0, time.quantiles[-1][1])]).T
    low, high = seconds[:-1] - time.mean, seconds[1:] - time.mean
    variance = float((low**2 + low * high + high**2) / 3 @ np.diff(levels))
    half_width = float(special.stdtrit(time.n - 1, 0.975)) * np.sqrt(variance / time.n)
    return max(PRECISION, float(half_width) / time.mean)
