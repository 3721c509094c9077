"""How many invocations start cold, from how requests come, how they are batched and how long an environment is kept (3.2).

An environment is kept for ``keep_alive`` seconds after its last use, and the one last used is used first. So an invocation that
finds ``k`` others under way starts cold where for longer than that no more than ``k`` were. With invocations from a MAP (D0, D1)
and exponential times of rate ``m`` the number under way is a quasi-birth-death process: ``x_k`` are its stationary phases with
``k`` under way, ``G_k(s)`` the transform of the time until ``k`` become ``k + 1``, by phase at the end,

    G_k(s) = [s I + k m I - D0 - k m G_{k-1}(s)]^-1 D1,

and the cold ones per second, by phase, that find ``k`` under way

    c_k = (k + 1) m x_{k+1} L^-1[ (G_k(0) - G_k(s)) / s ](keep_alive),

inverted by the Euler method (Abate, Whitt, A unified framework, INFORMS J. Computing 18 (2006)). While the first environment
starts, for ``init`` seconds, whoever comes finds it under way as well: those expected to come, by phase, less what ``k`` that are
warm serve meanwhile, start cold beside it.

Batches leave as if a request opened one with a probability that depends on its phase, one over the mean size of the batches that
it opens, being held for an exponential time that gives the mean size of all. A batch that was held for as long as the largest batch
takes (of all; or of all but a few, where none of these few was the one before: whichever tells more)
finds none under way; one that must first gather ``n`` finds one only if ``n`` come while that runs (Chernoff's bound).

A share costs milliseconds, so that it is interpolated between times and numbers of requests an invocation (``_REQUESTS``,
``_SECONDS``), its logarithm linearly in the rate of invocations and in their time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from math import ceil, inf, log, log2

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.under_way import by_level, lost, seen

KEEP_ALIVE = 300.0  # s; AWS promises none, and what was measured publicly lies between 5 and 60 minutes
SHORTEST = 1e-6  # s of an invocation, where the profile has none
MOST_PROVISIONED = 100
_LEAST = 1e-18  # share of cold starts
_SELDOM = (1e-6, 1e-3)  # shares of the batches that may be larger than what the others are told apart by
_MANY = 1e3  # requests that come while an environment is kept, of which one invokes: all of these are cold
_REQUESTS, _SECONDS = 2**0.25, 2.0  # steps of the interpolation
_TERMS = 14  # of a series in a step of 1/4, which is then exact to rounding


def largest_but_for_few(batch_size_pmf: Array) -> list[Indices]:
    """The largest batch size, (...), of all batches but a few, for each of some shares that these may have; pmf (..., n_sizes)."""
    beyond = 1 - np.cumsum(batch_size_pmf, axis=-1)
    return [np.asarray(np.argmax(beyond <= seldom, axis=-1) + 1) for seldom in _SELDOM]


def long_held(largest: Indices, pmf: Array, holds: Array, busy: Array) -> tuple[NDArray[np.bool_], Array]:
    """Which sizes are held for as long as one of the ``largest`` (n,) takes, (n, n_sizes), and how often none is larger, (n,).

    Who is held so long finds none under way, but where the batch before was larger still; pmf (n, n_sizes) or (n_sizes,).
    """
    sizes = np.arange(1, pmf.shape[-1] + 1)
    held = np.append(holds, 0.0) >= np.maximum.accumulate(busy)[largest - 1][:, None]
    return held & (sizes < largest[:, None]), (pmf * (sizes <= largest[:, None])).sum(axis=1)


def _apart(largest: Indices, pmf: Array, holds: Array, busy: Array) -> tuple[Array, Indices]:
    """Share of the batches that surely find none under way, (n,), and requests that each of the others waits for, (n,)."""
    held, no_larger = long_held(largest, pmf, holds, busy)
    return (pmf * held).sum(axis=1) * no_larger, np.minimum(np.argmin(held, axis=1) + 1, largest)


class ColdStarts:
    """The share of the batches of one arrival process that start cold at an elastic function.

    Parameters
    ----------
    arrivals : ArrivalProcess
        Of the requests.
    keep_alive : float
        Seconds that an unused environment is kept.
    """

    def __init__(self, arrivals: ArrivalProcess, keep_alive: float = KEEP_ALIVE) -> None:
        require(keep_alive >= 0, "keep_alive", keep_alive, "seconds >= 0")
        self.arrivals, self.keep_alive = arrivals, keep_alive
        self._gathered = np.zeros((len(self._bounds), 1))  # logarithm of E exp(-bound * time until 0, 1, ... have come)
        self._ahead = np.ones((len(self._bounds), arrivals.n_phases))  # the same by phase, but for a factor
        self._factor = np.zeros(len(self._bounds))  # its logarithm
        self._batches: Callable[[int], ArrivalProcess] = cache(lambda at: in_batches(arrivals, _REQUESTS**at))
        self._levels: Callable[[int, int], Array] = cache(lambda at, busy: by_level(self._batches(at), _SECONDS**busy, keep_alive))
        self._corner: Callable[[int, int, float], tuple[float, float]] = cache(self._at_corner)

    def of_batches(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> Array:
        """The share of the batches that start cold under a table that takes all who wait.

        Parameters
        ----------
        batch_size_pmf : array, shape (..., max_batch_size)
            Of tables with a largest batch each, which has the last probability that is not 0, or of one.
        holds : array, shape (max_batch_size - 1,)
            Seconds that 1, 2, ... wait for one more.
        busy : array, shape (max_batch_size,)
            Mean seconds of a batch of 1, 2, ...
        init : float
            Seconds of INIT.

        Returns
        -------
        share : array, shape (...)
        """
        pmf = np.atleast_2d(batch_size_pmf)
        largest = pmf.shape[1] - np.argmax(pmf[:, ::-1] > 0, axis=1)
        share = self._where_largest(largest, pmf, holds, busy, init)
        for usual in largest_but_for_few(pmf):  # the batch before is hardly ever larger, whatever a table allows
            other = usual < largest
            if other.any():
                found = self._where_largest(usual[other], pmf[other], holds, busy, init)
                share[other] = np.minimum(share[other], found)
        return np.asarray(share.reshape(np.shape(batch_size_pmf)[:-1]))

    def _where_largest(self, largest: Indices, pmf: Array, holds: Array, busy: Array, init: float) -> Array:
        """The share, (n,), by what ``_apart`` tells of these largest batch sizes, (n,)."""
        apart, gathered = _apart(largest, pmf, holds, busy)
        return self.of_invocations(pmf @ np.arange(1, pmf.shape[1] + 1), pmf @ busy, apart, gathered, init)

    def of_invocations(self, requests: Array, busy: Array, apart: Array, gathered: Indices, init: float) -> Array:
        """The same of invocations: all arrays of the same shape (n,), as is what is returned.

        Parameters
        ----------
        requests : array
            Mean number of requests that come from one invocation to the next, at least 1.
        busy : array
            Mean seconds of an invocation.
        apart : array
            Share of them that surely find none under way.
        gathered : array of int
            Requests that each of the others waits for.
        """
        if self.keep_alive == 0 or np.isinf(self.keep_alive):
            return np.full(len(requests), float(self.keep_alive == 0))
        most = max(1.0, _MANY * self.arrivals.arrival_rate * self.keep_alive)
        requests, busy = np.clip(requests, 1.0, most), np.maximum(busy, SHORTEST)
        alone, together = self._interpolated(requests, busy, init)
        beside = np.where(gathered > 1, np.minimum(together, self._gather(gathered, busy)), together)
        return np.minimum(alone + (1 - apart) * beside, 1.0)

    def beyond_provisioned(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> tuple[Array, Array]:
        """Share of the batches that 0, 1, ... environments which are always there leave to others, and of the cold ones.

        Arguments as in ``of_batches``, of one table; both are of shape (n,), and the first entry of the second is its share. They
        end where next to nothing is left, or with the first entry where more than ``MOST_PROVISIONED`` may be under way.
        """
        sizes = np.arange(1, len(batch_size_pmf) + 1)
        requests, mean = float(batch_size_pmf @ sizes), max(float(batch_size_pmf @ busy), SHORTEST)
        batches, none = in_batches(self.arrivals, requests), self.of_batches(batch_size_pmf, holds, busy, init)
        levels = by_level(batches, mean, self.keep_alive)
        if len(levels) > MOST_PROVISIONED:
            return np.ones(1), np.array([float(none)])
        cold = _with_starts(levels, batches, mean, init)
        after = np.array([lost(batches, mean, n) for n in range(1, len(cold) + 1)]), cold.sum() - np.cumsum(cold)
        found = []
        for largest in {len(batch_size_pmf), *map(int, largest_but_for_few(batch_size_pmf))}:
            apart, gathered = (of.item() for of in _apart(np.array([largest]), batch_size_pmf[None], holds, busy))
            bound = float(self._gather(np.array([gathered]), np.array([mean]))[0]) if gathered > 1 else 1.0
            found.append([(1 - apart) * np.clip(of, 0, bound) for of in after])
        left, cold_left = np.min(found, axis=0)
        return np.append(1.0, left), np.append(float(none), cold_left)

    def _interpolated(self, requests: Array, busy: Array, init: float) -> tuple[Array, Array]:
        """Shares of the invocations that are cold and find none under way, and of those that find some."""
        at = np.floor(np.log(requests) / log(_REQUESTS) + 1e-9).astype(int)
        on = np.floor(np.log(busy) / log(_SECONDS) + 1e-9).astype(int)
        few, short = _REQUESTS**at, _SECONDS**on
        right = np.clip((1 / few - 1 / requests) / (1 / few - 1 / (few * _REQUESTS)), 0, 1)
        up = np.clip((busy - short) / (short * (_SECONDS - 1)), 0, 1)
        found = np.zeros((2, len(requests)))
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            weight = (right if i else 1 - right) * (up if j else 1 - up)
            weighed = zip((at + i).tolist(), (on + j).tolist(), weight.tolist(), strict=True)
            corners = [self._corner(row, column, init) if part > 0 else (0.0, 0.0) for row, column, part in weighed]
            found += weight * np.array(corners).T
        return np.exp(found[0]), np.exp(found[1])

    def _at_corner(self, at: int, on: int, init: float) -> tuple[float, float]:
        """The logarithms of both at one corner of the grid."""
        cold = _with_starts(self._levels(at, on), self._batches(at), _SECONDS**on, init)
        return log(max(float(cold[:1].sum()), _LEAST)), log(max(float(cold[1:].sum()), _LEAST))

    def _gather(self, gathered: Indices, busy: Array) -> Array:
        """At most the probability that so many requests come within ``busy`` seconds."""
        while self._gathered.shape[1] <= gathered.max():
            ahead = np.einsum("xij,xj->xi", self._one_more, self._ahead)
            scale = ahead.max(axis=1)  # else a power of a hundred is less than a number holds
            self._ahead, self._factor = ahead / scale[:, None], self._factor + np.log(scale)
            share = np.log(np.maximum(self._ahead @ self.arrivals.embedded, 1e-300))
            self._gathered = np.column_stack([self._gathered, self._factor + share])
        bound = self._bounds[:, None] * busy + self._gathered[:, gathered]
        return np.asarray(np.exp(np.minimum(bound.min(axis=0), 0.0)))

    @cached_property
    def _bounds(self) -> Array:
        """1/s, at which Chernoff's bound is taken."""
        return np.asarray(self.arrivals.arrival_rate * np.geomspace(0.1, 1e4, 30))

    @cached_property
    def _one_more(self) -> Array:
        """E exp(-bound * time until the next), by phase before and after it: (n_bounds, n_phases, n_phases)."""
        ending = self._bounds[:, None, None] * np.eye(self.arrivals.n_phases)
        return np.asarray(np.linalg.solve(ending - self.arrivals.D0, np.broadcast_to(self.arrivals.D1, ending.shape)))


def cold_start_probability(
    invocations: ArrivalProcess, busy_duration: float, keep_alive: float = KEEP_ALIVE, init_duration: float = 0.0
) -> float:
    """Probability that an invocation starts cold, where all come from a MAP; exact for exponential times and no INIT.

    Parameters
    ----------
    busy_duration : float
        Mean seconds of an invocation.
    keep_alive : float
        Seconds that an unused environment is kept.
    init_duration : float
        Seconds that a cold start takes longer.
    """
    require(0 < busy_duration < inf, "busy_duration", busy_duration, "seconds > 0")
    require(0 < keep_alive < inf, "keep_alive", keep_alive, "seconds > 0")
    cold = by_level(invocations, busy_duration, keep_alive)
    return min(1.0, float(_with_starts(cold, invocations, busy_duration, init_duration).sum()))


def in_batches(arrivals: ArrivalProcess, requests: float) -> ArrivalProcess:
    """The arrivals that open batches of ``requests`` in the mean, each held for an exponential time."""
    if requests <= 1:
        return arrivals
    flow, rate = arrivals.stationary @ arrivals.D1, arrivals.arrival_rate / requests
    high = 2 * requests / arrivals.arrival_rate  # of the seconds held
    while float((flow / (1 + seen(arrivals, high))).sum()) > rate:
        high *= 2
    low = 0.0
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if float((flow / (1 + seen(arrivals, middle))).sum()) > rate else (low, middle)
    opening = arrivals.D1 / (1 + seen(arrivals, high))
    return ArrivalProcess(arrivals.D0 + arrivals.D1 - opening, opening)


def _with_starts(levels: Array, invocations: ArrivalProcess, busy: float, init: float) -> Array:
    """Share of the cold by how many they find under way, with those that come while an environment starts: (n_levels,)."""
    if init > 0:
        coming = _coming(invocations, init)
        levels = levels * (1 + np.maximum(0.0, coming - np.arange(len(levels))[:, None] * init / busy))
    return np.asarray(levels.sum(axis=1))


@lru_cache(maxsize=256)
def _coming(arrivals: ArrivalProcess, seconds: float) -> Array:
    """Mean number of arrivals within so many seconds, by phase at their beginning: (n_phases,).

    By doubling: within 2t come those within t, and as many again from the phase that is then reached. A library's exponential of so
    small a matrix takes three hundred times as long where it runs on several cores.
    """
    generator, flow = arrivals.D0 + arrivals.D1, arrivals.D1.sum(axis=1)
    doublings = max(0, ceil(log2(max(seconds * float(-generator.diagonal().min()), 1e-300))) + 2)
    step = generator * (seconds / 2**doublings)
    reached, integral, power = np.eye(len(flow)), np.zeros_like(generator), np.eye(len(flow))
    for k in range(1, _TERMS):
        integral += power / k
        power = power @ step / k
        reached += power
    coming = seconds / 2**doublings * integral @ flow
    for _ in range(doublings):
        coming, reached = coming + reached @ coming, reached @ reached
    return np.asarray(coming)
