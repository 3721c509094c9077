"""What is asked: how to serve these arrivals with this function, or with workers, so that the SLOs are kept (docs/model.md, 3.3).

Question    arrivals, profile, SLOs, bill, offers of workers
Goal        what is least, at most how dear, and what is kept free
Limits      which memory sizes, batches, timeouts and tables are considered
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from msgspec.structs import replace

from sluice.batching.documents import PLACEHOLDER, ServiceProfile, Slo
from sluice.batching.durations import LONGEST_HOLD
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.function.batching_law import MOST_BATCH
from sluice.optimizer.recommend.candidate import several
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.service.by_size import SizedServices, service_times_under
from sluice.optimizer.service.doubt import seconds_in_doubt
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.deployment import LAMBDA, Environments
from sluice.optimizer.simulation.function import Function

N_TIMEOUTS = 64
LONGEST_TIMEOUT = 2.0  # of the longest latency promised
MAX_BATCH_SIZE = 128
OBJECTIVES = ("cost", "latency")
POLICIES = ("all", "size-or-timeout")
LOADS = (0.1, 1000.0)
FARTHEST = 1e6  # multiple of the arrival rate
CONFIDENCE = 0.95
PREMIUM = 0.01  # of the cost: what fits are off by, and more than that, on the traces of docs/policy-zoo.md


@dataclass(frozen=True)
class Goal:
    """What is wanted.

    Parameters
    ----------
    objective : {"cost", "latency"}
        ``cost``: least cost per request with the SLOs kept (and ``max_cost``, where given). ``latency``: least latency at the first
        SLO's percentile with at most ``max_cost``; the SLOs bound the search.
    max_cost : float or None
        USD per request of the bill of what serves.
    headroom : float
        Part of the SLOs' latencies kept free for what the model does not know.
    premium : float
        Part of the cost that a table which waits to the last moment may cost more than the best size-or-timeout, or than workers,
        and still be taken, as it keeps the SLOs whatever the arrivals do; at most 1, for objective ``cost``.
    loads : tuple of float, or None
        The least and the largest multiple of the arrival rate at which one plan is to be cheap, for objective ``cost``: it is
        taken up to the ``premium`` as well. ``None``: the function's setting is the best at the rate itself.
    confidence : float
        With which the SLOs are kept given what the profile, a sample, may be wrong by (``Question.in_doubt``), and by a setting
        that rests on the fit given the fit's uncertainty, where the question has it (``Question.without``), for objective
        ``cost``; 0.5 keeps nothing free for either.
    """

    objective: str = "cost"
    max_cost: float | None = None
    headroom: float = 0.0
    premium: float = PREMIUM
    loads: tuple[float, float] | None = None
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        require(self.objective in OBJECTIVES, "objective", self.objective, " or ".join(OBJECTIVES))
        dear = self.max_cost is not None or self.objective == "cost"
        require(dear, "max_cost", self.max_cost, "USD per request, for objective latency")
        require(self.max_cost is None or 0 < self.max_cost < np.inf, "max_cost", self.max_cost, "USD per request > 0")
        require(0 <= self.headroom < 1, "headroom", self.headroom, "a fraction of the SLO, 0 <= headroom < 1")
        require(0.5 <= self.confidence < 1, "confidence", self.confidence, "a probability, 0.5 <= confidence < 1")
        require(0 <= self.premium <= 1, "premium", self.premium, "a part of the cost from 0 to 1 (0.05 for 5 %)")
        if self.loads is not None:
            within = len(self.loads) == 2 and 1 / FARTHEST <= self.loads[0] <= 1 <= self.loads[1] <= FARTHEST
            allowed = f"two multiples of the arrival rate with 1 between them, {1 / FARTHEST:g} to {FARTHEST:g}"
            require(within, "loads", self.loads, allowed)
            require(self.objective == "cost", "loads", self.loads, "none for objective latency")

    @property
    def budget(self) -> float:
        """USD per request that may be spent, inf where nothing bounds them."""
        return np.inf if self.max_cost is None else self.max_cost


@dataclass(frozen=True)
class Limits:
    """What is considered.

    Parameters
    ----------
    memory_sizes : tuple of int
        MB; by default all the profile's. A linear profile needs them.
    max_batch_size : int
        Cut to what the profile measured, to what fits into one invocation, and to ``MOST_BATCH``, 1024.
    timeouts : tuple of float
        s; by default a grid up to ``max_timeout``, refined until the answer's ``gap`` is small.
    max_timeout : float or None
        s; by default twice the longest latency promised, at most ``LONGEST_HOLD``.
    policies : {"all", "size-or-timeout"}
        Whether tables that wait to the last moment compete; they do not where ``timeouts`` are given.
    """

    memory_sizes: tuple[int, ...] = ()
    max_batch_size: int = MAX_BATCH_SIZE
    timeouts: tuple[float, ...] = ()
    max_timeout: float | None = None
    policies: str = "all"

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory_sizes", tuple(sorted(set(self.memory_sizes))))
        object.__setattr__(self, "timeouts", tuple(sorted({float(timeout) for timeout in self.timeouts})))
        require(self.max_batch_size >= 1, "max_batch_size", self.max_batch_size, "an integer >= 1")
        finite = all(0 <= timeout < np.inf for timeout in self.timeouts)
        require(finite, "timeouts", list(self.timeouts), "seconds >= 0, at least one")
        if self.max_timeout is not None:
            require(0 <= self.max_timeout < np.inf, "max_timeout", self.max_timeout, "a number of seconds >= 0")
            named = "only without timeouts, which name those considered"
            require(not self.timeouts, "max_timeout", self.max_timeout, named)
        require(self.policies in POLICIES, "policies", self.policies, " or ".join(POLICIES))

    @property
    def considers_tables(self) -> bool:
        """Whether tables that wait to the last moment are."""
        return self.policies == "all" and not self.timeouts


@dataclass(frozen=True, eq=False)
class Question:
    """How to serve the requests.

    Parameters
    ----------
    arrivals : ArrivalProcess or float
        A number is the rate (1/s) of Poisson arrivals.
    profile : ServiceProfile
        Of the function.
    slos : sequence of Slo, or one
        All are kept; the first is the one that the frontier and objective ``latency`` speak of.
    billing : Billing
        How the function is billed, and what stands before it.
    offers : sequence of WorkerOffer
        Workers that compete with the function, and work beside it; their latencies are found by simulation.
    limits : Limits
    goal : Goal
    environments : Environments
        How the platform runs the function beside workers; a cold start takes the INIT of the profile, where that was measured.
    mix : SizeMix or None
        The sizes of the requests, drawn independently, where the profile tells them apart.
    cold_understated : float
        By how much more batches start cold beside others than is estimated, as a run has shown (``recommend``).
    measured : SizedServices or None
        The profile's service times by size; by default they are read from it, and questions made of this one share them.
    without : sequence of ArrivalProcess
        The arrivals as they are fitted without each block of their trace, where that is known: the fit's uncertainty.
    recorded : TraceArrivals or None
        Arrivals as they came, where they are known: costs are then those on them, and else those of ``arrivals`` in the long run.

    Raises
    ------
    InvalidInput
        No SLO; no memory size, or one that was not measured; a request or an answer that no invocation takes.
    """

    arrivals: ArrivalProcess
    profile: ServiceProfile
    slos: tuple[Slo, ...]
    billing: Billing = field(default_factory=Billing)
    offers: tuple[WorkerOffer, ...] = ()
    limits: Limits = Limits()
    goal: Goal = Goal()
    environments: Environments = LAMBDA
    mix: SizeMix | None = None
    without: tuple[ArrivalProcess, ...] = ()
    recorded: TraceArrivals | None = None
    cold_understated: float = 1.0
    measured: SizedServices | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.arrivals, ArrivalProcess):
            object.__setattr__(self, "arrivals", poisson(float(self.arrivals)))
        object.__setattr__(self, "slos", several(self.slos))
        object.__setattr__(self, "billing", self.billing.of_profile(self.profile))
        object.__setattr__(self, "offers", tuple(self.offers))
        object.__setattr__(self, "without", tuple(self.without))
        require(len(self.without) != 1, "without", len(self.without), "the fits without each of at least two blocks, or none")
        none = "at least one memory size (MB), as a linear profile names none"
        require(bool(self.memory_sizes), "memory_sizes", list(self.memory_sizes), none)
        limit, billing = self._payload_limit, self.billing
        fits = billing.payload_bytes is None or 1 <= billing.payload_bytes <= limit
        require(fits, "payload_bytes", billing.payload_bytes, f"1 to {limit}, what one invocation takes")
        fits = (billing.answer_bytes or 0) <= limit
        require(fits, "answer_bytes", billing.answer_bytes, f"0 to {limit}, what one invocation answers")
        if self.recorded is not None:
            sized = "with the size of each, where requests have sizes, and else without"
            require((self.mix is None) == (self.recorded.sizes is None), "recorded", self.recorded.n_requests, sized)
        if self.goal.loads is not None:
            require(self.mix is None, "loads", self.goal.loads, "none beside sizes of requests")
            alone = "none where tables that wait to the last moment are not considered"
            require(self.considers_tables, "loads", self.goal.loads, alone)
        _ = self.services  # refuses what the profile does not have

    @property
    def arrival_rate(self) -> float:
        """Requests/s, of those recorded where there are any."""
        return self.arrivals.arrival_rate if self.recorded is None else self.recorded.arrival_rate

    @property
    def memory_sizes(self) -> tuple[int, ...]:
        """Memory sizes considered, MB, ascending."""
        return self.limits.memory_sizes or tuple(self.profile.memory_sizes)

    @cached_property
    def promised(self) -> tuple[Slo, ...]:
        """The SLOs as the search keeps them."""
        return tuple(self.kept(slo) for slo in self.slos)

    def promised_by(self, offer: WorkerOffer) -> tuple[Slo, ...]:
        """The same of workers alone: with the headroom left, and the way to them, which no profile has but the function's own."""
        way = 0.0 if self.profile.way is None or offer.provisioned else self.profile.way.mean
        return tuple(slo.within(self.goal.headroom).sooner(way) for slo in self.slos)

    @property
    def asked(self) -> str:
        """The SLOs in words, with what is kept free of them."""
        return " and ".join(self.named(slo) for slo in self.slos)

    def named(self, slo: Slo) -> str:
        """One of them, as asked for or as the search keeps it, in words."""
        whole = next(of for of in self.slos if of.percentile == slo.percentile)
        free = whole.latency - self.kept(whole).latency
        return f"{whole.name} within {whole.latency:g} s" + (f", of which {free:.4g} s are kept free" if free > 0 else "")

    def kept(self, slo: Slo) -> Slo:
        """An SLO as the search keeps it, with the headroom left and what the profile may be wrong by."""
        return slo.within(self.goal.headroom).sooner(self.in_doubt(slo))

    def in_doubt(self, slo: Slo) -> float:
        """Seconds kept free for what profile and way may take longer than is known of them: half of the SLO's at most."""
        return min(self.doubt(slo), slo.within(self.goal.headroom).latency / 2)

    def promisable(self, predicted: Slo) -> float:
        """Seconds that may be promised where a percentile is predicted to be so long."""
        seconds = predicted.latency
        while (needed := predicted.latency + self.doubt(replace(predicted, latency=seconds))) > seconds:
            seconds = needed  # longer promises have more batch sizes in them, and there are only so many
        return seconds

    def doubt(self, slo: Slo) -> float:
        """Seconds by which its percentile may be longer than predicted, with the confidence of the goal."""
        return seconds_in_doubt(self.profile, self.memory_sizes, slo.quantile, self.goal.confidence, slo.latency)

    @property
    def max_batch_size(self) -> int:
        """Of the batches considered: what the limits say and one invocation takes."""
        largest = self._payload_limit // max(1, *self.billing.moved)
        return min(self.limits.max_batch_size, largest, MOST_BATCH)

    @cached_property
    def services(self) -> tuple[ServiceTimes, ...]:
        """The service times at every memory size considered, for batches that fit into one invocation."""
        most = self.max_batch_size
        if self.mix is None:
            return tuple(service_times_under(self.profile, memory_mb, most, None) for memory_mb in self.memory_sizes)
        measured = self.measured
        if measured is None or measured.profile is not self.profile or measured.batch_size != most:
            measured = SizedServices(self.profile, most)
            object.__setattr__(self, "measured", measured)
        return tuple(measured.at(memory_mb, self.mix.largest).under(self.mix) for memory_mb in self.memory_sizes)

    def function_at(self, memory_mb: int) -> str:
        """The function with so much memory, as a plan names it."""
        return self.profile.function.replace(PLACEHOLDER, str(memory_mb))

    def environments_at(self, memory_mb: int) -> Environments | None:
        """How the function's environments run; as Function.platform."""
        return Function(self.profile, memory_mb, self.billing, self.environments).platform

    @cached_property
    def timeouts(self) -> Array:
        """Those given (s), or a grid: up to the longest, evenly spaced on the scale of every SLO."""
        if self.limits.timeouts:
            return np.array(self.limits.timeouts)
        scales = {LONGEST_TIMEOUT * slo.latency for slo in self.promised}
        longest = min(max(scales), LONGEST_HOLD) if self.limits.max_timeout is None else self.limits.max_timeout
        scales = {min(scale, longest) for scale in scales} | {longest}
        return np.unique(np.concatenate([np.linspace(0, scale, N_TIMEOUTS + 1) for scale in scales]))

    @property
    def longest_timeout(self) -> float:
        """s."""
        return float(self.timeouts[-1])

    @property
    def refines(self) -> bool:
        """Whether timeouts between those of the grid are considered."""
        return not self.limits.timeouts

    @property
    def considers_tables(self) -> bool:
        """Whether those compete that wait to the last moment."""
        return self.limits.considers_tables

    @property
    def premium(self) -> float:
        """What such a table is worth; nothing where its hold is capped, as it has then lost what it is preferred for."""
        capped = self.limits.max_timeout is not None or min(slo.latency for slo in self.slos) > LONGEST_HOLD
        return 0.0 if capped else self.goal.premium

    @property
    def _payload_limit(self) -> int:
        return self.billing.prices.function.payload_limit_bytes
