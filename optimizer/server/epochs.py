"""How often one server decides with q requests waiting, under a table, in equilibrium (docs/model.md, section 4.6).

Requests arrive as a Poisson process of rate ``r``. The server decides when a service ends and, while it is idle, at every arrival.
With ``q`` waiting it takes ``a(q)`` of them or, where ``a(q) = 0``, waits for one more; from row ``Q`` on the action is ``A =
a(Q)``. The number waiting at the next decision is ``q - a(q) + K``, K counting the arrivals during the service, or ``q + 1``.

From row Q on this is a random walk with steps ``X = K - A`` of negative mean, and its generating function factors (Wiener, Hopf),

    1 - E z^X = f(z) b(1/z),    f(z) = exp sum_{n>0} c_n z^n,    b(1/z) = exp sum_{n<=0} c_n z^n,                      (4.20)

c_n being the coefficients of its logarithm, which the fast Fourier transform gives once the zero at z = 1 is taken out: it belongs
to b as the factor 1 - 1/z. What enters the rows from Q on at the rates v(k), k = 0, 1, ... beyond Q, makes

    w = [ v / b ]_+,    rates there:  w / f,    and leaves downwards at the rates  -[ w b ]_-                             (4.21)

where [ ]_+ and [ ]_- keep the powers of z from 0 on and below 0. So the chain seen only while q < Q is finite and has known
probabilities: its stationary law is one linear system of Q unknowns, nothing is cut off, and (4.21) gives the tail from it.

References: Feller, An Introduction to Probability Theory, vol. 2, XVIII.3; Xu, Zhou, Niu, SMDP-based dynamic batching (journal
version), section III, for the chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from sluice.batching.errors import InvalidInput, NotConverged, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.fast_length import fast_length
from sluice.optimizer.service.law import ServiceLaw

_NO_WEIGHT = 1e-18
_NEGLIGIBLE = 1e-16  # of all decisions: the tail ends where no number waiting is met more often
_LONGEST = 2**24  # terms of a generating function
_LONG = 2**17  # of one on a circle that may be the wrong one
_CLOSE = 0.3  # how near to the unit circle, over 1 / last, a circle outside it is not worth while


@dataclass(frozen=True, eq=False)
class DecisionEpochs:
    """Decision epochs of one server in equilibrium.

    Parameters
    ----------
    arrival_rate : float
        Requests per second, Poisson.
    service : ServiceLaw
    actions : array of int, shape (Q + 1,)
        The table; its last row speaks for every longer queue, and the row before says something else.
    rates : array, shape (n,)
        ``rates[q]``: decisions per second with ``q`` requests waiting; further out there are none to speak of.
    """

    arrival_rate: float
    service: ServiceLaw
    actions: Indices
    rates: Array

    @property
    def taken(self) -> Indices:
        """What is taken with 0, 1, ... ``len(rates) - 1`` waiting."""
        return np.asarray(self.actions[np.minimum(np.arange(len(self.rates)), len(self.actions) - 1)])

    @property
    def sizes(self) -> Indices:
        """The batch sizes in the table, ascending."""
        return np.unique(self.actions[self.actions > 0])

    @property
    def next_rows(self) -> Indices:
        """The row at which an idle server that has 0, 1, ... Q waiting next begins a service, shape (Q + 1,)."""
        rows = np.where(self.actions > 0, np.arange(len(self.actions)), len(self.actions) - 1)
        return np.asarray(np.minimum.accumulate(rows[::-1])[::-1])

    def begun(self, batch_size: int) -> Array:
        """``begun[x]``: services of a batch of ``batch_size`` begun per second that leave ``x`` waiting, shape (n,)."""
        begun = np.zeros(len(self.rates))
        rows = np.flatnonzero(self.taken == batch_size)
        begun[rows - batch_size] = self.rates[rows]
        return begun

    @property
    def idle(self) -> Array:
        """Probability that the server is idle with 0, 1, ... waiting, shape (Q,)."""
        waits = self.actions[:-1] == 0
        rates = np.zeros(len(waits))
        rates[: len(self.rates)] = self.rates[: len(waits)]
        return np.asarray(np.where(waits, rates / self.arrival_rate, 0.0))


def decision_epochs(arrival_rate: float, service: ServiceLaw, actions: Sequence[int]) -> DecisionEpochs:
    """Decision epochs under a table of actions, in equilibrium.

    Parameters
    ----------
    arrival_rate : float
        Requests per second, Poisson.
    service : ServiceLaw
        Any, with finite second moments.
    actions : sequence of int, length Q + 1
        ``actions[q]`` of ``q`` waiting requests are taken, oldest first; 0 waits for the next arrival. The last row speaks for
        every longer queue.

    Raises
    ------
    InvalidInput
        An action that the queue or the service law does not have; a last row that waits or cannot keep up.
    NotConverged
        A load so close to 1 that the queue has no end in sight.

    References
    ----------
    docs/model.md (4.20)-(4.22).
    """
    table = _checked_table(arrival_rate, service, actions)
    counts = _counts(service, arrival_rate)
    rows, last = len(table) - 1, int(table[-1])
    forward, backward, inverse = _factors(counts[last - 1], last)

    # From each row below Q: where it leads, and what it sends beyond.
    n_counts = counts.shape[1]
    padded = np.zeros(rows + n_counts)
    to = np.zeros((rows, rows))
    beyond = np.zeros((rows, n_counts))
    for q in range(rows):
        padded[:] = 0.0
        if table[q] == 0:
            padded[q + 1] = 1.0
        else:
            start = q - table[q]
            padded[start : start + n_counts] = counts[table[q] - 1]
        to[q] = padded[:rows]
        beyond[q] = padded[rows:]
    # The first w of (4.21) and what then comes back, by how far below Q.
    summed = np.cumsum(inverse)
    if len(summed) < n_counts:
        summed = np.concatenate([summed, np.full(n_counts - len(summed), summed[-1])])
    shifted = sliding_window_view(np.concatenate([np.zeros(last - 1), summed[:n_counts]])[::-1], n_counts)[:, ::-1]
    entered = beyond @ shifted[:last].T
    returned = -entered @ sliding_window_view(np.concatenate([backward[1:], np.zeros(last - 1)]), last)
    to[:, rows - last :] += np.clip(returned, 0.0, None)[:, ::-1]

    inside = _stationary(to)
    sent = inside @ beyond
    length = fast_length(len(forward) + n_counts)
    outside = np.fft.irfft(np.fft.rfft(_causal(sent, inverse), length) * np.fft.rfft(forward, length), length)[: len(forward)]
    rates = np.clip(np.concatenate([inside, outside]), 0.0, None)
    # The tail ends where no number waiting is met any more for a whole batch of them.
    met = np.concatenate([np.arange(rows), rows + np.flatnonzero(rates[rows:] > _NEGLIGIBLE * rates.sum())])
    gaps = np.flatnonzero(np.diff(met) > last)
    rates = rates[: 1 + int(met[gaps[0] if len(gaps) else -1])]
    epochs = DecisionEpochs(arrival_rate, service, table, rates)
    taken = epochs.taken
    seconds = np.where(taken == 0, 1 / arrival_rate, service.mean[taken - 1])
    return DecisionEpochs(arrival_rate, service, table, rates / float(rates @ seconds))


def _causal(sent: Array, inverse: Array) -> Array:
    """``[v / b]_+``: sums over all later k, weighted by the coefficients of 1/b, which are the sums of ``inverse``."""
    length = fast_length(len(sent) + len(inverse))
    smoothed = np.fft.irfft(np.fft.rfft(sent[::-1], length) * np.fft.rfft(inverse, length), length)[: len(sent)]
    return np.asarray(np.cumsum(smoothed)[::-1])


def _checked_table(arrival_rate: float, service: ServiceLaw, actions: Sequence[int]) -> Indices:
    """The actions without those rows at the end that say the same."""
    require(0 < arrival_rate < np.inf, "arrival_rate", arrival_rate, "a number of requests per second > 0")
    require(len(actions) >= 2, "actions", len(actions), "at least 2 rows: the empty queue and one request waiting")
    largest = len(service.mean)
    for q, action in enumerate(actions):
        if not isinstance(action, int | np.integer) or isinstance(action, bool) or not 0 <= action <= min(q, largest):
            raise InvalidInput(f"actions[{q}]", action, f"an integer from 0 to {min(q, largest)}")
    table = np.array(actions, dtype=np.int64)
    last = int(table[-1])
    require(last > 0, f"actions[{len(table) - 1}]", 0, "at least 1, as the last row speaks for every longer queue")
    load = arrival_rate * float(service.mean[last - 1]) / last
    allowed = (
        f"a table whose last row keeps up: batches of {last} at {arrival_rate:g} requests/s are a load of {load:.4g}, not below 1"
    )
    require(load < 1, f"actions[{len(table) - 1}]", last, allowed)
    other = np.flatnonzero(table != last)
    return table[: int(other[-1]) + 2]


def _counts(service: ServiceLaw, arrival_rate: float) -> Array:
    """The law of the arrivals during a service as far as it has weight, (max_batch_size, n_counts)."""
    expected = arrival_rate * service.mean
    spread = np.sqrt(np.maximum(arrival_rate**2 * (service.second_moment - service.mean**2), 0) + expected)
    length = int(np.max(expected + 10 * spread)) + 40
    while length <= _LONGEST:
        counts = service.counts(arrival_rate, length)
        if counts[:, -1].max() < _NO_WEIGHT:
            return counts[:, : 1 + int(np.flatnonzero((counts >= _NO_WEIGHT).any(axis=0))[-1])]
        length *= 2
    raise InvalidInput("service", float(expected.max()), f"a service during which fewer than {_LONGEST} requests arrive")


def _factors(counts: Array, last: int) -> tuple[Array, Array, Array]:
    """(4.20) for steps of ``counts - last``.

    Returns 1/f by powers of z, b by powers of 1/z up to ``last``, and by powers of 1/z ``inverse``, of which 1/b is the sum.

    Over 1 - 1/z the left side is the sum of the tails of X, and has a positive real part on the unit circle, so that its logarithm
    does not wind there, nor up to the first zero outside. The coefficients fall off the more slowly the nearer a zero is to the
    circle. At a low load zeros of b are, and a circle a little outside is taken.
    """
    k = np.arange(len(counts))
    drift = last - float(counts @ k)
    below = np.cumsum(counts)[:last]  # P(K <= k)
    above = np.cumsum(counts[::-1])[::-1]  # P(K >= k)
    down, up = below[::-1], -above[last + 1 :]  # P(X <= -1 - i) at z^-i and -P(X >= i) at z^i, i > 0
    if len(below) < last:
        down = np.concatenate([np.full(last - len(below), below[-1]), down])
    variance = float(counts @ k**2) - (last - drift) ** 2
    outside = min(drift / variance / 2 if variance > 0 else np.inf, 2 / last)  # half the way to the zero outside, or so
    series = None
    while series is None and outside > _CLOSE / last:
        series = _logarithm(down, up, outside, _LONG)
        log_radius, outside = outside, outside / 2
    if series is None:
        log_radius, series = 0.0, _logarithm(down, up, 0.0, _LONGEST)
    if series is None:
        raise NotConverged(f"the tail of the queue: it falls by {drift:g} requests per batch, too few", None, float("nan"))
    length, half = len(series), len(series) // 2
    ahead = np.zeros(length)
    ahead[1:half] = series[1:half] * np.exp(-log_radius * np.arange(1, half))
    forward = np.fft.irfft(np.exp(-np.fft.rfft(ahead)), length)[:half]
    behind = np.zeros(max(last, 1))
    behind[1:] = series[:-last:-1] * np.exp(log_radius * np.arange(1, last))
    smooth = np.exp(series[0]) * _exponential(behind)  # b over 1 - 1/z
    inverse = _reciprocal(smooth, max(len(counts), last + 1))
    backward = np.append(smooth, 0.0)
    backward[1:] -= smooth
    return forward, backward, inverse


def _logarithm(down: Array, up: Array, log_radius: float, longest: int) -> Array | None:
    """Coefficients of z^n at n, of z^-n at -n, each times its power of the radius; ``None`` where the circle will not do."""
    down = down * np.exp(-log_radius * np.arange(len(down)))
    up = up * np.exp(log_radius * np.arange(1, len(up) + 1))
    length = 2 ** int(np.ceil(np.log2(4 * (len(down) + len(up)) + 8)))
    while length <= longest:
        quotient = np.zeros(length)
        quotient[0] = down[0]
        quotient[: -len(down) : -1] = down[1:]
        quotient[1 : len(up) + 1] = up
        values = np.fft.rfft(quotient)
        angle = np.unwrap(np.angle(values))
        if abs(angle[-1]) > 1:  # it winds: a zero lies between the unit circle and this one
            return None
        series = np.fft.irfft(np.log(np.abs(values)) + 1j * angle, length)
        half = length // 2
        if np.abs(series[half - half // 8 : half + half // 8]).max() < 1e-17 * length**0.5:
            return np.asarray(series)
        length *= 2
    return None


@compiled
def _exponential(series: Array) -> Array:
    """The exponential of a power series without a constant, to as many terms."""
    result = np.zeros(len(series))
    result[0] = 1.0
    for n in range(1, len(series)):
        for k in range(1, n + 1):
            result[n] += k * series[k] * result[n - k]
        result[n] /= n
    return result


@compiled
def _reciprocal(series: Array, n_terms: int) -> Array:
    """One over a power series with a constant, to ``n_terms`` terms."""
    result = np.zeros(n_terms)
    result[0] = 1 / series[0]
    for n in range(1, n_terms):
        for k in range(1, min(n, len(series) - 1) + 1):
            result[n] -= series[k] * result[n - k]
        result[n] /= series[0]
    return result


@compiled
def _stationary(to: Array) -> Array:
    """The law that ``to`` keeps, with sum 1: its equations, the last replaced by the sum, by elimination with pivots.

    Not left to a BLAS, whose threads wait for each other where another process has one of the cores.
    """
    n = len(to)
    system = np.empty((n, n + 1))
    for i in range(n):
        for j in range(n):
            system[i, j] = to[j, i] - (1.0 if i == j else 0.0) if i < n - 1 else 1.0
        system[i, n] = 1.0 if i == n - 1 else 0.0
    for k in range(n):
        _to_the_top(system, k)
        for i in range(k + 1, n):
            factor = system[i, k] / system[k, k]
            if factor == 0:
                continue
            for j in range(k + 1, n + 1):
                system[i, j] -= factor * system[k, j]
    law = np.empty(n)
    for k in range(n - 1, -1, -1):
        value = system[k, n]
        for j in range(k + 1, n):
            value -= system[k, j] * law[j]
        law[k] = value / system[k, k]
    return law


@inlined
def _to_the_top(system: Array, k: int) -> None:
    """Of the rows from ``k`` on, change the one with the largest number in column ``k`` for row ``k``."""
    pivot = k
    for i in range(k + 1, len(system)):
        if abs(system[i, k]) > abs(system[pivot, k]):
            pivot = i
    for j in range(system.shape[1]):
        system[k, j], system[pivot, j] = system[pivot, j], system[k, j]
