"""Requests of one family are spread over its queues by shares (docs/model.md, section 8).

Routing looks at no queue, so it can be done for all requests before any queue is run. Balanced routing is deterministic: a queue
with share y has received y n requests, within less than one, after every n. That is the chairman assignment problem, and the rule
is its solution: of the queues that are owed at least 1/(2k - 2) of a request, k queues having a share, the next request goes to the
one that would first be owed 1 - 1/(2k - 2). Picking the one that is owed most, as smooth weighted round robin does, lets some
queues of many drift by more than one. Counting starts anew where other queues have a share; where only the shares
change, what a queue is owed it is owed still. So does the buffer deal (``buffer_service/routing.py``).

Reference: Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980), theorem 1.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled

NOWHERE = -1


def route(arrival_times: Array, change_times: Array, shares: Array, rng: np.random.Generator | None = None) -> Indices:
    """Queue of every request, ``NOWHERE`` (-1) where no queue has a share.

    Parameters
    ----------
    arrival_times : array, shape (n_requests,)
        Ascending, s.
    change_times : array, shape (n_changes,)
        When other shares come into force, s, ascending; at that moment already they hold.
    shares : array, shape (n_changes + 1, n_queues)
        Before the first change and after each; non-negative, in any unit: a row is divided by its sum.
    rng : numpy.random.Generator, optional
        Every request then goes to a random queue, independently; without it routing is balanced.

    Raises
    ------
    InvalidInput
        Shares that are negative or not finite, or not one row more than changes; changes that do not ascend.
    """
    shares = np.array(shares, dtype=np.float64, ndmin=2)
    changes = np.ascontiguousarray(change_times, dtype=np.float64)
    require(bool((changes[1:] >= changes[:-1]).all()), "change_times", f"{len(changes)} times", "ascending")
    require(len(shares) == len(changes) + 1, "shares", shares.shape, f"{len(changes) + 1} rows: before the changes and after each")
    for row, queue in np.argwhere(~((shares >= 0) & (shares < np.inf)))[:1]:
        raise InvalidInput(f"shares[{row}, {queue}]", float(shares[row, queue]), "a finite number >= 0")
    total = shares.sum(axis=1, keepdims=True)
    shares = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    period = np.searchsorted(changes, arrival_times, side="right")
    if rng is None:
        return _balanced(period, shares)
    return _drawn(period, shares, rng.random(len(period)))


@compiled
def _drawn(period: Indices, shares: Array, uniforms: Array) -> Indices:
    queue = np.full(len(period), -1, dtype=np.int64)
    for i in range(len(period)):
        share, left = shares[period[i]], uniforms[i]
        for j in range(len(share)):
            if share[j] > 0:
                queue[i] = j  # the last one with a share also gets what rounding left over
                left -= share[j]
                if left < 0:
                    break
    return queue


@compiled
def _balanced(period: Indices, shares: Array) -> Indices:
    n_queues = shares.shape[1]
    queue = np.full(len(period), -1, dtype=np.int64)
    owed = np.zeros(n_queues)
    threshold = 0.5
    for i in range(len(period)):
        share = shares[period[i]]
        if i == 0 or period[i] != period[i - 1]:
            if i == 0 or ((share > 0) != (shares[period[i - 1]] > 0)).any():
                owed[:] = 0
            threshold = 1 / (2 * max(2, (share > 0).sum()) - 2)
        earliest = np.inf
        for j in range(n_queues):
            owed[j] += share[j]
            if share[j] > 0 and owed[j] >= threshold - 1e-9:
                due = (1 - threshold - owed[j]) / share[j]
                if due < earliest - 1e-9:
                    earliest = due
                    queue[i] = j
        if queue[i] < 0 and share.sum() > 0:
            queue[i] = owed.argmax()  # rounding of a hundred million requests
        if queue[i] >= 0:
            owed[queue[i]] -= 1
    return queue
