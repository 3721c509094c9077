"""A placement made better by one device at a time: it loads another variant, of its own family or another's (docs/model.md, 5).

A planner serves a demand as accurately as can be, which is not what a rehearsal counts: whether a queue can bear bursts hangs on
more than its capacity. So what a planner found is a place to begin. Families share no queue, so what an exchange is worth is what
the one family loses by the device and what the other gains. The best exchange is made, until none is worth it or ``most``
placements of a family were looked at: those of a family that has nothing to gain are not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.fleet.problem import FleetProblem

Worth = Callable[[int, Counts], float]
"""What a family, by its place, earns on the devices of these counts; what others have of the counts does not matter."""


def improve(problem: FleetProblem, counts: Counts, worth: Worth, best: Array, least: float, most: int) -> Counts:
    """The counts after all exchanges that are worth it.

    Parameters
    ----------
    worth : Worth
    best : array, shape (n_families,)
        What each family can earn at most.
    least : float
        What an exchange must be worth, > 0.
    most : int
        How many placements of a family are looked at, up to those that one exchange more takes.
    """
    search = _Search(problem, counts, worth, best, least)
    while search.looked_at < most and search.exchange():
        pass
    return search.counts


class _Search:
    def __init__(self, problem: FleetProblem, counts: Counts, worth: Worth, best: Array, least: float) -> None:
        self._problem, self._worth, self._best, self._least = problem, worth, best, least
        self.counts, self.looked_at = counts, 0
        self._values = np.array([worth(q, counts) for q in range(problem.n_families)])
        self._undominated = [[_undominated(problem, d, q) for q in range(problem.n_families)] for d in range(len(problem.devices))]
        self._known: dict[tuple[int, int, int], float] = {}  # what a family gains by these changes of its devices

    def exchange(self) -> bool:
        """The best one is made, if one is worth it."""
        moves = [move for d in range(len(self.counts)) for move in self._moves(d)]
        worth, *move = max(moves, default=(0.0, 0, 0, 0))
        if worth < self._least:
            return False
        device_type, given, taken = move
        changed = {int(self._problem.family[given]), int(self._problem.family[taken])}
        self.counts = self._changed(device_type, given, taken)
        for q in changed:
            self._values[q] = self._worth(q, self.counts)
        self._known = {key: gain for key, gain in self._known.items() if self._family(*key[1:]) not in changed}
        return True

    def _moves(self, d: int) -> list[tuple[float, int, int, int]]:
        """What each exchange on a type is worth that may be worth it, with the type, the variant given and the one taken."""
        family, room = self._problem.family, self._best - self._values
        hosted = np.flatnonzero(self.counts[d]).tolist()
        moves = []
        for given in hosted:
            q = int(family[given])
            if room[q] >= self._least:
                moves += [(self._gain(d, given, taken), d, given, taken) for taken in self._undominated[d][q] if taken != given]
        if not hosted or room.max() < self._least:
            return moves
        losses = {given: -self._gain(d, given, -1) for given in hosted}
        for q, able in enumerate(self._undominated[d]):
            from_others = {given: loss for given, loss in losses.items() if family[given] != q}
            if able and from_others and room[q] >= min(from_others.values()) + self._least:
                given = min(from_others, key=lambda given: from_others[given])
                moves += [(self._gain(d, -1, taken) - from_others[given], d, given, taken) for taken in able]
        return moves

    def _gain(self, d: int, given: int, taken: int) -> float:
        """What the one family that this concerns gains; -1 for none given, or none taken."""
        key = d, given, taken
        if key not in self._known:
            q = self._family(given, taken)
            self._known[key] = self._worth(q, self._changed(d, given, taken)) - float(self._values[q])
            self.looked_at += 1
        return self._known[key]

    def _family(self, given: int, taken: int) -> int:
        return int(self._problem.family[given if given >= 0 else taken])

    def _changed(self, d: int, given: int, taken: int) -> Counts:
        counts = self.counts.copy()
        if given >= 0:
            counts[d, given] -= 1
        if taken >= 0:
            counts[d, taken] += 1
        return counts


def _undominated(problem: FleetProblem, device_type: int, family: int) -> list[int]:
    """The variants of a family that serve on a type, without those that another matches in accuracy and speed."""
    rates = problem.throughput[device_type]
    members = np.flatnonzero((problem.family == family) & (rates > 0)).tolist()
    members.sort(key=lambda m: (-problem.accuracy[m], -rates[m]))
    kept: list[int] = []
    for m in members:
        if not kept or rates[m] > rates[kept[-1]]:
            kept.append(m)
    return kept
