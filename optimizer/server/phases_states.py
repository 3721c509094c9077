"""The states a request goes through once few are ahead of it, numbered, where service times are of phase type.

The notation is that of ``phases``: i are ahead and n behind at a decision, (4.24) says what follows, and from n =
known(i) = Q - 1 - i mod A on every row met is the last. Between decisions the request is

    behind full batches that follow, m more to go           a phase;                    then m - 1, or for m = 0 answered
    in its own batch of b                                   a phase;                    then it is answered
    waiting with an idle server until one more comes        nothing else;               then waiting again, or in a service
    behind a partial batch of b that leaves i               a phase, and n behind;      then at the decision (i, n)

States have numbers in this order. A service has a number for each phase, ``stride`` apart; a wait
has one, its stride is 0. Of a partial batch n goes from the least that a decision leads to up to known(i), which stands for more,
phase by phase: its stride is their number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Indices
from sluice.optimizer.server.epochs import DecisionEpochs


class Then(NamedTuple):
    """Where decisions, or waits, lead: the first number, the stride, and which of the partial batches it is in, or -1."""

    start: Indices
    stride: Indices
    batch: Indices


class Decisions(NamedTuple):
    """Decisions (i, n): number ``first[i] + n``, n < ``known[i]``.

    ``first`` and ``known`` are (Q,), what comes ``then`` by decision.
    """

    first: Indices
    known: Indices
    then: Then


class Own(NamedTuple):
    """The request's own batches: where each size starts."""

    start: Indices
    size: Indices


class Waits(NamedTuple):
    """Idle until one more comes: the number, and what comes ``then``."""

    number: Indices
    then: Then


class Partial(NamedTuple):
    """Batches that leave the request behind, by j: where each starts, its size, the i it leaves, the least n, and how many n."""

    start: Indices
    size: Indices
    ahead: Indices
    least: Indices
    length: Indices


class States(NamedTuple):
    """All of them.

    Parameters
    ----------
    n_states : int
    n_others : int
        Those before the partial batches.
    full_size : int
        A.
    full : array of int
        Where a batch of the last row starts, with 0, 1, ... more to follow; the last of them answers.
    """

    n_states: int
    n_others: int
    full_size: int
    full: Indices
    decisions: Decisions
    own: Own
    waits: Waits
    partial: Partial


class _Met(NamedTuple):
    """What the decisions (i, n) meet: i, n, the row, the row ``until`` which the server waits, and what it takes there."""

    ahead: Indices
    behind: Indices
    row: Indices
    until: Indices
    action: Indices

    @property
    def own(self) -> NDArray[np.bool_]:
        """Whether the request is in the batch."""
        return np.asarray(self.action > self.ahead)

    @property
    def waits(self) -> NDArray[np.bool_]:
        """Whether the server is idle first."""
        return np.asarray(self.until > self.row)


def states_of(epochs: DecisionEpochs, n_phases: int) -> States:
    """Those under a table."""
    rows, last = len(epochs.actions) - 1, int(epochs.actions[-1])
    known = rows - 1 - np.arange(rows) % last  # full batches take i down to i mod A, and Q must still be waiting then
    first = np.concatenate([[0], np.cumsum(known)[:-1]])
    met = _met(epochs, first, known)

    full = n_phases * np.arange(rows // last + 1)
    own = Own(n_phases * (len(full) + np.arange(len(epochs.sizes))), epochs.sizes)
    numbers, wait = _wait_numbers(met, rows, n_phases * (len(full) + len(own.size)))
    n_others = n_phases * (len(full) + len(own.size)) + len(numbers)
    partial, kind, n_states = _partial_batches(met, known, n_others, n_phases)

    served = _served(met, own, partial, kind)
    waits = Waits(numbers, _after_waits(met, served, numbers, wait))
    # Who waits is led to the wait, and from there to what it would have been led to at once.
    then = Then(*(of.copy() for of in served))
    then.start[met.waits], then.stride[met.waits], then.batch[met.waits] = numbers[wait], 0, -1
    return States(n_states, n_others, last, full, Decisions(first, known, then), own, waits, partial)


def _met(epochs: DecisionEpochs, first: Indices, known: Indices) -> _Met:
    rows = len(epochs.actions) - 1
    ahead = np.repeat(np.arange(rows), known)
    behind = np.arange(len(ahead)) - first[ahead]
    row = np.minimum(ahead + 1 + behind, rows)
    until = epochs.next_rows[row]
    return _Met(ahead, behind, row, until, epochs.actions[until])


def _wait_numbers(met: _Met, rows: int, start: int) -> tuple[Indices, Indices]:
    """Numbers of the waits from ``start`` on, and which of them each decision that waits leads to.

    Who waits is told by the row where a batch of its own follows, else by i and the row.
    """
    key = np.where(met.own, -1, met.ahead) * (rows + 1) + met.row
    keys, wait = np.unique(key[met.waits], return_inverse=True)
    return start + np.arange(len(keys)), wait.ravel()


def _partial_batches(met: _Met, known: Indices, start: int, n_phases: int) -> tuple[Partial, Indices, int]:
    """Those from number ``start`` on; which of them each decision that is left behind leads to; and where their numbers end.

    Batches of one size that leave the same i are one.
    """
    behind = ~met.own
    pairs, kind = np.unique(np.column_stack([met.ahead - met.action, met.action])[behind], axis=0, return_inverse=True)
    left, size = pairs.T
    kind = kind.ravel()
    # A wait brings more behind, so that few decisions lead to the smallest n: none below it gets a number.
    least = np.full(len(pairs), len(known))
    np.minimum.at(least, kind, (met.behind + met.until - met.row)[behind])
    length = known[left] - least + 1
    at = start + n_phases * np.concatenate([[0], np.cumsum(length)])
    return Partial(at[:-1], size.copy(), left.copy(), least, length), kind, int(at[-1])


def _served(met: _Met, own: Own, partial: Partial, kind: Indices) -> Then:
    """The services that decisions lead to, after a wait or at once."""
    place = np.zeros(own.size[-1] + 1, dtype=np.int64)
    place[own.size] = own.start
    then = Then(place[met.action], np.ones(len(met.action), dtype=np.int64), np.full(len(met.action), -1))
    behind = ~met.own
    n = (met.behind + met.until - met.row)[behind]
    then.start[behind] = partial.start[kind] + n - partial.least[kind]
    then.stride[behind] = partial.length[kind]
    then.batch[behind] = kind
    return then


def _after_waits(met: _Met, served: Then, numbers: Indices, wait: Indices) -> Then:
    """What comes after each wait: the next wait, or the service of the decision that waits."""
    then = Then(*(np.zeros(len(numbers), dtype=np.int64) for _ in range(3)))
    for j, decision in zip(wait, np.flatnonzero(met.waits), strict=True):
        again = met.row[decision] + 1 < met.until[decision]  # the next row waits as well, and is the next key
        then.start[j] = numbers[j] + 1 if again else served.start[decision]
        then.stride[j] = 0 if again else served.stride[decision]
        then.batch[j] = -1 if again else served.batch[decision]
    return then
