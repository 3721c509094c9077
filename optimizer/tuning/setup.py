"""What a model's plan is tuned within, and how carefully (docs/control.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log

from sluice.batching.documents import PLACEHOLDER, ServiceProfile, Slo, WarmEnvironments
from sluice.batching.errors import require
from sluice.batching.policy import INF
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.recommend.candidate import several
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.simulation.deployment import LAMBDA, Environments
from sluice.optimizer.simulation.function import LARGEST_BATCH

FEWEST = 66  # requests of which a share has an interval


@dataclass(frozen=True, eq=False)
class TuningSetup:
    """One model, and what may serve it.

    Parameters
    ----------
    model : str
        As plans name it.
    slos : sequence of Slo, or one
        All are kept; plans carry the first as theirs.
    profile : ServiceProfile or None
        Of the function, without sizes of requests; ``None``: live batches tell it, beginning with no batching.
    function : str
        As plans name it, ``{memory_mb}`` standing for its memory size; by default as the profile does.
    memory_sizes : tuple of int
        MB, of those that may be chosen; by default the profile's.
    billing : Billing
    environments : Environments
        How a platform runs the function; a cold start takes the INIT of the profile.
    max_batch_size : int
    offers : sequence of WorkerOffer
        Workers that may serve in the function's place.
    worker_start : float
        Seconds until a new worker serves.
    servers : int, optional
        So many workers of the only offer are there, whatever comes, and nothing else serves: the plan is their table. The profile
        is theirs.
    warm : WarmEnvironments, optional
        Environments that are provisioned, of the function that plans name ``warm_function``, whatever serves: what they cost by
        the hour is in no plan's cost.
    warm_function : str

    Raises
    ------
    InvalidInput
        No SLO; neither a profile nor the function's name and memory sizes; a profile with sizes of requests; servers without the
        one offer and the profile that are theirs.
    """

    model: str
    slos: tuple[Slo, ...]
    profile: ServiceProfile | None = None
    function: str = ""
    memory_sizes: tuple[int, ...] = ()
    billing: Billing = field(default_factory=Billing)
    environments: Environments = LAMBDA
    max_batch_size: int = LARGEST_BATCH
    offers: tuple[WorkerOffer, ...] = ()
    worker_start: float = 60.0
    servers: int | None = None
    warm: WarmEnvironments | None = None
    warm_function: str = ""

    def __post_init__(self) -> None:
        profile = self.profile
        object.__setattr__(self, "slos", several(self.slos))
        object.__setattr__(self, "offers", tuple(self.offers))
        require(profile is None or not profile.sizes, "profile.sizes", profile and len(profile.sizes), "none, as batches tell none")
        named = self.function or (profile.function if profile is not None else "")
        require(bool(named), "function", self.function, "the name of a function, where there is no profile")
        object.__setattr__(self, "function", named)
        own = profile.memory_sizes if profile is not None else ()
        sizes = tuple(sorted(set(self.memory_sizes or own or (() if self.servers is None else (1,)))))  # a machine names none
        require(bool(sizes), "memory_sizes", list(self.memory_sizes), "at least one memory size (MB)")
        require(len(sizes) == 1 or PLACEHOLDER in named, "memory_sizes", list(sizes), f"one, as {named} has no {PLACEHOLDER}")
        unknown = [mb for mb in sizes if profile is not None and profile.points and mb not in profile.memory_sizes]
        require(not unknown, "memory_sizes", unknown, "some of the profile's")
        object.__setattr__(self, "memory_sizes", sizes)
        require(self.max_batch_size >= 1, "max_batch_size", self.max_batch_size, "an integer >= 1")
        require(0 <= self.worker_start < INF, "worker_start", self.worker_start, "a number of seconds >= 0")
        if self.servers is not None:
            require(self.servers >= 1, "servers", self.servers, "an integer >= 1")
            require(len(self.offers) == 1, "offers", len(self.offers), "one, of which there are so many servers")
            theirs, called = self.offers[0].function, self.function_at(sizes[0])
            is_theirs = profile is not None and theirs == called
            require(is_theirs, "profile.function", called, f"{theirs}: the profile is that of the servers")
        if self.warm is not None:
            allowed = "environments that are provisioned: what pings keep is a plan's"
            require(self.warm.provisioned > 0, "warm", self.warm, allowed)
            known = f"one of the function's: {', '.join(map(self.function_at, sizes))}"
            require(self.memory_of(self.warm_function) is not None, "warm_function", self.warm_function, known)

    def function_at(self, memory_mb: int) -> str:
        """The function with so much memory, as a plan names it."""
        return self.function.replace(PLACEHOLDER, str(memory_mb))

    def warm_of(self, functions: Sequence[str]) -> WarmEnvironments | None:
        """What is provisioned where these functions serve, beside one another: known of one that serves alone."""
        return self.warm if list(functions) == [self.warm_function] else None

    def memory_of(self, function: str) -> int | None:
        """The memory size (MB) at which a plan names the function so; ``None`` where at none of those that may be chosen."""
        if self.servers is not None:
            return None
        return next((mb for mb in self.memory_sizes if self.function_at(mb) == function), None)


@dataclass(frozen=True)
class TuningSettings:
    """How carefully the plan is tuned.

    Parameters
    ----------
    period : float
        Seconds between decisions when nothing happens.
    pause : float
        Seconds between decisions at the least.
    least_between : float
        Seconds between changes of the plan, but where a promise is broken or service times have changed.
    kept_in : float
        Seconds in each of which a promise is to be kept: a plan is chosen that surely keeps it in the next window of so many.
    memory, max_requests : float, int
        Seconds and requests of the past that are rehearsed, at most; but for up to a day as many requests as it takes
        (``remembered``).
    half_life : float
        Seconds after which what was rehearsed weighs half in the cost; in proportion more where more is rehearsed than ``memory``,
        and ``period`` too.
    fewest, shortest : int, float
        Requests below which no plan is changed, and seconds below which none is changed for its cost: what starts cold hides it
        until then, and bursts that last longer are not known. From there on plans are compared whenever twice as long was seen,
        until that is a period.
    confidence : float
        One-sided, with which the promise is to be kept in the next window.
    horizon : float
        Seconds over which a change must save more than it costs, at the most: as long as the plan in force has served.
    premium : float
        Part of the cost that a plan which rests on no fit may cost more, and still be preferred.
    canary, canary_batches : float, int
        The share of the requests that a memory size gets first of which no batch was measured live, and for how many batches.
    yesterday : float
        Ratio of the rate to come to that of now, as the day before had them, from which the past is rehearsed at that rate as well.
    """

    period: float = 300.0
    pause: float = 5.0
    least_between: float = 60.0
    kept_in: float = 300.0
    memory: float = 1800.0
    max_requests: int = 1 << 15
    half_life: float = 600.0
    fewest: int = 200
    shortest: float = 60.0
    confidence: float = 0.99
    horizon: float = 3600.0
    premium: float = 0.01
    canary: float = 0.05
    canary_batches: int = 32
    yesterday: float = 1.25

    def remembered(self, error_budget: float) -> int:
        """Requests that it takes to compare plans, and to be sure of a promise that allows so much to be late, and was kept by all.

        Of n none of whom was late at most ln(1 / (1 - confidence)) / n are in the long run; that is to be half of what is allowed.
        """
        sure = ceil(2 * log(1 / (1 - self.confidence)) / error_budget)
        return min(max(self.fewest, sure), self.max_requests)

    def stretched(self, span: float) -> float:
        """How many times as long as ``memory`` this many seconds of arrivals are, which are few; 1 where they are not longer."""
        return max(1.0, span / self.memory)

    def __post_init__(self) -> None:
        for name in ("period", "pause", "kept_in", "memory", "half_life", "horizon"):
            require(0 < getattr(self, name) < INF, name, getattr(self, name), "a number of seconds > 0")
        for name in ("shortest", "least_between"):
            require(0 <= getattr(self, name) < INF, name, getattr(self, name), "a number of seconds >= 0")
        require(self.fewest >= FEWEST, "fewest", self.fewest, f"an integer >= {FEWEST}, as intervals need")
        require(self.max_requests >= self.fewest, "max_requests", self.max_requests, f"an integer >= fewest, {self.fewest}")
        require(0.5 < self.confidence < 1, "confidence", self.confidence, "a probability, 0.5 < confidence < 1")
        require(0 <= self.premium <= 1, "premium", self.premium, "a part of the cost from 0 to 1")
        require(0 < self.canary < 1, "canary", self.canary, "a part of the requests, strictly between 0 and 1")
        require(self.canary_batches >= 1, "canary_batches", self.canary_batches, "an integer >= 1")
        require(1 < self.yesterday < INF, "yesterday", self.yesterday, "a ratio > 1")
