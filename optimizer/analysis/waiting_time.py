"""Waiting time under size-or-timeout batching, exactly (docs/model.md, section 2).

A batch opens with its first request and leaves with ``batch_size`` requests or ``timeout`` seconds after it opened. Let ``v_i(t)``
be the law of the phase while ``i`` requests are in the open batch ``t`` after it opened, and ``c_k(w)`` and ``F_k(w)`` the
probabilities, by phase, of exactly and of at least ``k`` arrivals within ``w``. The expected number per batch of requests that
share it with ``n - 1`` others and wait at most ``w`` is, for 0 <= w < timeout,

    n < B:  M_n(w) = sum_{i=1..n} (n - i) v_i(T - w) c_{n-i}(w)                                                            (2.4)
    n = B:  M_B(w) = P(N = B) + v_1(0) F_{B-1}(w)
                     + sum_{k=0..B-3} [integral_0^{T-w} v_{k+1}(t) dt] D1 F_{B-2-k}(w)
                     + sum_{i=1..B-1} (B - 1 - i) v_i(T - w) F_{B-i}(w)                                                    (2.5)

and ``n P(N = n)`` from w = T on. In (2.5) the first term is the request that fills the batch, the second the one that opened it,
the third those in between that came at least ``w`` before the timeout, the last those that came later and then wait less than
``w`` as soon as the batch fills at all. So no integral is left to quadrature: uniformization gives it.

``v_i(t) = embedded C_{i-1}(t)``, and nothing but ``embedded`` depends on the batch size; everything to its right is kept as column
vectors by phase (``early``, ``full``), for all batch sizes at once. They are analytic on (0, T): values at Chebyshev points
(symmetric, so ``T - w`` is one too), interpolated by their Chebyshev series.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from scipy.fft import dct

from batching.errors import InvalidInput
from optimizer.analysis.counting import CountingProcess
from optimizer.arrivals.map import Array, ArrivalProcess, stationary_distribution

# Moments in time that agree to this part of the timeout are one: an atom must not be missed by rounding.
_SAME = 1e-9
_SMALL = 1e-12  # requests per batch; a Chebyshev series ends where no coefficient is larger
_AT_ONCE = 2**21  # cosines held at a time when a series is summed


class SizeOrTimeout:
    """What size-or-timeout batching does to an arrival process at one timeout, for every batch size up to a largest.

    Parameters
    ----------
    arrivals : ArrivalProcess
    max_batch_size : int
    timeout : float
        Seconds, >= 0.
    counting : CountingProcess, optional
        Shared between timeouts; must follow ``max_batch_size`` counts up to ``timeout``.
    """

    def __init__(
        self, arrivals: ArrivalProcess, max_batch_size: int, timeout: float, counting: CountingProcess | None = None
    ) -> None:
        if max_batch_size < 1:
            raise InvalidInput("batch_size", max_batch_size, "an integer >= 1")
        if not 0 <= timeout < np.inf:
            raise InvalidInput("timeout", timeout, "a number of seconds >= 0")
        self.arrivals = arrivals
        self.max_batch_size = max_batch_size
        self.timeout = float(timeout)
        self._counting = counting or counting_from_arrivals(arrivals, max_batch_size, self.timeout)
        at_timeout = self._counting.matrices(np.array([self.timeout]))
        self._at_timeout = at_timeout[0, :max_batch_size]
        self._integral = self._counting.integrals(at_timeout)[0, :max_batch_size]

    @cached_property
    def opening_phases(self) -> Array:
        """Phase probabilities when a batch opens, by batch size: (max_batch_size, n_phases). docs/model.md (2.1)."""
        result = np.zeros((self.max_batch_size, self.arrivals.n_phases))
        result[:, self._counting.rows] = self._openings
        return result

    @cached_property
    def _openings(self) -> Array:
        """The same over the phases that follow an arrival."""
        rows, largest = self._counting.rows, self.max_batch_size
        dispatched = np.zeros((largest, len(rows), self.arrivals.n_phases))
        dispatched[0, np.arange(len(rows)), rows] = 1.0  # a batch of one leaves as it opens
        if largest > 1:
            dispatched[1:] = np.cumsum(self._at_timeout, axis=0)[: largest - 1] + self._integral[: largest - 1] @ self.arrivals.D1
        return stationary_distribution(dispatched @ self.arrivals.to_next_arrival[:, rows] - np.eye(len(rows)))

    @cached_property
    def batch_size_pmf(self) -> Array:
        """``[b - 1, n - 1]``: probability that a batch has size ``n`` when at most ``b`` are allowed; square, lower triangular."""
        largest = self.max_batch_size
        early = self._openings @ self._at_timeout.sum(axis=-1).T
        pmf = np.tril(early, -1)
        pmf[np.diag_indices(largest)] = np.clip(1 - pmf.sum(axis=1), 0.0, None)
        return np.asarray(pmf)

    @cached_property
    def mean_batch_size(self) -> Array:
        """Mean size of a batch, by batch size allowed: (max_batch_size,)."""
        return np.asarray(self.batch_size_pmf @ np.arange(1, self.max_batch_size + 1))

    @cached_property
    def _series(self) -> tuple[Array, Array]:
        """Chebyshev coefficients in w over (0, T) of ``early`` and ``full``: each (n_nodes, max_batch_size, n_rows)."""
        largest, rows = self.max_batch_size, self._counting.rows
        # of exp(-a w) (a w)^k / k! over (0, T) the coefficient of degree m is below exp(-m^2 / (2 a T)): eight digits at
        # 6 sqrt(a T) for the worst k and twice as many for k = 0; in time the counting process has bounded a T
        last = int(24 + 6 * np.sqrt(self._counting.rate * self.timeout))
        nodes = self.timeout / 2 * (1 - np.cos(np.pi * np.arange(last + 1) / last))
        exactly = self._counting.probabilities(nodes)[:, :largest]  # c_k(w): (nodes, largest, n)
        at_least = np.clip(1 - np.cumsum(exactly, axis=1) + exactly, 0.0, None)  # F_k(w), k = 0 .. largest - 1
        # at T - w: (nodes, largest, rows, n)
        here = self._counting.matrices(nodes)
        there = self._counting.integrals(here)[::-1, :largest] @ self.arrivals.D1
        here = here[::-1, :largest]
        counts = np.arange(largest, dtype=np.float64)[:, None]
        later = np.where(counts > 0, at_least, 0.0)
        # early[n - 1] = sum_{i=1..n} C_{i-1}(T - w) [(n - i) c_{n-i}(w)];
        # late[B - 1] = sum_{i=1..B-1} C_{i-1}(T - w) [(B - i - 1) F_{B-i}(w)]: both convolutions with C
        early, late = _convolve(here, counts * exactly, (counts - 1.0) * later)
        # between[B - 2] = sum_{k=0..B-3} [integral C_k] D1 F_{B-2-k}(w): a convolution without its last term, F_0
        (between,) = _convolve(there, later)
        full = late
        full[:, 1:] += between[:, :-1] + at_least[:, 1:, rows]  # the last is the opener: F_{B-1}(w)
        series = _chebyshev_series(early), _chebyshev_series(full)
        felt = np.maximum(*(np.abs(coefficients).max(axis=(1, 2)) for coefficients in series)) > _SMALL
        end = int(np.flatnonzero(felt)[-1]) + 1 if felt.any() else 1
        return series[0][:end], series[1][:end]

    def expected_within(self, waits: Array) -> tuple[Array, Array]:
        """Expected requests per batch that wait at most ``waits``, by size of their batch and phase at its opening.

        Parameters
        ----------
        waits : array, shape (max_batch_size, n_times, n_points)
            Seconds, for batches of size 1, 2, ...; negative ones give zero. The last axis is averaged over.

        Returns
        -------
        early, full : array, shape (max_batch_size, n_times, n_rows)
            By phase at the opening, of those that follow an arrival: for a batch that left by timeout with that size, and for one
            that left because it was the largest allowed.
        """
        sizes = np.arange(1, self.max_batch_size + 1)[:, None, None]
        slack = _SAME * max(self.timeout, 1e-6)
        started, ended = waits >= -slack, waits >= self.timeout - slack
        exactly = self._at_timeout.sum(axis=-1)  # c_{n-1}(T)
        at_least = np.clip(1 - np.cumsum(exactly, axis=0) + exactly, 0.0, None)  # F_{n-1}(T)
        share_ended = ended.mean(axis=-1)[..., None]
        early = share_ended * sizes * exactly[:, None, :]
        full = share_ended * sizes * at_least[:, None, :]
        within = started & ~ended
        if within.any():
            series_early, series_full = self._series
            for n in range(self.max_batch_size):
                at = np.nonzero(within[n])
                if len(at[0]):
                    angles = np.arccos(np.clip(2 * waits[n][at] / self.timeout - 1, -1.0, 1.0))
                    summed = np.zeros((2, *early[n].shape))
                    for part in _parts(len(angles), _AT_ONCE // len(series_early) + 1):
                        cosines = _cosines(angles[part], len(series_early))
                        np.add.at(summed[0], at[0][part], cosines @ series_early[:, n])
                        np.add.at(summed[1], at[0][part], cosines @ series_full[:, n])
                    early[n] += np.clip(summed[0] / waits.shape[-1], 0.0, None)
                    full[n] += np.clip(summed[1] / waits.shape[-1], 0.0, None)
            full += within.mean(axis=-1)[..., None] * at_least[:, None, :]  # the request that fills the batch
        return early, full

    def fraction_within(self, waits: Array) -> Array:
        """Fraction of requests whose wait is at most ``waits[n - 1, i, q]`` where their batch has size ``n``, averaged over ``q``.

        With ``waits = t[i] - service_time[n - 1, q]`` this is the probability of a latency at most ``t[i]`` (docs/model.md,
        (2.6)), for every batch size allowed: shape (max_batch_size, n_times).
        """
        early, full = self.expected_within(waits)
        smaller = np.cumsum(early, axis=0) - early
        expected = np.einsum("bi,bti->bt", self._openings, smaller + full)
        return np.asarray(np.clip(expected / self.mean_batch_size[:, None], 0.0, 1.0))


def counting_from_arrivals(arrivals: ArrivalProcess, max_batch_size: int, horizon: float) -> CountingProcess:
    """What ``SizeOrTimeout`` needs of the counts: from the phases that follow an arrival, as a batch opens with one."""
    return CountingProcess(arrivals, max_batch_size, horizon, np.flatnonzero(arrivals.D1.any(axis=0)))


def predict_batch_size_pmf(arrivals: ArrivalProcess, batch_size: int, timeout: float) -> Array:
    """Distribution of the size of a dispatched batch.

    The first request opens a batch; it leaves when it holds ``batch_size`` requests or ``timeout`` seconds after it opened.

    Returns
    -------
    pmf : array, shape (batch_size,)
        ``pmf[k - 1]`` is the probability of size ``k``; sums to one.

    References
    ----------
    docs/model.md (2.1)-(2.3); Ali et al., BATCH, SC'20, eq. (7) for the Poisson case.
    """
    return np.asarray(SizeOrTimeout(arrivals, batch_size, timeout).batch_size_pmf[-1])


def predict_waiting_time_cdf(arrivals: ArrivalProcess, batch_size: int, timeout: float, times: Array) -> Array:
    """Probability that a request waits at most ``times`` (s) in the buffer, same shape; exact for any MAP."""
    flat = np.ravel(np.asarray(times, dtype=float))
    waits = np.broadcast_to(flat[:, None], (batch_size, len(flat), 1))
    within = SizeOrTimeout(arrivals, batch_size, timeout).fraction_within(waits)[-1]
    return np.asarray(within.reshape(np.shape(times)))


def _convolve(matrices: Array, *vectors: Array) -> list[Array]:
    """``[w, m] = sum_{i <= m} matrices[w, i] vectors[w, m - i]`` over w for each stack of vectors, (nodes, largest, n_rows)."""
    nodes, largest, n_rows, _ = matrices.shape
    stacked = np.stack(vectors, axis=1)  # (nodes, stacks, largest, n)
    result = np.zeros((nodes, len(vectors), largest, n_rows))
    transposed = np.ascontiguousarray(matrices.transpose(1, 0, 3, 2))  # (largest, nodes, n, rows)
    for i in range(largest):
        result[:, :, i:] += stacked[:, :, : largest - i] @ transposed[i][:, None]
    return [result[:, stack] for stack in range(len(vectors))]


def _parts(n: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, n, size))


def _cosines(angles: Array, n: int) -> Array:
    """``cos(k angle)`` for k < n, (len(angles), n), by the addition theorem from some 2 sqrt(n) of them."""
    step = int(np.sqrt(n)) + 1
    few = np.exp(1j * angles[:, None] * np.arange(step))
    strides = np.exp(1j * angles[:, None] * np.arange(0, n, step))[:, :, None]
    cosines = strides.real * few.real[:, None] - strides.imag * few.imag[:, None]
    return np.asarray(cosines.reshape(len(angles), -1)[:, :n])


def _chebyshev_series(values: Array) -> Array:
    """Coefficients of the polynomial through values at the points -cos(pi j / last), along axis 0."""
    last = len(values) - 1
    coefficients = dct(values[::-1], type=1, axis=0) / last
    coefficients[0] /= 2
    coefficients[-1] /= 2
    return np.asarray(coefficients)
