"""How a fleet gets from one placement to the next without losing a request: the life of every device (docs/model.md, section 5).

    serves    it hosts a variant, and its queue gets requests on its account
    drains    it is to load another: it gets none from here on, and finishes what waits, for as long as a request can be in time
    loads     it was told to load, and serves nobody until it says that it has
    idle      it hosts nothing
    gone      it died, or never came; what was there of it is lost

With a queue of its own a device that drains runs dry; where like devices share a queue, it takes of that queue, new requests too,
until the drain is over. So that those that stay can carry the family, as many go at a time as leave every family the rate that it
is asked for; where none could go so, and none is away, those that are missed the least go, a sixth of all that have to. A device
that loads is not disturbed. No clock is read here and nobody is told anything: every call is given the time.

The only device of a family that is to load another variant of it would leave the family to nobody for as long as it loads. So
another that can be spared loads that variant in its place, and it takes the other's once that serves (``_stand_in``). Where none
can be, and where a plan leaves a family nothing, requests go to it until it unloads: they have nowhere else to go.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.fleet.problem import FleetProblem

IDLE = -1
MOST_WAVES = 6  # of devices that go though they are missed


class Rollout:
    """The devices of a fleet on their way to a placement.

    Parameters
    ----------
    devices : array of int, shape (n_types,)
        Devices of each type; they are numbered type by type.
    n_variants : int
    drain : float
        Seconds for which a device finishes what waits.
    """

    def __init__(self, devices: Counts, n_variants: int, drain: float) -> None:
        self._shape, self._drain = (len(devices), n_variants), drain
        self.device_types: Counts = np.repeat(np.arange(len(devices)), devices)
        n = len(self.device_types)
        self.there: NDArray[np.bool_] = np.ones(n, dtype=bool)
        self.hosts: Counts = np.full(n, IDLE, dtype=np.int64)  # what it serves, also while it drains
        self._loads: Counts = np.full(n, IDLE, dtype=np.int64)
        self._target: Counts = np.full(n, IDLE, dtype=np.int64)
        self._dry_at: Array = np.full(n, np.inf)
        self._wave = 0

    @property
    def receives(self) -> Counts:
        """The variant on whose shares each device counts, (n_devices,); ``IDLE`` for none."""
        return np.where(self._dry_at < np.inf, IDLE, self.hosts)

    def asked(self, family: Counts) -> Counts:
        """As ``receives``; of a family (by variant) all of whose devices drain, what these host until they unload."""
        receives = self.receives
        served = np.unique(family[receives[receives != IDLE]])
        alone = (self.hosts != IDLE) & ~np.isin(family[self.hosts], served)
        return np.where(alone, self.hosts, receives)

    @property
    def committed(self) -> Counts:
        """What each device hosts, or will host once it has loaded, (n_devices,)."""
        return np.where(self._loads != IDLE, self._loads, self.hosts)

    @property
    def aimed_at(self) -> Counts:
        """What each device is to host, (n_devices,)."""
        return self._target.copy()

    @property
    def settled(self) -> bool:
        """Whether every device that is there has what it is to have."""
        return bool((self.hosts == self._target)[self.there].all())

    @property
    def wake_at(self) -> float:
        """When the next device has drained, s."""
        return float(self._dry_at.min(initial=np.inf))

    def counts(self, hosts: Counts) -> Counts:
        """Devices of each type by variant, (n_types, n_variants)."""
        counts = np.zeros(self._shape, dtype=np.int64)
        np.add.at(counts, (self.device_types[hosts >= 0], hosts[hosts >= 0]), 1)
        return counts

    @property
    def devices(self) -> Counts:
        """Devices of each type that are there, (n_types,)."""
        return np.bincount(self.device_types[self.there], minlength=self._shape[0])

    def aim(self, counts: Counts) -> None:
        """Another placement is wanted: the fewest devices change, and those that are left over keep what they host."""
        self._target = _moved(self.committed, self.device_types, self.there, counts)
        self._dry_at[self._target == self.hosts] = np.inf  # it may stay
        self._wave = 0

    def advance(self, now: float, problem: FleetProblem, demand: Array) -> tuple[list[int], list[tuple[int, int]]]:
        """What devices are told now: which unload, and which load what.

        Parameters
        ----------
        demand : array, shape (n_families,)
            Requests/s that the families should keep while devices move.
        """
        self._let_go(now, problem, demand)
        dry = np.flatnonzero(self._dry_at <= now)
        self.hosts[dry], self._dry_at[dry] = IDLE, np.inf
        waiting = np.flatnonzero(self.there & (self.hosts == IDLE) & (self._loads == IDLE) & (self._target != IDLE))
        self._loads[waiting] = self._target[waiting]
        return dry.tolist(), [(int(device), int(self._loads[device])) for device in waiting]

    def loaded(self, device: int) -> None:
        """It has loaded what it was told to."""
        self.hosts[device], self._loads[device] = self._loads[device], IDLE

    def died(self, device: int) -> None:
        """It is gone with what it hosted."""
        self.there[device] = False
        self.hosts[device] = self._loads[device] = self._target[device] = IDLE
        self._dry_at[device] = np.inf

    def joined(self, device: int, hosts: int = IDLE) -> None:
        """It is there, and hosts this."""
        self.there[device] = True
        self.hosts[device] = self._target[device] = hosts
        self._loads[device] = IDLE

    def _let_go(self, now: float, problem: FleetProblem, demand: Array) -> None:
        """Of the devices that are to load another variant those that can be spared begin to drain."""
        receives = self.receives
        if not ((receives != IDLE) & (receives != self._target)).any():
            return
        reach = np.bincount(problem.family, (problem.throughput * self.counts(receives)).sum(axis=0), problem.n_families)
        spare = reach - demand
        for device in np.flatnonzero((receives != IDLE) & (receives != self._target)):
            self._stand_in(int(device), problem, spare)
        moving = np.flatnonzero((receives != IDLE) & (receives != self._target))
        families, rates = problem.family[receives[moving]], problem.throughput[self.device_types[moving], receives[moving]]
        going = []
        for device, family, rate in zip(moving, families, rates, strict=True):
            if rate <= spare[family]:
                spare[family] -= rate
                going.append(device)
        away = (self._loads != IDLE).any() or (self._dry_at < np.inf).any()
        if not going and not away:
            missed = np.minimum(rates, rates - spare[families])
            alone = np.bincount(problem.family[receives[receives != IDLE]], minlength=problem.n_families)[families] == 1
            order = np.lexsort((missed, alone))
            going = moving[order[: ceil(len(moving) / max(1, MOST_WAVES - self._wave))]].tolist()
            self._wave += 1
        self._dry_at[going] = now + self._drain

    def _stand_in(self, device: int, problem: FleetProblem, spare: Array) -> None:
        """Where this is all that its family has, and is to have, it changes targets with one of another family that can go first.

        That is one that has to move anyway, or else one that leaves its family the rate that it is asked for.
        """
        receives, target = self.receives, self._target
        own = problem.family == problem.family[receives[device]]
        has, gets = (receives != IDLE) & own[receives], (target != IDLE) & own[target]
        if has.sum() > 1 or gets.sum() > 1 or not gets[device]:
            return
        like = np.flatnonzero((receives != IDLE) & ~own[receives] & (self.device_types == self.device_types[device]))
        left = (spare[problem.family] - problem.throughput[self.device_types[device]])[receives[like]]
        able = [(target[other] == receives[other], -rate, other) for other, rate in zip(like.tolist(), left, strict=True)]
        stays, beyond, other = min(able, default=(True, np.inf, IDLE))
        if not stays or beyond <= 0:
            target[device], target[other] = target[other], target[device]


def _moved(hosts: Counts, device_types: Counts, there: NDArray[np.bool_], counts: Counts) -> Counts:
    """Hosts with these counts, the fewest devices changed; devices left over keep what they host."""
    target = hosts.copy()
    for d, wanted in enumerate(counts):
        missing = wanted.copy()
        free = []
        for device in np.flatnonzero((device_types == d) & there):
            if hosts[device] >= 0 and missing[hosts[device]] > 0:
                missing[hosts[device]] -= 1
            else:
                free.append(device)
        free.sort(key=lambda device: hosts[device] >= 0)  # the idle first
        arriving = np.repeat(np.arange(len(wanted)), missing)
        target[free[: len(arriving)]] = arriving
    return target
