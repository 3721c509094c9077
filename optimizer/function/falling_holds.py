"""Batch sizes and latency under tables whose holds fall with the number waiting, exactly (docs/model.md, 2.6).

In front of an elastic function a batch opens with its first request, and with ``n`` members it leaves ``hold[n]`` seconds after
it opened; ``hold[1] >= hold[2] >= ... >= hold[B] = 0``, and all that wait are taken. If an arrival comes within the hold of those
who wait then so did all before it, so that a batch reaches ``n`` members exactly if ``n - 1`` come within ``hold[n - 1]``:

    P(N >= n) = F_{n-1}(hold[n - 1])                                                                                       (2.8)

Size-or-timeout has all holds equal. A batch of ``n`` leaves either with its hold, ``n - 1`` having come by then, or with the
arrival of its last, between ``hold[n]`` and ``hold[n - 1]``. So with ``E_n(w; T)`` and ``L_n(w; T)`` what (2.4) and (2.5) say of
batches of ``n`` at the timeout ``T``, the number per batch of requests that are ``n`` together and wait at most ``w`` is

    M_n(w) = E_n(w; hold[n]) + L_n(w; hold[n - 1]) - L_n(w; hold[n])                                                       (2.9)

and the latency follows from (2.6) and (2.7) as there: Chebyshev series over the holds, no quadrature. The counting matrices are
taken once, at Chebyshev points up to the longest hold, and interpolated at those of the others.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import CountingProcess
from sluice.optimizer.arrivals.map import ArrivalProcess, stationary_distribution
from sluice.optimizer.function.wait_pieces import WaitPiece, WaitPieces, series_through
from sluice.optimizer.function.waiting_time import counting_from_arrivals


class FallingHolds:
    """What such tables do to an arrival process, for every largest batch up to ``len(holds) + 1``.

    Parameters
    ----------
    arrivals : ArrivalProcess
    holds : array, shape (max_batch_size - 1,)
        ``holds[n - 1]`` is the hold (s) with ``n`` waiting, falling.
    counting : CountingProcess, optional
        Of these arrivals, from the phases that follow one; must follow ``max_batch_size`` counts up to the longest hold.

    Raises
    ------
    InvalidInput
        Holds that rise, are negative or infinite.
    """

    def __init__(self, arrivals: ArrivalProcess, holds: Array, counting: CountingProcess | None = None) -> None:
        self.arrivals = arrivals
        self.holds = np.asarray(holds, dtype=np.float64)
        falling = np.isfinite(self.holds).all() and (self.holds >= 0).all() and (np.diff(self.holds) <= 0).all()
        require(bool(falling), "holds", self.holds.tolist(), "seconds >= 0 that do not rise with the number waiting")
        self.max_batch_size = len(self.holds) + 1
        longest = float(self.holds[0]) if len(self.holds) else 0.0
        self._counting = counting or counting_from_arrivals(arrivals, self.max_batch_size, longest)
        self.holds = np.minimum(self.holds, self._counting.settled)  # beyond it every batch has filled, and nobody waits
        self.longest = min(longest, self._counting.settled)
        # from the phases at the opening: C_k at each hold, and its integral times D1
        at_holds = self._counting.matrices(self.holds[::-1])
        integrals = self._counting.integrals(at_holds) @ arrivals.D1
        self._at_holds, self._flow = (of[::-1, : self.max_batch_size] for of in (at_holds, integrals))

    @cached_property
    def _openings(self) -> Array:
        """Phase probabilities when a batch opens, by largest batch: (max_batch_size, n_rows)."""
        rows, largest = self._counting.rows, self.max_batch_size
        n, more = np.arange(1, largest), np.arange(2, largest)
        reached = np.zeros((largest, len(rows), self.arrivals.n_phases))  # the phase as a batch gets its n-th member
        reached[0, np.arange(len(rows)), rows] = 1.0
        reached[1:] = self._flow[n - 1, n - 1]
        left = self._at_holds[n - 1, n - 1]  # the phase as a batch leaves with n members, by its hold or with the last of them
        left[1:] += reached[more - 1] - self._flow[more - 1, more - 2]
        dispatched = reached.copy()
        dispatched[1:] += np.cumsum(left, axis=0)
        return stationary_distribution(dispatched @ self.arrivals.to_next_arrival[:, rows] - np.eye(len(rows)))

    @cached_property
    def _reaching(self) -> Array:
        """``[n - 1]``: probability that a batch reaches ``n`` members, by the phase at its opening: (max_batch_size, n_rows)."""
        counts = self._at_holds.sum(axis=-1)
        fewer = [counts[n - 1, :n].sum(axis=0) for n in range(1, self.max_batch_size)]
        reaching = 1 - np.array([np.zeros(len(self._counting.rows)), *fewer])
        return np.minimum.accumulate(np.clip(reaching, 0.0, 1.0))

    @cached_property
    def batch_size_pmf(self) -> Array:
        """``[b - 1, n - 1]``: probability that a batch has size ``n`` when at most ``b`` are taken; square, lower triangular."""
        reaching = np.tril(self._openings @ self._reaching.T)
        pmf = reaching.copy()
        pmf[:, :-1] -= reaching[:, 1:]
        return pmf

    @cached_property
    def mean_batch_size(self) -> Array:
        """Mean size of a batch, by largest batch: (max_batch_size,)."""
        return np.asarray(self.batch_size_pmf @ np.arange(1, self.max_batch_size + 1))

    def fraction_within(self, response: Array, levels: Array, times: Array) -> Array:
        """Probability, under the largest batch, that wait and response time of a request are together at most ``times``.

        Parameters
        ----------
        response : array, shape (max_batch_size, n_levels)
            Quantile functions (s) at ``levels`` of the response times of batches of 1, 2, ...
        levels : array, shape (n_levels,)
            Ascending from 0 to 1; alone where responses are deterministic.
        times : array, shape (n_times,)
            Seconds.
        """
        expected = self._pieces.within(response, levels, times)
        return np.asarray(np.clip(expected / self.mean_batch_size[-1], 0.0, 1.0))

    @cached_property
    def _pieces(self) -> WaitPieces:
        """Two for a hold: what it ends, ``E_n - L_n`` at ``hold[n]``, and who is in time for it, ``L_{n+1}`` at ``hold[n]``."""
        opening, counts = self._openings[-1], self._at_holds.sum(axis=-1)
        pieces: list[WaitPiece] = []
        if self.max_batch_size == 1:
            pieces.append(WaitPiece(1, 0.0, 0.0, 0.0, np.zeros(1), 1.0))
        for n, hold in enumerate(self.holds.tolist(), 1):
            early, late, fuller = self._inside(n, hold)
            exactly, reach = float(opening @ counts[n - 1, n - 1]), float(opening @ self._reaching[n])
            missed = reach + exactly if n > 1 else 0.0  # n - 1 arrivals within hold[n]
            ended = WaitPiece(n, 0.0, hold, -missed, early - late, n * (exactly - missed))
            if pieces and pieces[-1].end == hold:  # who reaches n in time for one hold has that of the next ahead: all but nobody
                before = pieces.pop()
                series, beyond = before.series + ended.series, before.beyond + ended.beyond
                ended = WaitPiece(n, 0.0, hold, before.jump + ended.jump, series, beyond)
            pieces += [ended, WaitPiece(n + 1, 0.0, hold, reach, fuller, (n + 1) * reach)]
        return WaitPieces.of(pieces)

    def _inside(self, n: int, hold: float) -> tuple[Array, Array, Array]:
        """Chebyshev series over (0, ``hold``) of ``E_n``, ``L_n`` and ``L_{n+1}`` at that timeout, without the jumps at 0."""
        if hold == 0:
            return np.zeros(1), np.zeros(1), np.zeros(1)
        last = self._last(hold)
        where = (1 - np.cos(np.pi * np.arange(last + 1) / last)) * hold / self.longest - 1
        values = np.tensordot(chebvander(where, len(self._series) - 1), self._series[..., : n + 1, :], 1)
        here, passed, exactly = values.swapaxes(0, 1)
        here, passed = here[::-1], passed[::-1]  # from the points w to T - w, their mirror image
        at_least = np.clip(1 - np.cumsum(exactly, axis=1) + exactly, 0.0, None)
        members = np.arange(1, n + 1)
        inside = np.zeros((last + 1, 3))
        inside[:, 0] = (here[:, :n] * exactly[:, n - 1 :: -1]).sum(axis=-1) @ (n - members)
        for column, size in ((1, n), (2, n + 1))[n == 1 :]:  # who opens a batch of one fills it as well
            i = np.arange(1, size)
            inside[:, column] = at_least[:, size - 1] @ self._opening_phases + (
                (here[:, i - 1] * at_least[:, size - i]).sum(axis=-1) @ (size - 1 - i)
                + (passed[:, i[:-1] - 1] * at_least[:, size - 1 - i[:-1]]).sum(axis=(1, 2))
            )
        return tuple((series_through(last) @ inside).T)

    @property
    def _opening_phases(self) -> Array:
        """Phase probabilities when a batch opens under the largest batch, (n_phases,)."""
        phases = np.zeros(self.arrivals.n_phases)
        phases[self._counting.rows] = self._openings[-1]
        return phases

    def _last(self, time: float) -> int:
        """Degree of a Chebyshev series over (0, ``time``) that has eight digits and more, as in ``SizeOrTimeout``."""
        return int(24 + 6 * np.sqrt(self._counting.rate * time))

    @cached_property
    def _series(self) -> Array:
        """Chebyshev series over (0, longest hold), from the opening: (n_terms, 3, max_batch_size, n_phases).

        Of the phase with ``k`` arrivals in ``t``, of that at the next one by ``t``, and, by phase, of ``k`` arrivals in ``t``.
        """
        last, b = self._last(self.longest), self.max_batch_size
        nodes = self.longest / 2 * (1 - np.cos(np.pi * np.arange(last + 1) / last))
        here = self._counting.matrices(nodes)
        passed = self._counting.integrals(here)[:, :b] @ self.arrivals.D1
        opening = self._openings[-1]
        of_opening = [np.tensordot(matrices, opening, ((2,), (0,))) for matrices in (here[:, :b], passed)]
        values = np.stack([*of_opening, self._counting.probabilities(nodes)[:, :b]], axis=1)
        return np.tensordot(series_through(last), values, 1)
