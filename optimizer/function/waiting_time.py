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

A request's latency is its wait and the response time of its batch. Where the response is random, its quantile function linear
between levels, it is uniform on each piece, and the mean of ``M_n(t - S)`` over a piece is a difference of the integral of
``M_n``, whose Chebyshev series is known: (2.7), again without quadrature.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import LARGEST, CountingProcess
from sluice.optimizer.arrivals.map import ArrivalProcess, stationary_distribution
from sluice.optimizer.compiled import compiled, inlined

# Moments in time that agree to this part of the timeout are one: an atom must not be missed by rounding.
_SAME = 1e-9
_NARROW = 1e-6  # of the timeout: a piece of the response's law that is no wider is one moment
_NO_WEIGHT = 1e-18
_SMALL = 1e-12  # requests per batch; a Chebyshev series ends where no coefficient is larger


class _Members(NamedTuple):
    """``M_n`` at one timeout, by n, for every batch size allowed.

    ``series`` and ``integrated`` are Chebyshev series over (0, ``timeout``) of its two sums and their integrals, (largest, n_terms,
    2 n_rows); ``exactly`` and ``at_least`` are c_{n-1}(T) and F_{n-1}(T), (largest, n_rows).
    """

    timeout: float
    series: Array
    integrated: Array
    exactly: Array
    at_least: Array


class _Factors(NamedTuple):
    """What v_i is multiplied by in the sums of (2.4) and (2.5) at one w, (n_phases, largest) each, by k = n - i."""

    early: Array
    full: Array
    between: Array


class _Work(NamedTuple):
    """Room for one batch size: ``waits``, (n_levels,), at the quantile levels; ``values``, (2 n_rows, n_levels), the integrals of
    M_n to there; ``one``, (2 n_rows, 1); its two sums, ``early`` and ``full``, (n_rows,), in the mean over the response.
    """

    waits: Array
    values: Array
    one: Array
    early: Array
    full: Array


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
        self._counting = counting or counting_from_arrivals(arrivals, max_batch_size, float(timeout))
        self.timeout = min(float(timeout), self._counting.settled)  # beyond it every batch has filled, and nobody waits
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
    def _series(self) -> Array:
        """Chebyshev coefficients over (0, T) of ``early`` and ``full`` as functions of w: (max_batch_size, n_terms, 2 n_rows)."""
        # of exp(-a w) (a w)^k / k! over (0, T) the coefficient of degree m is below exp(-m^2 / (2 a T)): eight digits at
        # 6 sqrt(a T) for the worst k and twice as many for k = 0; in time the counting process has bounded a T
        last = int(24 + 6 * np.sqrt(self._counting.rate * self.timeout))
        nodes = self.timeout / 2 * (1 - np.cos(np.pi * np.arange(last + 1) / last))
        series = _chebyshev_series(self._members_at(nodes))
        felt = np.abs(series).max(axis=(1, 2)) > _SMALL
        end = int(np.flatnonzero(felt)[-1]) + 1 if felt.any() else 1
        return np.ascontiguousarray(series[:end].transpose(1, 0, 2))

    def _members_at(self, nodes: Array) -> Array:
        """``early`` and ``full`` at ascending waits w (s) that lie in (0, T) as their mirror images T - w do: (nodes,
        max_batch_size, 2 n_rows).
        """
        largest, rows = self.max_batch_size, self._counting.rows
        exactly = self._counting.probabilities(nodes)[:, :largest]  # c_k(w): (nodes, largest, n)
        at_least = np.clip(1 - np.cumsum(exactly, axis=1) + exactly, 0.0, None)  # F_k(w), k = 0 .. largest - 1
        here = self._counting.matrices(nodes)
        there = self._counting.integrals(here)[:, :largest] @ self.arrivals.D1
        return _expected_in_time(here[::-1, :largest], there[::-1], exactly, at_least, rows)

    def forget_series(self) -> None:
        """The most of what is held, 0.2 MB of a table of 32; who asks for further responses has it made again."""
        self.__dict__.pop("_series", None)
        self.__dict__.pop("_integrated_series", None)

    @cached_property
    def _integrated_series(self) -> Array:
        """Those of the integrals from 0 to w, one term more."""
        series = self._series
        padded = np.concatenate([series, np.zeros((len(series), 2, series.shape[2]))], axis=1)
        k = np.arange(1, series.shape[1] + 1)[:, None]
        result = np.zeros((len(series), series.shape[1] + 1, series.shape[2]))
        result[:, 1:] = (padded[:, :-2] - padded[:, 2:]) / (2 * k)
        result[:, 1] += padded[:, 0] / 2  # the series of a constant has no 1/2
        result[:, 0] = -(result[:, 1:] * np.where(k % 2, -1.0, 1.0)).sum(axis=1)
        return np.ascontiguousarray(result * self.timeout / 2)

    def waits_within(self, n_points: int) -> Array:
        """Probability that a request waits at most 0, T/n, 2T/n, ... (s, below the timeout T), for every batch size allowed:
        (max_batch_size, ``n_points``); exact at these waits, without a series between them.
        """
        n_rows = len(self._counting.rows)
        values = self._members_at(np.linspace(0, self.timeout, n_points + 1))[:-1]
        early, full = values[:, :, :n_rows], values[:, :, n_rows:]
        smaller = np.cumsum(early, axis=1) - early
        fills = 1 - np.cumsum(self._at_timeout.sum(axis=-1), axis=0) + self._at_timeout.sum(axis=-1)  # F_{n-1}(T)
        expected = np.einsum("bi,wbi->bw", self._openings, smaller + full + np.clip(fills, 0.0, None))
        return np.asarray(np.clip(expected / self.mean_batch_size[:, None], 0.0, 1.0))

    def fraction_within(self, response: Array, levels: Array, times: Array) -> Array:
        """Probability that wait and response time of a request are together at most ``times`` (docs/model.md, (2.6)).

        Parameters
        ----------
        response : array, shape (n_services, max_batch_size, n_levels)
            Quantile functions (s) at ``levels`` of the response times of batches of 1, 2, ...; for several functions at once.
        levels : array, shape (n_levels,)
            Ascending from 0 to 1; alone where responses are deterministic.
        times : array, shape (n_times,)
            Seconds.

        Returns
        -------
        array, shape (n_services, max_batch_size, n_times)
            For every batch size allowed.
        """
        exactly, at_least, none = self._left_open
        longest, shortest = times - response[..., :1], times - response[..., -1:]
        apart = bool(((longest > 0) & (shortest < self.timeout)).any())  # else all is decided by the timeout
        expected = _requests_within(
            np.ascontiguousarray(response, dtype=np.float64),
            np.ascontiguousarray(levels[1:] - levels[:-1], dtype=np.float64),
            np.ascontiguousarray(times, dtype=np.float64),
            _Members(
                self.timeout,
                self._series if apart else none,
                self._integrated_series if apart and len(levels) > 1 else none,
                exactly,
                at_least,
            ),
            self._openings,
        )
        within = expected / self.mean_batch_size[:, None]
        return np.asarray(np.minimum(np.maximum(within, 0.0), 1.0))  # np.clip takes three times as long

    @cached_property
    def _left_open(self) -> tuple[Array, Array, Array]:
        """``c_{n-1}(T)`` and ``F_{n-1}(T)``, (max_batch_size, n_rows), and in place of a series that nobody reads one of zeros."""
        exactly = self._at_timeout.sum(axis=-1)
        at_least = np.clip(1 - np.cumsum(exactly, axis=0) + exactly, 0.0, None)
        return exactly, at_least, np.zeros((self.max_batch_size, 1, 2 * exactly.shape[1]))


def counting_from_arrivals(arrivals: ArrivalProcess, max_batch_size: int, horizon: float, room: float = LARGEST) -> CountingProcess:
    """What ``SizeOrTimeout`` needs of the counts: from the phases that follow an arrival, as a batch opens with one."""
    return CountingProcess(arrivals, max_batch_size, horizon, np.flatnonzero(arrivals.D1.any(axis=0)), room)


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
    at_once = np.zeros((1, batch_size, 1))
    within = SizeOrTimeout(arrivals, batch_size, timeout).fraction_within(at_once, np.zeros(1), flat)[0, -1]
    return np.asarray(within.reshape(np.shape(times)))


@compiled
def _expected_in_time(here: Array, there: Array, exactly: Array, at_least: Array, rows: NDArray[np.intp]) -> Array:
    """The sums of (2.4) and (2.5) at every node, all three convolutions with the counting matrices.

    Parameters
    ----------
    here, there : array, shape (n_nodes, largest, n_rows, n_phases)
        ``C_k(T - w)`` and its integral over time, times ``D1``.
    exactly, at_least : array, shape (n_nodes, largest, n_phases)
        ``c_k(w)`` and ``F_k(w)``.

    Returns
    -------
    array, shape (n_nodes, largest, 2 n_rows)
        ``early`` and ``full``.
    """
    n_nodes, largest, n_rows, n_phases = here.shape
    result = np.zeros((n_nodes, largest, 2 * n_rows))
    factors = _Factors(np.empty((n_phases, largest)), np.empty((n_phases, largest)), np.empty((n_phases, largest)))
    early, full, between = np.empty(largest), np.empty(largest), np.empty(largest)
    for node in range(n_nodes):
        _fill(factors, exactly[node], at_least[node])
        for row in range(n_rows):
            early[:], full[:], between[:] = 0.0, 0.0, 0.0
            for k in range(1, largest):
                full[k] = at_least[node, k, rows[row]]  # the request that opened it
            _convolve(here[node, :, row], there[node, :, row], factors, early, full, between)
            for k in range(largest):
                result[node, k, row] = early[k]
                result[node, k, n_rows + row] = full[k] + (
                    between[k - 1] if k else 0.0
                )  # i + k is n - 1 in the third term of (2.5)
    return result


@inlined
def _fill(factors: _Factors, exactly: Array, at_least: Array) -> None:
    """At one node: k c_k, F_k and (k - 1) F_k, the last two for k > 0."""
    early, full, between = factors
    for phase in range(early.shape[0]):
        for k in range(early.shape[1]):
            early[phase, k] = k * exactly[k, phase]
            between[phase, k] = at_least[k, phase] if k else 0.0
            full[phase, k] = (k - 1) * between[phase, k]


@inlined
def _convolve(here: Array, there: Array, factors: _Factors, early: Array, full: Array, between: Array) -> None:
    """Add the three sums over i, from one phase at the opening: ``here`` and ``there`` are (largest, n_phases)."""
    largest, n_phases = here.shape
    to_early, to_full, to_between = factors
    for i in range(largest):
        for phase in range(n_phases):
            weight, before = here[i, phase], there[i, phase]
            if weight + before <= _NO_WEIGHT:
                continue
            for k in range(largest - i):
                early[i + k] += weight * to_early[phase, k]
                full[i + k] += weight * to_full[phase, k]
                between[i + k] += before * to_between[phase, k]


@compiled
def _series_at(series: Array, waits: Array, timeout: float, into: Array) -> None:
    """Chebyshev series over (0, timeout), (n_terms, n), at ``waits`` or the nearer end: ``into`` is (n, len(waits))."""
    n = len(waits)
    x, here, before = np.empty(n), np.empty(n), np.ones(n)
    for p in range(n):
        here[p] = x[p] = 2 * min(max(waits[p], 0.0), timeout) / timeout - 1
    for j in range(series.shape[1]):
        constant, slope = series[0, j], (series[1, j] if len(series) > 1 else 0.0)
        for p in range(n):
            into[j, p] = constant + slope * x[p]
    for k in range(2, len(series)):
        for p in range(n):
            following = 2 * x[p] * here[p] - before[p]
            before[p] = here[p]
            here[p] = following
        for j in range(series.shape[1]):
            weight = series[k, j]
            for p in range(n):
                into[j, p] += weight * here[p]


@compiled
def _requests_within(response: Array, shares: Array, times: Array, members: _Members, openings: Array) -> Array:
    """Expected requests per batch whose latency is at most ``times``, for every batch size allowed (docs/model.md, (2.6), (2.7)).

    ``shares`` are the probabilities of the pieces between the quantile levels; other arguments as in ``fraction_within``.
    """
    n_services, largest, n_levels = response.shape
    n_rows = members.exactly.shape[1]
    result = np.zeros((n_services, largest, len(times)))
    smaller = np.empty(n_rows)
    work = _Work(
        np.empty(n_levels), np.empty((2 * n_rows, n_levels)), np.empty((2 * n_rows, 1)), np.empty(n_rows), np.empty(n_rows)
    )
    for service in range(n_services):
        for time in range(len(times)):
            smaller[:] = 0.0
            for n in range(largest):
                _of_size_within(n, times[time], response[service, n], shares, members, work)
                result[service, n, time] = _expected(openings[n], smaller, work)
    return result


@inlined
def _expected(openings: Array, smaller: Array, work: _Work) -> float:
    """(2.6) where this size is the most allowed; its ``early`` is then added to that of ``smaller`` sizes."""
    early, full = work.early, work.full
    total = 0.0
    for row in range(len(openings)):
        total += openings[row] * (smaller[row] + full[row])
        smaller[row] += early[row]
    return total


@inlined
def _of_size_within(n: int, time: float, response: Array, shares: Array, members: _Members, work: _Work) -> None:
    """``M_{n+1}`` at ``time`` less the response, in the mean: ``work.early`` and ``work.full``."""
    waits, values, one, early, full = work
    timeout, n_levels = members.timeout, len(response)
    for level in range(n_levels):
        waits[level] = time - response[level]
    early[:], full[:] = 0.0, 0.0
    if waits[0] - waits[-1] <= _NARROW * timeout:
        _within_at(waits[:1], n, members, one)
        _add_share(1.0, one, early, full)
    elif waits[-1] >= timeout:
        exactly, at_least = members.exactly, members.at_least
        for row in range(len(early)):
            early[row], full[row] = (n + 1) * exactly[n, row], (n + 1) * at_least[n, row]
    elif waits[0] >= -_SAME * max(timeout, 1e-6):
        _integrals_to(waits, n, members, values)
        for piece in range(n_levels - 1):
            width = waits[piece] - waits[piece + 1]
            if width > _NARROW * timeout:
                _difference(values, piece, width, one)
            else:
                _within_at(waits[piece : piece + 1], n, members, one)
            _add_share(shares[piece], one, early, full)


@inlined
def _difference(integrals: Array, piece: int, width: float, into: Array) -> None:
    """The mean over a piece of the response's law, from the integrals to its ends."""
    for j in range(len(into)):
        into[j, 0] = (integrals[j, piece] - integrals[j, piece + 1]) / width


@inlined
def _add_share(share: float, one: Array, early: Array, full: Array) -> None:
    n_rows = len(early)
    for row in range(n_rows):
        early[row] += share * one[row, 0]
        full[row] += share * one[n_rows + row, 0]


@compiled
def _within_at(wait: Array, n: int, members: _Members, into: Array) -> None:
    """``M_{n+1}`` at one wait, (1,), early and full: ``into`` is (2 n_rows, 1)."""
    timeout, exactly, at_least = members.timeout, members.exactly[n], members.at_least[n]
    n_rows = len(exactly)
    slack = _SAME * max(timeout, 1e-6)
    if wait[0] < -slack:
        into[:] = 0.0
    elif wait[0] >= timeout - slack:
        for row in range(n_rows):
            into[row, 0], into[n_rows + row, 0] = (n + 1) * exactly[row], (n + 1) * at_least[row]
    else:
        _series_at(members.series[n], wait, timeout, into)
        for row in range(n_rows):
            into[row, 0] = max(0.0, into[row, 0])
            into[n_rows + row, 0] = max(0.0, into[n_rows + row, 0]) + at_least[row]  # and the request that fills the batch


@compiled
def _integrals_to(waits: Array, n: int, members: _Members, into: Array) -> None:
    """Integrals of ``M_{n+1}`` from 0 to ``waits``, early and full: ``into`` is (2 n_rows, len(waits))."""
    timeout, exactly, at_least = members.timeout, members.exactly[n], members.at_least[n]
    n_rows = len(exactly)
    if timeout > 0:
        _series_at(members.integrated[n], waits, timeout, into)
    else:
        into[:] = 0.0
    for p in range(len(waits)):
        within = min(max(waits[p], 0.0), timeout)
        beyond = max(0.0, waits[p] - timeout)
        for row in range(n_rows):
            into[row, p] += beyond * (n + 1) * exactly[row]
            into[n_rows + row, p] += (within + beyond * (n + 1)) * at_least[row]


def _chebyshev_series(values: Array) -> Array:
    """Coefficients of the polynomial through values at the points -cos(pi j / last), along axis 0."""
    last = len(values) - 1
    coefficients = np.fft.rfft(np.concatenate([values[::-1], values[1:-1]]), axis=0).real / last  # a cosine transform
    coefficients[0] /= 2
    coefficients[-1] /= 2
    return np.asarray(coefficients)
