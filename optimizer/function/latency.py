"""Latency of a request under size-or-timeout batching: exact, or by the approximation of BATCH (docs/model.md, section 2).

Latency is the wait in the buffer plus the response time of the batch it leaves in, which is random (the quantile function of the
profile) and independent of the wait given the batch's size, as an elastic function starts every batch at once:

    P(latency <= t) = sum_n E[requests of batches of size n that wait at most t - S_n] / E[N].                            (2.6)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.batching.errors import InvalidInput, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.function.batch_paper import BatchPaper
from sluice.optimizer.function.batching_law import PREDICTION, Basis, Effort, basis_of, falling_holds_law, size_or_timeout_law
from sluice.optimizer.function.sampled_batches import CONFIDENCE, SampledHolds, SampledLatencies
from sluice.optimizer.service.times import ServiceTimes

METHODS = ("exact", "batch-paper")
SIMULATED = "simulated"
"""The method of a prediction from drawn arrivals, where the exact law would take too long."""


@dataclass(frozen=True, eq=False)
class LatencyPrediction:
    """Latency and batch sizes of size-or-timeout batching in front of an elastic function.

    ``cdf`` maps seconds, shape (n,), to probabilities; ``longest`` is a latency (s) that no request exceeds. Where arrivals were
    drawn for it, the method being ``simulated``, ``half`` is half the width of the interval of each probability, else ``None``.
    """

    method: str
    batch_size: int
    timeout: float
    batch_size_pmf: Array
    cdf: Callable[[Array], Array]
    longest: float
    half: Callable[[Array], Array] | None = None

    @property
    def confidence(self) -> float | None:
        """Of the two-sided intervals; ``None`` where the law is exact, or approximate in ways that have none."""
        return None if self.half is None else CONFIDENCE

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batch_size_pmf @ np.arange(1, self.batch_size + 1))

    def quantile(self, q: float) -> float:
        """The smallest latency (s) that at least a fraction ``q`` of the requests do not exceed; to 1e-9 of the longest."""
        return self._where(self.cdf, q)

    def quantile_interval(self, q: float) -> tuple[float, float]:
        """Between which latencies (s) the quantile surely lies, the second at most the longest; for what has a ``half``."""
        half = self.half
        if half is None:
            raise InvalidInput("method", self.method, SIMULATED)
        soonest = self._where(lambda times: self.cdf(times) + half(times), q)
        return soonest, self._where(lambda times: self.cdf(times) - half(times), q)

    def _where(self, share: Callable[[Array], Array], q: float) -> float:
        """The smallest latency (s) at which a ``share`` is at least ``q``, or the longest."""
        if not 0 < q < 1:
            raise InvalidInput("quantile", q, "a number strictly between 0 and 1")
        low, high = 0.0, self.longest * (1 + 1e-9)
        while high - low > 1e-9 * self.longest:
            inner = np.linspace(low, high, 5)[1:-1]
            reached = share(inner) >= q - 1e-12
            at = int(np.argmax(reached)) if reached.any() else len(inner)
            edges = np.concatenate([[low], inner, [high]])
            low, high = float(edges[at]), float(edges[at + 1])
        return high

    def percentile(self, percentile: float) -> float:
        """The same with 0-100, as numpy has it."""
        return self.quantile(quantile_of(percentile))

    def probability_within(self, latency: float) -> float:
        """Fraction of the requests answered within ``latency`` seconds."""
        return float(self.cdf(np.array([latency]))[0])

    def surely_within(self, latency: float) -> float:
        """The same, the lower end of its interval where it has one."""
        at = np.array([latency])
        return float((self.cdf(at) - (0.0 if self.half is None else self.half(at)))[0])


def mixture(of_parts: Sequence[LatencyPrediction], shares: Array) -> LatencyPrediction:
    """The latency of all requests where a part ``shares``, (n_parts,), has each of these; batch sizes are those of all batches."""
    largest = max(part.batch_size for part in of_parts)
    pmf = np.zeros(largest)
    for part, share in zip(of_parts, shares, strict=True):
        pmf[: part.batch_size] += share / part.mean_batch_size * part.batch_size_pmf

    def cdf(times: Array) -> Array:
        return np.asarray(sum(share * part.cdf(times) for part, share in zip(of_parts, shares, strict=True)))

    def half(times: Array) -> Array:
        drawn = [(share, part.half) for part, share in zip(of_parts, shares, strict=True) if part.half is not None]
        return np.asarray(sum(share * of_part(times) for share, of_part in drawn))

    simulated = any(part.half is not None for part in of_parts)
    method = SIMULATED if simulated else of_parts[0].method
    longest, timeout = max(part.longest for part in of_parts), max(part.timeout for part in of_parts)
    return LatencyPrediction(method, largest, timeout, pmf / pmf.sum(), cdf, longest, half if simulated else None)


def with_cold_starts(warm: LatencyPrediction, share: float, seconds: float) -> LatencyPrediction:
    """The latency of all requests where a ``share`` of them is in batches, of any size, that take ``seconds`` of INIT longer."""
    if not share or not seconds:
        return warm

    def mixed(law: Callable[[Array], Array]) -> Callable[[Array], Array]:
        def of_both(times: Array) -> Array:
            later = np.asarray(times, dtype=float) - seconds
            return np.asarray((1 - share) * law(times) + share * np.where(later < 0, 0.0, law(np.maximum(later, 0.0))))

        return of_both

    half = None if warm.half is None else mixed(warm.half)
    return replace(warm, cdf=mixed(warm.cdf), longest=warm.longest + seconds, half=half)


def predict_latency(
    arrivals: ArrivalProcess,
    service: ServiceTimes,
    batch_size: int,
    timeout: float,
    method: str = "exact",
    effort: Effort = PREDICTION,
) -> LatencyPrediction:
    """Latency law of size-or-timeout batching; ``batch_size=1`` is no batching.

    Parameters
    ----------
    method : {"exact", "batch-paper"}
        Exact for any MAP and any measured service time; or BATCH, eqs (7)-(10), which takes the wait as uniform and the service
        time as its mean. Where the exact law would take too long it is that of drawn arrivals, the method of what is returned
        being ``simulated``.
    effort : Effort
        What is too long, and how much is drawn then.

    Raises
    ------
    InvalidInput
        A batch size beyond the profile's, a negative timeout, an unknown method.
    """
    service = service.up_to(batch_size)
    if method == "batch-paper":
        paper = BatchPaper(arrivals, service.mean_response, timeout)
        return LatencyPrediction(method, batch_size, timeout, paper.batch_size_pmf, paper.latency_cdf, paper.longest)
    if method != "exact":
        raise InvalidInput("method", method, "one of " + ", ".join(METHODS))
    basis = basis_of(arrivals, batch_size, timeout, effort)
    law = size_or_timeout_law(basis, batch_size, timeout)
    longest = float(service.response.max()) + (timeout if batch_size > 1 else 0.0)
    if isinstance(law, SampledHolds):
        return _simulated(law, service, timeout, longest)
    response = service.response[None]

    def cdf(times: Array) -> Array:
        return np.asarray(law.fraction_within(response, service.quantile_levels, np.asarray(times, dtype=float))[0, -1])

    return LatencyPrediction(method, batch_size, timeout, law.batch_size_pmf[-1], cdf, longest)


def predict_falling_holds(arrivals: ArrivalProcess | Basis, service: ServiceTimes, policy: Policy) -> LatencyPrediction:
    """Latency law of an elastic table that takes all who wait and whose holds fall, as ``policy.deadline`` makes it.

    Parameters
    ----------
    arrivals : ArrivalProcess or Basis
        The latter for batches as large and holds as long at least.

    Raises
    ------
    InvalidInput
        Another table; a batch size beyond the profile's.
    """
    whole = policy.servers is None and policy.drop_after is None and policy.hold[-1] == 0
    require(whole and list(policy.take) == list(range(len(policy.take))), "policy", policy.kind, "an elastic table that takes all")
    largest, holds = policy.max_batch_size, np.array(policy.hold[1:-1])
    service, hold = service.up_to(largest), float(holds.max(initial=0.0))
    basis = basis_of(arrivals, largest, hold) if isinstance(arrivals, ArrivalProcess) else arrivals
    law = falling_holds_law(basis, holds)
    longest = float(service.response.max()) + hold
    if isinstance(law, SampledHolds):
        return _simulated(law, service, hold, longest)

    def cdf(times: Array) -> Array:
        return law.fraction_within(service.response, service.quantile_levels, times)

    return LatencyPrediction("exact", largest, hold, law.batch_size_pmf[-1], cdf, longest)


def _simulated(law: SampledHolds, service: ServiceTimes, hold: float, longest: float) -> LatencyPrediction:
    """The law under the largest batch, from drawn arrivals."""
    return simulated_latency(law.latencies(service.response, service.quantile_levels), law.batch_size_pmf[-1], hold, longest)


def simulated_latency(latencies: SampledLatencies, pmf: Array, hold: float, longest: float) -> LatencyPrediction:
    """What was drawn, as a prediction; ``hold`` is the longest wait and ``longest`` the longest latency, s."""
    return LatencyPrediction(SIMULATED, len(pmf), hold, pmf, latencies.share, longest, latencies.half)
