"""Requests that workers meet in a run: when they come, and what is promised; of one class, or of several applications.

Of several applications each request is of one of them, has its slack, and counts for the promise of its own alone. They come as
each application's own process has them, so that phases which last too long for any run (``horizon``) cannot be dealt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sluice.batching.documents import RequestClass, Slo, quantile_of
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.superposition import superposed
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend.application import Application
from sluice.optimizer.recommend.horizon import MOST_REQUESTS, RELAXATIONS, STAGES, Horizon
from sluice.optimizer.recommend.waits import LONGEST_WAIT, rounded
from sluice.optimizer.simulation.batch_means import BLOCKS, FEWEST, Estimate, estimate_late, estimate_quantile
from sluice.optimizer.simulation.chunks import MergedArrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate_deployment

FIRST = 1 << 14  # requests of several applications in the shortest run
ENOUGH = 8  # late requests that an application may have in a run, where it is to be told whether it has more
MOST_MORE = 0.005  # of all requests, that those of a rare application are made
UNKNOWN = Estimate(0.0, 0.0, 1.0)  # a share of too few requests
LEVELS = np.linspace(0, 100, 201)  # percentiles of which a class's latency is kept


class Drawn(NamedTuple):
    """Arrivals of a run (s), and by class the places of its requests among them; no class where all are alike."""

    times: Array
    places: tuple[Indices, ...] = ()

    @property
    def classes(self) -> Indices | None:
        """Of each request."""
        if not self.places:
            return None
        found = np.empty(len(self.times), dtype=np.int64)
        for k, mine in enumerate(self.places):
            found[mine] = k
        return found


class ClassSeen(NamedTuple):
    """What the requests of a class met: the percentile of their promise (s), and their latency at ``LEVELS`` (s)."""

    reached: Estimate
    latency: Array


@dataclass(frozen=True, eq=False)
class Demand:
    """Requests that are alike.

    Parameters
    ----------
    arrivals : ArrivalProcess
    slos : tuple of Slo
        All are promised to every request.
    """

    longest_wait = np.inf  # s that nobody is to be held beyond
    arrivals: ArrivalProcess
    slos: tuple[Slo, ...]

    def price(self, cost: BatchCost) -> float:
        """USD per request by which what serves it is compared: in all."""
        return cost.in_all(self.arrivals.arrival_rate)

    def longer(self, slacks: Sequence[float]) -> float:
        """Seconds that a request may wait longer than a table says, in the mean."""
        return 0.0

    def shown(self, horizon: Horizon) -> bool:
        """Whether runs can be drawn that are as the arrivals are."""
        return True

    def stages(self, horizon: Horizon) -> list[int]:
        """Runs of a search, in requests, to try in turn; none where no run shows the equilibrium."""
        return horizon.stages if horizon.settled <= MOST_REQUESTS else []

    def drawn(self, horizon: Horizon, n: int, rng: np.random.Generator) -> Drawn:
        """``n`` arrivals for a run of that length."""
        return Drawn(horizon.arrival_times(n, rng))

    def slacks(self, left: Array) -> tuple[float, ...]:
        """By class the seconds that its requests may wait longer, where each SLO ``left`` so many, (n_slos, max_batch_size)."""
        return ()

    def run(self, deployment: Deployment, drawn: Drawn, slacks: Sequence[float], rng: np.random.Generator) -> SimulationResult:
        """What the deployment does."""
        return simulate_deployment(deployment, drawn.times, rng)

    def violations(
        self, run: SimulationResult, drawn: Drawn, confidence: float, blocks: int, *, run_again: bool = False
    ) -> tuple[Estimate, ...]:
        """Share of the requests beyond each SLO, of those that it is promised to.

        Of what is ``run_again``, and longer, before anybody relies on it, those who are late come in clusters as they were seen: of
        few bursts, of which none was late, nothing is sure yet.
        """
        return tuple(estimate_late(run.latency, slo.latency, confidence, blocks, run_again) for slo in self.slos)

    def by_class(self, run: SimulationResult, drawn: Drawn, confidence: float, blocks: int) -> tuple[ClassSeen, ...]:
        """What the requests of each application met; nothing where all are alike."""
        return ()


@dataclass(frozen=True, eq=False)
class SharedDemand(Demand):
    """Requests of several applications, each with its own promise: ``arrivals`` and ``slos`` are made of these."""

    longest_wait = LONGEST_WAIT
    arrivals: ArrivalProcess = field(init=False)
    slos: tuple[Slo, ...] = field(init=False)
    applications: tuple[Application, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "arrivals", superposed([of.arrivals for of in self.applications]))
        object.__setattr__(self, "slos", tuple(of.slo for of in self.applications))

    def price(self, cost: BatchCost) -> float:
        """Without what stands before all queues, which is the same for any grouping."""
        return cost.per_request

    def longer(self, slacks: Sequence[float]) -> float:
        rates = [of.arrivals.arrival_rate for of in self.applications]
        return float(np.average(slacks, weights=rates))

    def shown(self, horizon: Horizon) -> bool:
        return not horizon.dealt

    def stages(self, horizon: Horizon) -> list[int]:
        """Shorter runs than of requests that are alike, for there are many groups of applications.

        The first sees the phases often enough to say what surely breaks a promise, the last shows the equilibrium.
        """
        if not self.shown(horizon) or horizon.settled > MOST_REQUESTS:
            return []
        longest = int(max(horizon.settled, STAGES[1]))
        shorter = [n for n in (FIRST, *STAGES) if (BLOCKS + 1) * RELAXATIONS * horizon.phases <= n < longest]
        return [*shorter, longest]

    def drawn(self, horizon: Horizon, n: int, rng: np.random.Generator) -> Drawn:
        arrivals = MergedArrivals(self._seen_often(), n, int(rng.integers(1 << 31)))
        times, classes = (np.concatenate(list(of)) for of in zip(*arrivals.merged(), strict=True))
        return Drawn(times, tuple(np.flatnonzero(classes == k) for k in range(len(self.applications))))

    def _seen_often(self) -> list[ArrivalProcess]:
        """The arrivals of each, faster where they are so rare that a run would not tell whether their promise is kept.

        That is more load than there is, which is on the safe side.
        """
        total, found = self.arrivals.arrival_rate, []
        for of in self.applications:
            least = min(ENOUGH / of.slo.error_budget / STAGES[1], MOST_MORE) * total
            found.append(of.arrivals.sped_up(max(1.0, least / of.arrivals.arrival_rate)))
        return found

    def slacks(self, left: Array) -> tuple[float, ...]:
        within = np.minimum(left, LONGEST_WAIT)
        return tuple(rounded((within - within.min(axis=0)).min(axis=1)).tolist())

    def run(self, deployment: Deployment, drawn: Drawn, slacks: Sequence[float], rng: np.random.Generator) -> SimulationResult:
        classes = [RequestClass(of.name, of.slo, slack) for of, slack in zip(self.applications, slacks, strict=True)]
        return simulate_deployment(replace(deployment, classes=classes), drawn.times, rng, classes=drawn.classes)

    def violations(
        self, run: SimulationResult, drawn: Drawn, confidence: float, blocks: int, *, run_again: bool = False
    ) -> tuple[Estimate, ...]:
        """Of an application with too few requests for an interval nothing is known."""
        found = []
        for slo, mine in zip(self.slos, drawn.places, strict=True):
            fewer = _blocks_of(len(mine), blocks)
            late = UNKNOWN if fewer is None else estimate_late(run.latency[mine], slo.latency, confidence, fewer, run_again)
            found.append(late)
        return tuple(found)

    def by_class(self, run: SimulationResult, drawn: Drawn, confidence: float, blocks: int) -> tuple[ClassSeen, ...]:
        found = []
        for of, mine in zip(self.applications, drawn.places, strict=True):
            fewer, latency = _blocks_of(len(mine), blocks), run.latency[mine]
            levels = np.percentile(latency, LEVELS) if len(mine) else np.full(len(LEVELS), np.nan)
            reached = Estimate(float(np.interp(of.slo.percentile, LEVELS, levels)), 0.0, np.inf)
            if fewer is not None:
                reached = estimate_quantile(latency, quantile_of(of.slo.percentile), confidence, fewer)
            found.append(ClassSeen(reached, levels))
        return tuple(found)


def _blocks_of(n: int, blocks: int) -> int | None:
    """Into how many blocks ``n`` requests of a class are cut, at most ``blocks``; ``None`` where they are too few."""
    fewer = min(blocks, n // 2 - 1)
    return fewer if fewer >= min(blocks, FEWEST) else None
