"""Has the mean of a sequence left the level at which it stood? A scan over windows of every length (docs/model.md, section 10).

The sequence ``y_1, y_2, ...`` has variance ``phi_W W V(m)`` over ``W`` successive values of mean ``m``, where ``V`` is of the
kind of the values (``FAMILIES``) and ``phi_W`` is measured while running, for every ``W = 2^k``, from the differences of
neighbouring sums: these see neither a level nor a slow drift of it, and a jump once. Bursts that last for many values make
``phi_W`` large at long ``W``, so that neither independence nor a law is assumed. A ``phi_W`` that few differences tell is drawn
towards what the two shorter ``W`` extrapolate to. The log-likelihood ratio of the last ``W`` values against all before them since
the last change, over ``phi_W``, is compared with half the square of Student's quantile, whose degrees of freedom are the
differences that ``phi_W`` rests on. ``least`` is the ratio (or difference, of values that may be negative) up to which levels
count as the same, so that what drifts by less than matters is no change.

The windows are 1 to 16 values and 9 to 16 pairs, fours, eights and so on, each looked at when its last part is complete: 24 windows
a value on average at most, in memory that does not grow.

References: Lai, IEEE Trans. Inf. Theory 44 (1998) 2917, for windows of limited length; McCullagh and Nelder, Generalized Linear
Models (1989), chapter 9, for likelihoods over a measured dispersion; Allan, Proc. IEEE 54 (1966) 221, for neighbouring differences.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled

FAMILIES = {"gaussian": 0, "poisson": 1, "gamma": 2}  # V(m) = m^0, m^1, m^2
PARTS = 16  # of which the longest window of a doubling is made
DOUBLINGS = 24  # of a value, at most, in a part
SCALES = DOUBLINGS + 5  # doublings of a value for which the dispersion is kept
TESTS = 24  # windows a value, at most
FEWEST = 8.0  # differences that a dispersion rests on before it is used
EXTRAPOLATED = 128.0  # differences that the extrapolation from shorter sums counts for, at most
MEMORY = 1024.0  # differences after which older ones are forgotten
WINSOR = 8.0  # times what is expected, that a squared difference may count: a jump is seen once at every length
MOST_GROWTH = 3.0  # of a dispersion with a level that is new
LEAST_DISPERSION = 0.05  # below it, values are taken to be less regular than they look
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


class _Dispersion(NamedTuple):
    """What neighbouring sums of 1, 2, 4, ... values differ by; every array (SCALES,)."""

    waiting: Array  # a sum whose neighbour is not complete; nan where there is none
    squares: Array  # means over the pairs: half the squared difference,
    expected: Array  # and what it would be with phi = 1
    pairs: Array
    degrees: Array
    near: Array  # squares over expected, drawn towards the extrapolation,
    drawn: Array  # and so many differences it rests on
    phi: Array
    known: Array  # its degrees of freedom

    @classmethod
    def empty(cls) -> _Dispersion:
        nothing, one = np.zeros(SCALES), np.ones(SCALES)
        copied = [each.copy() for each in (nothing, nothing, nothing, nothing, one, nothing, one, nothing)]
        return cls(np.full(SCALES, np.nan), *copied)


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
    """

    def __init__(self, family: str, least: float, run_length: float) -> None:
        require(family in FAMILIES, "family", family, ", ".join(FAMILIES))
        floor = 0.0 if family == "gaussian" else 1.0
        require(floor <= least < inf, "least", least, f"a number >= {floor:g}")
        require(1 <= run_length < inf, "run_length", run_length, "a number of values >= 1")
        self._power, self._least = FAMILIES[family], least
        self._windows, self._spread = _Windows.empty(), _Dispersion.empty()
        self._thresholds = _thresholds(run_length)
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

    def dispersion(self, doublings: int) -> float:
        """phi over ``2^doublings`` values; of the nearest that is known where that is not, and 1 where none is."""
        known = np.flatnonzero(self._spread.known >= FEWEST)
        if not len(known):
            return 1.0
        return float(self._spread.phi[min(max(doublings, known[0]), known[-1])])

    def expect_dispersion(self, phi: Array, weight: float) -> None:
        """Begin with phi over 1, 2, 4, ... values, (n,), as if measured from ``weight`` differences each."""
        n = min(len(phi), SCALES)
        held = self._spread
        held.squares[:n] = np.maximum(phi[:n], LEAST_DISPERSION)
        held.expected[:n] = 1.0
        held.pairs[:n] = held.degrees[:n] = weight
        _estimate(held)

    def rescale(self, doublings: int) -> None:
        """Values are from now on sums over a time ``2^doublings`` times as long."""
        held = self._spread
        for array, empty in zip(held, (np.nan, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0), strict=True):
            array[:] = np.roll(array, -doublings)
            array[SCALES - max(doublings, 0) :] = empty
            array[: max(-doublings, 0)] = empty
        _estimate(held)

    def restart(self, level: float = 0.0, length: float = 0.0) -> None:
        """Forget the level, or begin with one that rests on ``length`` values; what is known of the dispersion stays."""
        for array in self._windows:
            array[:] = 0
        self._windows.level[:] = level * length, length

    def see(self, values: Array) -> Found | None:
        """Take in values up to the first change, after which the level is the new one and ``values[consumed:]`` are to be seen."""
        consumed = _scan(values, self._power, self._least, self._thresholds, self._windows, self._spread, self._found)
        if consumed < 0:
            return None
        before, after, length = self._found.tolist()
        self.restart(after, length)
        return Found(consumed, before, after, int(length))


def _thresholds(run_length: float) -> Array:
    """Half the square of Student's quantile by degrees of freedom, (MOST_DEGREES + 1,); infinite below ``FEWEST``."""
    degrees = np.arange(MOST_DEGREES + 1)
    thresholds = np.full(len(degrees), np.inf)
    enough = degrees >= FEWEST
    thresholds[enough] = stdtrit(degrees[enough], 1 / (2 * TESTS * run_length)) ** 2 / 2
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
            value += recent * np.log(recent / total / share)
        if before > 0:
            value += before * np.log(before / total / (1 - share))
        return value
    mean = max(mean / ratio, 1e-3 * mean_before)
    mean_before = max(mean_before, 1e-3 * mean)
    pooled = (mean * length + mean_before * length_before) / (length + length_before)
    return float(length * np.log(pooled / mean) + length_before * np.log(pooled / mean_before))


@compiled
def _estimate(held: _Dispersion) -> None:
    """``phi`` and ``known`` of every scale: (10.2), (10.3)."""
    last = -1
    for s in range(len(held.phi)):
        near = max(held.squares[s] / held.expected[s], LEAST_DISPERSION) if held.expected[s] > 0 else 1.0
        if s == 0 or held.drawn[s - 1] < FEWEST:
            held.near[s], held.drawn[s] = near, held.degrees[s]
        else:
            weight = min(EXTRAPOLATED, 0.7 * held.drawn[s - 1])
            growth = 1.0
            if s > 1 and held.drawn[s - 2] >= FEWEST:
                chance = 2 * np.sqrt(2 / held.drawn[s - 1] + 2 / held.drawn[s - 2])
                growth = min(max(held.near[s - 1] / held.near[s - 2] - chance, 1.0), 2.0)
            held.drawn[s] = held.degrees[s] + weight
            held.near[s] = (held.degrees[s] * near + weight * growth * held.near[s - 1]) / held.drawn[s]
        if held.drawn[s] >= FEWEST:
            last = s
    held.known[:] = 0.0
    phi, variance = 0.0, 0.0
    for s in range(last, -1, -1):
        if held.drawn[s] < FEWEST:
            continue
        if s == last:
            phi, variance = held.near[s], held.near[s] ** 2 / held.drawn[s]
        else:
            phi, variance = (held.near[s] + phi) / 2, held.near[s] ** 2 / held.drawn[s] / 4 + variance / 4
        held.phi[s], held.known[s] = phi, phi * phi / variance


@compiled
def _differ(value: float, power: int, held: _Dispersion) -> None:
    """Take a value into the sums, and every pair of neighbours that it completes into the dispersion."""
    part, width = value, 1.0
    for k in range(len(held.waiting)):
        neighbour = held.waiting[k]
        if np.isnan(neighbour):
            held.waiting[k] = part
            if k > 0:
                _estimate(held)
            return
        held.waiting[k] = np.nan
        middle = abs(part + neighbour) / 2
        square = (part - neighbour) ** 2 / 2
        expected, weight = width, 1.0
        if power == 1:
            expected, weight = middle, min(1.0, middle)
        elif power == 2:
            expected = middle * middle / width
        if held.drawn[k] >= FEWEST:
            square = min(square, WINSOR * held.near[k] * max(expected, 1.0 if power == 1 else 0.0))
        held.pairs[k] = min(held.pairs[k] + 1, MEMORY)
        held.degrees[k] = min(held.degrees[k] + weight, MEMORY)
        held.squares[k] += (square - held.squares[k]) / held.pairs[k]
        held.expected[k] += (expected - held.expected[k]) / held.pairs[k]
        part += neighbour
        width *= 2


@compiled
def _phi(power: int, mean: float, scale: int, held: _Dispersion) -> float:
    """phi at a level: of counts what is beyond Poisson's 1 grows with the mean, as bursts do that carry a part of it."""
    phi, expected = float(held.phi[scale]), float(held.expected[scale])
    if power != 1 or phi <= 1 or expected <= 0:
        return phi
    return 1 + (phi - 1) * min(max(mean * (1 << scale) / expected, 1.0), MOST_GROWTH)


@compiled
def _scan(values: Array, power: int, least: float, thresholds: Array, windows: _Windows, held: _Dispersion, found: Array) -> int:
    """How many values are taken in when a change is found, -1 where none is; its levels and length go into ``found``, (3,)."""
    parts, n_parts, level = windows
    for i in range(len(values)):
        _differ(values[i], power, held)
        level[0] += values[i]
        level[1] += 1
        part, width, best = values[i], 1.0, 1.0
        for k in range(len(n_parts)):
            place = n_parts[k] % PARTS
            neighbour = parts[k, place - 1]
            parts[k, place] = part
            n_parts[k] += 1
            recent, scale = 0.0, k
            for n in range(1, min(PARTS, n_parts[k]) + 1):
                recent += parts[k, place - n + 1]
                if n > 1 << (scale - k):
                    scale += 1
                length = n * width
                rest = level[1] - length
                if (k > 0 and 2 * n <= PARTS) or rest < length or held.known[scale] < FEWEST:
                    continue
                ratio = _likelihood(power, least, recent, length, level[0] - recent, rest)
                score = ratio / _phi(power, (level[0] - recent) / rest, scale, held)
                score /= thresholds[min(int(held.known[scale]), len(thresholds) - 1)]
                if score > best:
                    best = score
                    found[0], found[1], found[2] = (level[0] - recent) / rest, recent / length, length
            if n_parts[k] % 2:
                break
            part += neighbour
            width *= 2
        if best > 1:
            return i + 1
    return -1
