"""How much sums of 1, 2, 4, ... values of a sequence vary, measured from neighbouring sums (docs/model.md, section 10).

Values of mean ``m`` whose variance goes with ``V(m)`` have sums over ``W`` of them of variance ``phi_W W V(m)``. Half the squared
difference of neighbouring sums has the mean ``near_W W V(m)``: it sees neither a level nor a slow drift of it, and a jump once.
The variance of a sum is that of its difference from its neighbour and that of the sum of both, so that

    phi_W = near_W / 2 + phi_2W / 2

up to the longest ``W`` that is known, or a horizon: what varies more slowly than that is taken for changes of the level, and not
for bursts at one level, else the course of a day would make every test deaf. A ``near_W`` that few pairs tell is drawn towards
that of the next shorter ``W``, times the growth between the two before, where that is beyond chance; and to that of a fit, where
one is told and is larger, by less and less as pairs are seen.

References: Allan, Proc. IEEE 54 (1966) 221, for neighbouring differences; Satterthwaite, Biometrics Bulletin 2 (1946) 110, for the
degrees of freedom of a sum.
"""

from __future__ import annotations

from math import isnan, sqrt
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled

FAMILIES = {"gaussian": 0, "poisson": 1, "gamma": 2}  # V(m) = m^0, m^1, m^2
SCALES = 29  # W = 2^0, 2^1, ...
FEWEST = 8.0  # pairs that a dispersion rests on before it is used
EXTRAPOLATED = 128.0  # pairs that the extrapolation from shorter sums counts for, at most
MEMORY = 1024.0  # pairs after which older ones are forgotten
WINSOR = 8.0  # times what is expected, that a squared difference may count: a jump is seen once at every length
MOST_GROWTH = 3.0  # of a dispersion with a level that is new
LEAST_DISPERSION = 0.05  # below it, values are taken to be less regular than they look
TOLD_WEIGHT = 64.0  # pairs that a fit's dispersion stands for, less those that were seen
MOST_EXCUSED = 64.0


class Dispersion(NamedTuple):
    """What is known of it; every array (SCALES,) but the last two."""

    waiting: Array  # a sum whose neighbour is not complete; nan where there is none
    squares: Array  # means over the pairs: half the squared difference,
    expected: Array  # and what it would be with phi = 1
    pairs: Array
    degrees: Array
    near: Array  # squares over expected, drawn towards the extrapolation,
    drawn: Array  # and so many differences it rests on
    phi: Array
    known: Array  # its degrees of freedom
    told: Array  # near, as a fit has it; 0 where none is told
    excused: Array  # how many times phi what left the level and came back lets sums vary
    horizon: Indices  # (1,): doublings over which what varies belongs to a level; what varies more slowly is a change of it
    stale: Indices  # (1,): whether pairs came since ``estimate``, which who reads phi or known calls first then

    @classmethod
    def empty(cls, horizon: int = SCALES) -> Dispersion:
        return cls._make(
            [*(np.full(SCALES, value) for value in NOTHING), np.array([horizon], dtype=np.int64), np.zeros(1, dtype=np.int64)]
        )

    def at(self, doublings: int) -> float:
        """phi over ``2^doublings`` values; of the nearest that is known where that is not, and 1 where none is."""
        if self.stale[0]:
            estimate(self)
        known = np.flatnonzero(self.known >= FEWEST)
        return float(self.phi[min(max(doublings, known[0]), known[-1])]) if len(known) else 1.0

    def expect(self, phi: Array) -> None:
        """Take phi over 1, 2, 4, ... values, (n,), for what a fit says of it, in the place of what one said before."""
        n = min(len(phi), SCALES)
        self.told[:] = 0.0
        self.told[:n] = np.maximum(2 * phi[:n] - np.append(phi[1:n], phi[n - 1]), LEAST_DISPERSION)
        estimate(self)

    def begin(self, phi: float, weight: float) -> None:
        """Begin with phi over any number of values of ``V(m)`` = 1, as if measured from ``weight`` pairs each."""
        self.expected[:] = 2.0 ** np.arange(SCALES)
        self.squares[:] = phi * self.expected
        self.pairs[:] = self.degrees[:] = weight
        estimate(self)

    def excuse(self, length: float) -> None:
        """What left the level for so many values and came back was none of it: twice as much of it is let pass from now on."""
        lengths = 2.0 ** np.arange(SCALES)
        within = lengths <= max(length, 1.0)
        self.excused[within] = np.minimum(2 * self.excused[within], MOST_EXCUSED)
        most = float(self.excused[within][-1])
        self.excused[~within] = np.maximum(self.excused[~within], most * length / lengths[~within])

    def forget(self, share: float) -> None:
        """Of what is excused, this part is excused no more."""
        self.excused[:] = np.maximum(self.excused ** (1 - share), 1.0)

    def rescale(self, doublings: int) -> None:
        """Values are from now on sums over a time ``2^doublings`` times as long."""
        self.horizon[0] -= doublings
        by_scale: tuple[Array, ...] = self[:-2]
        for array, empty in zip(by_scale, NOTHING, strict=True):
            array[:] = np.roll(array, -doublings)
            array[SCALES - max(doublings, 0) :] = empty
            array[: max(-doublings, 0)] = empty
        estimate(self)

    def see(self, values: Array, power: int, winsor: float = WINSOR) -> None:
        """Take in values of the family with ``V(m) = m^power``."""
        _see(values, power, winsor, self)


NOTHING = (np.nan, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0)
"""What the arrays hold of a scale of which nothing is known."""


@compiled
def _see(values: Array, power: int, winsor: float, held: Dispersion) -> None:
    for value in values:
        differ(value, power, winsor, held)
    if held.stale[0]:
        estimate(held)


@compiled
def draw(scales: int, held: Dispersion) -> None:
    """``near`` and ``drawn`` of the first scales: (10.1) and (10.2). They rest on those before them alone."""
    _, squares, expected, _, degrees, near, drawn, _, _, told, _, _, _ = held
    for s in range(scales):
        if degrees[s] == 0 and told[s] <= 0 and (s == 0 or drawn[s - 1] < FEWEST):  # nothing is known of it: the most there are
            near[s], drawn[s] = 1.0, 0.0
            continue
        measured = max(squares[s] / expected[s], LEAST_DISPERSION) if expected[s] > 0 else 1.0
        if s == 0 or drawn[s - 1] < FEWEST:
            near[s], drawn[s] = measured, degrees[s]
        else:
            weight = min(EXTRAPOLATED, 0.7 * drawn[s - 1])
            growth = 1.0
            if s > 1 and drawn[s - 2] >= FEWEST and near[s - 1] > near[s - 2]:
                chance = 2 * sqrt(2 / drawn[s - 1] + 2 / drawn[s - 2])
                growth = min(max(near[s - 1] / near[s - 2] - chance, 1.0), 2.0)
            drawn[s] = degrees[s] + weight
            near[s] = (degrees[s] * measured + weight * growth * near[s - 1]) / drawn[s]
        weight = TOLD_WEIGHT - degrees[s]
        if weight > 0 and told[s] > 0 and (told[s] > near[s] or drawn[s] < FEWEST):
            near[s] = (drawn[s] * near[s] + weight * told[s]) / (drawn[s] + weight)
            drawn[s] += weight


@compiled
def estimate(held: Dispersion) -> None:
    """``phi`` and ``known`` of every scale: (10.3), after (10.1) and (10.2)."""
    draw(len(held.phi), held)
    drawn, near, phi, known, horizon = held.drawn, held.near, held.phi, held.known, held.horizon
    last = -1
    for s in range(len(phi)):
        known[s] = 0.0
        if drawn[s] >= FEWEST:
            last = s
    value, variance = 0.0, 0.0
    for s in range(last, -1, -1):
        if drawn[s] < FEWEST:
            continue
        if s == last or s >= horizon[0]:
            value, variance = near[s], near[s] ** 2 / drawn[s]
        else:
            value, variance = (near[s] + value) / 2, near[s] ** 2 / drawn[s] / 4 + variance / 4
        phi[s], known[s] = value, value * value / variance
    held.stale[0] = 0


@compiled
def differ(value: float, power: int, winsor: float, held: Dispersion) -> None:
    """Take a value into the sums, and every pair of neighbours that it completes into the dispersion, which is ``stale`` then."""
    waiting, squares, expected, pairs, degrees, near, drawn, _, _, _, _, _, stale = held
    completed = 0
    while completed < len(waiting) and not isnan(waiting[completed]):
        completed += 1
    if completed and stale[0]:
        draw(completed, held)
    part, width = value, 1.0
    for k in range(completed):
        neighbour = waiting[k]
        waiting[k] = np.nan
        middle = abs(part + neighbour) / 2
        square = (part - neighbour) ** 2 / 2
        expect, weight = width, 1.0
        if power == 1:
            expect, weight = middle, min(1.0, middle)
        elif power == 2:
            expect = middle * middle / width
        if drawn[k] >= FEWEST:
            square = min(square, winsor * near[k] * max(expect, 1.0 if power == 1 else 0.0))
        pairs[k] = min(pairs[k] + 1, MEMORY)
        degrees[k] = min(degrees[k] + weight, MEMORY)
        squares[k] += (square - squares[k]) / pairs[k]
        expected[k] += (expect - expected[k]) / pairs[k]
        part += neighbour
        width *= 2
        stale[0] = 1
    if completed < len(waiting):
        waiting[completed] = part


@compiled
def at_level(power: int, mean: float, scale: int, held: Dispersion) -> float:
    """phi at a level: of counts what is beyond Poisson's 1 grows with the mean, as bursts do that carry a part of it."""
    phi, expected = float(held.phi[scale]), float(held.expected[scale])
    excused = float(held.excused[scale])
    if power != 1 or phi <= 1 or expected <= 0:
        return excused * phi
    return excused * (1 + (phi - 1) * min(max(mean * (1 << scale) / expected, 1.0), MOST_GROWTH))
