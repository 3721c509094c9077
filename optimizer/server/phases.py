"""Latency in front of one server whose service times are of phase type (docs/model.md, section 4.6).

The notation is that of ``server_latency``. A service of ``b`` is the time to absorption of a chain that starts in phase f with
probability alpha_f and has the generator S_b = S / l(b). The probability to find it in its phases with ``x`` waiting is

    y_b(x) = [ lambda y_b(x - 1) + alpha sum_{q: a(q) = b, q - b = x} D(q) ] (lambda I - S_b)^-1.                        (4.27)

A request with ``i >= Q`` ahead does not care what arrives behind it: full batches go. Its chain is (i, phase), i falling by A,
until i < Q; uniformized at a rate r that no service exceeds, c_k(i) is the probability that it gets there at the k-th event. The n
behind it are Poisson all that time, so seen at the rate r + lambda, of whose events a share p = r / (r + lambda) are of the
service, it gets to (i, n) at the event k + n with

    c_k(i) C(k + n - 1, n) p^k (1 - p)^n.                                                                              (4.28)

From there (i, n, phase) is a chain that a table with few partial batches keeps small. Where n is so large that only the last row
is met, floor(i / A) + 1 full batches follow; that is assumed of all in the first chain, and those of (4.28) with smaller n are
taken out of it and put into the second. With a_k and u_k the shares answered after k events of the first and the second,

    P(R <= t) = sum_k P(Poisson(r t) = k) a_k + sum_k P(Poisson((r + lambda) t) = k) u_k.                               (4.29)

Nothing is discretized; what is cut off are the last 1e-13 of the requests.
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc

from sluice.batching.errors import NotConverged
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled
from sluice.optimizer.server.epochs import DecisionEpochs

_LEFT = 1e-13  # of the requests: so many may be unanswered where a chain is left
_NO_WEIGHT = 1e-17
_SAME = 1e-15
_NOTHING = 1e-19  # a probability that is dropped
_LOOK = 16  # events of the second chain between two looks at what is left
_CHUNK = 64  # events of the first chain between two looks
_MOST_EVENTS = 2**21


class PhaseTypeLatency:
    """Latency of a request, s, where service times have one phase-type shape.

    Parameters
    ----------
    epochs : DecisionEpochs
    service : array, shape (max_batch_size,)
        Mean service times, s.
    initial : array, shape (n_phases,)
        Probabilities of the phases at the start.
    generator : array, shape (n_phases, n_phases)
        Of the shape, whose mean is 1.

    Raises
    ------
    NotConverged
        Where arrivals are so rare, or services of some size so short, that the chain takes millions of events.
    """

    atoms = np.zeros(0)
    atom_weights = np.zeros(0)

    def __init__(self, epochs: DecisionEpochs, service: Array, initial: Array, generator: Array) -> None:
        self.epochs = epochs
        self._service, self._initial, self._generator = service, initial, generator
        self.service_rate = float(-generator.diagonal().min() / service[epochs.sizes - 1].min())
        self.rate = self.service_rate + epochs.arrival_rate
        reached, self._full = self._through_full_batches()
        self._rest = self._through_the_table(reached)
        left = (self._full[-1] - self._full).sum() / self.service_rate + (self._rest[-1] - self._rest).sum() / self.rate
        self.mean = float(left)

    def cdf(self, times: Array) -> Array:
        """(4.29) at ``times`` (s), same shape."""
        times = np.asarray(times, dtype=np.float64)
        seconds = np.maximum(times.ravel(), 0.0)
        result = _mixed(self._full, self.service_rate * seconds) + _mixed(self._rest, self.rate * seconds)
        return np.asarray(np.clip(result, 0.0, 1.0).reshape(times.shape))

    def _found(self, size: int) -> Array:
        """(4.27), shape (n_phases, n)."""
        rate = self.epochs.arrival_rate
        inverse = np.linalg.inv(rate * np.eye(len(self._initial)) - self._generator / float(self._service[size - 1]))
        return _found(rate, self.epochs.begun(size), self._initial, np.asarray(inverse, dtype=np.float64))

    def _through_full_batches(self) -> tuple[Array, Array]:
        """c_k(i) for the events k = 1, 2, ..., shape (events, Q), and a_k from k = 0 on."""
        table = self.epochs.actions
        last, rows, n_phases = int(table[-1]), len(table) - 1, len(self._initial)
        moves, ends = _uniformized(self._generator, float(self._service[last - 1]), self.service_rate)
        ahead = self._found(last)
        # A service of another size is met as the one in progress alone, and when it ends does not depend on who waits.
        others = [int(size) for size in self.epochs.sizes if size != last]
        steps = [_uniformized(self._generator, float(self._service[size - 1]), self.service_rate) for size in others]
        other_moves = np.array([move for move, _ in steps]).reshape(-1, n_phases, n_phases)
        ending = np.array([end for _, end in steps]).reshape(-1, n_phases)
        found = np.concatenate([self._found(size) for size in others]) if others else np.zeros((0, rows))
        found = found[:, : _end(found.sum(axis=0))]
        busy = float(found.sum())
        shares, found = _of_few(found)
        ratio = _decay(self.epochs.arrival_rate, float(self._service[last - 1]), self._initial, self._generator, last)
        n = _geometric_from(ahead, max(rows, found.shape[1]), last, ratio)
        if n == ahead.shape[1]:
            ratio = 0.0
        ahead = np.ascontiguousarray(ahead[:, :n])
        busy += float(ahead.sum() + ratio / (1 - ratio) * ahead[:, n - last :].sum())

        full = np.zeros((rows // last + 1, n_phases))  # by full batches that follow
        n_reached = _events_that_matter(rows, self.service_rate / self.rate)
        reached: list[Array] = []
        answered = [np.zeros(1)]
        for _ in range(_MOST_EVENTS // _CHUNK):
            arrives = _product(_product(_ends(other_moves, ending, _CHUNK), shares), found)
            got, done = _descend(ahead, full, arrives, ratio, moves, ends, self._initial, last, rows)
            if len(reached) * _CHUNK < n_reached:
                reached.append(got)
            answered.append(answered[-1][-1] + np.cumsum(done))
            left = busy - float(answered[-1][-1])
            if left < _LEFT:
                return np.concatenate(reached)[:n_reached], np.concatenate(answered)
        raise NotConverged("the latency under full batches", None, left)

    def _through_the_table(self, reached: Array) -> Array:
        """u_k from k = 0 on."""
        states = _states(self.epochs, len(self._initial))
        steps = [_uniformized(self._generator, float(mean), self.rate) for mean in self._service]
        share = self.service_rate / self.rate
        answered, left = _run(
            np.array([move for move, _ in steps]),
            np.array([end for _, end in steps]),
            self._initial,
            int(self.epochs.actions[-1]),
            *states,
            self.epochs.idle,
            reached,
            log(share),
            log1p(-share),
            1 - share,
        )
        if left >= _LEFT:
            raise NotConverged("the latency under the table", None, left)
        return answered


class _States(NamedTuple):
    """Where a request is from (4.28) on, numbered. A service has a number per phase, ``stride`` apart; a wait has one (stride 0).

    Parameters
    ----------
    n_states : int
    first, known : array of int, shape (Q,)
        Decision (i, n) has the number ``first[i] + n`` for n < ``known[i]``; from there on all that is met is the last row.
    start, stride, batch : array of int, shape (n_decisions,)
        Where a decision leads, and which of ``partial`` it is, or -1.
    full : array of int, shape (n,)
        A batch of the last row, with 0, 1, ... more to follow; the last of them answers.
    final : array of int, shape (n, 2)
        The request's own batch, and its size.
    wait : array of int, shape (n, 4)
        Idle until one more comes: then start, stride and batch of what follows.
    partial : array of int, shape (n, 5)
        A batch that leaves the request behind, by n from the least to ``known[i]``, the last numbers: where it starts, its size, i,
        the least n, the stride.
    """

    n_states: int
    first: Indices
    known: Indices
    start: Indices
    stride: Indices
    batch: Indices
    full: Indices
    final: Indices
    wait: Indices
    partial: Indices


def _states(epochs: DecisionEpochs, n_phases: int) -> _States:
    table, next_rows = epochs.actions, epochs.next_rows
    rows, last = len(table) - 1, int(table[-1])
    known = rows - 1 - np.arange(rows) % last
    first = np.concatenate([[0], np.cumsum(known)[:-1]])
    ahead = np.repeat(np.arange(rows), known)
    behind = np.arange(len(ahead)) - first[ahead]
    row = np.minimum(ahead + 1 + behind, rows)
    until = next_rows[row]
    action = table[until]
    own = action > ahead
    waits = until > row

    full = n_phases * np.arange(rows // last + 1)
    n_states = len(full) * n_phases
    sizes = epochs.sizes
    place = np.zeros(sizes[-1] + 1, dtype=np.int64)
    place[sizes] = n_states + n_phases * np.arange(len(sizes))
    final = np.column_stack([place[sizes], sizes])
    n_states += len(sizes) * n_phases

    # Who waits is told by the row where a batch of its own follows, else by i and the row.
    key = np.where(own, -1, ahead) * (rows + 1) + row
    keys, at_key = np.unique(key[waits], return_inverse=True)
    number = n_states + np.arange(len(keys))
    n_states += len(keys)

    left, after = (ahead - action)[~own], (behind + until - row)[~own]
    pairs, kind = np.unique(np.column_stack([left, action[~own]]), axis=0, return_inverse=True)
    kind = kind.ravel()
    least = np.full(len(pairs), rows)
    np.minimum.at(least, kind, after)
    length = known[pairs[:, 0]] - least + 1
    at = n_states + n_phases * np.concatenate([[0], np.cumsum(length)])
    partial = np.column_stack([at[:-1], pairs[:, 1], pairs[:, 0], least, length])

    start, stride, batch = place[action], np.ones(len(action), dtype=np.int64), np.full(len(action), -1)
    start[~own] = at[kind] + after - least[kind]
    stride[~own] = length[kind]
    batch[~own] = kind
    wait = np.zeros((len(keys), 4), dtype=np.int64)
    for state, decision in zip(at_key.ravel(), np.flatnonzero(waits), strict=True):
        again = row[decision] + 1 < until[decision]  # the next row waits as well, and is the next key
        follows = (number[state] + 1, 0, -1) if again else (start[decision], stride[decision], batch[decision])
        wait[state] = (number[state], *follows)
    start[waits], stride[waits], batch[waits] = number[at_key.ravel()], 0, -1
    return _States(int(at[-1]), first, known, start, stride, batch, full, final, wait, partial)


def _uniformized(generator: Array, mean: float, rate: float) -> tuple[Array, Array]:
    """One event, at ``rate``, of a service of that ``mean``: moves between the phases, and its end."""
    scaled = generator / (mean * rate)
    return np.eye(len(scaled)) + scaled, np.maximum(-scaled.sum(axis=1), 0.0)


def _events_that_matter(rows: int, share: float) -> int:
    """The events of service, at a ``share`` of all, after which fewer than Q - 1 arrivals have no probability to speak of."""
    if rows < 2:
        return 1
    low, high = 1, 2
    while high < _MOST_EVENTS and betainc(high, rows - 1, share) > _NO_WEIGHT:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if betainc(middle, rows - 1, share) <= _NO_WEIGHT else (middle, high)
    return high


def _end(mass: Array) -> int:
    """From where on nothing to speak of is left, at least 1."""
    beyond = np.cumsum(mass[::-1])[::-1]
    return 1 + int(np.flatnonzero(beyond > _LEFT / 100)[-1]) if len(mass) and beyond[0] > _LEFT / 100 else 1


@compiled
def _of_few(rows: Array) -> tuple[Array, Array]:
    """``rows`` as a product with few rows: what sizes alike leave waiting is alike, so few directions span it all.

    Gram and Schmidt, the row of which most is left first. Neither this nor the product is left to a BLAS, whose threads wait for
    each other where another process has one of the cores.
    """
    n_rows, n = rows.shape
    rest = rows.copy()
    shares, directions = np.zeros((n_rows, n_rows)), np.empty((n_rows, n))
    sizes = np.empty(n_rows)
    for i in range(n_rows):
        sizes[i] = _dot(rest[i], rest[i])
    enough = _SAME**2 * sizes.max() if n_rows else 0.0
    rank = 0
    while rank < n_rows:
        most = np.argmax(sizes)
        if sizes[most] <= enough:
            break
        direction = directions[rank]
        direction[:] = rest[most] / np.sqrt(sizes[most])
        for i in range(n_rows):
            if sizes[i] > enough:
                along = _dot(rest[i], direction)
                shares[i, rank] = along
                rest[i] -= along * direction
                sizes[i] = _dot(rest[i], rest[i])
        sizes[most] = 0.0
        rank += 1
    return shares[:, :rank].copy(), directions[:rank].copy()


@compiled
def _dot(a: Array, b: Array) -> float:
    parts = np.zeros(8)
    for i in range(0, len(a) - 7, 8):
        for j in range(8):
            parts[j] += a[i + j] * b[i + j]
    total = parts.sum()
    for i in range(len(a) - len(a) % 8, len(a)):
        total += a[i] * b[i]
    return float(total)


@compiled
def _product(a: Array, b: Array) -> Array:
    """``a @ b``, in blocks of columns that stay in the cache."""
    n_rows, n_inner = a.shape
    n = b.shape[1]
    result = np.zeros((n_rows, n))
    for begin in range(0, n, 512):
        end = min(n, begin + 512)
        for i in range(n_rows):
            for k in range(n_inner):
                p = a[i, k]
                if abs(p) > _NOTHING:
                    for j in range(begin, end):
                        result[i, j] += p * b[k, j]
    return result


def _geometric_from(ahead: Array, least: int, last: int, ratio: float) -> int:
    """Length after which ``ahead``, (n_phases, n), falls by ``ratio`` every ``last`` numbers; n where it never does.

    Far out the queue is geometric, and stays so while full batches go: there is no need to follow every number.
    """
    n = int(ahead.shape[1])
    if n <= least + 2 * last:
        return n
    off = np.abs(ahead[:, last:] - ratio * ahead[:, :-last]).sum(axis=0)
    summed = np.concatenate([[0.0], np.cumsum(off)])
    blocks = summed[last:] - summed[:-last]  # what all that follows a block is wrong by, times 1 - ratio
    fits = np.flatnonzero(blocks[least:] <= _LEFT * (1 - ratio) * ahead.sum())
    return min(n, least + int(fits[0]) + last) if len(fits) else n


def _decay(rate: float, mean: float, initial: Array, generator: Array, last: int) -> float:
    """Ratio at which the queue falls every ``last`` numbers while services of this mean go: z^-A, z > 1, z^A = E z^K."""

    def excess(x: float) -> float:
        # log E z^K / x - A at z = e^x: E z^K is 1 + c alpha (-S - c I)^-1 1 with c = lambda l (z - 1), and without a difference
        c = rate * mean * np.expm1(x)
        return float(
            log1p(c * (initial @ np.linalg.solve(-generator - c * np.eye(len(initial)), np.ones(len(initial))))) / x - last
        )

    # E z^K has its pole at z = 1 + s / (lambda l), s being the slowest rate of the shape.
    slowest = float(-np.linalg.eigvals(generator).real.max())
    pole = log1p(slowest / (rate * mean))
    low, high = pole / 2, pole / 2
    while excess(high) < 0:
        high = (high + pole) / 2
        if high >= pole * (1 - _SAME):  # at a low load there is no number between the root and the pole
            return exp(-last * pole)
    while excess(low) > 0:
        low /= 2
    root = brentq(excess, low, high, xtol=1e-300, rtol=4e-15)
    return float(np.exp(-last * root))


@compiled
def _found(rate: float, begun: Array, initial: Array, inverse: Array) -> Array:
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
    """Probability that a service ends at each of the next events, (n_events, services * phases); ``ending`` moves on in time."""
    n, n_phases = ending.shape
    by_event = np.empty((n_events, n * n_phases))
    following = np.empty(n_phases)
    for event in range(n_events):
        for s in range(n):
            for f in range(n_phases):
                by_event[event, s * n_phases + f] = ending[s, f]
                value = 0.0
                for g in range(n_phases):
                    value += moves[s, f, g] * ending[s, g]
                following[f] = value
            ending[s] = following
    return by_event


@compiled
def _descend(
    ahead: Array, full: Array, arrives: Array, ratio: float, moves: Array, ends: Array, initial: Array, last: int, rows: int
) -> tuple[Array, Array]:
    """The next events of the first chain; ``ahead`` and ``full`` move on in time. Who got to i < Q, and how many were answered."""
    n_events, n_arrives = arrives.shape
    n_phases, n = ahead.shape
    n_full = len(full)
    got = np.zeros((n_events, rows))
    done = np.zeros(n_events)
    over = np.empty(max(n, n_arrives))
    following = np.empty((n_phases, n))
    full_following = np.empty((n_full, n_phases))
    for event in range(n_events):
        over[:] = 0.0
        over[:n_arrives] = arrives[event]
        following[:] = 0.0
        for f in range(n_phases):
            if ends[f] > 0:
                for i in range(n):
                    over[i] += ends[f] * ahead[f, i]
            for g in range(n_phases):
                p = moves[f, g]
                if p > 0:
                    for i in range(n):
                        following[g, i] += p * ahead[f, i]
        for m in range(n_full):
            for g in range(n_phases):
                value = 0.0
                for f in range(n_phases):
                    value += full[m, f] * moves[f, g]
                full_following[m, g] = value
        for m in range(n_full):
            value = 0.0
            for f in range(n_phases):
                value += full[m, f] * ends[f]
            if m == 0:
                done[event] = value
            else:
                for g in range(n_phases):
                    full_following[m - 1, g] += value * initial[g]
        for i in range(min(rows, len(over))):
            got[event, i] = over[i]
            for g in range(n_phases):
                full_following[i // last, g] += over[i] * initial[g]
        for g in range(n_phases):
            if initial[g] > 0:
                for i in range(rows, len(over)):
                    following[g, i - last] += over[i] * initial[g]
                if ratio > 0:
                    for i in range(n - last, n):
                        following[g, i] += ratio * over[i] * initial[g]
        ahead[:] = following
        full[:] = full_following
    return got, done


@compiled
def _run(
    moves: Array,
    ends: Array,
    initial: Array,
    last: int,
    n_states: int,
    first: Indices,
    known: Indices,
    start: Indices,
    stride: Indices,
    batch: Indices,
    full: Indices,
    final: Indices,
    wait: Indices,
    partial: Indices,
    idle: Array,
    reached: Array,
    log_service: float,
    log_arrival: float,
    arrival: float,
) -> tuple[Array, float]:
    """u_k from k = 0 on, and what is not yet answered where it ends: (4.28) comes in at every event.

    ``moves`` and ``ends`` are those of one event in a service, by size; ``arrival`` the probability that an event is an arrival.
    """
    n_reached, rows = reached.shape
    n_phases = len(initial)
    n_known = known.max()
    log_factorial = np.zeros(n_reached + n_known + 2)
    for k in range(1, len(log_factorial)):
        log_factorial[k] = log_factorial[k - 1] + log(k)
    share = np.empty(n_known + 1)
    answered = np.zeros(256)
    # Batches that leave the request behind move on in place, between the numbers behind where there is anything.
    n_others = partial[0, 0] if len(partial) > 0 else n_states
    state, before = np.zeros(n_states), np.zeros(n_others)
    low, high = np.full(len(partial), n_known + 1), np.zeros(len(partial), dtype=np.int64)
    work = np.empty((n_phases, n_known + 1))
    decided = np.zeros(len(start))
    fewest, most = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)  # behind, by i, where something is decided
    for i in range(rows):
        if known[i] > 0:
            decided[first[i]] += idle[i]
            most[i] = 1
        else:
            _enter(state, full[i // last], 1, idle[i], initial)
    n = 0
    while True:
        for i in range(rows):
            for d in range(first[i] + fewest[i], first[i] + most[i]):
                if abs(decided[d]) > _NOTHING:
                    _enter(state, start[d], stride[d], decided[d], initial)
                    if batch[d] >= 0:
                        _widen(low, high, batch[d], start[d] - partial[batch[d], 0])
                decided[d] = 0.0
            fewest[i], most[i] = known[i], 0
        if (n >= n_reached + n_known and n % _LOOK == 0) or n >= _MOST_EVENTS:
            left = _left(state, n_others, low, high, partial, n_phases)
            if left < _LEFT or n >= _MOST_EVENTS:
                return answered[: n + 1].copy(), left
        n += 1
        if n == len(answered):
            longer = np.zeros(2 * n)
            longer[:n] = answered
            answered = longer
        before[:] = state[:n_others]
        state[:n_others] = 0.0
        for j in range(len(partial)):
            if low[j] < high[j]:
                i, least = partial[j, 2], partial[j, 3]
                fewest[i], most[i] = min(fewest[i], least + low[j]), max(most[i], min(least + high[j], known[i]))
                over = _pass(
                    state,
                    work,
                    decided,
                    low,
                    high,
                    j,
                    partial[j, 0],
                    partial[j, 4],
                    first[i] + least,
                    moves,
                    ends,
                    partial[j, 1],
                    arrival,
                )
                if over > 0:
                    _enter(state, full[i // last], 1, over, initial)
        done = 0.0
        for m in range(len(full)):
            over = _serve(before, state, full[m], moves[last - 1], ends[last - 1])
            if m == 0:
                done += over
            else:
                _enter(state, full[m - 1], 1, over, initial)
        for j in range(len(final)):
            size = final[j, 1]
            done += _serve(before, state, final[j, 0], moves[size - 1], ends[size - 1])
        answered[n] = answered[n - 1] + done
        for j in range(len(wait)):
            p = before[wait[j, 0]]
            if p > _NOTHING:
                state[wait[j, 0]] += (1 - arrival) * p
                _enter(state, wait[j, 1], wait[j, 2], arrival * p, initial)
                if wait[j, 3] >= 0:
                    _widen(low, high, wait[j, 3], wait[j, 1] - partial[wait[j, 3], 0])
        if n < n_reached + n_known:
            from_, to = max(0, n - n_reached), min(n_known, n)
            for behind in range(from_, to):
                k = n - behind
                choices = log_factorial[n - 1] - log_factorial[behind] - log_factorial[k - 1]
                share[behind] = exp(choices + k * log_service + behind * log_arrival)
            while from_ < to and share[from_] < _NOTHING:
                from_ += 1
            while from_ < to and share[to - 1] < _NOTHING:
                to -= 1
            for i in range(rows):
                out = 0.0
                end = min(known[i], to)
                for behind in range(from_, end):
                    p = reached[n - behind - 1, i] * share[behind]
                    out += p
                    decided[first[i] + behind] += p
                if from_ < end:
                    fewest[i], most[i] = min(fewest[i], from_), max(most[i], end)
                    _enter(state, full[i // last], 1, -out, initial)


@compiled
def _pass(
    state: Array,
    work: Array,
    decided: Array,
    low: Indices,
    high: Indices,
    j: int,
    at: int,
    length: int,
    to: int,
    moves: Array,
    ends: Array,
    size: int,
    arrival: float,
) -> float:
    """One event of the batch ``j``, of ``size``, that leaves the request behind: numbers behind from ``at`` on, by phase.

    What ends is added to ``decided`` from ``to`` on, but for what has the most behind, which is returned.
    """
    n_phases = len(work)
    begin, end = low[j], high[j]
    n = end - begin
    grows = end < length
    leaving = n if grows else n - 1
    over = 0.0
    for f in range(n_phases):
        here = at + f * length + begin
        for k in range(n):
            work[f, k] = state[here + k]
        ending = ends[size - 1, f]
        if ending > 0:
            for k in range(leaving):
                decided[to + begin + k] += ending * work[f, k]
            if not grows:
                over += ending * work[f, n - 1]
        stays = moves[size - 1, f, f] - arrival
        state[here] = stays * work[f, 0]
        for k in range(1, n):
            state[here + k] = stays * work[f, k] + arrival * work[f, k - 1]
        state[here + leaving] += arrival * work[f, n - 1]
    for f in range(n_phases):
        for g in range(n_phases):
            p = moves[size - 1, f, g]
            if f != g and p > 0:
                there = at + g * length + begin
                for k in range(n):
                    state[there + k] += p * work[f, k]
    if grows:
        end += 1
    while begin < end and _weight(state, at + begin, length, n_phases) < _NOTHING:
        for f in range(n_phases):
            state[at + f * length + begin] = 0.0
        begin += 1
    while begin < end and _weight(state, at + end - 1, length, n_phases) < _NOTHING:
        end -= 1
        for f in range(n_phases):
            state[at + f * length + end] = 0.0
    low[j], high[j] = (begin, end) if begin < end else (length, 0)
    return over


@compiled
def _left(state: Array, n_others: int, low: Indices, high: Indices, partial: Indices, n_phases: int) -> float:
    total = 0.0
    for s in range(n_others):
        total += abs(state[s])
    for j in range(len(partial)):
        for k in range(low[j], high[j]):
            total += _weight(state, partial[j, 0] + k, partial[j, 4], n_phases)
    return total


@compiled
def _weight(state: Array, at: int, stride: int, n_phases: int) -> float:
    total = 0.0
    for f in range(n_phases):
        total += abs(state[at + f * stride])
    return total


@compiled
def _widen(low: Indices, high: Indices, j: int, at: int) -> None:
    low[j] = min(low[j], at)
    high[j] = max(high[j], at + 1)


@compiled
def _enter(state: Array, at: int, stride: int, p: float, initial: Array) -> None:
    """Begin a service, whose phases are ``stride`` apart, or with a stride of 0 a wait."""
    if stride == 0:
        state[at] += p
    else:
        for f in range(len(initial)):
            state[at + f * stride] += p * initial[f]


@compiled
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


@compiled
def _mixed(series: Array, events: Array) -> Array:
    """``sum_k P(Poisson(events[j]) = k) series[k]``, the series being constant beyond its end."""
    result = np.empty(len(events))
    end = len(series) - 1
    for j in range(len(events)):
        expected = events[j]
        around = 9 * sqrt(expected) + 30
        first, last = max(0, int(expected - around)), int(expected + around)
        if first >= end:
            result[j] = series[end]
            continue
        middle = int(expected)
        weight = exp(middle * log(expected) - expected - lgamma(middle + 1.0)) if expected > 0 else 1.0
        total, mass = weight * series[min(middle, end)], weight
        up = weight
        for k in range(middle + 1, last + 1):
            up *= expected / k
            total += up * series[min(k, end)]
            mass += up
        down = weight
        for k in range(middle, first, -1):
            down *= k / expected
            total += down * series[min(k - 1, end)]
            mass += down
        result[j] = total / mass
    return result
