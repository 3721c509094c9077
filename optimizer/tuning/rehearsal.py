"""What a plan would have done with the latest arrivals: its cost, and who would have been late (docs/control.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import Slo
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.batch_means import (
    BLOCKS,
    Estimate,
    NextShare,
    estimate_quantile,
    estimate_ratio,
    estimate_share,
    share_of_next,
)
from sluice.optimizer.simulation.bill import Bill, block_of
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate_deployment
from sluice.optimizer.tuning.beginning import with_beginning
from sluice.optimizer.tuning.late_batches import MOST, LateBatches
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

PER_WINDOW = 8  # windows that begin in the time of one
AT_LEAST, MOST_RUNS = 8192, 8  # requests among which rare batches are looked for, and runs of the same arrivals


@dataclass(frozen=True, eq=False)
class Rehearsed:
    """How one plan went on some arrivals.

    Parameters
    ----------
    usd, requests, joules, seconds : array, shape (blocks,)
        USD, requests, energy and latencies together of each block of the run but its beginning, in which every environment is new;
        the weight of each block in ``weights``. ``nan`` where no energy is known.
    late : tuple of Estimate
        Share of the requests beyond each SLO.
    next_shares : tuple of NextShare
        Of the requests of the next window, what is late; ``confidence`` is what was asked for.
    late_batches : tuple of LateBatches
        By each SLO, of this run, and where it is short of others that are like it but for the times that batches take.
    windows : array, shape (windows,)
        Requests in each window that was run; they overlap.
    broken : array of bool, shape (windows,)
        Whether a promise was surely broken in each of them.
    percentile : Estimate
        Of the first SLO, s.
    """

    usd: Array
    requests: Array
    joules: Array
    seconds: Array
    weights: Array
    late: tuple[Estimate, ...]
    next_shares: tuple[NextShare, ...]
    late_batches: tuple[LateBatches, ...]
    windows: Array
    confidence: float
    broken: NDArray[np.bool_]
    percentile: Estimate
    mean_batch_size: float

    @property
    def next_late(self) -> tuple[float, ...]:
        """Of the requests of the next window, what is beyond each SLO at the most."""
        return tuple(each.most(self.confidence) for each in self.next_shares)

    @property
    def cost_per_request(self) -> Estimate:
        """USD: the weighted mean of the blocks, with the interval that they all have."""
        value = float(self.weights @ self.usd / (self.weights @ self.requests))
        mean, low, high = estimate_ratio(self.usd, self.requests.astype(np.int64))
        return Estimate(value, value - (mean - low), value + (high - mean))

    def saving(self, other: Rehearsed, confidence: float) -> Estimate:
        """USD per request that this plan costs less than another on the same arrivals."""
        saved = other.usd * (self.requests / other.requests) - self.usd  # its blocks are others where environments start
        mean, low, high = estimate_ratio(saved, self.requests.astype(np.int64), confidence)
        value = float(self.weights @ saved / (self.weights @ self.requests))
        return Estimate(value, value - (mean - low), value + (high - mean))

    @property
    def burden_of(self) -> str:
        """What counts between plans that cost the same: the energy, or where none is known the latency."""
        return "latency" if np.isnan(self.joules).any() else "energy"

    @property
    def burden(self) -> Array:
        """How much there is of that, by block."""
        return self.seconds if self.burden_of == "latency" else self.joules

    def relief(self, other: Rehearsed, confidence: float) -> Estimate:
        """The part of another plan's burden on the same arrivals that is spared."""
        spared = estimate_ratio(
            other.burden * (self.requests / other.requests) - self.burden, self.requests.astype(np.int64), confidence
        )
        whole = float(other.burden.sum() / self.requests.sum())
        return Estimate(*(each / whole for each in spared))

    def keeps(self, slos: Sequence[Slo], more_late: float = 0.0) -> bool:
        """Whether every promise is surely kept in the next window, of whose requests another share is late beside."""
        return all(most + more_late <= slo.error_budget for most, slo in zip(self.next_late, slos, strict=True))

    def chance_of_breaking(self, slos: Sequence[Slo], more_late: float = 0.0) -> float:
        """With which chance the next window breaks a promise, that of the likeliest.

        ``keeps`` asks it to be what is left, as far as the means of blocks tell.
        """
        left = [slo.error_budget - more_late for slo in slos]
        by_blocks = (each.chance_beyond(share) for each, share in zip(self.next_shares, left, strict=True))
        by_batches = (each.chance_of_breaking(self.windows, share) for each, share in zip(self.late_batches, left, strict=True))
        return max(*by_blocks, *by_batches)

    def cannot_keep(self, slos: Sequence[Slo]) -> bool:
        """Whether some promise was surely broken."""
        return any(late.low > slo.error_budget for late, slo in zip(self.late, slos, strict=True))


def rehearse(
    deployment: Deployment,
    times: Array,
    slos: Sequence[Slo],
    n_next: float,
    *,
    window: float = np.inf,
    confidence: float = 0.95,
    half_life: float = np.inf,
    bias: float = 0.0,
) -> Rehearsed:
    """Run a deployment over arrivals.

    Parameters
    ----------
    times : array, shape (n_requests,)
        s, ascending; at least as many as intervals need.
    n_next : float
        Requests of the next window, in which the promises are to be kept.
    window : float
        Its seconds.
    half_life : float
        Seconds after which an arrival weighs half in the cost.
    bias : float
        Seconds that live latencies were found to exceed those of such a run by.
    """
    times, since, length = with_beginning(deployment, times)
    first = len(times) - BLOCKS * length
    run = simulate_deployment(deployment, times, np.random.default_rng(0))
    latency = run.latency + bias
    settled = _late(run, latency, slos, first)
    bill = Bill.of(deployment)
    energy = np.full(len(run.batch_sizes), np.nan) if deployment.energy is None else deployment.energy[run.batch_sizes - 1]
    answered = latency[first:].reshape(BLOCKS, length)
    ends = np.append(times[first + length :: length], times[-1])
    windows = np.subtract(*_windows(times[since:], window)[::-1]).astype(np.float64) if window < np.inf else np.zeros(0)
    late_batches = [[LateBatches.of(late[since:], run.batch_of[since:]) for late in settled]]
    for other in _short_runs(deployment, times, len(times) - since, windows, slos):
        lates = _late(other, other.latency + bias, slos, first)
        late_batches.append([LateBatches.of(late[since:], other.batch_of[since:]) for late in lates])
    return Rehearsed(
        bill.by_block(run, first, length),
        np.full(BLOCKS, float(length)),
        np.bincount(block_of(run, first, length), weights=energy, minlength=BLOCKS + 1)[1:].astype(np.float64),
        np.where(np.isfinite(answered), answered, times[-1] - times[0]).sum(axis=1),
        0.5 ** ((times[-1] - ends) / half_life),
        tuple(estimate_share(happened[since:]) for happened in settled),
        tuple(share_of_next(happened[since:], max(1.0, n_next)) for happened in settled),
        tuple(
            LateBatches(np.concatenate([each.late_in for each in found]), sum(each.requests for each in found))
            for found in zip(*late_batches, strict=True)
        ),
        windows,
        confidence,
        broken_windows(times[since:], [happened[since:] for happened in settled], slos, window, confidence),
        estimate_quantile(latency[since:], slos[0].quantile),
        run.mean_batch_size,
    )


def _late(run: SimulationResult, latency: Array, slos: Sequence[Slo], first: int) -> list[NDArray[np.bool_]]:
    """Who is late by each SLO, but those whose environment started before the ``first`` request that counts."""
    at_start = run.cold & (run.first_of_batch < first)
    of_those = at_start[run.batch_of] & (run.batch_of >= 0)
    return [~(latency <= slo.latency) & ~of_those for slo in slos]


def _short_runs(
    deployment: Deployment, times: Array, counted: int, windows: Array, slos: Sequence[Slo]
) -> Iterator[SimulationResult]:
    """Where a batch may break a window, more runs of few arrivals, with other service times: they show what is rare."""
    least = min(slo.error_budget for slo in slos)
    if len(windows) and ((windows > 0) & (least * windows < MOST + 1)).any():
        for seed in range(1, min(AT_LEAST // counted, MOST_RUNS)):
            yield simulate_deployment(deployment, times, np.random.default_rng(seed))


def usd_by_block(deployment: Deployment, times: Array) -> tuple[Array, Array]:
    """``usd`` and ``requests`` of what ``rehearse`` runs, (blocks,) each: who asks for nothing else has it in half the time."""
    times, _, length = with_beginning(deployment, times)
    first = len(times) - BLOCKS * length
    run = simulate_deployment(deployment, times, np.random.default_rng(0))
    return Bill.of(deployment).by_block(run, first, length), np.full(BLOCKS, float(length))


def broken_windows(
    times: Array, late: Sequence[NDArray[np.bool_]], slos: Sequence[Slo], window: float, confidence: float
) -> NDArray[np.bool_]:
    """Whether more were late in each window than a promise allows, by more than chance has it of so few requests.

    In a mean over requests a quiet window hardly counts, all of whose requests may be late: a batch never fills in it.
    """
    first, end = _windows(times, window)
    n, n_windows = end - first, len(first)
    broken = np.zeros(n_windows, dtype=bool)
    for happened, slo in zip(late, slos, strict=True):
        so_far = np.concatenate([[0], np.cumsum(happened)])
        k = so_far[end] - so_far[first]
        by_chance = special.betainc(np.maximum(k, 1), n - k + 1, slo.error_budget)  # that so many are late of n, or more
        broken |= (k > slo.error_budget * n) & (by_chance < (1 - confidence) / n_windows)
    return broken


def _windows(times: Array, window: float) -> tuple[Indices, Indices]:
    """The first request of each window, and that behind its last; they overlap."""
    n_windows = max(0, int((times[-1] - times[0] - window) / window * PER_WINDOW)) + 1 if window < np.inf else 1
    begins = times[0] + np.arange(n_windows) * (window / PER_WINDOW if n_windows > 1 else 0.0)
    return np.searchsorted(times, begins), np.searchsorted(times, begins + window)
