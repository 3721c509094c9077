"""Have the times of batches left the profile? (docs/watching.md, docs/model.md, section 10)"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log, nan
from typing import Literal

import numpy as np

from sluice.batching.documents import PLACEHOLDER, ServiceProfile, memory_named
from sluice.batching.errors import require
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import ServiceTimes, service_times_up_to
from sluice.optimizer.tuning.changes import Alarm
from sluice.optimizer.tuning.latest_rows import LatestRows
from sluice.optimizer.tuning.level_scan import Found, LevelScan
from sluice.optimizer.tuning.live_profile import RESTARTED
from sluice.optimizer.tuning.step_sum import BY_ITSELF, StepSum

LEAST_RATIO = 1.1
RUN_LENGTH = 1e6  # batches
LARGEST_BATCH = 1024
SHARED = 4  # scan and sums of two times share what false alarms are allowed
STEP = 1.5  # ratio for which the sums wait that are quickest there
CLIPPED = 0.7  # of a logarithm, at most: a batch that took ten times as long says no more than one that took twice as long
NEAR_CLIPPED = 0.95 * CLIPPED  # a level beyond it may be of any more
CLIPPED_IN_DATE = 2.0  # where what is soon told is parted from what was before, which may have been above the profile too
CLIPPED_IN_SUM = 1.0  # where a batch adds little at the most, and several long ones in a row are needed
LEAST_SPREAD = 0.1  # of the logarithm of one time, before it is measured
EXPECTED_WEIGHT = 16.0  # differences that the spread of the profile stands for
HORIZON = 9  # doublings of a batch: what varies more slowly is a drift
FIRM = 1e9  # batches that a level rests on which is given
MOST_FUNCTIONS = 256  # memory sizes; those beyond are not watched


class ServiceWatch:
    """The times of batches are others than those of the profile, at any of its memory sizes.

    The logarithm of a batch's time over that of its size in the profile is scanned for a level other than 0 (``level_scan``), and
    summed against a step of a factor of 1.5 (``step_sum``), which is the sooner told; for the function's own time (alarm
    ``service``) and for that of the invocation (``invocation``), by memory size. What holds up one batch may hold up those that run
    beside it: of batches that overlap one counts twice among the eight that the sums take at the least, so that it takes four where
    none does. Cold batches and those of which a request failed are left out, and so are sizes of which the profile does not speak.

    Parameters
    ----------
    profile : ServiceProfile
        Without sizes of requests.
    least : float
        Ratio to the profile up to which times count as the same, >= 1.
    run_length : float
        Batches between false alarms, at least (docs/watching.md has what was measured).
    """

    def __init__(self, profile: ServiceProfile, least: float = LEAST_RATIO, run_length: float = RUN_LENGTH) -> None:
        require(1 <= least < np.inf, "least", least, "a ratio >= 1")
        self._least, self._run_length = log(least), run_length
        self.alarm: Alarm | None = None
        self.refreshed(profile)

    def clear(self) -> None:
        """The alarm is taken note of; the level that it has told is the one from now on."""
        self.alarm = None

    def refreshed(self, profile: ServiceProfile) -> None:
        """Watch for times other than those of this profile from now on."""
        require(
            not profile.sizes, "profile.sizes", len(profile.sizes), "none: a measured batch does not tell those of its requests"
        )
        self.profile = profile
        self._scans: dict[int, tuple[_Expected, _Overlaps, _Level, _Level]] = {}

    def see(self, batches: Sequence[MeasuredBatch]) -> None:
        """Take in batches in the order of their ends."""
        found: dict[int, list[tuple[float, float, float, float]]] = {}  # ends, seconds, logarithms of the ratios of both times
        of: dict[str, tuple[int, _Expected] | None] = {}
        for batch in batches:
            if batch.cold or not batch.served or not 0 < batch.seconds < np.inf:
                continue
            if batch.function not in of:
                of[batch.function] = self._of(batch.function)
            watched = of[batch.function]
            if watched is None or not 1 <= batch.size <= watched[1].largest:
                continue
            memory_mb, expected = watched
            own = log(batch.service) - expected.service[batch.size - 1] if batch.service > 0 else nan
            invocation = log(batch.seconds) - expected.invocation[batch.size - 1]
            found.setdefault(memory_mb, []).append((batch.ended_at, batch.seconds, own, invocation))
        for memory_mb, rows in found.items():
            ended, seconds, *ratios = np.array(rows).T
            _, overlaps, service, invocation = self._scans[memory_mb]
            counting = overlaps.counting(ended - seconds, ended)
            self._look("service", memory_mb, ended, ratios[0], counting, service)
            self._look("invocation", memory_mb, ended, ratios[1], counting, invocation)

    def _look(
        self, kind: Literal["service", "invocation"], memory_mb: int, ended: Array, logs: Array, counting: Array, level: _Level
    ) -> None:
        known = ~np.isnan(logs)
        ended, values, counting = ended[known], logs[known], counting[known]
        while len(values):
            found = level.see(ended, values, counting)
            if found is None:
                return
            since, at = level.ended(found.length)  # which may be of an earlier call
            before, after = float(np.exp(found.before)), float(np.exp(found.after))
            what = "function's own time" if kind == "service" else "invocation"
            bound = "at least " if found.after > NEAR_CLIPPED else "at most " if found.after < -NEAR_CLIPPED else ""
            where = f"at {memory_mb} MB the" if self.profile.memory_sizes else "the"  # of which a linear law names none
            words = (
                f"{where} {what} took {bound}{after:.3g} times as long as the profile says in the last "
                f"{found.length} batches ({before:.3g} times before)"
            )
            self.alarm = Alarm(kind, at, before, after, words, since)
            ended, values, counting = (each[found.consumed :] for each in (ended, values, counting))

    def _of(self, function: str) -> tuple[int, _Expected] | None:
        memory_mb = called_at(self.profile, function)
        if memory_mb is None:
            return None
        if memory_mb not in self._scans:
            unknown = self.profile.points and memory_mb not in self.profile.memory_sizes
            if unknown or len(self._scans) >= MOST_FUNCTIONS:
                return None
            expected = _Expected(service_times_up_to(self.profile, memory_mb, self.profile.max_batch_size or LARGEST_BATCH))
            service, invocation = (_Level(expected.spread, self._least, self._run_length) for _ in range(2))
            self._scans[memory_mb] = expected, _Overlaps(), service, invocation
        return memory_mb, self._scans[memory_mb][0]


class _Overlaps:
    """Which batches of a function ran beside others."""

    def __init__(self) -> None:
        self._until = -inf  # s: the end of the last batch that was by itself

    def counting(self, began: Array, ended: Array) -> Array:
        """For how many each batch counts (``step_sum``): more where it overlaps none that does, as the most do by their ends (s).

        While a clock that was set back is not where it was, each counts for one.
        """
        counting = np.ones(len(ended))
        for i, (begin, end) in enumerate(zip(began.tolist(), ended.tolist(), strict=True)):
            if begin >= self._until:
                counting[i], self._until = BY_ITSELF, end
        return counting


class _Level:
    """Both tests of one sequence of logarithms. The sums see them over what one of them spreads, by the profile."""

    def __init__(self, spread: float, least: float, run_length: float) -> None:
        self._spread = spread
        self._latest = LatestRows(1 << HORIZON, 2)  # when batches ended (s), and their logarithms
        self._scan = LevelScan("gaussian", least, run_length, HORIZON)
        self._scan.dispersion.begin(spread**2, EXPECTED_WEIGHT)
        self._scan.restart(0.0, FIRM)
        self._sum = StepSum(log(STEP) / spread, SHARED * run_length, HORIZON)
        self._sum.dispersion.begin(1.0, EXPECTED_WEIGHT)

    def see(self, ended: Array, logs: Array, counting: Array) -> Found | None:
        """Take in what either test does up to its change, the sooner one's; both then hold what comes against its level."""
        found = self._sum.see(_clipped(logs, CLIPPED_IN_SUM) / self._spread, counting)
        if found is not None:
            logs = logs[: found.consumed]
            found = found._replace(before=found.before * self._spread, after=found.after * self._spread)
        found = self._scan.see(_clipped(logs, CLIPPED)) or found
        taken = slice(None if found is None else found.consumed)
        self._latest.extend(np.column_stack([ended[taken], _clipped(logs[taken], CLIPPED_IN_DATE)]))
        if found is None:
            return None
        self._scan.restart(found.after, FIRM)
        self._sum.restart(found.after / self._spread)
        return self._dated(found)

    def ended(self, length: int) -> tuple[float, float]:
        """When the first and the last of the latest so many batches ended, s."""
        ended = self._latest.rows(length)[:, 0]
        return float(ended[0]), float(ended[-1])

    def _dated(self, found: Found) -> Found:
        """With the batches that are the most likely to be of the new level, of those of the change, and their level."""
        logs = self._latest.rows(found.length)[::-1, 1]
        lengths = np.arange(min(RESTARTED, len(logs)), len(logs) + 1)
        likely = (np.cumsum(logs - found.before)[lengths - 1]) ** 2 / lengths
        length = int(lengths[np.argmax(likely)])
        return found._replace(length=length, after=float(_clipped(logs[:length], CLIPPED).mean()))


def _clipped(values: Array, most: float) -> Array:
    """Without what is beyond ``most`` on either side; of a few values it takes a tenth of the time of numpy's."""
    return np.minimum(np.maximum(values, -most), most)


def called_at(profile: ServiceProfile, function: str) -> int | None:
    """The memory size (MB) at which the profile's function is called so by a plan; ``None`` where at none."""
    if PLACEHOLDER in profile.function:
        return memory_named(profile.function, function)
    return next(iter(profile.memory_sizes), 1) if function == profile.function else None


class _Expected:
    """The mean logarithms of the times of every batch size, and how one spreads."""

    def __init__(self, times: ServiceTimes) -> None:
        self.largest = times.max_batch_size
        self.service = _mean_log(times.seconds, times.quantile_levels).tolist()
        self.invocation = _mean_log(times.response, times.quantile_levels).tolist()
        quartiles = [np.interp((0.25, 0.75), times.quantile_levels, row) for row in np.log(np.maximum(times.seconds, 1e-9))]
        self.spread = max(LEAST_SPREAD, float(np.max(np.diff(quartiles))) / 1.349)  # of a normal law


def _mean_log(seconds: Array, levels: Array) -> Array:
    logs = np.log(np.maximum(seconds, 1e-9))
    return logs[:, 0] if len(levels) == 1 else np.asarray(np.trapezoid(logs, levels, axis=1))
