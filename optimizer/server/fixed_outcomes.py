"""What becomes of a request with few ahead of it, where service times are fixed (docs/model.md, section 4.6).

The notation is that of ``latency``: Q is the last row of the table, A what it takes. From a decision with i < Q ahead of a
request and n behind it, it is answered

    after c + E_k,    c a sum of service times (s), E_k the time until k requests more have come,

with probabilities p_{i,n}(c, k). They are what (4.24) says, w being the arrivals that an idle server then waits for and a what it
takes after them:

    a > i:     p_{i,n}(l(a), w) = 1
    a <= i:    p_{i,n}(c + l(a), k + w) = sum_m P(Poisson(lambda l(a)) = m) p_{i-a,n+w+m}(c, k)

so they are made from i = 0 upwards. With i + 1 + n >= Q + A floor(i / A), that is from n = known(i) = Q - 1 - i mod A on, every row
met is the last: then c = (floor(i / A) + 1) l(A) and k = 0.

Shapes: p_i has known(i) rows, one for each n, and a column for each pair (c, k) that some n comes to. Pairs that agree but for
rounding are one. The rarest are left out, 1e-14 of each row, and their share goes to the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.server.epochs import DecisionEpochs

_UNLIKELY = 1e-14  # of the outcomes of a decision
_MOST_OUTCOMES = 2**15
_SAME = 1e-12  # of the last row's service time: sums no farther apart are one


class BeyondTheExactLaw(InvalidInput):
    """The latency has no law that is followed exactly; it can be simulated."""


class Outcomes(NamedTuple):
    """The probabilities p_{i,n}, as sparse rows.

    Parameters
    ----------
    first, known : array of int, shape (Q,)
        Decision (i, n) has the number ``first[i] + n``, n < ``known[i]``.
    begin : array of int, shape (n_decisions + 1,)
        The entries of a decision are those from ``begin[number]`` to ``begin[number + 1] - 1``.
    outcome, weight : array, shape (n_entries,)
        Which pair (c, k), and how probable.
    seconds, awaited : array, shape (n_outcomes,)
        c, s, and k.
    """

    first: Indices
    known: Indices
    begin: Indices
    outcome: Indices
    weight: Array
    seconds: Array
    awaited: Indices


class _Mixture(NamedTuple):
    """p of several n at one i, a row of ``weight`` each, over the pairs (``seconds``, ``awaited``)."""

    seconds: Array
    awaited: Indices
    weight: Array


class _Ways(NamedTuple):
    """The ways on from the decisions with some i: ``action[j]`` are taken after ``wait[j]`` arrivals where ``taken[n]`` is j.

    Decisions that go the same way come to the same pairs, if with other probabilities.
    """

    action: Indices
    wait: Indices
    taken: Indices


class _Branch(NamedTuple):
    """What the decisions with so many ``behind`` come to, where equal pairs are not yet put together."""

    behind: Indices
    then: _Mixture


class _Table(NamedTuple):
    """The table as the recursion reads it.

    ``full`` are the seconds l(A); ``arrived[b - 1, m]`` the probability that m come during a service of b, m <= Q.
    """

    epochs: DecisionEpochs
    next_rows: Indices
    known: Indices
    service: Array
    arrived: Array
    full: float

    @property
    def rows(self) -> int:
        """Q."""
        return len(self.epochs.actions) - 1

    @property
    def last(self) -> int:
        """A."""
        return int(self.epochs.actions[-1])


def outcomes_of(epochs: DecisionEpochs, service: Array, arrived: Array) -> Outcomes:
    """p_{i,n} of all i < Q and n < known(i).

    Parameters
    ----------
    epochs : DecisionEpochs
    service : array, shape (max_batch_size,)
        Seconds.
    arrived : array, shape (max_batch_size, Q + 1)
        Probabilities of 0, 1, ... Q arrivals during a service.

    Raises
    ------
    BeyondTheExactLaw
        Where the table's partial batches add up to too many different sums.
    """
    rows, last = len(epochs.actions) - 1, int(epochs.actions[-1])
    known = rows - 1 - np.arange(rows) % last  # full batches take i down to i mod A, and Q must still be waiting then
    table = _Table(epochs, epochs.next_rows, known, service, arrived, float(service[last - 1]))
    mixtures: list[_Mixture] = []
    for ahead in range(rows):
        mixtures.append(_mixture(table, ahead, mixtures))
        _check_size(epochs, len(mixtures[-1].seconds))
    return _numbered(table, mixtures)


def too_many(epochs: DecisionEpochs) -> BeyondTheExactLaw:
    """The error of a table whose outcomes do not fit."""
    allowed = "a table with fewer ways in which batches that leave requests behind add up, or simulation"
    return BeyondTheExactLaw("actions", epochs.actions.tolist(), allowed)


def _check_size(epochs: DecisionEpochs, n_outcomes: int) -> None:
    if n_outcomes > _MOST_OUTCOMES:
        raise too_many(epochs)


def _mixture(table: _Table, ahead: int, fewer: Sequence[_Mixture]) -> _Mixture:
    """p_i for i = ``ahead``, from those with ``fewer`` ahead."""
    ways = _ways(table, ahead)
    ends = ways.action > ahead
    answered = np.flatnonzero(ends[ways.taken])
    leaving = [_branch(table, ways, int(j), ahead, fewer) for j in np.flatnonzero(~ends)]
    # A one for each of those who are in the next batch; who is left behind may come to several pairs, and to one of them twice.
    at_once = _Mixture(table.service[ways.action[ends] - 1], ways.wait[ends], np.ones(len(answered)))
    seconds, awaited = _pairs([at_once, *(branch.then for branch in leaving)])
    first, merged = _merged(seconds, awaited, table.full)
    weight = np.zeros((table.known[ahead], len(first)))
    weight[answered, merged[np.cumsum(ends)[ways.taken[answered]] - 1]] = at_once.weight
    start = len(at_once.seconds)
    for behind, then in leaving:
        column = merged[start : start + len(then.seconds)]
        start += len(column)
        for n, chances in zip(behind, then.weight, strict=True):
            weight[n] = np.bincount(column, chances, len(first))
    if leaving:
        weight = _without_the_rarest(weight)
    used = weight.any(axis=0)
    return _Mixture(seconds[first[used]], awaited[first[used]], weight[:, used])


def _ways(table: _Table, ahead: int) -> _Ways:
    """Those with i = ``ahead``."""
    row = np.minimum(ahead + 1 + np.arange(table.known[ahead]), table.rows)
    until = table.next_rows[row]
    pairs, taken = np.unique(np.column_stack([table.epochs.actions[until], until - row]), axis=0, return_inverse=True)
    action, wait = pairs.T
    return _Ways(action, wait, taken.ravel())


def _branch(table: _Table, ways: _Ways, j: int, ahead: int, fewer: Sequence[_Mixture]) -> _Branch:
    """Those who are left behind by the batch of way ``j``."""
    action, wait = ways.action[j], ways.wait[j]
    behind = np.flatnonzero(ways.taken == j)
    left = ahead - action
    then = fewer[left]
    # One pair more than those that follow: so many came that the last row is all that is met.
    seconds = np.append(then.seconds, (left // table.last + 1) * table.full) + table.service[action - 1]
    awaited = np.append(then.awaited, 0) + wait
    law = table.arrived[action - 1]
    weight = np.array([_after_a_service(then.weight[n + wait :], law) for n in behind])
    return _Branch(behind, _Mixture(seconds, awaited, weight))


def _after_a_service(then: Array, law: Array) -> Array:
    """Rows of ``then`` mixed by how many came, and last the probability that more came than it has rows."""
    arrived = law[: len(then)]
    return np.append(arrived @ then, max(0.0, 1 - arrived.sum()))


def _pairs(mixtures: Sequence[_Mixture]) -> tuple[Array, Indices]:
    """The pairs (c, k) of all, one after the other."""
    seconds = np.concatenate([np.zeros(0), *(mixture.seconds for mixture in mixtures)])
    return seconds, np.concatenate([np.zeros(0, dtype=np.int64), *(mixture.awaited for mixture in mixtures)])


def _merged(seconds: Array, awaited: Indices, full: float) -> tuple[Indices, Indices]:
    """One index for each different pair, and of which of them each pair is; sums that differ by rounding are the same."""
    rounded = np.column_stack([np.round(seconds / (full * _SAME)).astype(np.int64), awaited])
    _, first, inverse = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.astype(np.int64).ravel()


def _without_the_rarest(weight: Array) -> Array:
    """Rows without their smallest entries, as many as have ``_UNLIKELY`` together, and with sum 1."""
    ordered = np.sort(weight, axis=1)
    kept_from = np.count_nonzero(np.cumsum(ordered, axis=1) <= _UNLIKELY, axis=1)
    kept = np.where(weight < ordered[np.arange(len(weight)), kept_from][:, None], 0.0, weight)
    return np.asarray(kept / kept.sum(axis=1, keepdims=True))


def _numbered(table: _Table, mixtures: Sequence[_Mixture]) -> Outcomes:
    """All mixtures over one list of pairs."""
    seconds, awaited = _pairs(mixtures)
    first, merged = _merged(seconds, awaited, table.full)
    _check_size(table.epochs, len(first))
    entries = [np.nonzero(mixture.weight) for mixture in mixtures]
    starts = np.cumsum([0, *(len(mixture.seconds) for mixture in mixtures)])
    lengths = [np.bincount(n, minlength=len(mixture.weight)) for (n, _), mixture in zip(entries, mixtures, strict=True)]
    return Outcomes(
        np.concatenate([[0], np.cumsum(table.known)[:-1]]),
        table.known,
        np.cumsum(np.concatenate([[0], *lengths])),
        np.concatenate([merged[start + column] for start, (_, column) in zip(starts[:-1], entries, strict=True)]),
        np.concatenate([mixture.weight[entry] for mixture, entry in zip(mixtures, entries, strict=True)]),
        seconds[first],
        awaited[first],
    )
