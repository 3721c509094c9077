"""A profile that live batches keep up to date (docs/watching.md, docs/model.md, section 10).

Of each memory size and batch size the last ``KEPT`` warm batches are kept: the function's own time, what was billed, and the rest
of the invocation. The logarithm of the mean at a size that was seen, over the profile's, is drawn towards that of all sizes
together as far as its error lets it (10.7); sizes that were not seen keep the profile's curve, times the ratio of their neighbours
that were, and beyond these as other memory sizes have it that saw more. Means that fall with the size are pooled. Quantiles are the
sample's where it has ``SAMPLE`` batches, and else the profile's, stretched. Without a profile a size counts from ``FEWEST`` batches
on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, isnan, log, nan, sqrt
from statistics import NormalDist
from typing import TypeVar

import msgspec
import numpy as np

from sluice.batching.documents import (
    PLACEHOLDER,
    LinearServiceTime,
    ProfilePoint,
    ServiceProfile,
    ServiceTime,
    memory_named,
    model_of,
)
from sluice.batching.errors import require
from sluice.batching.measured import MeasuredBatch
from sluice.batching.quantiles import quantile_points
from sluice.optimizer.arrays import Array
from sluice.optimizer.isotonic import in_order
from sluice.optimizer.service.times import ServiceTimes, service_times_up_to
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

KEPT = 256  # batches of a setting
FEWEST = 8  # batches from which a ratio, or a size without a profile, counts
SURELY = NormalDist().inv_cdf(1 - 1e-6)  # standard errors: as rare of times that are alike as is asked of a service alarm
ONE_ERROR = NormalDist().cdf(1)  # one-sided, that what is expected is off by no more than its standard error
FARTHEST = 3.0  # standard deviations: three batches at the least are sure of something, as 3 * 3 > SURELY * sqrt(3)
RESTARTED = 4  # batches that count where times have just changed
LEAST_SPREAD = 0.02  # of the quantiles of a time over its mean, from which a linear law has a spread beside it
BILLED_STEP = 0.001  # s, to which what is billed is rounded up
BILLED_UP = BILLED_STEP / 2  # which adds so much to a random time in the mean
SAMPLE = 20  # batches from which the quantiles are those of the sample
MOST_SETTINGS = 512  # memory size and batch size; then the one that was not seen for longest is forgotten
LARGEST_BATCH = 1024  # of a linear profile that names none
COLD_KEPT = 4096  # batches of a memory size among which the cold ones are counted
INITS_KEPT = 64
BETWEEN = 0.05  # standard deviation of the logarithm of a ratio from size to size
BETWEEN_MEMORY = 0.10  # and from memory size to memory size
DIFFERENT = 2 * BETWEEN_MEMORY  # beyond which a profile is wrong of one of its memory sizes
PRIOR_SPREAD, PRIOR_WEIGHT = 0.1, 4.0  # of the logarithm of one time, and the batches that this stands for


@dataclass(frozen=True)
class LivePoint:
    """What live batches of one setting took.

    Parameters
    ----------
    memory_mb, batch_size, n : int
        ``n`` batches.
    service_time, standard_error : float
        Mean seconds in the function, and the error of that.
    """

    memory_mb: int
    batch_size: int
    n: int
    service_time: float
    standard_error: float


@dataclass(frozen=True)
class Bias:
    """By how much what was measured of a setting exceeds what was predicted.

    Parameters
    ----------
    memory_mb, batch_size, n : int
        ``n`` batches.
    latency, latency_error : float
        Mean seconds of the invocation, measured less predicted, and the standard error.
    cost, cost_error : float
        The same of the billed seconds, over what was predicted: a part of the cost of compute; ``nan`` where nobody told.
    """

    memory_mb: int
    batch_size: int
    n: int
    latency: float
    latency_error: float
    cost: float
    cost_error: float


class LiveProfile:
    """A profile that is refreshed by what live batches measure.

    Parameters
    ----------
    profile : ServiceProfile, optional
        What is known before; without sizes of requests.
    function : str
        As plans call it, with ``{memory_mb}`` for its memory size if it has several; by default as the profile does.
    memory_mb : int, optional
        Of a function whose name does not tell it; by default the profile's first, or 1.

    Raises
    ------
    InvalidInput
        Neither a profile nor a function; a profile with sizes of requests.
    """

    def __init__(self, profile: ServiceProfile | None = None, function: str = "", memory_mb: int | None = None) -> None:
        sizes = [] if profile is None else profile.sizes
        require(not sizes, "profile.sizes", len(sizes), "none: a measured batch does not tell those of its requests")
        self._function = function or (profile.function if profile is not None else "")
        require(bool(self._function), "function", function, "the name of a function, where there is no profile")
        known = profile.memory_sizes if profile is not None else []
        self._alone = memory_mb if memory_mb is not None else next(iter(known), 1)
        require(self._alone >= 1, "memory_mb", self._alone, "an integer >= 1")
        self.known, self._learned = profile, profile is None
        self._fewest = FEWEST
        self._settings: dict[tuple[int, int], _Setting] = {}
        self._starts: dict[int, _Starts] = {}

    def see(self, batches: Sequence[MeasuredBatch]) -> None:
        """Take in batches; those of another function, and those of which a request was not served, tell nothing."""
        for batch in batches:
            memory_mb = self.memory_of(batch.function)
            if memory_mb is None or not batch.served or batch.size < 1 or not 0 < batch.seconds < np.inf:
                continue
            starts = _latest(self._starts, memory_mb, _Starts)
            starts.cold.append(batch.cold)
            if batch.cold:
                starts.inits.append((batch.size, batch.seconds))
            else:
                _latest(self._settings, (memory_mb, batch.size), _Setting).see(batch, self._whole)

    def restart(self, since: float) -> None:
        """Forget what ended before ``since``, s: the times of the function are others since then.

        The first since then may still be of before, as nobody knows to a batch, and is forgotten too; but the last ``RESTARTED``
        stay in any case, and count, as else nothing would be known but the times of before. Where there was no
        profile, what was learned until now is known before: sizes that have not come again since then keep its curve.
        """
        if self._learned:
            self.known = self.profile()
        ended = sorted(end for setting in self._settings.values() for end in setting.ends)
        told = [end for end in ended if end >= since]
        since = (told[1:] if len(told) > RESTARTED else ended[-RESTARTED:] or [since])[0]
        self._fewest = RESTARTED
        for key in [key for key, setting in self._settings.items() if not setting.forget(since)]:
            del self._settings[key]

    def other_since(self, since: float, least: float = 0.0) -> bool:
        """Whether batches surely took another time since then (s) than those of the same settings before, by ``least`` of it.

        The difference of the means of each setting, in parts of that before, by its n n' / (n + n') batches, over what one batch
        spreads. None counts as further from that mean than ``FARTHEST`` of this, so that a batch or two that were held up for some
        other reason make nothing sure.
        """
        parted = [setting.parted(since) for setting in self._settings.values()]
        told = [(before / before.mean(), after / before.mean()) for before, after in parted if len(before) and len(after)]
        squares = sum(float(((part / part.mean() - 1) ** 2).sum()) for pair in told for part in pair)
        n = sum(len(before) + len(after) - 2 for before, after in told)
        spread = sqrt((squares + PRIOR_WEIGHT * PRIOR_SPREAD**2) / (n + PRIOR_WEIGHT))
        apart = weight = 0.0
        for before, after in told:
            first, then = (float(np.clip(part - 1, -FARTHEST * spread, FARTHEST * spread).mean()) for part in (before, after))
            known = len(before) * len(after) / (len(before) + len(after))
            apart, weight = apart + known * (then - first), weight + known
        return abs(apart) > max(SURELY * spread * sqrt(weight), least * weight)

    def memory_of(self, function: str) -> int | None:
        """The memory size (MB) at which a plan calls the function so; ``None`` where it is another one."""
        if PLACEHOLDER in self._function:
            return memory_named(self._function, function)
        return self._alone if function == self._function else None

    @property
    def points(self) -> list[LivePoint]:
        """What was measured, by memory size and batch size."""
        found = []
        for (memory_mb, size), setting in sorted(self._settings.items()):
            mean, error = setting.mean(_SERVICE)
            found.append(LivePoint(memory_mb, size, setting.n, mean, error))
        return found

    def overhead(self) -> dict[int, tuple[float, float]]:
        """Seconds of an invocation beyond the function's own, by memory size (MB): mean and standard error."""
        found: dict[int, tuple[float, float]] = {}
        for memory_mb in sorted({memory_mb for memory_mb, _ in self._settings}):
            told = np.concatenate([setting.told(_OVERHEAD) for (mb, _), setting in self._settings.items() if mb == memory_mb])
            if len(told):
                found[memory_mb] = float(told.mean()), float(told.std(ddof=1) / sqrt(len(told))) if len(told) > 1 else nan
        return found

    def cold_share(self) -> dict[int, float]:
        """The share of the latest batches that started cold, by memory size (MB)."""
        return {memory_mb: sum(starts.cold) / len(starts.cold) for memory_mb, starts in sorted(self._starts.items())}

    def bias(self, predicted: ServiceProfile | None = None) -> list[Bias]:
        """What was measured less what a profile says, by default the one known before, of every setting of which that speaks."""
        predicted = predicted or self.known
        found: list[Bias] = []
        for (memory_mb, size), setting in sorted(self._settings.items()):
            times = _times(predicted, memory_mb)
            if times is None or size > times.max_batch_size:
                continue
            latency, latency_error = setting.mean(_SECONDS)
            billed, billed_error = setting.mean(_BILLED)
            expected = float(times.billed_duration[size - 1]) or nan
            late = latency - float(times.mean_response[size - 1])
            found.append(Bias(memory_mb, size, setting.n, late, latency_error, billed / expected - 1, billed_error / expected))
        return found

    @property
    def known_or_measured(self) -> bool:
        """Whether there is a profile."""
        return self.known is not None or any(setting.n >= FEWEST for setting in self._settings.values())

    def profile(self) -> ServiceProfile | None:
        """The profile as live batches have it; ``None`` where there was none and no size has ``FEWEST`` batches."""
        if self.known is not None and sum(setting.n for setting in self._settings.values()) < self._fewest:
            return self.known
        ratios = self._ratios()
        if self._whole:
            assert self.known is not None and self.known.service_time is not None
            law, ratio = self.known.service_time, exp(ratios.together)
            scaled = LinearServiceTime(law.intercept * ratio, law.slope * ratio)
            points = self._spread_about(scaled)
            return msgspec.structs.replace(self.known, service_time=None if points else scaled, points=points)
        known = self.known.memory_sizes if self.known is not None else []
        points = [
            point for memory_mb in sorted({*known, *(mb for mb, _ in self._settings)}) for point in self._points(memory_mb, ratios)
        ]
        if not points:
            return None
        if self.known is None:
            return ServiceProfile(function=self._function, model=model_of(self._function), points=points, init=self._init(points))
        return msgspec.structs.replace(self.known, points=points, init=self._init(points))

    @property
    def _whole(self) -> bool:
        """Whether what is known speaks of whole invocations: a linear law does, which has no overhead."""
        return self.known is not None and self.known.service_time is not None

    def _spread_about(self, law: LinearServiceTime) -> list[ProfilePoint]:
        """Points of a linear law with the spread that was measured about it; none where there is no spread to speak of.

        The spread is that of all sizes together, as parts of what the law says: what a size takes beyond the law is in it. A
        function with a placeholder has memory sizes that a linear law does not name, and keeps the law.
        """
        assert self.known is not None
        most = self.known.max_batch_size or LARGEST_BATCH
        seen = {size: setting for (_, size), setting in self._settings.items() if size <= most}
        means = {size: law.intercept + law.slope * size for size in seen}
        parts = [setting.told(_SERVICE) / means[size] for size, setting in seen.items() if means[size] > 0]
        together = np.concatenate(parts) if parts else np.empty(0)
        if PLACEHOLDER in self._function or len(together) < SAMPLE or law.intercept + law.slope <= 0:
            return []
        shape = quantile_points(together.tolist())
        if max(part for _, part in shape) - min(part for _, part in shape) < LEAST_SPREAD:
            return []
        sizes = [*(1 << k for k in range(most.bit_length()) if 1 << k < most), most]
        points = []
        for size in sizes:
            mean = law.intercept + law.slope * size
            time = ServiceTime(mean, [(q, part * mean) for q, part in shape], len(together))
            points.append(ProfilePoint(self._alone, size, time, mean + BILLED_UP))
        return points

    def wrong_by(self) -> float:
        """Of a memory size that was not measured, the logarithm of the ratio by which it may be off what is expected of it.

        0 unless some size that was measured is surely off the profile by more than ``DIFFERENT``, as sizes are of any profile.
        Else |z| of the only one that was, the logarithm of its ratio to the profile, which may be its own error or that of all;
        of k the standard error of a (k + 1)-th of them, s sqrt(1 + 1/k) of Student's law, s their deviation beyond sampling.
        """
        levels = []
        for memory_mb, found in self._seen().items():
            if not self._whole and self.measured(memory_mb) >= FEWEST:
                weights = [1 / (variance + BETWEEN**2) for _, _, variance in found]
                level = sum(x * weight for (_, x, _), weight in zip(found, weights, strict=True)) / sum(weights)
                levels.append((level, 1 / sum(weights)))
        if not any(abs(level) - 2 * sqrt(variance) > DIFFERENT for level, variance in levels):
            return 0.0
        off, variances = np.array(levels).T
        k = len(off)
        if k == 1:
            return abs(float(off[0]))
        apart = max(0.0, float(off.var(ddof=1) - variances.mean()))
        return float(special.stdtrit(k - 1, ONE_ERROR)) * sqrt(apart * (1 + 1 / k))

    def measured(self, memory_mb: int) -> int:
        """How many warm batches are known of a memory size (MB)."""
        return sum(setting.n for (mb, _), setting in self._settings.items() if mb == memory_mb)

    def _ratios(self) -> _Ratios:
        return _Ratios(self._seen())

    def _seen(self) -> dict[int, list[tuple[int, float, float]]]:
        """Of each memory size, the batch sizes that were seen, the logarithm of their ratio to the profile, and its variance."""
        seen: dict[int, list[tuple[int, float, float]]] = {}
        for (memory_mb, size), setting in sorted(self._settings.items()):
            times = _times(self.known, memory_mb)
            if times is None or size > times.max_batch_size:
                continue
            mean, _ = setting.mean(_SERVICE)
            expected = self._expected(memory_mb, times, size)
            if mean > 0 and expected > 0:
                seen.setdefault(memory_mb, []).append((size, log(mean / expected), setting.relative_variance()))
        return seen

    def _expected(self, memory_mb: int, times: ServiceTimes, size: int) -> float:
        """Mean service time of a size in the profile, s: of its means, which the quantiles, cut at their ends, need not have."""
        if self._whole or self.known is None:
            return float(times.seconds[size - 1, 0])
        points = self.known.points_at(memory_mb)
        means = np.maximum.accumulate([point.service_time.mean for point in points])
        return float(np.interp(size, [point.batch_size for point in points], means))

    def _points(self, memory_mb: int, ratios: _Ratios) -> list[ProfilePoint]:
        seen = {size: setting for (mb, size), setting in self._settings.items() if mb == memory_mb and setting.n >= FEWEST}
        times = _times(self.known, memory_mb)
        known: dict[int, ProfilePoint] = {}
        if times is not None and self.known is not None:
            known = {point.batch_size: point for point in self.known.points_at(memory_mb)}
        if not known and not seen:
            return []
        sizes = sorted({*known, *seen})
        shape = np.concatenate([setting.told(_SERVICE) / setting.mean(_SERVICE)[0] for setting in seen.values()]) if seen else None
        beyond = self._overhead_beyond(memory_mb, times)
        drafts: list[_Draft] = []
        for size in sizes:
            setting = seen.get(size)
            if times is not None and size <= times.max_batch_size:
                ratio = exp(ratios.at(memory_mb, size))
                expected = self._expected(memory_mb, times, size)
                mean = expected * ratio
                overhead = max(0.0, float(times.overhead[size - 1]) + beyond)
                billed = float(times.billed_duration[size - 1])
                if seen and times.deterministic:  # what is measured varies, so that none is rounded any more
                    billed = _rounded_up(mean) + max(0.0, billed - _rounded_up(expected)) * ratio
                else:
                    billed *= ratio
                draft = _Draft(size, mean, billed, overhead)
                draft.quantiles = _stretched(known.get(size), times, mean)
                draft.n = known[size].service_time.n if size in known else 1
            elif setting is not None:
                mean, _ = setting.mean(_SERVICE)
                draft = _Draft(size, mean, mean, max(0.0, beyond))
            else:  # beyond the largest batch that the profile allows
                continue
            if setting is not None:
                self._take(draft, setting, shape)
            drafts.append(draft)
        if drafts[0].size > 1:  # no larger batch is quicker
            drafts.insert(0, drafts[0].of_one())
        return _in_order(memory_mb, drafts, known)

    def _take(self, draft: _Draft, setting: _Setting, shape: Array | None) -> None:
        """What was measured of a size in the place of what was expected."""
        billed, _ = setting.mean(_BILLED)
        overhead, _ = setting.mean(_OVERHEAD)
        draft.n, draft.weight = setting.n, 1 / setting.relative_variance()
        mean, _ = setting.mean(_SERVICE)
        if not isnan(billed):  # as what it is billed for is drawn towards the other sizes: what chance made cheap is no cheaper
            draft.billed = billed * draft.mean / mean if mean > 0 else billed
        draft.overhead = draft.overhead if isnan(overhead) else max(0.0, overhead)
        if setting.n >= SAMPLE:
            draft.quantiles = quantile_points((setting.told(_SERVICE) * (draft.mean / mean)).tolist())
        elif not draft.quantiles and shape is not None:
            draft.quantiles = quantile_points((shape * draft.mean).tolist())

    def _overhead_beyond(self, memory_mb: int, times: ServiceTimes | None) -> float:
        """By how much the overhead that was measured exceeds the profile's, over all sizes, s."""
        total, n = 0.0, 0
        for (mb, size), setting in self._settings.items():
            told = setting.told(_OVERHEAD)
            if mb == memory_mb and len(told) and (times is None or size <= times.max_batch_size):
                total += float(told.sum()) - (0.0 if times is None else len(told) * float(times.overhead[size - 1]))
                n += len(told)
        return total / n if n >= FEWEST else 0.0

    def _init(self, points: list[ProfilePoint]) -> dict[int, ServiceTime]:
        """INIT by memory size: what cold batches took beyond warm ones, where there were ``FEWEST``."""
        known = dict(self.known.init) if self.known is not None else {}
        for memory_mb, starts in self._starts.items():
            warm = [(p.batch_size, p.service_time.mean + p.overhead) for p in points if p.memory_mb == memory_mb]
            if len(starts.inits) < FEWEST or not warm:
                continue
            sizes, means = zip(*warm, strict=True)
            inits = [max(0.0, seconds - float(np.interp(size, sizes, means))) for size, seconds in starts.inits]
            known[memory_mb] = ServiceTime(float(np.mean(inits)), quantile_points(inits), len(inits))
        return dict(sorted(known.items()))


Key = TypeVar("Key")
Kept = TypeVar("Kept")


def _latest(held: dict[Key, Kept], key: Key, make: Callable[[], Kept]) -> Kept:
    """What is held of a key, which becomes the last; the first of more than ``MOST_SETTINGS`` is forgotten."""
    found = held.pop(key, None)
    found = make() if found is None else found
    held[key] = found
    if len(held) > MOST_SETTINGS:
        del held[next(iter(held))]
    return found


class _Starts:
    """Which of the latest batches of a memory size were cold, and the size and seconds of those."""

    def __init__(self) -> None:
        self.cold: deque[bool] = deque(maxlen=COLD_KEPT)
        self.inits: deque[tuple[int, float]] = deque(maxlen=INITS_KEPT)


_ENDED, _SERVICE, _BILLED, _OVERHEAD, _SECONDS = range(5)


class _Setting:
    """The last batches of one memory size and batch size."""

    def __init__(self) -> None:
        self._rows = np.empty((5, KEPT))
        self._seen = 0

    @property
    def n(self) -> int:
        return min(self._seen, KEPT)

    def see(self, batch: MeasuredBatch, whole: bool) -> None:
        told = not isnan(batch.service) and batch.service > 0 and not whole
        service = batch.service if told else batch.seconds
        overhead = max(0.0, batch.seconds - batch.service) if told else nan
        self._rows[:, self._seen % KEPT] = batch.ended_at, service, batch.billed, overhead, batch.seconds
        self._seen += 1

    @property
    def ends(self) -> list[float]:
        """When the batches ended, s."""
        ends: list[float] = self._rows[_ENDED, : self.n].tolist()
        return ends

    def forget(self, since: float) -> bool:
        """Forget what ended before; whether anything is left."""
        rows = self._rows[:, : self.n]
        kept = rows[:, rows[_ENDED] >= since]
        kept = kept[:, np.argsort(kept[_ENDED], kind="stable")]
        self._seen = kept.shape[1]
        self._rows[:, : self._seen] = kept
        return bool(self._seen)

    def told(self, row: int) -> Array:
        """What is known of a row."""
        values = self._rows[row, : self.n]
        return values[~np.isnan(values)]

    def mean(self, row: int) -> tuple[float, float]:
        """Mean and standard error of what is known of a row."""
        told = self.told(row)
        if not len(told):
            return nan, nan
        return float(told.mean()), float(told.std(ddof=1) / sqrt(len(told))) if len(told) > 1 else nan

    def relative_variance(self) -> float:
        """Variance of the logarithm of the mean service time, to first order."""
        told = self.told(_SERVICE)
        mean = float(told.mean())
        squares = float(((told / mean - 1) ** 2).sum()) if mean > 0 else 0.0
        return (squares + PRIOR_WEIGHT * PRIOR_SPREAD**2) / (len(told) - 1 + PRIOR_WEIGHT) / len(told)

    def parted(self, since: float) -> tuple[Array, Array]:
        """Seconds in the function of batches that ended before then (s), and since."""
        rows = self._rows[:, : self.n]
        later = rows[_ENDED] >= since
        return rows[_SERVICE, ~later], rows[_SERVICE, later]


class _Ratios:
    """Logarithms of the ratios to the profile, drawn towards that of the memory size, and this towards that of all (10.7)."""

    def __init__(self, seen: dict[int, list[tuple[int, float, float]]]) -> None:
        self.together = 0.0
        self._memory: dict[int, float] = {}
        self._sizes: dict[int, tuple[list[float], list[float]]] = {}
        if not seen:
            return
        each = [one for found in seen.values() for one in found]
        self.together = _weighted([(x, variance + BETWEEN**2) for _, x, variance in each])
        for memory_mb, found in seen.items():
            drawn = [(x, variance + BETWEEN**2) for _, x, variance in found]
            self._memory[memory_mb] = _weighted([*drawn, (self.together, BETWEEN_MEMORY**2)])
            at = [_weighted([(x, variance), (self._memory[memory_mb], BETWEEN**2)]) for _, x, variance in found]
            self._sizes[memory_mb] = [log(size) for size, _, _ in found], at

    def at(self, memory_mb: int, size: int) -> float:
        """At any size: linear in the logarithm of the size between those that were seen, and beyond them as at other memory sizes.

        There it moves, from the last size that was seen, as it does in the mean of those memory sizes of which more was seen on
        that side: what a profile says too little of every request of a batch, it says so at all of them.
        """
        if memory_mb not in self._sizes:
            moved = [self.at(other, size) - level for other, level in self._memory.items()]
            return self.together + (sum(moved) / len(moved) if moved else 0.0)
        sizes, _ = self._sizes[memory_mb]
        edge = min(max(log(size), sizes[0]), sizes[-1])
        further = [mb for mb, (others, _) in self._sizes.items() if others[0] < edge > log(size) or others[-1] > edge < log(size)]
        moved = [self._own(mb, log(size)) - self._own(mb, edge) for mb in further]
        return self._own(memory_mb, edge) + (sum(moved) / len(moved) if moved else 0.0)

    def _own(self, memory_mb: int, log_size: float) -> float:
        """By what was seen at a memory size alone; constant beyond it."""
        return float(np.interp(log_size, *self._sizes[memory_mb]))


class _Draft:
    """A point that is being made."""

    def __init__(self, size: int, mean: float, billed: float, overhead: float) -> None:
        self.size, self.mean, self.billed, self.overhead = size, mean, billed, overhead
        self.quantiles: list[tuple[float, float]] = []
        self.n = 1
        self.weight = 1 / BETWEEN**2

    def of_one(self) -> _Draft:
        """The same for a batch of one."""
        one = _Draft(1, self.mean, self.billed, self.overhead)
        one.quantiles, one.n, one.weight = list(self.quantiles), self.n, self.weight
        return one


def _weighted(values: list[tuple[float, float]]) -> float:
    """Mean of values, each with its variance."""
    return sum(x / variance for x, variance in values) / sum(1 / variance for _, variance in values)


def _times(profile: ServiceProfile | None, memory_mb: int) -> ServiceTimes | None:
    """The service times of a profile at a memory size; ``None`` where it does not speak of it."""
    if profile is None or (profile.points and memory_mb not in profile.memory_sizes):
        return None
    largest = max((point.batch_size for point in profile.points), default=LARGEST_BATCH)
    return service_times_up_to(profile, memory_mb, profile.max_batch_size or largest)


def _rounded_up(seconds: float) -> float:
    return ceil(seconds / BILLED_STEP - 1e-6) * BILLED_STEP


def _stretched(point: ProfilePoint | None, times: ServiceTimes, mean: float) -> list[tuple[float, float]]:
    """The quantiles of a measured point at another mean."""
    if point is None or not point.service_time.mean:
        return []
    return [(q, seconds * mean / point.service_time.mean) for q, seconds in point.service_time.quantiles]


def _in_order(memory_mb: int, drafts: list[_Draft], known: dict[int, ProfilePoint]) -> list[ProfilePoint]:
    """The points, their means not falling with the size."""
    means = in_order([draft.mean for draft in drafts], [draft.weight for draft in drafts])
    points = []
    for draft, mean in zip(drafts, means.tolist(), strict=True):
        stretch = mean / draft.mean if draft.mean > 0 else 1.0
        time = ServiceTime(mean, [(q, seconds * stretch) for q, seconds in draft.quantiles], draft.n)
        energy = known[draft.size].energy if draft.size in known else None
        points.append(ProfilePoint(memory_mb, draft.size, time, draft.billed, draft.overhead, energy))
    return points
