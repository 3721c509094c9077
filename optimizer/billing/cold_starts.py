"""How many invocations start cold, from how requests come, how they are batched and how long an environment is kept (3.2).

An environment is kept for ``keep_alive`` seconds after its last use, and the one last used is used first. So an invocation that
finds ``k`` others under way starts cold where for longer than that no more than ``k`` were. With invocations from a MAP (D0, D1)
and exponential times of rate ``m`` the number under way is a quasi-birth-death process: ``x_k`` are its stationary phases with
``k`` under way, ``G_k(s)`` the transform of the time until ``k`` become ``k + 1``, by phase at the end,

    G_k(s) = [s I + k m I - D0 - k m G_{k-1}(s)]^-1 D1,

and the cold ones per second, by phase, that find ``k`` under way

    c_k = (k + 1) m x_{k+1} L^-1[ (G_k(0) - G_k(s)) / s ](keep_alive),

inverted by the Euler method (Abate, Whitt, A unified framework, INFORMS J. Computing 18 (2006)). While an environment starts, for
``init`` seconds, the ``k`` that are warm serve alone, and whom they lose starts cold as well: Erlang's loss B_k at the load of each
phase, over the phases of these seconds. Those who would find ``k + 1`` busy, too, are counted with c_{k+1}: so beside one of c_k
are those whom B_k - B_{k+1} loses.

Batches leave as if a request opened one with a probability that depends on its phase, one over the mean size of the batches that
it opens, being held for an exponential time that gives the mean size of all. A batch that was held for longer than the one before
takes finds none under way; one that must first gather ``n`` finds one only if ``n`` come while that runs (Chernoff's bound, for the
largest of all, or of all but a few: whichever tells more), and where that is less often than it is taken to be, so is all. Who
comes in a burst is in a large batch, and these find others under way: of the requests more start cold than of the batches.

A share costs milliseconds, so that it is interpolated between times and numbers of requests an invocation (``_REQUESTS``,
``_SECONDS``), its logarithm linearly in the rate of invocations and in their time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from math import ceil, inf, log, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.under_way import by_level, lost, lost_by_level, seen

KEEP_ALIVE = 300.0  # s; AWS promises none, and what was measured publicly lies between 5 and 60 minutes
SHORTEST = 1e-6  # s of an invocation, where the profile has none
MOST_PROVISIONED = 100
_LEAST = 1e-18  # share of cold starts
_SELDOM = (1e-6, 1e-3)  # shares of the batches that may be larger than what the others are told apart by
_MANY = 1e3  # requests that come while an environment is kept, of which one invokes: all of these are cold
_REQUESTS, _SECONDS = 2**0.25, 2.0  # steps of the interpolation
_TERMS = 14  # of a series in a step of 1/4, which is then exact to rounding


class Share(NamedTuple):
    """A share of the batches, and that of the requests that are in these."""

    batches: float
    requests: float


NONE_COLD = Share(0.0, 0.0)


class Shares(NamedTuple):
    """The same of several; arrays of one shape."""

    batches: Array
    requests: Array


def largest_but_for_few(batch_size_pmf: Array) -> list[Indices]:
    """The largest batch size, (...), of all batches but a few, for each of some shares that these may have; pmf (..., n_sizes)."""
    beyond = 1 - np.cumsum(batch_size_pmf, axis=-1)
    return [np.asarray(np.argmax(beyond <= seldom, axis=-1) + 1) for seldom in _SELDOM]


def held_longer(largest: Indices, holds: Array, busy: Array) -> NDArray[np.bool_]:
    """Which sizes are held for as long as a batch takes of at most each of the ``largest`` sizes, (n,): (n, n_sizes)."""
    held = np.append(holds, 0.0) >= np.maximum.accumulate(busy)[largest - 1][:, None]
    return held & (np.arange(1, held.shape[1] + 1) < largest[:, None])


def finds_none(pmf: Array, holds: Array, busy: Array) -> Array:
    """How probable it is that a batch of each size was held for longer than the one before takes; as the pmf, (..., n_sizes).

    The largest of each is not held.
    """
    shorter = np.searchsorted(np.maximum.accumulate(busy), np.append(holds, 0.0), side="right")
    beyond = np.cumsum(pmf[..., ::-1], axis=-1)[..., ::-1]
    none = np.zeros((*pmf.shape[:-1], 1))
    found = np.concatenate([none, np.cumsum(pmf, axis=-1)], axis=-1)[..., shorter]
    return np.where(np.concatenate([beyond[..., 1:], none], axis=-1) > 0, found, 0.0)


def shares(pmf: Array, among: Array) -> Shares:
    """Of batches of these sizes those that are among them with these probabilities, both (..., n_sizes)."""
    of_requests = pmf * np.arange(1, pmf.shape[-1] + 1)
    return Shares(*((of * among).sum(axis=-1) / of.sum(axis=-1) for of in (pmf, of_requests)))


class ColdStarts:
    """Which share of the batches of one arrival process, and of its requests, starts cold at an elastic function.

    Parameters
    ----------
    arrivals : ArrivalProcess
        Of the requests.
    keep_alive : float
        Seconds that an unused environment is kept.
    understated : float
        By how much more batches start cold that find others under way than is estimated, as a run has shown.
    """

    def __init__(self, arrivals: ArrivalProcess, keep_alive: float = KEEP_ALIVE, understated: float = 1.0) -> None:
        require(keep_alive >= 0, "keep_alive", keep_alive, "seconds >= 0")
        self.arrivals, self.keep_alive, self._understated = arrivals, keep_alive, understated
        self._gathered = np.zeros((len(self._bounds), 1))  # logarithm of E exp(-bound * time until 0, 1, ... have come)
        self._ahead = np.ones((len(self._bounds), arrivals.n_phases))  # the same by phase, but for a factor
        self._factor = np.zeros(len(self._bounds))  # its logarithm
        self._batches: Callable[[int], ArrivalProcess] = cache(lambda at: in_batches(arrivals, _REQUESTS**at))
        self._levels: Callable[[int, int], Array] = cache(lambda at, busy: by_level(self._batches(at), _SECONDS**busy, keep_alive))
        self._corner: Callable[[int, int, float], Array] = cache(self._at_corner)

    def of_batches(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> Shares:
        """Which start cold under a table that takes all who wait.

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
        Shares
            Of shape (...).
        """
        pmf = np.atleast_2d(batch_size_pmf)
        largest = pmf.shape[1] - np.argmax(pmf[:, ::-1] > 0, axis=1)
        asked = pmf @ np.arange(1, pmf.shape[1] + 1), pmf @ busy, shares(pmf, finds_none(pmf, holds, busy))
        # The batch before is hardly ever larger than some, whatever a table allows.
        each = [self.of_invocations(*asked, *of, init) for of in self._gathered_by(largest, pmf, holds, busy)]
        return Shares(*np.min(each, axis=0).reshape(2, *np.shape(batch_size_pmf)[:-1]))

    def of_table(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> Share:
        """The same of one table."""
        return Share(*map(float, self.of_batches(batch_size_pmf, holds, busy, init)))

    def _gathered_by(self, largest: Indices, pmf: Array, holds: Array, busy: Array) -> list[tuple[Indices, Array]]:
        """Requests that a batch waits for which is not held for longer than the one before, (n,), and how long that takes at most.

        By how large that one may be.
        """
        each = (largest, *(np.minimum(usual, largest) for usual in largest_but_for_few(pmf)))
        longest = np.maximum.accumulate(busy)
        return [(np.minimum(np.argmin(held_longer(of, holds, busy), axis=1) + 1, of), longest[of - 1]) for of in each]

    def of_invocations(self, requests: Array, busy: Array, apart: Shares, gathered: Indices, longest: Array, init: float) -> Shares:
        """The same of invocations: all arrays of the same shape (n,), as is what is returned.

        Parameters
        ----------
        requests : array
            Mean number of requests that come from one invocation to the next, at least 1.
        busy : array
            Mean seconds of an invocation.
        apart : Shares
            Of those that surely find none under way.
        gathered : array of int
            Requests that each of the others waits for.
        longest : array
            Seconds that the one before takes at most.
        """
        if self.keep_alive == 0 or np.isinf(self.keep_alive):
            return Shares(*np.full((2, len(requests)), float(self.keep_alive == 0)))
        most = max(1.0, _MANY * self.arrivals.arrival_rate * self.keep_alive)
        requests, busy = np.clip(requests, 1.0, most), np.maximum(busy, SHORTEST)
        alone, beside, usual = self._interpolated(requests, busy, init)
        meet = np.where(gathered > 1, self._gather(gathered, longest), 1.0)
        beside = beside * np.minimum(1.0, meet / np.maximum(beside[0], usual)) * np.where(requests > 1, self._understated, 1.0)
        # Who is beside another is in a full batch: those are the more of all the larger, and all of them in a burst.
        batches = np.minimum(beside[0], (1 - apart.batches) * beside[1])
        return Shares(*np.minimum(alone + np.array([batches, (1 - apart.requests) * beside[1]]), 1.0))

    def beyond_provisioned(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> tuple[Array, Shares]:
        """Share of the batches that 0, 1, ... environments which are always there leave to others, and who starts cold.

        Arguments as in ``of_batches``, of one table; all are of shape (n,), and the first entry of the second is what it says. They
        end where next to nothing is left, or with the first entry where more than ``MOST_PROVISIONED`` may be under way.
        """
        sizes = np.arange(1, len(batch_size_pmf) + 1)
        requests, mean = float(batch_size_pmf @ sizes), max(float(batch_size_pmf @ busy), SHORTEST)
        batches, none = in_batches(self.arrivals, requests), self.of_batches(batch_size_pmf, holds, busy, init)
        levels = by_level(batches, mean, self.keep_alive)
        if len(levels) > MOST_PROVISIONED:
            return np.ones(1), Shares(*np.reshape(none, (2, 1)))
        cold = _with_starts(levels, self.arrivals, batches, mean, init)
        beyond = np.maximum(cold.sum(axis=1, keepdims=True) - np.cumsum(cold, axis=1), 0.0)
        left = np.array([lost(batches, mean, n) for n in range(1, len(levels) + 1)])
        usual = max(_LEAST, _meet(batches, mean))
        found, pmf = [], batch_size_pmf[None]
        others = 1 - np.array(shares(batch_size_pmf, finds_none(batch_size_pmf, holds, busy)))[:, None]
        for gathered, longest in self._gathered_by(np.array([len(batch_size_pmf)]), pmf, holds, busy):
            meet = float(self._gather(gathered, longest)[0]) if gathered[0] > 1 else 1.0
            of_left = others[0] * np.clip(left, 0, meet)
            found.append([of_left, *(others * beyond * np.minimum(1.0, meet / np.maximum(beyond[0], usual)))])
        left, *after = np.minimum(np.min(found, axis=0) * [[1.0], *2 * [[self._understated if requests > 1 else 1.0]]], 1.0)
        return np.append(1.0, left), Shares(*(np.append(float(of), more) for of, more in zip(none, after, strict=True)))

    def _interpolated(self, requests: Array, busy: Array, init: float) -> tuple[Array, Array, Array]:
        """Of the cold the shares (2, n), of batches and requests, of those who find none under way, and of those who find some.

        Last, (n,), with which probability a batch meets another as batches are taken to open, where most do.
        """
        at = np.floor(np.log(requests) / log(_REQUESTS) + 1e-9).astype(int)
        on = np.floor(np.log(busy) / log(_SECONDS) + 1e-9).astype(int)
        few, short = _REQUESTS**at, _SECONDS**on
        right = np.clip((1 / few - 1 / requests) / (1 / few - 1 / (few * _REQUESTS)), 0, 1)
        up = np.clip((busy - short) / (short * (_SECONDS - 1)), 0, 1)
        found, nothing = np.zeros((5, len(requests))), np.zeros(5)
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            weight = (right if i else 1 - right) * (up if j else 1 - up)
            weighed = zip((at + i).tolist(), (on + j).tolist(), weight.tolist(), strict=True)
            corners = [self._corner(row, column, init) if part > 0 else nothing for row, column, part in weighed]
            found += weight * np.array(corners).T
        shares = np.exp(found)
        return shares[:2], shares[2:4], shares[4]

    def _at_corner(self, at: int, on: int, init: float) -> Array:
        """The logarithms of all five at one corner of the grid."""
        cold = _with_starts(self._levels(at, on), self.arrivals, self._batches(at), _SECONDS**on, init)
        return np.log(np.maximum([*cold[:, 0], *cold[:, 1:].sum(axis=1), _meet(self._batches(at), _SECONDS**on)], _LEAST))

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
    return min(1.0, float(_with_starts(cold, invocations, invocations, busy_duration, init_duration)[0].sum()))


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


def _meet(batches: ArrivalProcess, busy: float) -> float:
    """How probable it is in the phase with most batches that one finds the only environment busy."""
    return float(lost_by_level(batches, busy, 1)[1].max())


def _with_starts(levels: Array, arrivals: ArrivalProcess, batches: ArrivalProcess, busy: float, init: float) -> Array:
    """Shares of batches and requests that are cold, (2, n_levels), by how many they find, with those while environments start."""
    rates, opened = np.array([batches.D1.sum(axis=1), arrivals.D1.sum(axis=1)]), batches.D1.sum(axis=0)
    sizes = np.divide(arrivals.D1.sum(axis=0), opened, out=np.ones(len(opened)), where=opened > 0)
    of_all = np.array([1.0, arrivals.arrival_rate / batches.arrival_rate])[:, None]  # requests a batch
    found = np.array([levels.sum(axis=1), levels @ sizes])
    if init > 0:
        blocked = -np.diff(lost_by_level(batches, busy, len(levels)), axis=0)
        spent = _time_in(arrivals, init)
        found += np.array([np.einsum("kj,ji,ki->k", levels, spent, blocked * rate) for rate in rates])
    return np.asarray(found / of_all)


@lru_cache(maxsize=64)
def _time_in(arrivals: ArrivalProcess, seconds: float) -> Array:
    """Mean time in every phase within so many seconds, by phase at their beginning: (n_phases, n_phases).

    By doubling: within 2t it is that within t, and as much again from the phase that is then reached. A library's exponential of so
    small a matrix takes three hundred times as long where it runs on several cores.
    """
    generator = arrivals.D0 + arrivals.D1
    doublings = max(0, ceil(log2(max(seconds * float(-generator.diagonal().min()), 1e-300))) + 2)
    step = generator * (seconds / 2**doublings)
    reached, integral, power = np.eye(len(step)), np.zeros_like(generator), np.eye(len(step))
    for k in range(1, _TERMS):
        integral += power / k
        power = power @ step / k
        reached += power
    spent = seconds / 2**doublings * integral
    for _ in range(doublings):
        spent, reached = spent + reached @ spent, reached @ reached
    return np.asarray(spent)
