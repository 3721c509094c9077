"""How a fleet gets from one placement to the next without losing a request (docs/model.md, section 5).

From the moment the plan comes no requests are sent on account of a device that is to host another variant: the shares follow those
that stay. It finishes what waits, for as long as a request can be in time (``drain``), then loads for ``load_time`` seconds, then
serves. With a queue of its own it so runs dry; where like devices share a queue, it takes of that queue, new requests too, until
the drain is over. So that those that stay can carry the family, devices move in waves: in one, as many as leave every family the
rate it is asked for, and else the one device that is missed the least. The new shares hold once all have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array, Counts
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, best_flows

IDLE = -1
MOST_WAVES = 6


@dataclass(frozen=True, eq=False)
class Moment:
    """What holds from a time on.

    Parameters
    ----------
    time : float
        s.
    hosts, receives : array of int, shape (n_devices,)
        The variant that each device serves, and the one on whose shares it counts; ``IDLE`` for none.
    flows : array, shape (n_types, n_variants)
        What the shares follow, requests/s.
    """

    time: float
    hosts: Counts
    receives: Counts
    flows: Array


class Rollout:
    """The devices of a fleet over time, as plans come.

    Parameters
    ----------
    devices : array of int, shape (n_types,)
        Devices of each type.
    n_variants : int
    """

    def __init__(self, devices: Counts, n_variants: int) -> None:
        self._shape = len(devices), n_variants
        self.device_types: Counts = np.repeat(np.arange(len(devices)), devices)
        self.moments: list[Moment] = []
        self.settled_at = -np.inf
        self._hosts: Counts = np.full(len(self.device_types), IDLE, dtype=np.int64)

    def counts(self, hosts: Counts | None = None) -> Counts:
        """Devices of each type that host each variant, (n_types, n_variants)."""
        hosts = self._hosts if hosts is None else hosts
        counts = np.zeros(self._shape, dtype=np.int64)
        np.add.at(counts, (self.device_types[hosts >= 0], hosts[hosts >= 0]), 1)
        return counts

    def start(self, time: float, plan: FleetSolution) -> None:
        """The first placement, loaded before the first request."""
        self._hosts = _moved(self._hosts, self.device_types, plan.counts)
        self.moments.append(Moment(time, self._hosts, self._hosts, plan.flows))
        self.settled_at = time

    def move(self, time: float, plan: FleetSolution, demand: Array, drain: float, load_time: float) -> None:
        """A plan comes into force.

        Parameters
        ----------
        time : float
            s, no sooner than ``settled_at``.
        plan : FleetSolution
        demand : array, shape (n_families,)
            Requests/s that the families should keep while devices move.
        drain, load_time : float
            s.
        """
        target = _moved(self._hosts, self.device_types, plan.counts)
        moving = target != self._hosts
        wave = 0
        while moving.any():
            wave += 1
            going = moving if wave == MOST_WAVES else self._releasable(moving, plan.problem, demand)
            stays = np.where(going, IDLE, self._hosts)
            between = best_flows(plan.problem, self.counts(stays))
            self.moments.append(Moment(time, self._hosts, stays, between))
            self.moments.append(Moment(time + drain, stays, stays, between))
            self._hosts = np.where(going, target, self._hosts)
            moving = moving & ~going
            time += drain + load_time
        self.moments.append(Moment(time, self._hosts, self._hosts, plan.flows))
        self.settled_at = time

    def _releasable(self, moving: NDArray[np.bool_], problem: FleetProblem, demand: Array) -> NDArray[np.bool_]:
        """Of the ``moving`` devices those that can go now, families keeping ``demand``; else the one least missed."""
        hosted = np.where(moving, self._hosts, IDLE)
        going: NDArray[np.bool_] = moving & (hosted == IDLE)
        reach = np.bincount(problem.family, (problem.throughput * self.counts()).sum(axis=0), problem.n_families)
        spare = reach - demand
        busy = np.flatnonzero(moving & (hosted != IDLE))
        families, rates = problem.family[hosted[busy]], problem.throughput[self.device_types[busy], hosted[busy]]
        for device, family, rate in zip(busy, families, rates, strict=True):
            if rate <= spare[family]:
                spare[family] -= rate
                going[device] = True
        if not going.any():
            going[busy[np.argmin(np.minimum(rates, rates - spare[families]))]] = True
        return going


def _moved(hosts: Counts, device_types: Counts, counts: Counts) -> Counts:
    """Hosts with these counts, the fewest devices changed; devices left over keep what they host."""
    target = hosts.copy()
    for d, wanted in enumerate(counts):
        members = np.flatnonzero(device_types == d)
        missing = wanted.copy()
        free = []
        for device in members:
            if hosts[device] >= 0 and missing[hosts[device]] > 0:
                missing[hosts[device]] -= 1
            else:
                free.append(device)
        free.sort(key=lambda device: hosts[device] >= 0)  # the idle first
        arriving = np.repeat(np.arange(len(wanted)), missing)
        target[free[: len(arriving)]] = arriving
    return target
