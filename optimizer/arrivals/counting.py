"""Numbers of arrivals in an interval, jointly with the phase: the matrices ``C_k(t)`` (docs/model.md, (1.4)-(1.6)).

``C_k(t)[i, j]`` is the probability of ``k`` arrivals in ``t`` seconds and phase ``j`` at the end, given phase ``i`` at the start.
Uniformization at rate ``r >= max |D0[i, i]|``: with ``P0 = I + D0/r``, ``P1 = D1/r``,

    U_0 = I at count 0,   U_{m+1,k} = U_{m,k} P0 + U_{m,k-1} P1,
    C_k(t) = sum_m poisson(m; r t) U_{m,k}.

All terms are non-negative, so nothing cancels; the sum runs over the m within eight standard deviations of ``r t``. The second
road, for tests, is the first block row of ``expm`` of the block-bidiagonal generator of BATCH, eq. (11).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.compiled import compiled

LARGEST = 2**25
"""Numbers in the uniformized chain: a quarter of a gigabyte."""
_ENDLESS = 1e15  # jumps; no chain is so long
_GROUP = 8  # neighbouring times that read a row of the chain together
_NO_WEIGHT = 1e-18


class TooManyJumps(InvalidInput):
    """The time holds so many jumps of the phases that there is no room for the chain."""


class CountingProcess:
    """Counting matrices of an arrival process up to a count and a time.

    Parameters
    ----------
    arrivals : ArrivalProcess
    n_counts : int
        Counts 0, 1, ..., n_counts - 1 are followed.
    horizon : float
        Largest time (s) that will be asked for.
    rows : array of int, optional
        Phases to start from; by default all. Few are enough when an interval starts with an arrival, which few phases follow.
    room : float
        Numbers that the uniformized chain may have, which is also what the work of all that is asked goes with.
    allowed : array, shape (n_phases, n_phases), optional
        Rates (1/s), of those in ``D1``, of the arrivals that are counted; probabilities are then that no other comes.

    Raises
    ------
    TooManyJumps
        Where the horizon holds so many phase jumps that there is no room for the chain.
    """

    def __init__(
        self,
        arrivals: ArrivalProcess,
        n_counts: int,
        horizon: float,
        rows: NDArray[np.intp] | None = None,
        room: float = LARGEST,
        allowed: Array | None = None,
    ) -> None:
        self.arrivals = arrivals
        self.allowed = arrivals.D1 if allowed is None else allowed
        self.n_counts = n_counts
        self.rows = np.arange(arrivals.n_phases) if rows is None else rows
        self.rate = float(-arrivals.D0.diagonal().min())
        jumps = min(self.rate * horizon, _ENDLESS)
        self._n_terms = int(jumps + 8 * np.sqrt(jumps) + 40)
        self._chain, self._survival = self._uniformize(room)

    @property
    def settled(self) -> float:
        """Seconds within which the last count is passed, whatever the phase, but for rounding; inf where no such time was met."""
        n_terms = len(self._chain)
        return (n_terms + 8 * np.sqrt(n_terms) + 80) / self.rate if n_terms < self._n_terms + 1 else np.inf

    def _uniformize(self, most: float) -> tuple[Array, Array]:
        """``U_m`` from ``rows``, (terms, n_counts * len(rows) * n_phases), and summed over the end phase from every phase."""
        n = self.arrivals.n_phases
        P0, P1 = np.eye(n) + self.arrivals.D0 / self.rate, self.allowed / self.rate
        room = int(most) // (self.n_counts * n * max(1, len(self.rows)))  # terms
        chain, ends, terms = _uniformized(P0, P1, self.rows, self.n_counts, min(self._n_terms, room) + 1)
        if terms > room:
            raise TooManyJumps(
                "timeout",
                f"{self._n_terms / self.rate:.3g} s",
                f"at most about {terms / self.rate:.3g} s for an arrival process with rates up to {self.rate:.3g} /s",
            )
        return chain[:terms], ends[:terms]

    def matrices(self, times: Array) -> Array:
        """``C_k(t)`` at ascending ``times`` (s), from ``rows``: shape (len(times), n_counts, len(rows), n_phases)."""
        mixed = _mixed(self._chain, self.rate * np.asarray(times, dtype=np.float64))
        return mixed.reshape(len(times), self.n_counts, len(self.rows), self.arrivals.n_phases)

    def probabilities(self, times: Array) -> Array:
        """Probability of ``k`` arrivals in ascending ``times`` (s) from every phase: shape (len(times), n_counts, n_phases)."""
        mixed = _mixed(self._survival, self.rate * np.asarray(times, dtype=np.float64))
        return mixed.reshape(len(times), self.n_counts, self.arrivals.n_phases)

    def integrals(self, matrices: Array) -> Array:
        """``integral_0^t C_k(u) du`` (s) of what ``matrices`` returned, same shape.

        From ``C_k' = C_k D0 + C_{k-1} D1``: each integral times ``-D0`` is the one before times ``D1``, less the change of ``C_k``.
        """
        from_rows = np.eye(self.arrivals.n_phases)[self.rows]
        inverse = np.linalg.inv(-self.arrivals.D0).astype(np.float64)
        return _integrated(np.ascontiguousarray(matrices), from_rows, inverse, np.array(self.allowed))


@compiled
def _uniformized(P0: Array, P1: Array, rows: NDArray[np.intp], n_counts: int, most: int) -> tuple[Array, Array, int]:
    """``U_m``, its sums over the end phase, and how many terms there are until every path has passed the last count, or ``most``.

    Entry by entry of ``P0`` and ``P1`` that is not zero: of a hidden Markov model with Erlang gaps there are few.
    """
    n = len(P0)
    width = len(rows) * n
    from_0, to_0 = np.nonzero(P0)
    from_1, to_1 = np.nonzero(P1)
    chain, ends = np.empty((most, n_counts * width)), np.empty((most, n_counts * n))
    chain[0] = 0.0
    for r in range(len(rows)):
        chain[0, r * n + rows[r]] = 1.0
    ends[0] = 0.0
    ends[0, :n] = 1.0
    for m in range(1, most):
        before, here = ends[m - 1], ends[m]
        here[:] = 0.0
        for start in range(0, min(n_counts, m + 1) * n, n):  # no more arrivals than jumps
            for e in range(len(from_0)):
                here[start + from_0[e]] += P0[from_0[e], to_0[e]] * before[start + to_0[e]]
            if start > 0:
                for e in range(len(from_1)):
                    here[start + from_1[e]] += P1[from_1[e], to_1[e]] * before[start - n + to_1[e]]
        if here.max() < 1e-17:
            return chain, ends, m
        before, here = chain[m - 1], chain[m]
        here[:] = 0.0
        for start in range(0, min(n_counts, m + 1) * width, n):
            for e in range(len(from_0)):
                here[start + to_0[e]] += before[start + from_0[e]] * P0[from_0[e], to_0[e]]
            if start >= width:
                for e in range(len(from_1)):
                    here[start + to_1[e]] += before[start - width + from_1[e]] * P1[from_1[e], to_1[e]]
    return chain, ends, most


@compiled
def _mixed(chain: Array, jumps: Array) -> Array:
    """``sum_m poisson(m; jumps[i]) chain[m]`` for ascending ``jumps``: (len(jumps), chain.shape[1]).

    Not a product of matrices: the threads of a BLAS wait for each other where another process has one of the cores.
    """
    n, width = len(jumps), chain.shape[1]
    result = np.zeros((n, width))
    for start in range(0, n, _GROUP):
        end = min(n, start + _GROUP)
        low, high = jumps[start], jumps[end - 1]
        first = max(0, int(low - 8 * math.sqrt(low) - 20))
        last = min(len(chain), int(high + 8 * math.sqrt(high) + 40))
        for m in range(first, last):
            log_factorial = math.lgamma(m + 1.0)
            for i in range(start, end):
                none = 1.0 if m == 0 else 0.0  # the law of no jumps at all
                weight = math.exp(m * math.log(jumps[i]) - jumps[i] - log_factorial) if jumps[i] > 0 else none
                if weight > _NO_WEIGHT:
                    for k in range(width):
                        result[i, k] += weight * chain[m, k]
    return result


@compiled
def _integrated(matrices: Array, from_rows: Array, inverse: Array, allowed: Array) -> Array:
    """``CountingProcess.integrals`` with the inverse of ``-D0``, from ``from_rows``, (n_rows, n_phases)."""
    n_times, n_counts, n_rows, n = matrices.shape
    result = np.empty_like(matrices)
    flow = np.empty((n_rows, n))
    for t in range(n_times):
        flow[:] = from_rows
        for k in range(n_counts):
            for r in range(n_rows):
                for j in range(n):
                    spent = 0.0
                    for i in range(n):
                        spent += (flow[r, i] - matrices[t, k, r, i]) * inverse[i, j]
                    result[t, k, r, j] = max(spent, 0.0)
            for r in range(n_rows):
                for j in range(n):
                    coming = 0.0
                    for i in range(n):
                        coming += result[t, k, r, i] * allowed[i, j]
                    flow[r, j] = coming
    return result


def counting_matrices_by_expm(arrivals: ArrivalProcess, n_counts: int, time: float) -> Array:
    """``C_k(time)``, shape (n_counts, n_phases, n_phases), by the matrix exponential of BATCH, eq. (11)."""
    n = arrivals.n_phases
    generator = np.kron(np.eye(n_counts), arrivals.D0) + np.kron(np.eye(n_counts, k=1), arrivals.D1)
    from scipy.linalg import expm  # as in dispersion.py

    first_row = expm(generator * time)[:n]
    return np.asarray(first_row.reshape(n, n_counts, n).transpose(1, 0, 2))
