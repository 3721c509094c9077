"""How slow each of several workers of one function is beside the others, by what their batches took. Facts in; no clock, no I/O.

The logarithm of a batch's time is that of its size plus that of its worker, as in a two-way layout; both are followed by stochastic
approximation. So large batches, or an hour in which all are slower, say nothing of a worker. Its pace is its time over that of the
lower median of all, from ``FEWEST`` batches on; within ``ALIKE`` of 1 it is 1, so that those that are equal are taken as equal.

Of whom little is known is asked before others that are as idle. Others are preferred to who is slow, and so he would be slow for
ever: after ``PASSED_OVER`` batches that went to others he is due once more, and what he takes then weighs as much as all that he
missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log

FEWEST = 8  # batches
GAIN = 1 / 16  # of a batch, once as many were seen
CLIPPED = 0.7  # of a logarithm, at most: a batch that took ten times as long says no more than one that took twice as long
ALIKE = 1.25
PASSED_OVER = 128  # so that less than one batch in a hundred goes to a slow worker to see whether he still is
COMPARED_AFTER = 4  # batches, or a sixteenth of the workers where that is more


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
        self.unlike: dict[str, float] = {}
        """The pace of those that are not as the others: above 1 the slow."""
        self._sizes: dict[int, _Level] = {}  # by the bits of the size
        self._workers = {worker: _Level(1) for worker in workers}  # as if each had been as the others once
        self._unknown = set(workers)
        self._passed_over: dict[str, int] = {}  # batches that went to others, of those that are slow
        self._tried: set[str] = set()  # of these, who were asked because they were due
        self._uncompared = 0

    def pace(self, worker: str) -> float:
        """His time for a batch over that of the others; 1 where nobody knows."""
        return self.unlike.get(worker, 1.0)

    @property
    def one_as_another(self) -> bool:
        """Whether all are known, and all alike."""
        return not (self.unlike or self._unknown)

    def preference(self, worker: str) -> tuple[int, float]:
        """The least of those that are as idle is asked first."""
        return self._workers[worker].n if worker in self._unknown else FEWEST + 1, self.pace(worker)

    def due(self) -> list[str]:
        """The slow ones that are to be asked to see whether they still are."""
        return [worker for worker, batches in self._passed_over.items() if batches >= PASSED_OVER]

    def asked(self, worker: str) -> None:
        """A batch goes to this one."""
        for slow, batches in self._passed_over.items():
            self._passed_over[slow] = batches + 1
        if self._passed_over.get(worker, 0) > PASSED_OVER:
            self._tried.add(worker)
        if worker in self._passed_over:
            self._passed_over[worker] = 0

    def took(self, worker: str, size: int, seconds: float) -> list[str]:
        """He was idle, and answered a batch of ``size`` requests in so many seconds, both > 0; who is found to be slow now."""
        of_size = self._sizes.setdefault(size.bit_length(), _Level())
        of_worker = self._workers[worker]
        beyond = log(seconds) - of_size.value - of_worker.value
        if of_size.n:
            beyond = min(max(beyond, -CLIPPED), CLIPPED)
            of_worker.move(beyond, worker in self._tried)
            if of_worker.n > FEWEST:
                self._unknown.discard(worker)
        of_size.move(beyond)
        self._tried.discard(worker)
        self._uncompared += 1
        return self._compare() if self._uncompared >= max(COMPARED_AFTER, len(self._workers) // 16) else []

    def _compare(self) -> list[str]:
        self._uncompared = 0
        known = {worker: level.value for worker, level in self._workers.items() if worker not in self._unknown}
        if not known:
            return []
        median = sorted(known.values())[(len(known) - 1) // 2]
        paces = {worker: exp(value - median) for worker, value in known.items()}
        self.unlike = {worker: pace for worker, pace in paces.items() if not 1 / ALIKE < pace < ALIKE}
        before = self._passed_over
        self._passed_over = {worker: before.get(worker, 0) for worker, pace in self.unlike.items() if pace > 1}
        return [worker for worker in self._passed_over if worker not in before]
