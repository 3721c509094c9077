"""Confidence intervals from one long run by batch means (docs/model.md, section 7).

Successive latencies depend on each other. A run is therefore cut into blocks so long that their means hardly do; the first block,
in which the system fills, is left out, and Student's t is applied to the rest. Neighbouring blocks are merged while their means are
correlated beyond what chance would show, down to ``FEWEST`` blocks.

A share has the limits of a binomial law (Clopper, Pearson) of as many independent requests as tell as much. What is rare comes in
clusters, of which blocks may show too few to tell how large they are: then they are taken to be as those of the slowest tenth.

A quantile's interval is where these limits of the share beyond it are what it leaves, so whether p percent keep an SLO has the same
answer, asked of the percentile or of the violations, up to what the clusters differ by between the two.

References: Law, Simulation Modeling and Analysis, section 9.5.3; Korn, Graubard, Confidence intervals for proportions with small
expected number of positive counts estimated from survey data, Survey Methodology 24 (1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp, log, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

BLOCKS = 32
FEWEST = 8
FEWEST_REQUESTS = 2 * (BLOCKS + 1)
LEAST_UNSURE = 0.02
OFTEN = 0.1  # of the requests, the slowest: enough for their clusters to be known where those of p99.9 are not
SAMPLED = 4096  # values, to find these
ALIKE = 1e-3  # of a value
GOLDEN = (sqrt(5) - 1) / 2  # its multiples modulo 1 are everywhere alike, and in no step with batches


class Estimate(NamedTuple):
    """An estimated number and the ends of its confidence interval."""

    value: float
    low: float
    high: float


def slowest(values: Array) -> NDArray[np.bool_]:
    """Which ``values``, in order of arrival, are the largest tenth, ``nan`` first, as a sample tells; more where many are alike.

    What differs by ``ALIKE`` of itself is: a timeout that many wait for comes with rounding errors, of which no clusters are told.
    """
    places = (np.arange(SAMPLED) * GOLDEN % 1 * len(values)).astype(np.int64)
    return ~(values < (1 - ALIKE) * _at(np.sort(values[places]), 1 - OFTEN))


def slowest_of_counts(counts: NDArray[np.int64], values: Array) -> NDArray[np.int64]:
    """How many these are, by block, of ``counts`` (blocks, n_values) of the ascending ``values`` (n_values,)."""
    total = np.cumsum(counts.sum(axis=0))
    value = values[np.searchsorted(total, (1 - OFTEN) * total[-1])]
    return np.asarray(counts[:, np.searchsorted(values, (1 - ALIKE) * value) :].sum(axis=1))


def estimate_share(
    happened: NDArray[np.bool_], confidence: float = 0.95, blocks: int = BLOCKS, among: NDArray[np.bool_] | None = None
) -> Estimate:
    """Share of the requests, in order of arrival, to which something ``happened``.

    An event that was never seen, or never missed, is still given ``log(2 / (1 - confidence)) / n`` of room: what independent
    requests would leave open.

    Parameters
    ----------
    happened : array of bool, shape (n_requests,)
    confidence : float
        Of the two-sided interval; each end alone is exceeded with half of what is left.
    blocks : int
        Blocks that are counted, at most.
    among : array of bool, shape (n_requests,), optional
        What comes more often in clusters of the same kind, this included: of who is late the ``slowest``.

    Raises
    ------
    InvalidInput
        Fewer than two requests per block; a confidence that is none.
    """
    require(0 < confidence < 1, "confidence", confidence, "a number strictly between 0 and 1")
    require(blocks >= 2, "blocks", blocks, "an integer >= 2")
    n = len(happened)
    require(n >= 2 * (blocks + 1), "n_requests", n, f"at least {2 * (blocks + 1)} for an interval")
    of_those = None if among is None else _counted(among, blocks)
    return share_of_blocks(_counted(happened, blocks), n // (blocks + 1), confidence, of_those)


def estimate_late(
    latency: Array, within: float, confidence: float = 0.95, blocks: int = BLOCKS, clusters_as_seen: bool = False
) -> Estimate:
    """Share of the requests of these latencies (s, in order of arrival) that are not answered ``within`` so many seconds.

    Who is rarely late has the clusters of the slowest tenth, unless ``clusters_as_seen`` are to be relied on.
    """
    return estimate_share(~(latency <= within), confidence, blocks, None if clusters_as_seen else slowest(latency))


def share_of_blocks(
    counts: NDArray[np.int64], length: int, confidence: float = 0.95, among: NDArray[np.int64] | None = None
) -> Estimate:
    """The same of blocks of ``length`` requests each: its ``counts``, shape (blocks,), and those ``among`` which it is, if any."""
    share, room, low, high = float(counts.mean()) / length, _room(len(counts) * length, confidence), 0.0, 1.0
    n = _independent(counts, length, confidence, among)
    if np.isinf(n):
        low = high = share
    if low < share:
        low = float(special.betaincinv(n * share, n * (1 - share) + 1, (1 - confidence) / 2))
    if share < high:
        high = float(special.betaincinv(n * share + 1, n * (1 - share), (1 + confidence) / 2))
    return Estimate(share, max(0.0, min(low, share - room)), min(1.0, max(high, share + room)))


class NextShare(NamedTuple):
    """Share of the next requests to which something happens, as far as ``n`` that were seen tell.

    Student's t around ``mean``, with ``spread`` and ``freedom``, as a prediction interval on block means has it (Hahn, Meeker,
    Statistical Intervals, section 4.7); and what ``n`` independent requests would leave open.
    """

    mean: float
    spread: float
    freedom: int
    n: int

    def most(self, confidence: float) -> float:
        """What it does not exceed with this one-sided confidence."""
        room = log(1 / (1 - confidence)) / self.n
        return min(1.0, self.mean + max(float(special.stdtrit(self.freedom, confidence)) * self.spread, room))

    def chance_beyond(self, share: float) -> float:
        """With which chance it exceeds a ``share``, which is ``most`` of the confidence that is left."""
        room = share - self.mean
        of_blocks = float(special.stdtr(self.freedom, -room / self.spread)) if self.spread > 0 else float(room < 0)
        return max(of_blocks, exp(-max(0.0, room) * self.n))


def share_of_next(happened: NDArray[np.bool_], n_next: float, blocks: int = BLOCKS) -> NextShare:
    """The share of the next ``n_next`` requests: the variance of one block, in proportion to its requests, and of the mean of all.

    Parameters
    ----------
    happened : array of bool, shape (n_requests,)
        In order of arrival; the first block counts as well.
    n_next : float
        Requests, >= 1.

    Raises
    ------
    InvalidInput
        Fewer than two requests per block; none that are to come.
    """
    require(n_next >= 1, "n_next", n_next, "a number of requests >= 1")
    n = len(happened)
    require(n >= 2 * (blocks + 1), "n_requests", n, f"at least {2 * (blocks + 1)} for an interval")
    length = n // blocks
    shares = np.count_nonzero(happened[n - blocks * length :].reshape(blocks, length), axis=1) / length
    merged = _merged(shares)
    per_mean = blocks * length / len(merged)
    spread = float(merged.std(ddof=1)) * sqrt(per_mean * (1 / (blocks * length) + 1 / n_next))
    return NextShare(float(shares.mean()), spread, len(merged) - 1, blocks * length)


def mean_of_next(sums: Array, counts: Array, n_next: float, confidence: float = 0.95) -> Estimate:
    """Mean of values of which blocks of equal ``counts`` (blocks,) have these ``sums``; between the ends is that of the next ones.

    A prediction interval, two-sided, of the mean of ``n_next`` values that are not negative; variances as in ``share_of_next``.

    Raises
    ------
    InvalidInput
        None that are to come; a confidence that is none.
    """
    require(0 < confidence < 1, "confidence", confidence, "a number strictly between 0 and 1")
    require(n_next >= 1, "n_next", n_next, "a number of requests >= 1")
    total = float(counts.sum())
    merged = _merged(sums / counts)
    spread = float(merged.std(ddof=1)) * sqrt(total / len(merged) * (1 / total + 1 / n_next))
    value, half = float(sums.sum()) / total, float(special.stdtrit(len(merged) - 1, (1 + confidence) / 2)) * spread
    return Estimate(value, max(0.0, value - half), value + half)


def mean_of_another(sums: Array, counts: Array) -> Estimate:
    """Mean of values of which blocks of equal ``counts`` (blocks,) have these ``sums``; between the ends is that of another run.

    A prediction interval with 95 % confidence for a run that is as long and comes next, of traffic that remembers for long: the
    variance of the mean of m blocks falls as m^-b, b from 0 to 1, which is found by least squares from means of 1, 2 and 4 of them
    (variance-time plot: Leland et al., IEEE/ACM Trans. Networking 2(1), 1994, section 4) and extended to all. Student's t has the
    degrees of the longest. The ends are ``LEAST_UNSURE`` of the mean away at least: what one record shows of how demand moves from
    one hour to the next is one sample.

    Raises
    ------
    InvalidInput
        Another number of blocks than a multiple of four, sixteen at least.
    """
    n = len(sums)
    require(n >= 16 and n % 4 == 0, "blocks", n, "a multiple of 4 from 16 on")
    value, means, scales = float(sums.sum() / counts.sum()), sums / counts, np.array([1, 2, 4])
    variances = np.array([means.reshape(-1, m).mean(axis=1).var(ddof=1) for m in scales.tolist()])
    slope = 0.0 if not variances.all() else -float(np.polyfit(np.log(scales), np.log(variances), 1)[0])
    of_all = float(variances[0]) * n ** -min(1.0, max(0.0, slope))
    half = float(special.stdtrit(n // 4 - 1, 0.975)) * sqrt(2 * of_all)
    half = max(half, LEAST_UNSURE * value)
    return Estimate(value, max(0.0, value - half), value + half)


def estimate_mean(values: Array, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
    """Mean in equilibrium of ``values``, shape (n,), in the order in which they came.

    Raises
    ------
    InvalidInput
        Fewer than two values per block; a confidence that is none.
    """
    require(0 < confidence < 1, "confidence", confidence, "a number strictly between 0 and 1")
    n = len(values)
    require(n >= 2 * (blocks + 1), "n_values", n, f"at least {2 * (blocks + 1)} for an interval")
    length = n // (blocks + 1)
    return estimate_ratio(values[n - blocks * length :].reshape(blocks, length).sum(axis=1), np.full(blocks, length), confidence)


def estimate_ratio(sums: Array, counts: NDArray[np.int64], confidence: float = 0.95) -> Estimate:
    """Mean of values of which blocks have ``counts`` (blocks,) with these ``sums``; ``nan`` where there are none at all."""
    if not counts.any():
        return Estimate(np.nan, np.nan, np.nan)
    value = float(sums.sum() / counts.sum())
    half = _half(_merged((sums - value * counts) / counts.mean()), confidence)
    return Estimate(value, value - half, value + half)


def estimate_quantile(values: Array, quantile: float, confidence: float = 0.95, blocks: int = BLOCKS) -> Estimate:
    """Quantile of ``values``, shape (n_requests,), in order of arrival; ``nan`` is taken as larger than any.

    Its end is infinite where the run is too short to bound it.
    """
    return estimate_quantiles(values, (quantile,), confidence, blocks)[0]


def estimate_quantiles(values: Array, quantiles: Sequence[float], confidence: float = 0.95, blocks: int = BLOCKS) -> list[Estimate]:
    """Several at once, for which the values are put in order once."""
    for quantile in quantiles:
        require(0 < quantile < 1, "quantile", quantile, "a number strictly between 0 and 1")
    n = len(values)
    require(n >= 2 * (blocks + 1), "n_requests", n, f"at least {2 * (blocks + 1)} for an interval")
    # All of them: to select a place takes a sixth of that where values differ, and ten times as long where thousands are equal.
    ordered, among = np.sort(values[n - blocks * (n // (blocks + 1)) :]), _counted(slowest(values), blocks)
    return [_quantile_of(ordered, values, among, quantile, confidence, blocks) for quantile in quantiles]


def _quantile_of(
    ordered: Array, values: Array, among: NDArray[np.int64], quantile: float, confidence: float, blocks: int
) -> Estimate:
    value, length = _at(ordered, quantile), len(values) // (blocks + 1)
    beyond = _counted(~(values <= value), blocks), _counted(~(values < value), blocks)  # they differ where it is an atom
    low, high = _levels(beyond, length, among, quantile, confidence)
    return Estimate(value, _at(ordered, low), np.inf if high > 1 else _at(ordered, high))


def estimate_quantile_of_counts(counts: NDArray[np.int64], values: Array, quantile: float, confidence: float = 0.95) -> Estimate:
    """The same of values that were counted by block: ``counts`` (blocks, n_values) of the ascending ``values`` (n_values,)."""
    require(0 < quantile < 1, "quantile", quantile, "a number strictly between 0 and 1")
    beyond = counts.sum(axis=1, keepdims=True) - np.cumsum(counts, axis=1)
    total = np.cumsum(counts.sum(axis=0))
    n = int(total[-1])

    def at(level: float) -> int:
        return int(np.searchsorted(total, max(1, ceil(level * n - 1e-9))))

    place = at(quantile)
    either, among = (beyond[:, place], beyond[:, place] + counts[:, place]), slowest_of_counts(counts, values)
    low, high = _levels(either, n // len(counts), among, quantile, confidence)
    reached = at(high) if high <= 1 else len(values)
    return Estimate(float(values[place]), float(values[at(low)]), float(values[reached]) if reached < len(values) else np.inf)


def _levels(
    beyond: tuple[NDArray[np.int64], NDArray[np.int64]], length: int, among: NDArray[np.int64], quantile: float, confidence: float
) -> tuple[float, float]:
    """Of which shares below them the values are between which a quantile is; the second is above 1 where none is high enough.

    The limits of ``share_of_blocks`` the other way round: beyond the ends are shares whose limits are what the quantile leaves.
    """
    left, room, tail = 1 - quantile, _room(len(beyond[0]) * length, confidence), (1 - confidence) / 2
    n = min(_independent(counts, length, confidence, among) for counts in beyond)
    fewest = most = left
    if np.isfinite(n):
        fewest = float(special.bdtrik(tail, n, left)) / n if quantile**n <= tail else -1.0
        most = (float(special.bdtrik(1 - tail, n, left)) + 1) / n
    return 1 - max(most, left + room), 1 - min(fewest, left - room)


def _half(merged: Array, confidence: float) -> float:
    """Half the width of the interval of the mean of block means that hardly depend on each other."""
    return float(special.stdtrit(len(merged) - 1, (1 + confidence) / 2)) * float(merged.std(ddof=1)) / sqrt(len(merged))


def _independent(counts: NDArray[np.int64], length: int, confidence: float, among: NDArray[np.int64] | None) -> float:
    """How many independent requests tell as much of a share as blocks with these ``counts``; ``inf`` where all have the same.

    Larger clusters ``among`` what is more frequent count in full where fewer than one a block was seen, and less the more were.
    """
    effect, blocks = _design_effect(counts, length)
    if among is not None:
        total, (of_more, blocks_of_more) = int(counts.sum()), _design_effect(np.maximum(counts, among), length)
        if of_more > effect:
            effect += (of_more - effect) * (min(1.0, blocks * effect / total) if total else 1.0)
            blocks = min(blocks, blocks_of_more)
    widened = float(special.stdtrit(blocks - 1, (1 + confidence) / 2) / special.ndtri((1 + confidence) / 2))
    return len(counts) * length / (effect * widened**2) if effect > 0 else np.inf


def _design_effect(counts: NDArray[np.int64], length: int) -> tuple[float, int]:
    """By how much the variance of a share exceeds that of independent requests, and from how many blocks this is known."""
    mean, merged = float(counts.mean()), _merged(counts.astype(np.float64))
    of_independent = mean * (1 - mean / length) / (len(counts) // len(merged))
    return float(merged.var(ddof=1)) / of_independent if 0 < mean < length else 0.0, len(merged)


def _counted(happened: NDArray[np.bool_], blocks: int) -> NDArray[np.int64]:
    """How often, by block; the first one is left out."""
    length = len(happened) // (blocks + 1)
    return np.asarray(np.count_nonzero(happened[len(happened) - blocks * length :].reshape(blocks, length), axis=1))


def _room(n: int, confidence: float) -> float:
    """What ``n`` independent requests leave open of an event that none of them met."""
    return log(2 / (1 - confidence)) / n


def _at(ordered: Array, quantile: float) -> float:
    """The smallest of ascending values, ``nan`` last, that a share ``quantile``, at most 1, does not exceed."""
    value = float(ordered[max(0, ceil(quantile * len(ordered) - 1e-9) - 1)])
    return np.inf if np.isnan(value) else value


def _merged(means: Array) -> Array:
    while len(means) // 2 >= FEWEST and _lag_one(means) > 1.645 / sqrt(len(means)):
        even = means[len(means) % 2 :]
        means = even.reshape(-1, 2).mean(axis=1)
    return means


def _lag_one(means: Array) -> float:
    """Correlation of neighbours."""
    away = means - means.mean()
    total = float(away @ away)
    return float(away[1:] @ away[:-1]) / total if total > 0 else 0.0
