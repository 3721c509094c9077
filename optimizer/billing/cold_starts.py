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

Batches open as ``opened_batches`` has it. One that was held for longer than the one before takes finds none under way; one that
must first gather ``n`` finds one only if ``n`` come while that runs (Chernoff's bound, for the largest of all, or of all but a few:
whichever tells more). So many are taken to come while others are under way that no more find one. Who comes in a burst is in a
large batch, and these find others: of the requests more start cold than of the batches.

A share costs milliseconds, so that it is interpolated between times, numbers of requests an invocation and parts that come beside
others (``_SECONDS``, ``_REQUESTS``, ``_PARTS``), its logarithm linearly in the rate of invocations, and in the logarithms of the
time and of the part; between them it is a tenth off at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache
from math import ceil, inf, log, log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.opened_batches import OpenedBatches
from sluice.optimizer.billing.under_way import by_level, lost, lost_by_level

KEEP_ALIVE = 300.0  # s; AWS promises none, and what was measured publicly lies between 5 and 60 minutes
SHORTEST = 1e-6  # s of an invocation, where the profile has none
MOST_PROVISIONED = 100
_KEPT = (1e-6, 1e9)  # s, as good as not at all, and as for ever
_LEAST = 1e-18  # share of cold starts
_SELDOM = (1e-6, 1e-3)  # shares of the batches that may be larger than what the others are told apart by
_MANY = 1e3  # requests that come while an environment is kept, of which one invokes: all of these are cold
_REQUESTS, _SECONDS = 2**0.25, 2**0.5  # steps of the interpolation
_PARTS = 4.0  # the same of the part of the batches that come beside others
_DEPTHS = np.arange(0.0, 13.0)
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


class Invocations(NamedTuple):
    """What is known of invocations before it is known which start cold; arrays of one shape, (n,).

    Attributes
    ----------
    requests
        Mean number of requests that come from one invocation to the next, at least 1.
    busy
        Mean seconds of an invocation.
    largest
        Requests of the largest batch over those of the mean one.
    apart, apart_requests
        The share of the batches that surely find none under way, and of the requests.
    meet
        At most the share of the batches that find others.
    init
        Seconds of INIT.
    """

    requests: Array
    busy: Array
    largest: Array
    apart: Array
    apart_requests: Array
    meet: Array
    init: Array

    @classmethod
    def all_of(cls, several: Sequence[Invocations]) -> Invocations:
        """Those of the first, of the second and so on, (n,)."""
        return cls(*map(np.concatenate, zip(*several, strict=True)))


def largest_but_for_few(batch_size_pmf: Array) -> list[Indices]:
    """The largest batch size, (...), of all batches but a few, for each of some shares that these may have; pmf (..., n_sizes)."""
    beyond = 1 - np.cumsum(batch_size_pmf, axis=-1)
    return [np.asarray(np.argmax(beyond <= seldom, axis=-1) + 1) for seldom in _SELDOM]


def _held_longer(largest: Indices, holds: Array, busy: Array) -> NDArray[np.bool_]:
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
    return Shares(*(np.minimum((of * among).sum(axis=-1) / of.sum(axis=-1), 1.0) for of in (pmf, of_requests)))


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
        self._batches: Callable[[int], OpenedBatches] = cache(lambda at: OpenedBatches(arrivals, _REQUESTS**at))
        self._meets: Callable[[int, int], Array] = cache(lambda at, on: _meets(self._batches(at), _SECONDS**on))
        self._levels: Callable[[int, int, int], Array] = cache(self._by_level)
        self._corner: Callable[[int, int, int, float], Array] = cache(self._at_corner)

    def of_batches(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> Shares:
        """Which start cold under a table that takes all who wait; arguments as ``invocations`` has them, shape (...)."""
        found = self.of_invocations(self.invocations(batch_size_pmf, holds, busy, init))
        return Shares(*np.reshape(found, (2, *np.shape(batch_size_pmf)[:-1])))

    def invocations(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> Invocations:
        """Those of a table that takes all who wait.

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
        """
        pmf = np.atleast_2d(batch_size_pmf)
        largest = pmf.shape[1] - np.argmax(pmf[:, ::-1] > 0, axis=1)
        requests = pmf @ np.arange(1, pmf.shape[1] + 1)
        apart = shares(pmf, finds_none(pmf, holds, busy))
        meet = (1 - apart.batches) * self.fill_in_time(largest, pmf, holds, busy)
        return Invocations(requests, pmf @ busy, largest / requests, *apart, meet, np.full(len(pmf), init))

    def of_table(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> Share:
        """The same of one table."""
        return Share(*map(float, self.of_batches(batch_size_pmf, holds, busy, init)))

    def fill_in_time(self, largest: Indices, pmf: Array, holds: Array, busy: Array, own: NDArray[np.bool_] | bool = True) -> Array:
        """At most the share of the batches, (n,), which who come in time for fill that the one before is still under way.

        Of ``own`` sizes, (n_sizes,).
        """
        longest, found = np.maximum.accumulate(busy), np.ones(len(pmf))
        for of in (largest, *(np.minimum(usual, largest) for usual in largest_but_for_few(pmf))):
            gathered = np.argmax(own & ~_held_longer(of, holds, busy), axis=1) + 1
            found = np.minimum(found, self._come_within(gathered, longest[of - 1]))
        return found

    def of_invocations(self, of: Invocations) -> Shares:
        """The same of invocations, (n,); much quicker of many at once."""
        if self.keep_alive == 0 or np.isinf(self.keep_alive):
            return Shares(*np.full((2, len(of.requests)), float(self.keep_alive == 0)))
        most = max(1.0, _MANY * self.arrivals.arrival_rate * self.keep_alive)
        requests, busy = np.clip(of.requests, 1.0, most), np.maximum(of.busy, SHORTEST)
        meet = np.where(requests > 1, of.meet, 1.0)
        alone, beside = self._interpolated(requests, busy, meet, of.init)
        beside *= np.where(requests > 1, self._understated, 1.0)
        batches = np.minimum(beside[0], meet)
        # Who is beside another is in a full batch: those are the more of all the larger, and all of them in a burst.
        larger = np.maximum(beside[1] / beside[0], (1 - of.apart_requests) / np.maximum(1 - of.apart, _LEAST))
        return Shares(*np.minimum(alone + np.array([batches, batches * np.minimum(larger, of.largest)]), 1.0))

    def beyond_provisioned(self, batch_size_pmf: Array, holds: Array, busy: Array, init: float) -> tuple[Array, Shares]:
        """Share of the batches that 0, 1, ... environments which are always there leave to others, and who starts cold.

        Arguments as in ``of_batches``, of one table; all are of shape (n,), and the first entry of the second is what it says. They
        end where next to nothing is left, or with the first entry where more than ``MOST_PROVISIONED`` may be under way.
        """
        sizes = np.arange(1, len(batch_size_pmf) + 1)
        requests, mean = float(batch_size_pmf @ sizes), max(float(batch_size_pmf @ busy), SHORTEST)
        batches, none = OpenedBatches(self.arrivals, requests), self.of_batches(batch_size_pmf, holds, busy, init)
        apart, largest = shares(batch_size_pmf, finds_none(batch_size_pmf, holds, busy)), np.array([len(batch_size_pmf)])
        meet = (1 - float(apart.batches)) * float(self.fill_in_time(largest, batch_size_pmf[None], holds, busy)[0])
        part, understated = 1.0, 1.0
        if requests > 1:
            part = float(_parts(np.array([meet]), _meets(batches, mean)[None])[0])
            understated = self._understated
        beside = batches.beside(part)
        levels = by_level(batches.process, mean, min(max(self.keep_alive, _KEPT[0]), _KEPT[1]), beside)
        if len(levels) > MOST_PROVISIONED:
            return np.ones(1), Shares(*np.reshape(none, (2, 1)))
        cold = _with_starts(levels, batches, mean, init, part) * understated
        after, after_requests = np.maximum(cold.sum(axis=1, keepdims=True) - np.cumsum(cold, axis=1), 0.0)
        larger = float((1 - apart.requests) / max(1 - float(apart.batches), _LEAST))
        after_requests = np.minimum(np.maximum(after_requests, larger * after), largest[0] / requests * after)
        left = [lost(batches.process, mean, n, beside) for n in range(1, len(levels) + 1)]
        most = np.array([[meet], [min(meet, float(none.batches))], [float(none.requests)]])
        beyond = np.minimum(np.array([left, after, after_requests]), most)
        return np.append(1.0, beyond[0]), Shares(*(np.append(float(of), more) for of, more in zip(none, beyond[1:], strict=True)))

    def _interpolated(self, requests: Array, busy: Array, meet: Array, init: Array) -> tuple[Array, Array]:
        """Of the cold the shares (2, n), of batches and requests, of those who find none under way, and of those who find some.

        ``meet`` is the share of the batches that find another.
        """
        at = np.floor(np.log(requests) / log(_REQUESTS) + 1e-9).astype(int)
        on = np.floor(np.log(busy) / log(_SECONDS) + 1e-9).astype(int)
        few, short = _REQUESTS**at, _SECONDS**on
        right = np.clip((1 / few - 1 / requests) / (1 / few - 1 / (few * _REQUESTS)), 0, 1)
        up = np.clip(np.log(busy / short) / log(_SECONDS), 0, 1)
        weights = np.concatenate([(1 - right) * (1 - up), (1 - right) * up, right * (1 - up), right * up])
        some = np.flatnonzero(weights > 0)
        of = some % len(requests)
        at, on = np.concatenate([at, at, at + 1, at + 1])[some], np.concatenate([on, on + 1, on, on + 1])[some]
        depth = -np.log(_parts(meet[of], _looked_up(self._meets, at, on))) / log(_PARTS)
        below = np.floor(depth + 1e-9).astype(int)
        found = np.zeros((len(requests), 2, 2))
        for down, share in ((below, 1 - (depth - below)), (below + 1, depth - below)):
            needed = share > 1e-9
            if needed.any():
                corners = _looked_up(self._corner, at[needed], on[needed], down[needed], init[of[needed]])
                weight = weights[some[needed]] * np.minimum(share[needed], 1)
                np.add.at(found, of[needed], weight[:, None, None] * corners)
        alone, beside = np.exp(np.moveaxis(found, 0, -1))
        return alone, beside

    def _by_level(self, at: int, on: int, down: int) -> Array:
        batches = self._batches(at)
        return by_level(batches.process, _SECONDS**on, self.keep_alive, batches.beside(_PARTS**-down))

    def _at_corner(self, at: int, on: int, down: int, init: float) -> Array:
        """The logarithms of all four at one corner of the grid, (2, 2)."""
        cold = _with_starts(self._levels(at, on, down), self._batches(at), _SECONDS**on, init, _PARTS**-down)
        return np.log(np.maximum([cold[:, 0], cold[:, 1:].sum(axis=1)], _LEAST))

    def _come_within(self, gathered: Indices, busy: Array) -> Array:
        """At most the probability that so many requests come within ``busy`` seconds, (n,); that one is there is sure."""
        while self._gathered.shape[1] <= gathered.max():
            ahead = np.einsum("xij,xj->xi", self._one_more, self._ahead)
            scale = ahead.max(axis=1)  # else a power of a hundred is less than a number holds
            self._ahead, self._factor = ahead / scale[:, None], self._factor + np.log(scale)
            share = np.log(np.maximum(self._ahead @ self.arrivals.embedded, 1e-300))
            self._gathered = np.column_stack([self._gathered, self._factor + share])
        bound = self._bounds[:, None] * busy + self._gathered[:, gathered]
        return np.where(gathered > 1, np.exp(np.minimum(bound.min(axis=0), 0.0)), 1.0)

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
    levels = by_level(invocations, busy_duration, keep_alive)
    return min(1.0, float(_with_starts(levels, OpenedBatches(invocations, 1.0), busy_duration, init_duration, 1.0)[0].sum()))


def _looked_up(table: Callable[..., Array], *columns: Array) -> Array:
    """The entries of a table of arrays at so many places, (n, ...), each asked for once."""
    order: dict[tuple[float, ...], int] = {}
    rows = [order.setdefault(place, len(order)) for place in zip(*(column.tolist() for column in columns), strict=True)]
    return np.array([table(*place) for place in order])[rows]


def _meets(batches: OpenedBatches, busy: float) -> Array:
    """The logarithm of how many find another, ascending, where the parts of ``_DEPTHS`` of them come beside others."""
    return np.asarray(np.log(np.maximum(batches.meet(busy, _PARTS ** -_DEPTHS[::-1]), 1e-300)))


def _parts(meet: Array, meets: Array) -> Array:
    """The part of the batches beside others with which so many meet, at most all, (n,), by what ``_meets`` tells of each."""
    wanted = np.log(np.maximum(meet, 1e-300))[:, None]
    below = np.clip((meets <= wanted).sum(axis=1) - 1, 0, len(_DEPTHS) - 2)
    least, most = (np.take_along_axis(meets, at[:, None], axis=1) for at in (below, below + 1))
    on = np.clip((wanted - least) / np.maximum(most - least, 1e-300), 0, 1)[:, 0]
    return np.asarray(_PARTS ** (below + on - (len(_DEPTHS) - 1)))


def _with_starts(levels: Array, batches: OpenedBatches, busy: float, init: float, part: float) -> Array:
    """Shares of batches and requests that are cold, (2, n_levels), by how many they find, with those while environments start."""
    found = np.array([levels.sum(axis=1), levels @ batches.sizes])
    if init > 0:
        beside = batches.beside(part)
        lost = lost_by_level(batches.process, busy, len(levels), beside)
        spent = _time_in(batches.arrivals, init)
        for of, process in zip(found, (batches.process, batches.arrivals), strict=True):
            coming = process.D1 @ beside
            more = coming * -np.diff(lost, axis=0)
            more[0] += process.D1.sum(axis=1) - coming  # who is left out beside others finds none here
            of += np.einsum("kj,ji,ki->k", levels, spent, more)
    return np.asarray(found / np.array([[1.0], [batches.mean_size]]))


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
