"""Which of several identical workers is asked: the state of their health, without a clock or I/O. Facts in, an address out.

    choose      one that is due for a trial, of several the one that was asked longest ago; else of those that are well the one with
                the fewest batches in flight, of equals the one that failed least lately (a failure counts for as long as an
                ejection of so many would take, lest nobody see that it is well again), of these one that is not slow beside the
                others (``worker_pace.py``), of equals the one that was asked longest ago, where nobody takes turns the earliest
                named. With none that is well, all count as well: a rule that found everybody ill says nothing about any of them.
                A slow one is asked now and then all the same.
    begun       one that is alone is asked
    ended       how its call ended
    blame       it failed a batch that another one answered

``EJECT_AFTER`` failures in a row eject a worker, and it is not asked for ``FIRST_EJECTION`` seconds. Then one batch is its trial,
and nobody else's meanwhile: passed, it is as well as the others; failed, it is ejected for twice as long as before. The idea is
Envoy's outlier detection (consecutive failures, a time that grows, a bound on how many are ejected).

What counts as a failure of the worker is what no item can be to blame for: that it cannot be connected to, does not answer in time,
or what stands before it says so. That it failed on a batch counts where another worker answers the same, or at its trial; a poison
that fails everywhere ejects nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from sluice.buffer_service.invokers.worker_pace import Paces

EJECT_AFTER = 3  # failures in a row
MOST_KNOWN = 1024  # workers, those that are asked beside: plans come and go, and name others
FIRST_EJECTION, LONGEST_EJECTION = 1.0, 60.0  # seconds


class End(Enum):
    """How a call to a worker ended."""

    PASSED = auto()
    FAILED = auto()  # it, or an item of the batch
    GONE = auto()  # the worker is to blame
    OPEN = auto()  # says nothing about its health


class Health(NamedTuple):
    """Of a worker: batches in flight, failures of any kind in a row, in how many seconds it is tried where ejected; its pace."""

    in_flight: int = 0
    doubts: int = 0
    tried_in: float | None = None
    pace: float = 1.0


@dataclass(slots=True)
class _Worker:
    in_flight: int = 0
    failures: int = 0  # of its own, in a row
    doubts: int = 0  # failures of any kind, in a row
    failed_at: float = -math.inf  # s; the last of them
    ejections: int = 0  # less one for each batch passed since
    ejected_until: float = -math.inf  # -inf: it is not ejected
    on_trial: bool = False
    asked_at: float = -math.inf  # s; the last time

    @property
    def ejected(self) -> bool:
        return self.ejected_until > -math.inf


class Workers:
    """The health of workers by address; of one that is idle and well nothing is kept.

    Of more than ``MOST_KNOWN`` the idle one that was asked longest ago is forgotten: it counts as well again.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Worker] = {}

    def choose(self, now: float, addresses: Sequence[str], again: bool = False, paces: Paces | None = None) -> str:
        """The worker to ask, from here on with one batch more in flight; ``again``: another has failed the batch already."""
        address = self._best(now, addresses, again, paces)
        self.begun(now, address)
        if paces is not None:
            paces.asked(address)
        return address

    def begun(self, now: float, address: str) -> None:
        """A batch goes to this one, which is alone: where others come beside it meanwhile, it is not the idlest."""
        worker = self._known.get(address)
        if worker is None:
            worker = self._learn(address)
        worker.in_flight += 1
        worker.asked_at = now
        worker.on_trial = worker.on_trial or (worker.ejected and now >= worker.ejected_until)

    def ended(self, now: float, address: str, end: End) -> bool:
        """The call that ``choose`` or ``begun`` began ended so; whether the worker is ejected for it."""
        worker = self._known[address]
        worker.in_flight -= 1
        ejected = False
        if end is End.PASSED:
            worker.failures = worker.doubts = 0
            worker.ejections = max(0, worker.ejections - 1)
            worker.ejected_until = -math.inf
        elif end is End.GONE or (end is End.FAILED and worker.on_trial):
            ejected = _failed(now, worker)
        elif end is End.FAILED:
            worker.doubts, worker.failed_at = worker.doubts + 1, now
        worker.on_trial = False
        if not (worker.in_flight or worker.doubts or worker.ejections):
            del self._known[address]
        return ejected

    def blame(self, now: float, address: str) -> bool:
        """Another worker answered what this one failed; whether it is ejected for it."""
        worker = self._known.get(address)
        return _failed(now, worker if worker is not None else self._learn(address))

    def is_alone(self, address: str) -> bool:
        """Whether the batch that was last given to a worker found it idle."""
        return self._known[address].in_flight == 1

    def health(self, now: float, address: str, paces: Paces | None = None) -> Health:
        """How a worker is; one of which nothing is known is well."""
        worker, pace = self._known.get(address), 1.0 if paces is None else paces.pace(address)
        if worker is None:
            return Health(pace=pace)
        return Health(worker.in_flight, worker.doubts, max(0.0, worker.ejected_until - now) if worker.ejected else None, pace)

    def ejected(self, now: float, addresses: Sequence[str]) -> tuple[list[float], int]:
        """In how many seconds each of these that are ejected is tried, and how many batches they have that are no trial."""
        if not self._known:
            return [], 0
        ejected = [worker for a in addresses if (worker := self._known.get(a)) is not None and worker.ejected]
        held = sum(worker.in_flight for worker in ejected if not worker.on_trial)
        return [max(0.0, worker.ejected_until - now) for worker in ejected], held

    def _learn(self, address: str) -> _Worker:
        if len(self._known) >= MOST_KNOWN:
            idle = [known for known, worker in self._known.items() if not worker.in_flight]
            if idle:
                del self._known[min(idle, key=lambda known: self._known[known].asked_at)]
        worker = self._known[address] = _Worker()
        return worker

    def _best(self, now: float, addresses: Sequence[str], again: bool, paces: Paces | None) -> str:
        known = self._known
        ejected = [a for a in addresses if a in known and known[a].ejected]
        due = [a for a in ejected if now >= known[a].ejected_until and not known[a].on_trial]
        if due and not again:
            return min(due, key=lambda address: known[address].asked_at)
        well = [a for a in addresses if a not in ejected] if ejected else addresses
        if paces is not None and not again:
            return self._in_turn(now, well or addresses, paces)
        standing = self._doubts_first if again else lambda address: self._idlest_first(now, address)
        return min(well or addresses, key=standing)

    def _in_turn(self, now: float, addresses: Sequence[str], paces: Paces) -> str:
        """Of the idlest, the one whose turn it is; or a slow one that is idle, and due."""
        for address in paces.due():
            if address in addresses and not self._idlest_first(now, address)[0]:
                return address
        for address in paces.in_turn():
            if (address not in self._known or self._idlest_first(now, address) == (0, 0)) and address in addresses:
                return address
        standing = [self._idlest_first(now, address) for address in addresses]
        least = min(standing)
        return min((a for a, its in zip(addresses, standing, strict=True) if its == least), key=paces.preference)

    def _idlest_first(self, now: float, address: str) -> tuple[int, int]:
        worker = self._known.get(address)
        if worker is None:
            return 0, 0
        lately = worker.doubts and now - worker.failed_at < _pause(worker.doubts)
        return worker.in_flight, worker.doubts if lately else 0

    def _doubts_first(self, address: str) -> tuple[int, int]:
        worker = self._known.get(address)
        return (worker.doubts, worker.in_flight) if worker is not None else (0, 0)


def _failed(now: float, worker: _Worker) -> bool:
    """A failure of the worker's own; whether it is ejected."""
    worker.failures += 1
    worker.doubts, worker.failed_at = worker.doubts + 1, now
    if worker.failures < EJECT_AFTER and not worker.ejected:
        return False
    if worker.ejected and not worker.on_trial:
        return False  # asked before it was ejected, or because all are
    worker.failures = 0
    worker.ejections += 1
    worker.ejected_until = now + _pause(worker.ejections)
    return True


def _pause(times: int) -> float:
    """Seconds for which a worker is not asked that is ejected for the so-manieth time in a row."""
    return min(LONGEST_EJECTION, FIRST_EJECTION * 2.0 ** min(times - 1, 10))
