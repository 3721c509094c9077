"""A request under the rows of the table, where service times are of phase type (docs/model.md, section 4.6).

The notation is that of ``phases``; the states are those of ``phases_states``. Time goes by events of
rate r + lambda (``uniformized_services``: P_b, e_b, alpha), of which an arrival is a share s = lambda / (r + lambda). With d(i, n)
the probability that a decision is taken with (i, n), in the order in which an event is worked out:

    d(i, n)           begins what follows in its first phase, alpha: a service, or a wait;
    partial batch     v'(n, g) = sum_f v(n, f) [P_b - s I]_fg + s v(n - 1, g),    d(i, n) += sum_f v(n, f) e_b(f)
                      with n >= known(i) kept at known(i), and from there going to floor(i / A) + 1 full batches;
    full batch        w'(m, g) = sum_f w(m, f) P_A,fg + alpha_g sum_f w(m + 1, f) e_A(f)
    own batch         o'(g) = sum_f o(f) P_b,fg
    wait              stays with 1 - s, and with s begins what follows it;
    (4.28)            comes into d(i, n), and is taken off the full batches in which the first chain has it.

u_k - u_{k-1} = sum_f w(0, f) e_A(f) + sum_b sum_f o_b(f) e_b(f). What is taken off makes w negative, and it is linear.

Partial batches are many and mostly empty: of each only the n between two bounds are looked at, beyond which there is less than
1e-19. It ends when (4.28) has come to its end and less than 1e-13 is left.
"""

from __future__ import annotations

from math import exp, log, log1p
from typing import NamedTuple

import numpy as np

from sluice.batching.errors import NotConverged
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.server.epochs import DecisionEpochs
from sluice.optimizer.server.phases_states import Partial, States, states_of
from sluice.optimizer.server.uniformized_services import PhaseType, Services, uniformized

_LEFT = 1e-13  # of the requests: so many may be unanswered
_NOTHING = 1e-19  # a probability that is dropped
_LOOK = 16  # events between two looks at what is left
_MOST_EVENTS = 2**21


class Events(NamedTuple):
    """What an event is: an ``arrival`` with that probability; logarithms of the probabilities of either kind."""

    arrival: float
    log_arrival: float
    log_service: float


class Mass(NamedTuple):
    """Where the probability is, changed in place.

    Parameters
    ----------
    state : array, shape (n_states,)
    before : array, shape (n_others,)
        That of states outside partial batches before the event.
    low, high : array of int, shape (n_partial,)
        Partial batch j has something only at its n from the ``low[j]``-th to before the ``high[j]``-th.
    decided : array, shape (n_decisions,)
        d(i, n).
    fewest, most : array of int, shape (Q,)
        d(i, n) is something only from n = ``fewest[i]`` to ``most[i]`` - 1.
    work : array, shape (n_phases, largest known + 1)
        Room for one partial batch.
    """

    state: Array
    before: Array
    low: Indices
    high: Indices
    decided: Array
    fewest: Indices
    most: Indices
    work: Array


class _Span(NamedTuple):
    """Where a partial batch has something: its k-th n and phase f at ``start + f * length + k``, ``begin`` <= k < ``end``."""

    start: int
    length: int
    begin: int
    end: int


def through_the_table(epochs: DecisionEpochs, service: Array, shape: PhaseType, service_rate: float, reached: Array) -> Array:
    """u_k from k = 0 on.

    Parameters
    ----------
    epochs : DecisionEpochs
    service : array, shape (max_batch_size,)
        Mean service times, s.
    shape : PhaseType
    service_rate : float
        r, 1/s.
    reached : array, shape (n_reached, Q)
        c_k(i) for k = 1, 2, ...

    Raises
    ------
    NotConverged
        More than 2^21 events leave somebody unanswered.
    """
    rate = service_rate + epochs.arrival_rate
    share = service_rate / rate
    states = states_of(epochs, len(shape.initial))
    events = Events(1 - share, log1p(-share), log(share))
    services = uniformized(shape, service, rate)
    answered, left = _run(states, services, events, reached, _found_idle(epochs.idle, states, shape.initial))
    if left >= _LEFT:
        raise NotConverged("the latency under the table", None, left)
    return answered


def _found_idle(idle: Array, states: States, initial: Array) -> Mass:
    """Those who find the server idle, by i: they decide at once, with nobody behind, or are known to meet the last row alone."""
    first, known, then = states.decisions
    n_rows, most_known, n_partial = len(known), int(known.max()), len(states.partial.start)
    state, decided = np.zeros(states.n_states), np.zeros(len(then.start))
    for i in range(n_rows):
        if known[i] > 0:
            decided[first[i]] += idle[i]
        else:
            start = states.full[i // states.full_size]
            state[start : start + len(initial)] += idle[i] * initial
    low, high = np.full(n_partial, most_known + 1), np.zeros(n_partial, dtype=np.int64)
    fewest, most = np.zeros(n_rows, dtype=np.int64), np.minimum(known, 1)
    work = np.empty((len(initial), most_known + 1))
    return Mass(state, np.zeros(states.n_others), low, high, decided, fewest, most, work)


@compiled
def _run(states: States, services: Services, events: Events, reached: Array, mass: Mass) -> tuple[Array, float]:
    """u_k from k = 0 on, and what is not yet answered where it ends."""
    n_reached = len(reached)
    n_known = mass.work.shape[1] - 1
    n_coming = n_reached + n_known  # events up to which (4.28) comes in
    log_factorial = _log_factorials(n_coming + 2)
    share = np.empty(n_known + 1)
    answered = np.zeros(256)
    n = 0
    while True:
        _decide(states, services.initial, mass)
        if (n >= n_coming and n % _LOOK == 0) or n >= _MOST_EVENTS:
            left = _left(states.partial, mass)
            if left < _LEFT or n >= _MOST_EVENTS:
                return answered[: n + 1].copy(), left
        n += 1
        if n == len(answered):
            answered = _longer(answered)
        # One event from here to (4.28): each part reads what was before it and adds to what is after it, partial batches in place,
        # the others from a copy. Decisions are begun at the top of the next turn, in their first phase: they take no event.
        for s in range(states.n_others):
            mass.before[s] = mass.state[s]
            mass.state[s] = 0.0
        _move_partial_batches(states, services, events.arrival, mass)
        answered[n] = answered[n - 1] + _serve_the_last(states, services, mass)
        _wait(states, services.initial, events.arrival, mass)
        if n < n_coming:
            # C(k + n - 1, n) of (4.28): the last of the n events was of the service, so that k - 1 of the others were
            bounds = _shares(n, n_reached, events, log_factorial, share)
            _come_in(n, reached, share, bounds, states, services.initial, mass)


@inlined
def _decide(states: States, initial: Array, mass: Mass) -> None:
    """Begin what follows the decisions."""
    first, known, then = states.decisions
    start, stride, batch = then
    partial_start = states.partial.start
    state, _, low, high, decided, fewest, most, _ = mass
    for i in range(len(known)):
        for d in range(first[i] + fewest[i], first[i] + most[i]):
            if abs(decided[d]) > _NOTHING:
                _enter(state, start[d], stride[d], decided[d], initial)
                _widen(low, high, batch[d], start[d], partial_start)
            decided[d] = 0.0
        fewest[i], most[i] = known[i], 0  # nothing, until somebody widens it


@inlined
def _move_partial_batches(states: States, services: Services, arrival: float, mass: Mass) -> None:
    first, known, _ = states.decisions
    start, size, ahead, least, length = states.partial
    initial, moves, ends = services
    state, _, low, high, decided, fewest, most, work = mass
    for j in range(len(start)):
        if low[j] >= high[j]:
            continue
        i = ahead[j]
        # Before the span moves: who is at known(i) does not decide there.
        fewest[i] = min(fewest[i], least[j] + low[j])
        most[i] = max(most[i], min(least[j] + high[j], known[i]))
        span = _Span(start[j], length[j], low[j], high[j])
        onward = decided[first[i] + least[j] :]
        over = _move_span(state, work, onward, span, moves[size[j] - 1], ends[size[j] - 1], arrival)
        low[j], high[j] = _narrowed(state, span, len(initial))
        if over > 0:
            _enter(state, states.full[i // states.full_size], 1, over, initial)


@inlined
def _move_span(state: Array, work: Array, decided: Array, span: _Span, moves: Array, ends: Array, arrival: float) -> float:
    """One event of a partial batch; ``decided`` begins with its least n. The probability that it ends with known(i) behind."""
    n_phases = len(work)
    start, length, begin, end = span
    n = end - begin
    grows = end < length  # else the last n is known(i): an arrival leaves it there, and its end is no decision
    leaving = n if grows else n - 1
    over = 0.0
    for f in range(n_phases):
        here = start + f * length + begin
        for k in range(n):
            work[f, k] = state[here + k]
        if ends[f] > 0:
            for k in range(leaving):
                decided[begin + k] += ends[f] * work[f, k]
            if not grows:
                over += ends[f] * work[f, n - 1]
        stays = moves[f, f] - arrival
        state[here] = stays * work[f, 0]
        for k in range(1, n):
            state[here + k] = stays * work[f, k] + arrival * work[f, k - 1]
        state[here + leaving] += arrival * work[f, n - 1]
    for f in range(n_phases):
        for g in range(n_phases):
            if f != g and moves[f, g] > 0:  # from the copy, so that no phase has moved yet
                _add(state, start + g * length + begin, moves[f, g], work[f], n)
    return over


@inlined
def _narrowed(state: Array, span: _Span, n_phases: int) -> tuple[int, int]:
    """The bounds of what is not dropped after an event; one that nothing widens where there is nothing."""
    start, length, begin, end = span
    end = min(end + 1, length)
    while begin < end and _weight(state, start + begin, length, n_phases) < _NOTHING:
        for f in range(n_phases):
            state[start + f * length + begin] = 0.0
        begin += 1
    while begin < end and _weight(state, start + end - 1, length, n_phases) < _NOTHING:
        end -= 1
        for f in range(n_phases):
            state[start + f * length + end] = 0.0
    return (begin, end) if begin < end else (length, 0)


@inlined
def _serve_the_last(states: States, services: Services, mass: Mass) -> float:
    """One event of the full batches that follow and of the request's own; the probability to be answered."""
    initial, moves, ends = services
    full, own = states.full, states.own
    state, before, last = mass.state, mass.before, states.full_size - 1
    done = 0.0
    for m in range(len(full)):
        over = _serve(before, state, full[m], moves[last], ends[last])
        if m == 0:
            done += over
        else:
            _enter(state, full[m - 1], 1, over, initial)
    for j in range(len(own.start)):
        done += _serve(before, state, own.start[j], moves[own.size[j] - 1], ends[own.size[j] - 1])
    return done


@inlined
def _wait(states: States, initial: Array, arrival: float, mass: Mass) -> None:
    """One event of the waits."""
    number, then = states.waits
    start, stride, batch = then
    partial_start = states.partial.start
    state, before, low, high, _, _, _, _ = mass
    for j in range(len(number)):
        p = before[number[j]]
        if p > _NOTHING:  # waits are never taken off from, and what they drop is lost for good
            state[number[j]] += (1 - arrival) * p
            _enter(state, start[j], stride[j], arrival * p, initial)
            _widen(low, high, batch[j], start[j], partial_start)


@inlined
def _shares(n: int, n_reached: int, events: Events, log_factorial: Array, share: Array) -> tuple[int, int]:
    """Fill ``share[behind]`` with the last three factors of (4.28), for the event n = k + behind; from where to where it is any."""
    begin, end = max(0, n - n_reached), min(len(share) - 1, n)
    for behind in range(begin, end):
        k = n - behind
        choices = log_factorial[n - 1] - log_factorial[behind] - log_factorial[k - 1]
        share[behind] = exp(choices + k * events.log_service + behind * events.log_arrival)
    while begin < end and share[begin] < _NOTHING:
        begin += 1
    while begin < end and share[end - 1] < _NOTHING:
        end -= 1
    return begin, end


@inlined
def _come_in(n: int, reached: Array, share: Array, bounds: tuple[int, int], states: States, initial: Array, mass: Mass) -> None:
    """(4.28) at the event ``n``: into the decisions, and off the full batches."""
    first, known, _ = states.decisions
    _, _, _, _, decided, fewest, most, _ = mass
    begin = bounds[0]
    for i in range(len(known)):
        end = min(known[i], bounds[1])
        if begin < end:
            out = 0.0
            for behind in range(begin, end):
                p = reached[n - behind - 1, i] * share[behind]
                out += p
                decided[first[i] + behind] += p
            fewest[i], most[i] = min(fewest[i], begin), max(most[i], end)
            # the first chain has them in full batches from this event on
            _enter(mass.state, states.full[i // states.full_size], 1, -out, initial)


@inlined
def _left(partial: Partial, mass: Mass) -> float:
    """What is not yet answered, without its sign."""
    total = 0.0
    for s in range(len(mass.before)):
        total += abs(mass.state[s])
    for j in range(len(partial.start)):
        for k in range(mass.low[j], mass.high[j]):
            total += _weight(mass.state, partial.start[j] + k, partial.length[j], len(mass.work))
    return total


@inlined
def _weight(state: Array, at: int, stride: int, n_phases: int) -> float:
    total = 0.0
    for f in range(n_phases):
        total += abs(state[at + f * stride])
    return total


@inlined
def _widen(low: Indices, high: Indices, batch: int, number: int, start: Indices) -> None:
    """Let the bounds of a partial batch, if it is one, hold a state; ``start`` is where each begins."""
    if batch >= 0:
        k = number - start[batch]
        low[batch] = min(low[batch], k)
        high[batch] = max(high[batch], k + 1)


@inlined
def _enter(state: Array, at: int, stride: int, p: float, initial: Array) -> None:
    """Begin a service, whose phases are ``stride`` apart, or with a stride of 0 a wait."""
    if stride == 0:
        state[at] += p
    else:
        for f in range(len(initial)):
            state[at + f * stride] += p * initial[f]


@inlined
def _serve(state: Array, following: Array, at: int, moves: Array, ends: Array) -> float:
    """One event of a service of which only the phase matters; the probability that it ends."""
    over = 0.0
    for f in range(len(ends)):
        p = state[at + f]
        if p != 0:
            over += p * ends[f]
            for g in range(len(ends)):
                following[at + g] += p * moves[f, g]
    return over


@inlined
def _add(state: Array, at: int, factor: float, values: Array, n: int) -> None:
    """``factor`` times the first ``n`` values."""
    for k in range(n):
        state[at + k] += factor * values[k]


@inlined
def _longer(values: Array) -> Array:
    """Twice as many, by a loop, as numba takes a second to compile the checks of an assignment."""
    result = np.zeros(2 * len(values))
    for k in range(len(values)):
        result[k] = values[k]
    return result


@inlined
def _log_factorials(n: int) -> Array:
    """log 0!, log 1!, ..."""
    result = np.zeros(n)
    for k in range(1, n):
        result[k] = result[k - 1] + log(k)
    return result
