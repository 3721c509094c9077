"""Which of several workers of one function are slow beside the others, by what their batches took. Facts in; no clock, no I/O.

The logarithm of a batch's time is that of its size plus that of its worker, as in a two-way layout; both are followed by stochastic
approximation. So larger batches say nothing of a worker; nor does an hour in which all are slower, as of equals the one is asked
that was asked longest ago, so that all are seen to be. A worker's pace is its time over the lower median of all. From ``SLOW`` on
he is slow, until it is below ``QUICK``. Nobody is preferred for being quick, as who answers nonsense is; nor can it be told of
two which of them is not as he should be.

Others are preferred to who is slow, and so he would be slow for ever: when ``PASSED_OVER`` batches went to others he is due once
more, and what he takes then weighs as much as all that he missed. Who refuses, as he is busy, has his next turn some rounds later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, log

FEWEST = 32  # batches of a worker, and
FEWEST_WORKERS = 3  # of which so much is known, before any is compared
GAIN = 1 / 32  # of a batch, once as many were seen
FIRST = 8  # batches of a size that count as they are, so that no single one says how long it takes
CLIPPED = 0.7  # of a logarithm, at most: a batch that took ten times as long says no more than one that took twice as long
SLOW, QUICK = 1.5, 1.25
PASSED_OVER = 128  # so that less than one batch in a hundred goes to a slow worker to see whether he still is
ROUNDS_LATER = 16
COMPARED_AFTER = 4  # batches, or a sixteenth of the workers where that is more
TOLD_AGAIN = 10_000  # batches after which it is said again that a worker turned slow


class _Level:
    """A mean that forgets, of ``n`` values."""

    __slots__ = ("n", "value")

    def __init__(self, n: int = 0) -> None:
        self.n, self.value = n, 0.0

    def move(self, beyond: float, wholly: bool = False) -> None:
        self.n += 1
        self.value += beyond * (1.0 if wholly else max(GAIN, 1 / self.n))


class Paces:
    """Of the ``workers`` of one function, by address."""

    def __init__(self, workers: Sequence[str] = ()) -> None:
        self.slow: dict[str, float] = {}
        """Of the slow, how many times as long as the others they take."""
        self._sizes: dict[tuple[int, int], _Level] = {}
        self._workers = {worker: _Level(1) for worker in workers}  # as if each had been as the others once
        self._turns = dict.fromkeys(workers, 0)  # by when each was asked last, in batches; the longest ago first
        self._batches = self._uncompared = 0
        self._tried: set[str] = set()  # of the slow, who were asked because they were due
        self._told: dict[str, int] = {}

    def pace(self, worker: str) -> float:
        """How many times as long as the others he takes, where he is slow; else 1."""
        return self.slow.get(worker, 1.0)

    def in_turn(self) -> Iterator[str]:
        """Those that are not slow, the one that was asked longest ago first."""
        return (worker for worker, turn in self._turns.items() if worker not in self.slow and turn <= self._batches)

    def preference(self, worker: str) -> tuple[float, int]:
        """The least of those that are as idle is asked."""
        return self.pace(worker), self._turns[worker]

    def due(self) -> list[str]:
        """The slow ones that are to be asked to see whether they still are."""
        return [worker for worker in self.slow if self._is_due(worker)]

    def asked(self, worker: str) -> None:
        """A batch goes to this one."""
        if worker in self.slow and self._is_due(worker):
            self._tried.add(worker)
        self._batches += 1
        del self._turns[worker]
        self._turns[worker] = self._batches

    def refused(self, worker: str) -> None:
        """He took no batch, as he is busy."""
        self._turns[worker] = self._batches + ROUNDS_LATER * len(self._turns)

    def took(self, worker: str, size: int, seconds: float) -> list[str]:
        """He was idle, and answered a batch of ``size`` requests in so many seconds, both > 0; who is to be told as slow now."""
        of_size = self._sizes.setdefault(_rounded(size), _Level())
        of_worker = self._workers[worker]
        beyond = log(seconds) - of_size.value - of_worker.value
        clipped = min(max(beyond, -CLIPPED), CLIPPED)
        if of_size.n:
            of_worker.move(clipped, worker in self._tried)
            self._tried.discard(worker)
        of_size.move(beyond if of_size.n < FIRST else clipped)
        self._uncompared += 1
        return self._compare() if self._uncompared >= max(COMPARED_AFTER, len(self._workers) // 16) else []

    def _is_due(self, slow: str) -> bool:
        return self._batches - self._turns[slow] >= PASSED_OVER

    def _compare(self) -> list[str]:
        self._uncompared = 0
        known = {worker: level.value for worker, level in self._workers.items() if level.n > FEWEST}
        if len(known) < FEWEST_WORKERS:
            return []
        median = sorted(known.values())[(len(known) - 1) // 2]
        paces = {worker: exp(value - median) for worker, value in known.items()}
        before = self.slow
        self.slow = {worker: pace for worker, pace in paces.items() if pace >= (QUICK if worker in before else SLOW)}
        told = [worker for worker in self.slow if worker not in before and self._batches >= self._told.get(worker, 0)]
        self._told.update(dict.fromkeys(told, self._batches + TOLD_AGAIN))
        return told


def _rounded(size: int) -> tuple[int, int]:
    """A size by its first four bits, for who is asked when much comes has the larger batches: a few an octave, and none far off."""
    beyond = max(0, size.bit_length() - 4)
    return size >> beyond, beyond
