"""One server whose service time depends on the batch, and what its owner wants (docs/model.md, section 4.1).

Requests arrive, wait in one queue without bound, and are served in batches of ``min_batch_size`` to ``max_batch_size``, oldest
first. A decision is taken when a batch is done, when a request arrives at the idle server, and, where the arrivals have phases,
when the phase shifts while the server is idle. With ``s`` waiting the server takes ``a`` of them, or 0: it waits. Wanted is the
least

    latency_weight * mean latency + power_weight * mean power.                                                       (4.2)

Reference: Xu, Zhou, Niu, SMDP-based dynamic batching (journal version), sections III and IV.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor

import numpy as np
from numpy.typing import ArrayLike

from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.law import ServiceLaw

LEAST_LOAD = 1e-15  # a server with less is always idle, as far as numbers tell
_EQUAL = 1e-12  # relative difference up to which two throughputs are the same


@dataclass(frozen=True, eq=False)
class SmdpProblem:
    """When to serve, and how many.

    Parameters
    ----------
    arrivals : ArrivalProcess or float
        A number is the rate (1/s) of Poisson arrivals.
    service : ServiceLaw
        Service times of batches of 1 to ``max_batch_size``; the mean does not fall with the batch size, nor does the throughput,
        batch size over mean.
    energy : array, shape (max_batch_size,)
        What serving a batch costs: J, or any other unit, USD perhaps; power is this unit per second.
    min_batch_size : int
    latency_weight, power_weight : float
        The weights of (4.2), per second and per W; w1 > 0 and w2 >= 0 in the paper.

    Raises
    ------
    InvalidInput
        Names what is wrong; for a load of 1 or more by how much, and whether larger batches would bear it.
    """

    arrivals: ArrivalProcess
    service: ServiceLaw
    energy: Array
    min_batch_size: int = 1
    latency_weight: float = 1.0
    power_weight: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.arrivals, ArrivalProcess):
            object.__setattr__(self, "arrivals", poisson(float(self.arrivals)))
        object.__setattr__(self, "energy", np.array(self.energy, dtype=np.float64, ndmin=1))
        require(0 < self.latency_weight < np.inf, "latency_weight", self.latency_weight, "a number > 0")
        require(0 <= self.power_weight < np.inf, "power_weight", self.power_weight, "a number >= 0")
        largest = self.max_batch_size
        size_allowed = f"an integer from 1 to {largest}, the largest batch"
        whole = isinstance(self.min_batch_size, int | np.integer) and not isinstance(self.min_batch_size, bool)
        require(whole and 1 <= self.min_batch_size <= largest, "min_batch_size", self.min_batch_size, size_allowed)
        self._check_service()
        self._check_energy()
        least = f"at least {LEAST_LOAD:g}, less is as good as none"
        require(self.load >= LEAST_LOAD, "load", f"{self.load:.6g}", least)
        require(self.load < 1, "load", f"{self.load:.6g}", self._stable())

    @property
    def max_batch_size(self) -> int:
        """The largest batch."""
        return len(self.service.mean)

    @property
    def arrival_rate(self) -> float:
        """Requests per second."""
        return self.arrivals.arrival_rate

    @property
    def throughput(self) -> Array:
        """Requests per second that the server serves in batches of each size, shape (max_batch_size,)."""
        return np.arange(1, self.max_batch_size + 1) / self.service.mean

    @property
    def load(self) -> float:
        """rho: the arrival rate over the largest throughput."""
        return float(self.arrival_rate / self.throughput[-1])

    def weighted(self, latency_weight: float, power_weight: float) -> SmdpProblem:
        """The same server under other weights."""
        return replace(self, latency_weight=latency_weight, power_weight=power_weight)

    def cost(self, mean_latency: float, power: float) -> float:
        """(4.2)."""
        return self.latency_weight * mean_latency + self.power_weight * power

    def energy_efficiency(self, power: float) -> float:
        """Requests per J at this power (W); infinite where batches take no energy."""
        return self.arrival_rate / power if power else np.inf

    def _check_service(self) -> None:
        mean, second, throughput = self.service.mean, self.service.second_moment, self.throughput
        for b in range(1, len(mean) + 1):
            if not np.isfinite(second[b - 1]):
                raise InvalidInput(
                    f"service.second_moment at batch size {b}", float(second[b - 1]), "finite: else the mean latency is not"
                )
        for b in range(2, len(mean) + 1):
            if mean[b - 1] < mean[b - 2] * (1 - _EQUAL):
                allowed = f"at least that of batch size {b - 1} ({mean[b - 2]:.6g} s): a larger batch is not quicker"
                raise InvalidInput(f"service.mean at batch size {b}", float(mean[b - 1]), allowed)
            if throughput[b - 1] < throughput[b - 2] * (1 - _EQUAL):
                allowed = f"at most {b / throughput[b - 2]:.6g} s, else fewer serve more; a largest batch of {b - 1} would do"
                raise InvalidInput(f"service.mean at batch size {b}", float(mean[b - 1]), allowed)

    def _check_energy(self) -> None:
        largest, energy = self.max_batch_size, self.energy
        require(energy.shape == (largest,), "energy", energy.shape, f"a number for each batch size from 1 to {largest}")
        for b, joules in enumerate(energy, 1):
            require(0 <= joules < np.inf, f"energy at batch size {b}", float(joules), "a number >= 0")
        smallest = self.min_batch_size
        each = energy[smallest - 1 :] / np.arange(smallest, largest + 1)
        if len(each) > 1 and (each[1:] > each[0] * (1 + _EQUAL)).all():
            raise InvalidInput(
                "energy per request",
                f"from {each[1:].min():.6g} in larger batches",
                f"at most {each[0]:.6g}, that of batch size {smallest}, for some larger batch: batching never pays",
            )

    def _stable(self) -> str:
        mean, rate = self.service.mean, self.arrival_rate
        most = self.throughput[-1]
        text = f"below 1: {rate:.6g} requests/s are {rate - most:.4g} more than the {most:.6g} that batches of {len(mean)} serve"
        slope = float(mean[-1] - mean[-2]) if len(mean) > 1 else float(mean[-1])
        if rate * slope >= 1 - _EQUAL:
            return text + "; no largest batch would bear it, if the service time grows on as it does there"
        stable = floor(rate * (float(mean[-1]) - slope * len(mean)) / (1 - rate * slope)) + 1
        return text + f"; a largest batch of {max(stable, len(mean) + 1)} would, if the service time grows on as it does there"


def affine(intercept: float, slope: float, max_batch_size: int) -> Array:
    """``intercept + slope * b`` for batches of 1 to ``max_batch_size``, as the papers give service times and energies."""
    require(max_batch_size >= 1, "max_batch_size", max_batch_size, "an integer >= 1")
    return intercept + slope * np.arange(1.0, max_batch_size + 1)


def checked_actions(problem: SmdpProblem, actions: ArrayLike) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """A policy's table as an array of actions by number waiting, the last of which speaks for every longer queue.

    Raises
    ------
    InvalidInput
        An action that takes more than wait or a size that is not allowed; a last one under which the queue grows for ever.
    """
    given = np.asarray(actions)
    rows = "one row of integers, at least 2: the empty queue and one request waiting; of several phases each apart"
    if given.ndim == 2 and len(given) == 1:
        given = given[0]
    require(given.ndim == 1 and len(given) >= 2, "actions", given.shape, rows)
    require(np.issubdtype(given.dtype, np.integer), "actions", given.dtype.name, "integers")
    table = given.astype(np.int64)
    sizes = f"0 or a batch size from {problem.min_batch_size} to {problem.max_batch_size}, and at most the number waiting"
    for s, a in enumerate(table):
        require(a == 0 or problem.min_batch_size <= a <= min(s, problem.max_batch_size), f"actions[{s}]", int(a), sizes)
    last = int(table[-1])
    require(last > 0, f"actions[{len(table) - 1}]", last, "a batch size: the last row speaks for every longer queue")
    served = float(problem.throughput[last - 1])
    if problem.arrival_rate >= served:
        raise InvalidInput(
            f"actions[{len(table) - 1}]",
            last,
            f"a batch size that serves more than {problem.arrival_rate:.6g} requests/s, not {served:.6g}",
        )
    return table
