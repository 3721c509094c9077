"""How long a run must be to speak of equilibrium, in requests (docs/model.md, section 7).

Two things must be forgotten often within a run: the phase of the arrivals, whose longest relaxation time is that of the chain
``D0 + D1``, and the length of the queue, whose relaxation time is exact for M/M/1 and else that of its diffusion. A block of the
batch means holds ``RELAXATIONS`` of both.

Phases that are not forgotten so often in ``MOST_REQUESTS`` are dealt: the arrivals of a run are put together from pieces that begin
in each phase as often as it is met in equilibrium (``ArrivalProcess.sample_dealt``), some in every block. A piece is as long as the
queue needs to forget the one before. Where one is too short for that, or a phase is met too seldom even so, no run is long enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2, pi, sqrt

import numpy as np

from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import BLOCKS
from sluice.optimizer.simulation.deployment import Environments

STAGES = (1 << 16, 1 << 18, 1 << 20)  # requests simulated, until the answer is clear
MOST_REQUESTS = 1 << 21
RELAXATIONS = 5  # that a block of the batch means must hold
FEWEST_BLOCKS = 4
PIECE_RELAXATIONS = 25  # of the queue, that a piece must hold
FEWEST_PIECES, MOST_PIECES = 4, 64  # in a block
UNSEEN = "the phases of the arrivals last too long, and one of them is too rare or the queue forgets too slowly in it"
LIVES = 5  # of an idle environment, that a run lasts at least, and a piece if it can


@dataclass(frozen=True)
class Horizon:
    """Requests that arrive in the longest relaxation time of the arrivals' ``phases``, and in that of the ``queue``.

    The latter is inf where the queue grows for ever. ``lives`` are the requests of some lives of an idle environment, where
    environments have to start.
    """

    arrivals: ArrivalProcess
    phases: float
    queue: float
    lives: float = 0.0

    @classmethod
    def of(cls, arrivals: ArrivalProcess, offer: WorkerOffer, policy: Policy) -> Horizon:
        """Of workers under a table."""
        phases, dispersion = _phases(arrivals)
        load, size = load_of(arrivals, offer, policy), policy.max_batch_size
        peak = load * float(arrivals.D1.sum(axis=1).max()) / arrivals.arrival_rate  # the load of the busiest phase
        variance = size * _squared_variation(offer.service, size)
        # A queue that can keep up in every phase forgets before the phase changes, however much the phases vary.
        return cls(arrivals, phases, min(_relaxation(load, dispersion + variance), _relaxation(peak, 1 + variance)))

    @classmethod
    def beside(
        cls,
        arrivals: ArrivalProcess,
        offer: WorkerOffer,
        policy: Policy,
        overflow: Policy,
        environments: Environments | None = None,
        longer: float = 0.0,
    ) -> Horizon:
        """Of workers under a table, with a function beside them that bounds the queue, whatever the load.

        ``longer`` are the seconds that a request may wait longer than the function's table says, in the mean.
        """
        phases, dispersion = _phases(arrivals)
        load, size = load_of(arrivals, offer, policy), policy.max_batch_size
        variance = dispersion + size * _squared_variation(offer.service, size)
        bound = 1 + arrivals.arrival_rate * (overflow.hold[1] + longer)
        # a diffusion that is reflected at nothing and at the bound, without a drift the slowest; from a load of 1 on it is mirrored
        queue = max(bound, min(_relaxation(min(load, 1 / load), variance), 2 * bound**2 / (pi**2 * variance)))
        lives = 0.0
        if environments is not None and environments.init_duration > 0:
            lives = LIVES * environments.keep_alive * arrivals.arrival_rate
        return cls(arrivals, phases, queue, lives)

    @property
    def dealt(self) -> bool:
        """Whether the phases are forgotten too seldom for any run."""
        return (BLOCKS + 1) * RELAXATIONS * self.phases > MOST_REQUESTS

    @property
    def shortest(self) -> int:
        """The shortest run that sees the phases often enough."""
        return int(_power_of_two(max(STAGES[0], 0 if self.dealt else (BLOCKS + 1) * RELAXATIONS * self.phases)))

    @property
    def settled(self) -> float:
        """The shortest run from which on what is seen is the equilibrium; inf where there is none."""
        if not self.dealt:
            return max(self.shortest, _power_of_two((FEWEST_BLOCKS + 1) * RELAXATIONS * self.queue))
        long_enough = max(self.shortest, _power_of_two((BLOCKS + 1) * FEWEST_PIECES * PIECE_RELAXATIONS * self.queue))
        stages = [n for n in (*STAGES, MOST_REQUESTS) if n >= long_enough and self._meets_all_phases(n)]
        return min(stages, default=np.inf)

    @property
    def stages(self) -> list[int]:
        """Runs to try in turn."""
        later = [n for n in STAGES if n >= 2 * self.shortest]
        return sorted({self.shortest, *later, int(min(self.settled, MOST_REQUESTS))})

    def blocks(self, n: int) -> int:
        """Blocks that ``n`` requests are good for."""
        longest = RELAXATIONS * max(0.0 if self.dealt else self.phases, self.queue, 1.0)
        return max(FEWEST_BLOCKS, min(BLOCKS, int(n / longest) - 1))

    def pieces(self, n: int) -> int:
        """Pieces of ``n`` requests that begin anew: one where a run sees the phases by itself."""
        if not self.dealt:
            return 1
        most = n / (BLOCKS + 1) / max(PIECE_RELAXATIONS * self.queue, 1.0)
        wanted = max(FEWEST_PIECES, min(MOST_PIECES, n / (BLOCKS + 1) / max(self.lives, 1.0)))
        return (BLOCKS + 1) * max(1, int(min(most, wanted)))

    def arrival_times(self, n: int, rng: np.random.Generator) -> Array:
        """``n`` arrivals that a run of such a length may take for those of the process, s."""
        pieces = self.pieces(n)
        return np.cumsum(self.arrivals.sample(n, rng) if pieces == 1 else self.arrivals.sample_dealt(n, pieces, rng))

    def _meets_all_phases(self, n: int) -> bool:
        """Whether pieces begin in every phase, or come to it by themselves, so often that every one is seen."""
        of = self.arrivals
        comes_to = of.stationary * -np.diag(of.D0 + of.D1) / of.arrival_rate
        return bool((self.pieces(n) * of.embedded + n * comes_to >= FEWEST_BLOCKS).all())


def load_of(arrivals: ArrivalProcess, offer: WorkerOffer, policy: Policy) -> float:
    """The arrival rate over what the workers serve at most under a table."""
    return arrivals.arrival_rate / ((policy.servers or 1) * float(offer.throughput[policy.max_batch_size - 1]))


@lru_cache(maxsize=16)  # of one process, by identity, for every table that a search tries
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
