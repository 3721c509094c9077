"""A request behind full batches, where service times are of phase type (docs/model.md, section 4.6).

The notation is that of ``phases``. Time goes by events of rate r (``uniformized_services``: P, e, alpha of a full
batch A). With q(i, f) the probability that a full batch is served in phase f while i are ahead, and w(m, f) that it is one of those
that follow i < Q, m more to go before the request's own, an event makes of them

    over(i)  = sum_f q(i, f) e_f + o_k(i)                                               a service ends, i being ahead
    q'(i, g) = sum_f q(i, f) P_fg + alpha_g over(i + A)                                 i + A >= Q
    w'(m, g) = sum_f w(m, f) P_fg + alpha_g [ sum_f w(m + 1, f) e_f + sum_{i < Q, floor(i / A) = m} over(i) ]

and c_k(i) = over(i), i < Q, got to a decision, while a_k - a_{k-1} = sum_f w(0, f) e_f were answered. They begin with q = y_A of
(4.27) and w = 0. o_k(i) are those who met a service of another size, y_b of which ends at the event k: a sum over b and the phase
f of (P_b^{k-1} e_b)(f) y_b(i, f), a product of matrices in which sizes alike have rows alike (``low_rank``).

Far out q is geometric, q(i + A, f) = z^-A q(i, f), and stays so: it is followed up to n only, with over(i + A) = z^-A over(i)
there. z > 1 solves z^A = E z^K, K counting the arrivals during a full batch.

It ends when all but 1e-13 of the requests are answered.
"""

from __future__ import annotations

from math import exp, log1p
from typing import NamedTuple

import numpy as np

from sluice.batching.errors import NotConverged
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.roots import find_root
from sluice.optimizer.server.epochs import DecisionEpochs
from sluice.optimizer.server.low_rank import low_rank, product
from sluice.optimizer.server.uniformized_services import PhaseType, Services, uniformized
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

_LEFT = 1e-13  # of the requests: so many may be unanswered
_NO_WEIGHT = 1e-17
_SAME = 1e-15
_CHUNK = 64  # events between two looks at who is left
_MOST_EVENTS = 2**21


class FullBatches(NamedTuple):
    """The batches of the last row, at the events of rate r.

    Parameters
    ----------
    row, size : int
        Q and A.
    decay : float
        z^-A, or 0 where q is followed to its end.
    initial, ends : array, shape (n_phases,)
        alpha and e.
    moves : array, shape (n_phases, n_phases)
        P.
    """

    row: int
    size: int
    decay: float
    initial: Array
    moves: Array
    ends: Array


class _Others(NamedTuple):
    """Services of other sizes that are met: o_k(i) for the events to come.

    ``services`` without A; their ``ending``, (n_services, n_phases), is P_b^{k-1} e_b and moves on in time; y_b(i, f) is
    ``shares``, (n_services * n_phases, rank), times ``directions``, (rank, n).
    """

    services: Services
    ending: Array
    shares: Array
    directions: Array


def through_full_batches(epochs: DecisionEpochs, service: Array, shape: PhaseType, rate: float) -> tuple[Array, Array]:
    """c_k(i) for the events k = 1, 2, ... as far as (4.28) asks for them, shape (events, Q), and a_k from k = 0 on.

    Parameters
    ----------
    epochs : DecisionEpochs
    service : array, shape (max_batch_size,)
        Mean service times, s.
    shape : PhaseType
    rate : float
        r, 1/s, that no service exceeds.

    Raises
    ------
    NotConverged
        More than 2^21 events leave somebody unanswered.
    """
    others, busy = _others(epochs, service, shape, rate)
    full, ahead, busy_with_full = _full_batches(epochs, service, shape, rate, others.directions.shape[1])
    busy += busy_with_full
    following = np.zeros((full.row // full.size + 1, len(shape.initial)))  # w
    n_reached = _events_that_matter(full.row, rate / (rate + epochs.arrival_rate))
    reached: list[Array] = []
    answered = [np.zeros(1)]
    for _ in range(_MOST_EVENTS // _CHUNK):
        got, done = _descend(ahead, following, _ending_now(others), full)
        if len(reached) * _CHUNK < n_reached:
            reached.append(got)
        answered.append(answered[-1][-1] + np.cumsum(done))
        left = busy - float(answered[-1][-1])
        if left < _LEFT:
            return np.concatenate(reached)[:n_reached], np.concatenate(answered)
    raise NotConverged("the latency under full batches", None, left)


def _others(epochs: DecisionEpochs, service: Array, shape: PhaseType, rate: float) -> tuple[_Others, float]:
    """The services of other sizes, and the probability to meet one."""
    # Each is met as the one in progress alone, and when it ends does not depend on who waits.
    sizes = [int(size) for size in epochs.sizes if size != epochs.actions[-1]]
    services = uniformized(shape, service[np.array(sizes, dtype=np.int64) - 1], rate)
    none = np.zeros((0, len(epochs.rates)))
    found = np.concatenate([none, *(_found_in(epochs, service, shape, size) for size in sizes)])
    found = found[:, : _end(found.sum(axis=0))]
    return _Others(services, services.ends.copy(), *low_rank(found)), float(found.sum())


def _ending_now(others: _Others) -> Array:
    """o_k(i) for the next ``_CHUNK`` events."""
    moves = others.services.moves
    ends = _ends(moves, others.ending, _CHUNK).reshape(_CHUNK, -1)
    return product(product(ends, others.shares), others.directions)


def _full_batches(
    epochs: DecisionEpochs, service: Array, shape: PhaseType, rate: float, least: int
) -> tuple[FullBatches, Array, float]:
    """Those of a table; q(f, i), (n_phases, n), as it is met, n being at least ``least``; and the probability to meet any."""
    row, size = len(epochs.actions) - 1, int(epochs.actions[-1])
    mean = float(service[size - 1])
    ahead = _found_in(epochs, service, shape, size)
    decay = _decay(epochs.arrival_rate, mean, shape, size)
    n = _geometric_from(ahead, max(row, least), size, decay)
    if n == ahead.shape[1]:  # never geometric to 1e-13: q is followed to where it is nothing
        decay = 0.0
    ahead = np.ascontiguousarray(ahead[:, :n])
    # What is beyond n is decay + decay^2 + ... times the last A.
    busy = float(ahead.sum() + decay / (1 - decay) * ahead[:, n - size :].sum())
    _, moves, ends = uniformized(shape, [mean], rate)
    return FullBatches(row, size, decay, shape.initial, moves[0], ends[0]), ahead, busy


def _found_in(epochs: DecisionEpochs, service: Array, shape: PhaseType, size: int) -> Array:
    """y_b of (4.27) for b = ``size``, shape (n_phases, n)."""
    rate = epochs.arrival_rate
    inverse = np.linalg.inv(rate * np.eye(len(shape.initial)) - shape.generator / float(service[size - 1]))
    return _found(rate, epochs.begun(size), shape.initial, np.asarray(inverse, dtype=np.float64))


def _events_that_matter(rows: int, share: float) -> int:
    """The events of service, at a ``share`` of all, after which fewer than Q - 1 arrivals have no probability to speak of."""
    if rows < 2:
        return 1
    low, high = 1, 2
    while high < _MOST_EVENTS and special.betainc(high, rows - 1, share) > _NO_WEIGHT:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if special.betainc(middle, rows - 1, share) <= _NO_WEIGHT else (middle, high)
    return high


def _end(mass: Array) -> int:
    """From where on nothing to speak of is left, at least 1."""
    beyond = np.cumsum(mass[::-1])[::-1]
    return 1 + int(np.flatnonzero(beyond > _LEFT / 100)[-1]) if len(mass) and beyond[0] > _LEFT / 100 else 1


def _geometric_from(ahead: Array, least: int, size: int, decay: float) -> int:
    """Length after which ``ahead``, (n_phases, n), falls by ``decay`` every ``size`` numbers; n where it never does."""
    n = int(ahead.shape[1])
    if n <= least + 2 * size:
        return n
    off = np.abs(ahead[:, size:] - decay * ahead[:, :-size]).sum(axis=0)
    summed = np.concatenate([[0.0], np.cumsum(off)])
    blocks = summed[size:] - summed[:-size]  # what all that follows a block is wrong by, times 1 - decay
    fits = np.flatnonzero(blocks[least:] <= _LEFT * (1 - decay) * ahead.sum())
    return min(n, least + int(fits[0]) + size) if len(fits) else n


def _decay(rate: float, mean: float, shape: PhaseType, size: int) -> float:
    """z^-A: the ratio at which the queue falls every ``size`` numbers while services of this mean go."""
    initial, generator = shape

    def excess(x: float) -> float:
        # log E z^K / x - A at z = e^x: E z^K is 1 + c alpha (-S - c I)^-1 1 with c = lambda l (z - 1), and without a difference
        c = rate * mean * np.expm1(x)
        return float(
            log1p(c * (initial @ np.linalg.solve(-generator - c * np.eye(len(initial)), np.ones(len(initial))))) / x - size
        )

    # E z^K has its pole at z = 1 + s / (lambda l), s being the slowest rate of the shape.
    slowest = float(-np.linalg.eigvals(generator).real.max())
    pole = log1p(slowest / (rate * mean))
    low, high = pole / 2, pole / 2
    while excess(high) < 0:
        high = (high + pole) / 2
        if high >= pole * (1 - _SAME):  # at a low load there is no number between the root and the pole
            return exp(-size * pole)
    while excess(low) > 0:
        low /= 2
    root = find_root(excess, low, high, absolute=1e-300, relative=4e-15)
    return float(np.exp(-size * root))


@compiled
def _found(rate: float, begun: Array, initial: Array, inverse: Array) -> Array:
    """(4.27), from x = 0 upwards."""
    n_phases = len(initial)
    found = np.zeros((n_phases, len(begun)))
    for x in range(len(begun)):
        for f in range(n_phases):
            coming = initial[f] * begun[x]
            if x > 0:
                coming += rate * found[f, x - 1]
            for g in range(n_phases):
                found[g, x] += coming * inverse[f, g]
    return found


@compiled
def _ends(moves: Array, ending: Array, n_events: int) -> Array:
    """P_b^{k-1} e_b of the next events, (n_events, n_services, n_phases)."""
    n_services, n_phases = ending.shape
    by_event = np.empty((n_events, n_services, n_phases))
    for event in range(n_events):
        _copy(ending, by_event[event])
        for s in range(n_services):
            _step_back(moves[s], by_event[event, s], ending[s])
    return by_event


@inlined
def _step_back(moves: Array, ending: Array, following: Array) -> None:
    """``following = moves @ ending``."""
    for f in range(len(following)):
        value = 0.0
        for g in range(len(following)):
            value += moves[f, g] * ending[g]
        following[f] = value


@compiled
def _descend(ahead: Array, following: Array, arrives: Array, full: FullBatches) -> tuple[Array, Array]:
    """c_k(i) of the next events, (n_events, Q), and who is answered; ``ahead``, q(f, i), and ``following``, w(m, f), move on."""
    n_events, n_arrives = arrives.shape
    n_phases, n = ahead.shape
    got = np.zeros((n_events, full.row))
    done = np.zeros(n_events)
    over = np.empty(max(n, n_arrives))
    next_ahead, next_following = np.empty(ahead.shape), np.empty(following.shape)
    for event in range(n_events):
        for i in range(len(over)):
            over[i] = arrives[event, i] if i < n_arrives else 0.0
        _move_on(ahead, full.moves, full.ends, next_ahead, over)
        done[event] = _move_on_the_last(following, full, next_following)
        # Who gets to i < Q is noted for (4.28), and followed as if only the last row were met from there.
        for i in range(min(full.row, len(over))):
            got[event, i] = over[i]
            for g in range(n_phases):
                next_following[i // full.size, g] += over[i] * full.initial[g]
        for g in range(n_phases):
            if full.initial[g] > 0:
                _begin(over, full.initial[g], full, next_ahead[g])
        _copy(next_ahead, ahead)
        _copy(next_following, following)
    return got, done


@inlined
def _copy(values: Array, into: Array) -> None:
    """Two loops, as numba takes a second to compile the checks of an assignment."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            into[i, j] = values[i, j]


@inlined
def _move_on(ahead: Array, moves: Array, ends: Array, following: Array, over: Array) -> None:
    """q P into ``following``, and q e added to ``over``."""
    n_phases, n = ahead.shape
    following[:] = 0.0
    for f in range(n_phases):
        if ends[f] > 0:
            for i in range(n):
                over[i] += ends[f] * ahead[f, i]
        for g in range(n_phases):
            p = moves[f, g]
            if p <= 0:
                continue
            for i in range(n):
                following[g, i] += p * ahead[f, i]


@inlined
def _move_on_the_last(before: Array, full: FullBatches, following: Array) -> float:
    """w P, and the next of the batches begun, into ``following``; the probability to be answered."""
    n_full, n_phases = before.shape
    for m in range(n_full):
        for g in range(n_phases):
            value = 0.0
            for f in range(n_phases):
                value += before[m, f] * full.moves[f, g]
            following[m, g] = value
    done = 0.0
    for m in range(n_full):
        ended = 0.0
        for f in range(n_phases):
            ended += before[m, f] * full.ends[f]
        if m == 0:
            done = ended
            continue
        for g in range(n_phases):
            following[m - 1, g] += ended * full.initial[g]
    return done


@inlined
def _begin(over: Array, p: float, full: FullBatches, ahead: Array) -> None:
    """Another full batch for those with i >= Q ahead, in a phase that begins with ``p``."""
    for i in range(full.row, len(over)):
        ahead[i - full.size] += over[i] * p
    if full.decay > 0:
        # Of i + A >= n, which are not followed, come as many as the geometric law says.
        for i in range(len(ahead) - full.size, len(ahead)):
            ahead[i] += full.decay * over[i] * p
