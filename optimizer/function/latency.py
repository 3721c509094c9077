"""Latency of a request under size-or-timeout batching: exact, or by the approximation of BATCH (docs/model.md, section 2).

Latency is the wait in the buffer plus the response time of the batch it leaves in, which is random (the quantile function of the
profile) and independent of the wait given the batch's size, as an elastic function starts every batch at once:

    P(latency <= t) = sum_n E[requests of batches of size n that wait at most t - S_n] / E[N].                            (2.6)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.function.batch_paper import BatchPaper
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.service.times import ServiceTimes

METHODS = ("exact", "batch-paper")


@dataclass(frozen=True, eq=False)
class LatencyPrediction:
    """Latency and batch sizes of size-or-timeout batching in front of an elastic function.

    ``cdf`` maps seconds, shape (n,), to probabilities; ``longest`` is a latency (s) that no request exceeds.
    """

    method: str
    batch_size: int
    timeout: float
    batch_size_pmf: Array
    cdf: Callable[[Array], Array]
    longest: float

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batch_size_pmf @ np.arange(1, self.batch_size + 1))

    def quantile(self, q: float) -> float:
        """The smallest latency (s) that at least a fraction ``q`` of the requests do not exceed; to 1e-9 of the longest."""
        if not 0 < q < 1:
            raise InvalidInput("quantile", q, "a number strictly between 0 and 1")
        low, high = 0.0, self.longest * (1 + 1e-9)
        while high - low > 1e-9 * self.longest:
            inner = np.linspace(low, high, 18)[1:-1]
            reached = self.cdf(inner) >= q - 1e-12
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


def mixture(of_parts: Sequence[LatencyPrediction], shares: Array) -> LatencyPrediction:
    """The latency of all requests where a part ``shares``, (n_parts,), has each of these; batch sizes are those of all batches."""
    largest = max(part.batch_size for part in of_parts)
    pmf = np.zeros(largest)
    for part, share in zip(of_parts, shares, strict=True):
        pmf[: part.batch_size] += share / part.mean_batch_size * part.batch_size_pmf

    def cdf(times: Array) -> Array:
        return np.asarray(sum(share * part.cdf(times) for part, share in zip(of_parts, shares, strict=True)))

    longest, timeout = max(part.longest for part in of_parts), max(part.timeout for part in of_parts)
    return LatencyPrediction(of_parts[0].method, largest, timeout, pmf / pmf.sum(), cdf, longest)


def predict_latency(
    arrivals: ArrivalProcess, service: ServiceTimes, batch_size: int, timeout: float, method: str = "exact"
) -> LatencyPrediction:
    """Latency law of size-or-timeout batching; ``batch_size=1`` is no batching.

    Parameters
    ----------
    method : {"exact", "batch-paper"}
        Exact for any MAP and any measured service time; or BATCH, eqs (7)-(10), which takes the wait as uniform and the service
        time as its mean.

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
    law = SizeOrTimeout(arrivals, batch_size, timeout)
    response = service.response[None]

    def cdf(times: Array) -> Array:
        return np.asarray(law.fraction_within(response, service.quantile_levels, np.asarray(times, dtype=float))[0, -1])

    longest = float(response.max()) + (timeout if batch_size > 1 else 0.0)
    return LatencyPrediction(method, batch_size, timeout, law.batch_size_pmf[-1], cdf, longest)
