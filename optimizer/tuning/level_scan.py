"""Has the mean of a sequence left the level at which it stood? A scan over windows of every length (docs/model.md, section 10).

The log-likelihood ratio of the last ``W`` values against all before them since the last change, over the dispersion ``phi_W``
that is measured while running (``dispersion``), is compared with half the square of Student's quantile, whose degrees of freedom
are those of ``phi_W``. Bursts that last for many values make ``phi_W`` large, so that neither independence nor a law is assumed.
``least`` is the ratio (or difference, of values that may be negative) up to which levels count as the same: what drifts by less
than matters is no change.

The windows are 8 to 16 values and 9 to 16 pairs, fours, eights and so on, each looked at when its last part is complete: 17 windows
a value on average at most, in memory that does not grow. The window that tells a change holds what came before it too where the
change is large, and soon noticed. When the new level began is therefore taken from the likelihood: of the windows up to twice as
long, also those too short to tell a change, it is the one whose two levels make what was seen most likely.

References: Hinkley, Biometrika 57 (1970) 1, for the time of a change; Lai, IEEE Trans. Inf. Theory 44 (1998) 2917, for windows of
limited length; McCullagh and Nelder, Generalized Linear Models (1989), chapter 9, for likelihoods over a measured dispersion.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, log
from typing import NamedTuple

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled
from sluice.optimizer.tuning.dispersion import FAMILIES, FEWEST, SCALES, WINSOR, Dispersion, at_level, differ, estimate
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

PARTS = 16  # of which the longest window of a doubling is made
FEWEST_PARTS = 8  # of which the shortest is: a stall, or what comes after it, is no level
FEWEST_OF = (4, 4, 8)  # values that a new level rests on, by family: a count holds several arrivals
PART_DOUBLINGS = 3  # of a part, in the shortest; longer ones are looked up as one more
DOUBLINGS = SCALES - 5  # of a value, at most, in a part
TESTS = 17  # windows a value, at most
MOST_DEGREES = 2048


class Found(NamedTuple):
    """A change: so many of the values that were given are behind it, the levels, and how many values ago the new one began."""

    consumed: int
    before: float
    after: float
    length: int


class _Windows(NamedTuple):
    """The latest parts of every doubling, and how many there were; sum and number of the values of the level."""

    parts: Array  # (DOUBLINGS, PARTS)
    n_parts: Indices  # (DOUBLINGS,)
    level: Array  # (2,)

    @classmethod
    def empty(cls) -> _Windows:
        return cls(np.zeros((DOUBLINGS, PARTS)), np.zeros(DOUBLINGS, dtype=np.int64), np.zeros(2))


class LevelScan:
    """Sees values one after another and tells when their level is another one.

    Parameters
    ----------
    family : str
        ``gaussian`` (any values), ``poisson`` (counts) or ``gamma`` (values >= 0 whose spread goes with their mean).
    least : float
        The ratio of two levels up to which they count as the same, >= 1; of ``gaussian`` values the difference, >= 0.
    run_length : float
        Values between two false alarms in the mean, were the windows independent and the sums normal.
    horizon : int
        Doublings of a value: what varies more slowly is a change of the level (``dispersion``).
    """

    def __init__(self, family: str, least: float, run_length: float, horizon: int) -> None:
        require(family in FAMILIES, "family", family, ", ".join(FAMILIES))
        floor = 0.0 if family == "gaussian" else 1.0
        require(floor <= least < inf, "least", least, f"a number >= {floor:g}")
        require(1 <= run_length < inf, "run_length", run_length, "a number of values >= 1")
        self._power, self._least = FAMILIES[family], least
        self._windows, self.dispersion = _Windows.empty(), Dispersion.empty(horizon)
        self._run_length = run_length
        self._found = np.zeros(3)

    @property
    def level(self) -> float:
        """Mean of the values since the last change; ``nan`` before the first."""
        total, length = self._windows.level.tolist()
        return total / length if length else np.nan

    @property
    def length(self) -> float:
        """How many values the level rests on."""
        return float(self._windows.level[1])

    def restart(self, level: float = 0.0, length: float = 0.0) -> None:
        """Forget the level, or begin with one that rests on ``length`` values; what is known of the dispersion stays."""
        for array in self._windows:
            array[:] = 0
        self._windows.level[:] = level * length, length

    def see(self, values: Array) -> Found | None:
        """Take in values up to the first change, after which the level is the new one and ``values[consumed:]`` are to be seen."""
        if not len(values):
            return None
        known = thresholds_for(self._run_length), self._windows, self.dispersion, self._found
        consumed = _scan(values, self._power, self._least, *known)
        if consumed < 0:
            return None
        before, after, length = self._found.tolist()
        self.restart(after, length)
        return Found(consumed, before, after, int(length))


@lru_cache(64)
def thresholds_for(run_length: float, tests: int = TESTS) -> Array:
    """Half the square of Student's quantile by degrees of freedom, (MOST_DEGREES + 1,), for so many tests of both sides a value;
    infinite below ``FEWEST``. All who ask for the same have the same array, which no copy of a test carries along.
    """
    degrees = np.arange(MOST_DEGREES + 1)
    thresholds = np.full(len(degrees), np.inf)
    enough = degrees >= FEWEST
    thresholds[enough] = special.stdtrit(degrees[enough], 1 / (2 * tests * run_length)) ** 2 / 2
    return thresholds


@compiled
def _likelihood(power: int, least: float, recent: float, length: float, before: float, length_before: float) -> float:
    """Log-likelihood ratio, at phi = 1, of two levels against two that differ by ``least`` at the most."""
    mean, mean_before = recent / length, before / length_before
    if power == 0:
        beyond = abs(mean - mean_before) - least
        return 0.0 if beyond <= 0 else beyond * beyond / (1 / length + 1 / length_before) / 2
    if mean > least * mean_before:
        ratio = least
    elif mean * least < mean_before:
        ratio = 1 / least
    else:
        return 0.0
    if power == 1:
        total = recent + before
        share = ratio * length / (ratio * length + length_before)
        value = 0.0
        if recent > 0:
            value += recent * log(recent / total / share)
        if before > 0:
            value += before * log(before / total / (1 - share))
        return value
    mean = max(mean / ratio, 1e-3 * mean_before)
    mean_before = max(mean_before, 1e-3 * mean)
    pooled = (mean * length + mean_before * length_before) / (length + length_before)
    return float(length * log(pooled / mean) + length_before * log(pooled / mean_before))


@compiled
def _scan(values: Array, power: int, least: float, thresholds: Array, windows: _Windows, held: Dispersion, found: Array) -> int:
    """How many values are taken in when a change is found, -1 where none is; its levels and length go into ``found``, (3,)."""
    parts, n_parts, level = windows
    known = held.known
    for i in range(len(values)):
        differ(values[i], power, WINSOR, held)
        level[0] += values[i]
        level[1] += 1
        total, seen = level[0], level[1]
        part, width, best, doubling = values[i], 1.0, 1.0, 0
        for k in range(len(n_parts)):
            place = n_parts[k] % PARTS
            neighbour = parts[k, place - 1]
            parts[k, place] = part
            n_parts[k] += 1
            recent, fewest = 0.0, FEWEST_PARTS if k == 0 else PARTS // 2 + 1
            for n in range(1, min(PARTS, n_parts[k]) + 1):
                recent += parts[k, place - n + 1]
                if n < fewest:
                    continue
                length = n * width
                rest = seen - length
                if rest < length:
                    break
                mean, before = recent / length, (total - recent) / rest
                if abs(mean - before) <= least if power == 0 else least * before >= mean and mean * least >= before:
                    continue
                if held.stale[0]:
                    estimate(held)
                scale = k + PART_DOUBLINGS + (n > FEWEST_PARTS)
                if known[scale] < FEWEST:
                    continue
                ratio = _likelihood(power, least, recent, length, total - recent, rest)
                score = ratio / at_level(power, before, scale, held)
                score /= thresholds[min(int(known[scale]), len(thresholds) - 1)]
                if score > best:
                    best, doubling = score, k
            if n_parts[k] % 2:
                break
            part += neighbour
            width *= 2
        if best > 1:
            _began(power, doubling, windows, found)
            return i + 1
    return -1


@compiled
def _began(power: int, doubling: int, windows: _Windows, found: Array) -> None:
    """The levels, and for how long the new one lasts, that are the most likely: of the windows that end now and whose parts are of
    ``2^doubling`` values at most.
    """
    parts, n_parts, level = windows
    total, seen = level[0], level[1]
    width, most = 1.0, -1.0
    for k in range(doubling + 1):
        recent = 0.0
        for n in range(1, min(PARTS, n_parts[k]) + 1):
            recent += parts[k, (n_parts[k] - n) % PARTS]
            length = n * width
            rest = seen - length
            if length < FEWEST_OF[power]:
                continue
            if rest < length:
                break
            ratio = _likelihood(power, 0.0 if power == 0 else 1.0, recent, length, total - recent, rest)
            if ratio > most:
                most = ratio
                found[0], found[1], found[2] = (total - recent) / rest, recent / length, length
        width *= 2
