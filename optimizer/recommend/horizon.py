"""How long a run must be to speak of equilibrium, in requests (docs/model.md, section 7).

Two things must be forgotten often within a run: the phase of the arrivals, whose longest relaxation time is that of the chain
``D0 + D1``, and the length of the queue, whose relaxation time is exact for M/M/1 and else that of its diffusion. A block of the
batch means holds ``RELAXATIONS`` of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, pi, sqrt

import numpy as np

from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import BLOCKS

STAGES = (1 << 16, 1 << 18, 1 << 20)  # requests simulated, until the answer is clear
MOST_REQUESTS = 1 << 21
RELAXATIONS = 5  # that a block of the batch means must hold
FEWEST_BLOCKS = 4


@dataclass(frozen=True)
class Horizon:
    """Requests that arrive in the longest relaxation time of the arrivals' ``phases``, and in that of the ``queue``.

    The latter is inf where the queue grows for ever.
    """

    phases: float
    queue: float

    @classmethod
    def of(cls, arrivals: ArrivalProcess, offer: WorkerOffer, policy: Policy) -> Horizon:
        """Of workers under a table."""
        phases, dispersion = _phases(arrivals)
        load, size = load_of(arrivals, offer, policy), policy.max_batch_size
        peak = load * float(arrivals.D1.sum(axis=1).max()) / arrivals.arrival_rate  # the load of the busiest phase
        variance = size * _squared_variation(offer.service, size)
        # A queue that can keep up in every phase forgets before the phase changes, however much the phases vary.
        return cls(phases, min(_relaxation(load, dispersion + variance), _relaxation(peak, 1 + variance)))

    @classmethod
    def beside(cls, arrivals: ArrivalProcess, offer: WorkerOffer, policy: Policy, overflow: Policy) -> Horizon:
        """Of workers under a table, with a function beside them that bounds the queue, whatever the load."""
        phases, dispersion = _phases(arrivals)
        load, size = load_of(arrivals, offer, policy), policy.max_batch_size
        variance = dispersion + size * _squared_variation(offer.service, size)
        bound = 1 + arrivals.arrival_rate * overflow.hold[1]
        # a diffusion that is reflected at nothing and at the bound, without a drift the slowest; from a load of 1 on it is mirrored
        return cls(phases, max(bound, min(_relaxation(min(load, 1 / load), variance), 2 * bound**2 / (pi**2 * variance))))

    @property
    def shortest(self) -> int:
        """The shortest run that sees the phases often enough, or ``MOST_REQUESTS``."""
        return int(min(_power_of_two(max(STAGES[0], (BLOCKS + 1) * RELAXATIONS * self.phases)), MOST_REQUESTS))

    @property
    def settled(self) -> float:
        """The shortest run from which on what is seen of the queue is its equilibrium."""
        return max(self.shortest, _power_of_two((FEWEST_BLOCKS + 1) * RELAXATIONS * self.queue))

    @property
    def stages(self) -> list[int]:
        """Runs to try in turn."""
        later = [n for n in STAGES if n >= 2 * self.shortest]
        return sorted({self.shortest, *later, int(min(self.settled, MOST_REQUESTS))})

    def blocks(self, n: int) -> int:
        """Blocks that ``n`` requests are good for."""
        longest = RELAXATIONS * max(self.phases, self.queue, 1.0)
        return max(FEWEST_BLOCKS, min(BLOCKS, int(n / longest) - 1))


def load_of(arrivals: ArrivalProcess, offer: WorkerOffer, policy: Policy) -> float:
    """The arrival rate over what the workers serve at most under a table."""
    return arrivals.arrival_rate / ((policy.servers or 1) * float(offer.throughput[policy.max_batch_size - 1]))


def _phases(arrivals: ArrivalProcess) -> tuple[float, float]:
    """Requests in the longest relaxation time of the phases, and the index of dispersion for counts in the long run."""
    if arrivals.n_phases == 1:
        return 0.0, 1.0
    decay = float(np.sort(-np.linalg.eigvals(arrivals.D0 + arrivals.D1).real)[1])
    # A chain that all but falls apart has a decay of rounding errors; it is beyond MOST_REQUESTS in any case.
    relaxation = 1 / max(decay, 1e-9 * arrivals.arrival_rate)
    return relaxation * arrivals.arrival_rate, float(dispersion_of_counts(arrivals, [100 * relaxation])[0])


def _relaxation(load: float, variance: float) -> float:
    """Requests that arrive in the relaxation time of a queue: exact for M/M/1 (``variance`` 2), else by its diffusion."""
    return load * variance / (2 * (1 - sqrt(load)) ** 2) if load < 1 else np.inf


def _squared_variation(service: ServiceTimes, batch_size: int) -> float:
    """Squared coefficient of variation of the time that a batch takes."""
    if service.deterministic:
        return 0.0
    low, high = service.response[batch_size - 1, :-1], service.response[batch_size - 1, 1:]
    second = float((low * low + low * high + high * high) @ np.diff(service.quantile_levels)) / 3
    return second / float(service.mean_response[batch_size - 1]) ** 2 - 1


def _power_of_two(n: float) -> float:
    """The next one."""
    return float(2 ** ceil(log2(n))) if n < np.inf else np.inf
