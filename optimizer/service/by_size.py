"""Service times over batch and size, and those of batches whose members have the sizes of a mix (docs/model.md, section 9).

A batch is padded to its largest member: it takes l(n, s), n its members and s the largest of their sizes. Of a profile with sizes
each size is read by the rules of ``times``; between measured sizes every quantile, the overhead and the billed duration are
interpolated linearly, nothing is extrapolated beyond the largest, and what is smaller than the smallest is padded to it. A larger
size cannot be quicker: the rule of noise is the same.

Where the sizes of the members are drawn independently, the largest of ``n`` has the law of ``SizeMix.of_the_largest``, and the time
of a batch of ``n`` has the distribution function

    P(S_n <= t) = sum_k P(largest = s_k) P(l(n, s_k) <= t),                                                                (9.2)

a mixture of laws that are uniform between the quantile levels of the profile. It is summed exactly on a grid of ``_CELLS`` cells of
its own range, and inverted at levels that all batch sizes share. The levels are found by halving: a cell is halved while, for some
batch size, the quantile function strays from its chord by more than ``_STRAY`` of the mean in the cell's area, or by more than
``_FAR`` of its value, or of the mean where that is more, unless the cell is narrow, as one with a jump becomes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sluice.batching.documents import ServiceProfile
from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.service.times import ServiceTimes, falls_beyond_noise, service_times_up_to

_CELLS = 2048
_HALVINGS = 10  # of the levels; 1 - (1 - x)^2 at equally spaced x, so that they lie closer at the top
_STRAY = 4e-5  # of the mean, in the area
_FAR, _NARROW = 2e-3, 4e-3  # of the value, where the cell is wider than that
_NO_WEIGHT = 1e-12
_AT_ONCE = 1 << 13  # batches that are billed
FAR_BELOW = 10.0  # times less than the least size that was measured, from which the largest of all requests has another unit


@dataclass(frozen=True, eq=False)
class ServiceBySize:
    """Service times of a function at one memory size, by the size of the largest member of a batch.

    Parameters
    ----------
    sizes : array, shape (n_sizes,)
        Measured sizes, ascending.
    of_size : sequence of ServiceTimes
        Of batches whose members all have that size, at common quantile levels and for as many members.
    """

    sizes: Array
    of_size: Sequence[ServiceTimes]

    @property
    def memory_mb(self) -> int:
        """MB."""
        return self.of_size[0].memory_mb

    @property
    def max_batch_size(self) -> int:
        """The largest batch that was measured at every size."""
        return self.of_size[0].max_batch_size

    @property
    def quantile_levels(self) -> Array:
        """Those of every size, (n_levels,)."""
        return self.of_size[0].quantile_levels

    def seconds(self, sizes: Array) -> Array:
        """Seconds inside the function where the largest member has these sizes: (len(sizes), max_batch_size, n_levels)."""
        return self._at(np.array([times.seconds for times in self.of_size]), sizes)

    def overhead(self, sizes: Array) -> Array:
        """Mean seconds beyond them: (len(sizes), max_batch_size)."""
        return self._at(np.array([times.overhead for times in self.of_size]), sizes)

    def mean_billed(self, largest: Array, members: Indices, granularity: float) -> Array:
        """Mean billed seconds of batches by their largest size and number of members, (n_batches,), in the memory of some thousand.

        Each invocation is rounded up to a multiple of ``granularity``, s.
        """
        measured = [np.array([getattr(times, name) for times in self.of_size]) for name in ("seconds", "billed_duration")]
        mean = np.empty(len(largest))
        for start in range(0, len(largest), _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            seconds, billed = (self._at(of, largest[here], members[here] - 1) for of in measured)
            each = ServiceTimes(self.memory_mb, seconds, np.zeros(len(seconds)), billed, self.quantile_levels)
            mean[here] = each.mean_billed(granularity)
        return mean

    def mean_billed_under(self, mix: SizeMix, granularity: float) -> Array:
        """The same of batches whose members' sizes are drawn from a mix, by the number of members, (max_batch_size,)."""
        weights, n = mix.of_the_largest(self.max_batch_size), self.max_batch_size
        each = np.repeat(mix.values, n), np.tile(np.arange(1, n + 1), len(mix.values))
        return np.asarray(np.einsum("nk,kn->n", weights, self.mean_billed(*each, granularity).reshape(-1, n)))

    def under(self, mix: SizeMix) -> MixedServiceTimes:
        """Of batches whose members' sizes are drawn independently from a mix.

        Raises
        ------
        InvalidInput
            A size beyond the largest measured: nothing is extrapolated.
        """
        end = float(self.sizes[-1])
        require(mix.largest <= end, "size", mix.largest, f"at most {end:g}, the largest that the profile measured")
        largest, overhead = mix.of_the_largest(self.max_batch_size), self.overhead(mix.values)
        mean_overhead = np.einsum("nk,kn->n", largest, overhead)
        levels, seconds = self.quantile_levels, self.seconds(mix.values) + (overhead - mean_overhead)[:, :, None]
        if len(mix.values) == 1:
            rows = seconds[0]
        else:
            levels, rows = _quantile_functions(largest, seconds, levels)
        billed = self._at(np.array([times.billed_duration for times in self.of_size]), mix.values)
        mean_billed = np.einsum("nk,kn->n", largest, billed)
        return MixedServiceTimes(self.memory_mb, rows, mean_overhead, mean_billed, levels, by_size=self, mix=mix)

    def up_to(self, batch_size: int) -> ServiceBySize:
        """The same for batches of at most ``batch_size``."""
        return ServiceBySize(self.sizes, tuple(times.up_to(batch_size) for times in self.of_size))

    def _at(self, measured: Array, sizes: Array, row: Indices | slice = slice(None)) -> Array:
        """What was measured at ``self.sizes`` along the first axis, linear in between and constant below; all rows, or one each."""
        above = np.clip(np.searchsorted(self.sizes, sizes), 1 if len(self.sizes) > 1 else 0, len(self.sizes) - 1)
        below = np.maximum(above - 1, 0)
        width = np.where(above > below, self.sizes[above] - self.sizes[below], 1.0)
        low, high = measured[below, row], measured[above, row]
        part = np.clip((sizes - self.sizes[below]) / width, 0.0, 1.0).reshape(-1, *[1] * (low.ndim - 1))
        return np.asarray(low * (1 - part) + high * part)


@dataclass(frozen=True, eq=False)
class MixedServiceTimes(ServiceTimes):
    """Those of batches whose members' sizes are drawn independently from ``mix``; ``by_size`` has them size by size."""

    by_size: ServiceBySize = field(kw_only=True)
    mix: SizeMix = field(kw_only=True)
    _paid: dict[float, Array] = field(kw_only=True, default_factory=dict)  # mean billed seconds, by what they are rounded to

    def up_to(self, batch_size: int) -> MixedServiceTimes:
        """The same for batches of at most ``batch_size``; raises ``InvalidInput`` beyond what was measured."""
        fewer = super().up_to(batch_size)
        parts = (fewer.seconds, fewer.overhead, fewer.billed_duration, fewer.quantile_levels)
        return MixedServiceTimes(self.memory_mb, *parts, by_size=self.by_size.up_to(batch_size), mix=self.mix, _paid=self._paid)

    def mean_billed(self, granularity: float) -> Array:
        """Mean billed seconds by batch size, (max_batch_size,), every size of the largest member rounded on its own."""
        n = self.max_batch_size
        if granularity not in self._paid or len(self._paid[granularity]) < n:
            self._paid[granularity] = self.by_size.mean_billed_under(self.mix, granularity)
        return self._paid[granularity][:n]


class SizedServices:
    """Service times of a profile with sizes, for batches of at most ``batch_size``: what was measured is read once, whoever asks.

    Raises
    ------
    InvalidInput
        A profile without sizes.
    """

    def __init__(self, profile: ServiceProfile, batch_size: int) -> None:
        told = "one that tells sizes apart (sluice profile --payload SIZE=FILE), as sizes of requests are given"
        require(bool(profile.sizes), "profile", profile.function, told)
        self.profile, self.batch_size = profile, batch_size
        self._at: dict[int, list[float]] = {}  # sizes measured, by memory size
        self._found: dict[tuple[int, int], ServiceBySize] = {}
        for memory_mb, size in {(point.memory_mb, point.size) for point in profile.points}:
            self._at.setdefault(memory_mb, []).append(float(size or 0.0))
        self._of_memory = {mb: replace(profile, points=[p for p in profile.points if p.memory_mb == mb]) for mb in self._at}

    def at(self, memory_mb: int, largest: float | None = None) -> ServiceBySize:
        """Those of a memory size (MB), as ``service_by_size`` has them."""
        self.profile.points_at(memory_mb)  # refuses a memory size that was not measured
        measured = sorted(self._at[memory_mb])
        if largest is not None:
            end = f"at most {measured[-1]:g}, the largest that the profile measured at {memory_mb} MB"
            require(largest <= measured[-1], "size", largest, end)
            measured = measured[: int(np.searchsorted(measured, largest)) + 1]
        asked = memory_mb, len(measured)
        if asked not in self._found:
            self._found[asked] = _read(self._of_memory[memory_mb], memory_mb, self.batch_size, measured)
        return self._found[asked]


def service_by_size(profile: ServiceProfile, memory_mb: int, batch_size: int, largest: float | None = None) -> ServiceBySize:
    """Service times of a profile with sizes for batches as large as it speaks of at these sizes, and at most ``batch_size``.

    Parameters
    ----------
    largest : float, optional
        The largest size that is asked of it; by default all that it measured.

    Raises
    ------
    InvalidInput
        As ``service_times``; a profile without sizes; a size beyond the largest measured; a larger size that is quicker by more
        than noise.
    """
    return SizedServices(profile, batch_size).at(memory_mb, largest)


def _read(profile: ServiceProfile, memory_mb: int, batch_size: int, measured: Sequence[float]) -> ServiceBySize:
    each = [service_times_up_to(profile.of_size(size), memory_mb, batch_size) for size in measured]
    most = min(times.max_batch_size for times in each)
    levels = np.unique(np.concatenate([times.quantile_levels for times in each]))
    common = [times.up_to(most).at_levels(levels) for times in each]
    _refuse_falling(measured, common)
    raised = np.maximum.accumulate([times.seconds for times in common], axis=0)
    billed = np.maximum.accumulate([times.billed_duration for times in common], axis=0)
    sizes = tuple(
        ServiceTimes(memory_mb, seconds, times.overhead, paid, levels)
        for times, seconds, paid in zip(common, raised, billed, strict=True)
    )
    return ServiceBySize(np.array(measured), sizes)


def service_times_under(profile: ServiceProfile, memory_mb: int, batch_size: int, mix: SizeMix | None) -> ServiceTimes:
    """Service times of a profile for batches as large as it speaks of, and at most ``batch_size``, of requests of a mix of sizes.

    Raises
    ------
    InvalidInput
        As ``service_times_up_to`` and ``service_by_size``; a profile with sizes and no mix, or a mix and no sizes.
    """
    if mix is None:
        return service_times_up_to(profile, memory_mb, batch_size)
    return service_by_size(profile, memory_mb, batch_size, mix.largest).under(mix)


def require_sizes_of(profile: ServiceProfile, mix: SizeMix | None) -> None:
    """Refuse the sizes of all requests where the largest is far below the least that the profile measured, as in another unit.

    Smaller ones than that are taken for the least; of a class all may be.
    """
    if mix is not None and profile.sizes:
        least, most = min(profile.sizes), max(profile.sizes)
        told = f"some of at least {least / FAR_BELOW:g}, in the unit of the profile, which measured {least:g} to {most:g}"
        require(mix.largest >= least / FAR_BELOW, "sizes", f"{mix.values[0]:g} to {mix.largest:g}", told)


def _refuse_falling(sizes: Sequence[float], each: Sequence[ServiceTimes]) -> None:
    slowest = each[0].mean_response
    for size, times in zip(sizes, each, strict=True):
        mean = times.mean_response
        for n in np.flatnonzero(falls_beyond_noise(mean, slowest))[:1]:
            raise InvalidInput(
                f"mean of service time and overhead at memory_mb {times.memory_mb}, batch_size {n + 1}, size {size:g}",
                float(mean[n]),
                f"at most 10 %, or 0.001 s, below that of a smaller size ({slowest[n]:g} s); measuring again for longer, or on a "
                "quieter machine, may help",
            )
        slowest = np.maximum(slowest, mean)


def _quantile_functions(largest: Array, response: Array, levels: Array) -> tuple[Array, Array]:
    """Levels, and the quantile functions there, (max_batch_size, n_levels), of the mixtures of ``response``.

    ``largest`` has the weights, (max_batch_size, n_values); ``response`` the quantile functions, (n_values, max_batch_size,
    n_levels), at ``levels``.
    """
    x = np.linspace(0.0, 1.0, 2**_HALVINGS + 1)
    candidates = 1 - (1 - x) ** 2
    edges, cdf = _distribution_functions(largest, np.ascontiguousarray(response.transpose(1, 0, 2)), np.diff(levels))
    rows = np.array([_inverted(candidates, *of) for of in zip(edges, cdf, strict=True)])
    mean = np.maximum(np.trapezoid(rows, candidates, axis=1), 1e-12)
    kept = np.flatnonzero(_bends(candidates, np.ascontiguousarray(rows / mean[:, None])))
    return candidates[kept], rows[:, kept]


def _inverted(levels: Array, edges: Array, cdf: Array) -> Array:
    """The quantile function at ``levels`` of a distribution function that is linear between ``edges``."""
    first = max(int(np.searchsorted(cdf, 0.0, side="right")) - 1, 0)
    last = int(np.searchsorted(cdf, 1.0 - 1e-13))
    return np.asarray(np.interp(levels, cdf[first : last + 1], edges[first : last + 1]))


@compiled
def _distribution_functions(largest: Array, response: Array, shares: Array) -> tuple[Array, Array]:
    """By batch size the ends of its cells (s) and the distribution function there, (max_batch_size, _CELLS + 1) each.

    ``response`` is (max_batch_size, n_values, n_levels), ``shares`` the probabilities between its levels; none: a value for each.
    """
    n_sizes, n_values, n_levels = response.shape
    edges = np.empty((n_sizes, _CELLS + 1))
    cdf = np.empty((n_sizes, _CELLS + 1))
    for n in range(n_sizes):
        first, last = 0, n_values - 1
        while largest[n, first] < _NO_WEIGHT:
            first += 1
        while largest[n, last] < _NO_WEIGHT:
            last -= 1
        low, high = response[n, first, 0], response[n, last, n_levels - 1]
        for k in range(first, last + 1):  # a larger size is not quicker inside the function; its overhead may be less
            low, high = min(low, response[n, k, 0]), max(high, response[n, k, n_levels - 1])
        step = max((high - low) / _CELLS, 1e-12)
        level = np.zeros(_CELLS + 2)  # of what lies to the left, and of ramps: value and slope, as differences
        slope = np.zeros(_CELLS + 2)
        for k in range(first, last + 1):
            for j in range(max(len(shares), 1)):
                weight = largest[n, k] * (shares[j] if len(shares) else 1.0)
                a, b = response[n, k, j], response[n, k, min(j + 1, n_levels - 1)]
                begin = min(_CELLS, max(0, int(np.ceil((a - low) / step - 1e-9))))
                end = min(_CELLS, max(0, int(np.ceil((b - low) / step - 1e-9))))
                if end > begin:
                    rise = weight / (b - a)
                    slope[begin] += rise
                    slope[end] -= rise
                    level[begin] += rise * (low - a)
                    level[end] -= rise * (low - a)
                level[end] += weight
        total, rate = 0.0, 0.0
        for i in range(_CELLS + 1):
            total += level[i]
            rate += slope[i]
            edges[n, i] = low + i * step
            cdf[n, i] = min(1.0, max(total + rate * i * step, cdf[n, i - 1] if i else 0.0))
        cdf[n, _CELLS] = 1.0
    return edges, cdf


@compiled
def _bends(levels: Array, rows: Array) -> NDArray[np.bool_]:
    """Which of the levels are kept: between two, each row, whose mean is 1, is its chord but for ``_STRAY`` in the area."""
    n = len(levels)
    kept = np.zeros(n, dtype=np.bool_)
    kept[0] = kept[n - 1] = True
    starts, ends = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    starts[0], ends[0] = 0, n - 1
    n_open = 1
    while n_open > 0:
        n_open -= 1
        start, end = starts[n_open], ends[n_open]
        if end - start < 2:
            continue
        width = levels[end] - levels[start]
        strays = False
        for row in rows:
            area, before = 0.0, 0.0
            for i in range(start + 1, end + 1):
                part = (levels[i] - levels[start]) / width
                chord = row[start] * (1 - part) + row[end] * part
                off = abs(row[i] - chord)
                area += (off + before) / 2 * (levels[i] - levels[i - 1])
                before = off
                if area > _STRAY or (width > _NARROW and off > _FAR * max(chord, 1.0)):
                    strays = True
                    break
            if strays:
                break
        if strays:
            middle = (start + end) // 2
            kept[middle] = True
            starts[n_open], ends[n_open] = start, middle
            starts[n_open + 1], ends[n_open + 1] = middle, end
            n_open += 2
    return kept
