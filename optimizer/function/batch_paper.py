"""BATCH's own latency model: the wait taken as uniform (Ali et al., BATCH, SC'20, section IV; docs/model.md, section 2.5).

The size of a batch has the law of eq. (7), computed for any MAP as the first block row of ``exp(Q T)``, eq. (11); a request is in a
batch of size ``k`` with probability ``rho_k`` proportional to ``k P(N = k)``, eq. (8). Given that, its latency is, eq. (9),

    k = 1:       S_1 + T                        it waits the whole timeout
    1 < k < B:   uniform on [S_k, S_k + T]
    k = B:       uniform on [S_B, S_B + tau],   tau = (B - 1) / arrival rate, eq. (10)

Eq. (9) is written for intervals that do not overlap; where they do, the paper only warns. The mixture above equals (9) where
they do not overlap and is a CDF where they do. The paper's text is silent, as far as it could be read here, on two points. (a) For
an MMPP(2): the law of the phase at the opening of a batch, and ``tau``. Taken are the exact law, docs/model.md (2.1), and the mean
arrival rate. (b) A ``tau`` beyond the timeout, which (10) does not exclude. Taken is the timeout. With B = 1 nothing waits.
"""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.function.batching_law import basis_of, size_or_timeout_law


class BatchPaper:
    """BATCH's approximation for one setting; ``service_times`` are deterministic seconds of batches of 1 to batch_size."""

    def __init__(self, arrivals: ArrivalProcess, service_times: Array, timeout: float) -> None:
        self.service_times = service_times
        self.timeout = timeout
        batch_size = len(service_times)
        self.batch_size_pmf = size_or_timeout_law(basis_of(arrivals, batch_size, timeout), batch_size, timeout).batch_size_pmf[-1]
        weighted = self.batch_size_pmf * np.arange(1, batch_size + 1)
        self.request_share = np.asarray(weighted / weighted.sum())
        self.time_to_fill = min((batch_size - 1) / arrivals.arrival_rate, timeout)
        self.widths = np.full(batch_size, timeout)
        self.widths[-1] = self.time_to_fill

    @property
    def longest(self) -> float:
        """Seconds that no latency exceeds."""
        return float((self.service_times + self.widths).max())

    def latency_cdf(self, times: Array) -> Array:
        """Probability of a latency at most ``times`` (s), shape (n,)."""
        waits = np.asarray(times, dtype=float)[:, None] - self.service_times
        slack = 1e-12 + 1e-9 * self.timeout  # a step is met although the sum that named its place was rounded
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where(self.widths > 0, np.clip(waits / self.widths, 0.0, 1.0), waits >= -slack)
        if len(self.service_times) > 1:
            within[:, 0] = waits[:, 0] >= self.timeout - slack
        return np.asarray(within @ self.request_share)
