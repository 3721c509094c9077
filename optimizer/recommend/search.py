"""The search over memory size x batch size x timeout (docs/model.md, 3.3).

For one timeout the batching law of every batch size comes at once (``SizeOrTimeout``) and is shared by all memory sizes; an SLO
"a fraction q within t" needs one point of each latency distribution, not the distribution. Batch sizes alone give every cost and a
ceiling on every probability: whoever opens a batch that leaves by timeout T waits T. So timeouts are visited cheapest first, and
those that only have settings dearer than the best found, or settings that cannot keep an SLO, are not. A ``Landscape`` holds
cost and margins (the probability of being within each SLO, less what was promised), and which settings were ruled out.

Between two neighbouring timeouts cost and margins are taken to stray from their ends by no more than their curvature allows, as
estimated from the neighbours: h^2/8 times the second divided difference. A cell that could hold a kept SLO at a cost below the
best so far is halved, until none could be cheaper by more than ``tolerance`` or it is ``RESOLUTION`` wide; what is left open is the
``gap`` of the answer.
Batches larger than what the longest timeout can gather (but for a probability of ``UNREACHED``) are all one, and not considered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.batching.documents import Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import CountingProcess, TooManyJumps
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cold_starts import Shares
from sluice.optimizer.function.batching_law import SEARCH, basis_of, size_or_timeout_law
from sluice.optimizer.function.sampled_batches import ArrivalSample, SampledHolds
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.recommend.function_starts import FunctionStarts
from sluice.optimizer.service.times import ServiceTimes

TOLERANCE = 5e-5  # of the least cost
SAME = 5e-5  # of the cost: of timeouts that cost no more than this above the cheapest, the shortest is taken
UNREACHED = 1e-9
RESOLUTION = 1e-5  # of the longest timeout, or of twice the shortest latency promised: no cell is cut finer
MAX_ROUNDS = 20
SAMPLED_ROUNDS = 2  # where arrivals are drawn, whose chance is rougher than what lies between timeouts
CELLS_A_ROUND = 8
ROUNDING = 1e-9  # of a probability: an SLO missed by no more is kept
SELDOM = 1e-4  # of the requests: cold starts that rare are late whatever they take
OnProgress = Callable[[float], None]
Margins = Callable[[float, NDArray[np.intp]], Array]
KeptFree = Callable[[float, NDArray[np.intp]], Array | float]
_NEVER = 1e300  # seconds; the response of a batch that is not allowed


@dataclass(frozen=True)
class Choice:
    """A setting by the index of its function, with its cost (USD per request)."""

    service: int
    batch_size: int
    timeout: float
    cost: float


@dataclass
class Landscape:
    """Cost and margins of the SLOs at ascending timeouts: (n_timeouts, n_services, max_batch_size).

    ``cost`` is infinite where a batch is not allowed. ``margin`` is the least over the SLOs, nan where it was not computed: where a
    setting was ``ruled_out``, as it cannot keep an SLO, or none of its function can be cheapest, or where others are cheaper.
    """

    timeouts: Array
    cost: Array
    margin: Array
    ruled_out: NDArray[np.bool_]

    def add(self, timeouts: Array, cost: Array, margin: Array, ruled_out: NDArray[np.bool_]) -> None:
        """Take in further timeouts."""
        order = np.argsort(np.concatenate([self.timeouts, timeouts]), kind="stable")
        self.timeouts = np.concatenate([self.timeouts, timeouts])[order]
        self.cost = np.concatenate([self.cost, cost])[order]
        self.margin = np.concatenate([self.margin, margin])[order]
        self.ruled_out = np.concatenate([self.ruled_out, ruled_out])[order]

    @property
    def n_settings(self) -> int:
        """How many settings were compared by their cost."""
        return int(np.isfinite(self.cost).sum())

    def kept_cost(self, budget: float = np.inf) -> Array:
        """Cost where every SLO and the budget are kept, infinite elsewhere."""
        return np.where((self.margin >= -ROUNDING) & (self.cost <= budget), self.cost, np.inf)

    def least_cost_between(self) -> Array:
        """What a timeout between two neighbours costs at the least, by their curvature: (n_timeouts - 1, n_services, n_sizes)."""
        with np.errstate(invalid="ignore"):  # inf - inf, where a batch is not allowed
            return np.asarray(np.minimum(self.cost[:-1], self.cost[1:]) - _sway(self.timeouts, self.cost))

    def may_keep_between(self) -> NDArray[np.bool_]:
        """Where a timeout between two neighbours may keep the SLOs, by their curvature; what was not visited may."""
        margin = np.where(self.ruled_out, -np.inf, self.margin)
        with np.errstate(invalid="ignore"):
            most = np.maximum(margin[:-1], margin[1:]) + _sway(self.timeouts, margin)
            return np.asarray(~(most < 0))

    def ranked(self, budget: float = np.inf) -> list[Choice]:
        """The cheapest timeout of each function and batch size that keeps the SLOs, cheapest first.

        Of timeouts that cost the same to ``SAME`` it is the shortest; of equally cheap settings the one of the earlier function,
        then of the smaller batch, comes first.
        """
        cost = self.kept_cost(budget)
        at = (cost <= cost.min(axis=0) * (1 + SAME)).argmax(axis=0)
        found = []
        for j, n in np.argwhere(np.isfinite(cost.min(axis=0))):
            timeout = 0.0 if n == 0 else float(self.timeouts[at[j, n]])
            found.append(Choice(int(j), int(n) + 1, timeout, float(cost[at[j, n], j, n])))
        return sorted(found, key=lambda c: (float(f"{c.cost:.9e}"), c.service, c.batch_size))


@dataclass
class Search:
    """All settings of some functions in front of one arrival process.

    Parameters
    ----------
    arrivals : ArrivalProcess
    services : sequence of ServiceTimes
        One per memory size.
    compute : array, shape (n_services, max_batch_size)
        USD for a batch of 1, 2, ...; zero beyond a function's largest batch.
    per_invocation : array, shape (n_services,)
        USD that an invocation costs whatever its batch, if it is warm.
    max_timeout : float
        Seconds; no timeout beyond it is asked for.
    starts : FunctionStarts or None
        Of the functions; ``None``: every environment is warm.
    asked_once : bool
        Of every timeout no other latencies are asked for than those of the first time: what other answers would be made of is not
        kept, 0.2 MB of a timeout.
    """

    arrivals: ArrivalProcess
    services: Sequence[ServiceTimes]
    compute: Array
    per_invocation: Array
    max_timeout: float
    starts: FunctionStarts | None = None
    asked_once: bool = False
    _laws: dict[float, SizeOrTimeout | SampledHolds] = field(default_factory=dict)
    _costs: dict[float, Array] = field(default_factory=dict)
    _cold: dict[float, Shares] = field(default_factory=dict)
    _within: dict[tuple[float, ...], Array] = field(default_factory=dict)
    _surely_late: dict[tuple[float, float], Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.max_batch_size = self._largest_reached(max(service.max_batch_size for service in self.services))
        self.basis = basis_of(self.arrivals, self.max_batch_size, self.max_timeout, SEARCH)
        self.compute = self.compute[:, : self.max_batch_size]
        self.levels = np.unique(np.concatenate([service.quantile_levels for service in self.services]))
        self.response = np.full((len(self.services), self.max_batch_size, len(self.levels)), _NEVER)
        self.allowed = np.zeros((len(self.services), self.max_batch_size), dtype=bool)
        for j, service in enumerate(self.services):
            self.allowed[j, : service.max_batch_size] = True
            for n, row in enumerate(service.response[: self.max_batch_size]):
                self.response[j, n] = np.interp(self.levels, service.quantile_levels, row)

    def _largest_reached(self, batch_size: int) -> int:
        """The smallest batch size that is as good as any larger one up to ``batch_size``."""
        try:
            counting = CountingProcess(self.arrivals, batch_size, self.max_timeout, np.empty(0, dtype=np.intp), SEARCH.room)
        except TooManyJumps:
            return batch_size
        fewer = np.cumsum(counting.probabilities(np.array([self.max_timeout]))[0], axis=0)  # at most k arrivals beside the first
        full = np.flatnonzero((1 - fewer).max(axis=1) < UNREACHED)
        return min(batch_size, int(full[0]) + 1) if len(full) else batch_size

    @property
    def exact(self) -> bool:
        """Whether nothing was drawn."""
        return not isinstance(self.basis, ArrivalSample)

    def law(self, timeout: float) -> SizeOrTimeout | SampledHolds:
        """The batching law at a timeout, for every batch size."""
        if timeout not in self._laws:
            self._laws[timeout] = size_or_timeout_law(self.basis, self.max_batch_size, timeout)
        return self._laws[timeout]

    def costs(self, timeout: float) -> Array:
        """USD per request by function and batch size, (n_services, max_batch_size); infinite where a batch is not allowed."""
        if timeout not in self._costs:
            law = self.law(timeout)
            invocation = self.compute @ law.batch_size_pmf.T + self.per_invocation[:, None]
            if self.starts is not None:
                invocation = invocation + self.cold(timeout).batches * self.starts.usd[:, None]
            cost = invocation / law.mean_batch_size
            self._costs[timeout] = np.where(self.allowed, cost, np.inf)
        return self._costs[timeout]

    def cold(self, timeout: float) -> Shares:
        """Which start cold by function and batch size, (n_services, max_batch_size)."""
        if self.starts is None or not self.starts.matter:
            return Shares(np.zeros(self.allowed.shape), np.zeros(self.allowed.shape))
        if timeout not in self._cold:
            self._cold[timeout] = self.starts.by_largest(
                self.law(timeout).batch_size_pmf, np.full(self.max_batch_size - 1, timeout)
            )
        return self._cold[timeout]

    def init(self, j: int) -> float:
        """Seconds that a cold start of the ``j``-th function takes."""
        return 0.0 if self.starts is None else float(self.starts.seconds[j])

    def within(self, timeout: float, latencies: Array, services: NDArray[np.intp]) -> Array:
        """Probability of a latency at most ``latencies`` (s), (len(services), max_batch_size, n_latencies).

        Where next to nobody starts cold, those who do are taken to be late. What was found for other percentiles of the same
        latencies is known.
        """
        shape = len(self.services), self.max_batch_size, len(latencies)
        known = self._within.setdefault((timeout, *latencies.tolist()), np.full(shape, np.nan))
        if len(new := services[np.isnan(known[services, 0, 0])]):
            known[new] = self._fraction_within(timeout, latencies, new)
            if self.asked_once and not np.isnan(known).any() and isinstance(law := self.law(timeout), SizeOrTimeout):
                law.forget_series()
        return known[services]

    def _fraction_within(self, timeout: float, latencies: Array, services: NDArray[np.intp]) -> Array:
        law, cold = self.law(timeout), self.cold(timeout).requests[services][..., None]
        warm = law.fraction_within(self.response[services], self.levels, latencies)
        if self.starts is None or cold.max(initial=0.0) <= SELDOM:
            return np.asarray((1 - cold) * warm)
        later = self.response[services] + self.starts.seconds[services][:, None, None]
        return np.asarray((1 - cold) * warm + cold * law.fraction_within(later, self.levels, latencies))

    def landscape(
        self,
        slos: Sequence[Slo],
        timeouts: Array,
        *,
        budget: float = np.inf,
        n_best: int = 1,
        refine: bool = True,
        tolerance: float = TOLERANCE,
        on_progress: OnProgress = lambda fraction: None,
        kept_free: KeptFree = lambda timeout, services: 0.0,
    ) -> tuple[Landscape, float | None]:
        """The cheapest settings over ``timeouts`` and, where asked for, finer around what could be cheapest; and the gap left open.

        Visited is what may be the cheapest setting of one of the ``n_best`` cheapest functions that keep SLOs and budget; with
        ``n_best`` beyond their number, whatever may keep the SLOs. The gap is the part of the least cost by which a timeout
        between those given might be cheaper; 0 where nothing keeps the SLOs, ``None`` without refinement. ``kept_free`` is the
        probability by which each SLO is to be kept beyond its percentile, at a timeout and for some functions (``Doubt.at``).
        """
        land = self._unvisited(slos, timeouts)

        def margins(timeout: float, services: NDArray[np.intp]) -> Array:
            return self._margins(timeout, slos, services, kept_free(timeout, services))

        self._visit(land, margins, budget, n_best, on_progress)
        finest = RESOLUTION * min(self.max_timeout, 2 * min(slo.latency for slo in slos))
        gap = self._refine(land, margins, finest, budget, tolerance, on_progress) if refine else None
        on_progress(1.0)
        return land, gap

    def _unvisited(self, slos: Sequence[Slo], timeouts: Array) -> Landscape:
        """Every cost, no margin, and ruled out what batch sizes alone show not to keep an SLO."""
        cost = np.array([self.costs(float(timeout)) for timeout in timeouts])
        ceiling = np.array([self._ceiling(float(timeout), slos) for timeout in timeouts])
        return Landscape(np.asarray(timeouts, dtype=np.float64), cost, np.full(cost.shape, np.nan), ceiling < -ROUNDING)

    def _visit(self, land: Landscape, margins: Margins, budget: float, n_best: int, on_progress: OnProgress) -> None:
        """The margins of the functions that may be among the ``n_best`` cheapest, timeout by timeout, the cheapest first.

        A timeout is left out once ``n_best`` functions keep the SLOs for less than any hopeful setting of it costs; so are all
        that follow.
        """
        hopeful = np.where(land.ruled_out | (land.cost > budget), np.inf, land.cost)
        best, limit = np.full(len(self.services), np.inf), np.inf
        for turn, i in enumerate(np.argsort(hopeful.min(axis=(1, 2)), kind="stable")):
            services = np.flatnonzero((hopeful[i] < limit).any(axis=1))
            if not len(services):
                break
            land.margin[i, services] = margins(float(land.timeouts[i]), services)
            land.ruled_out[i, services] = False
            best = np.minimum(best, np.where(land.margin[i] >= -ROUNDING, hopeful[i], np.inf).min(axis=1))
            limit = float(np.sort(best)[n_best - 1]) if n_best <= len(best) else np.inf
            on_progress(0.7 * (turn + 1) / len(land.timeouts))

    def _refine(
        self, land: Landscape, margins: Margins, finest: float, budget: float, tolerance: float, on_progress: OnProgress
    ) -> float:
        """Halve the cells that may hold a cheaper setting until none is worth it; the gap that is left open."""
        gap = 0.0
        rounds = MAX_ROUNDS if self.exact else SAMPLED_ROUNDS
        for turn in range(rounds):
            gap, middles, services = self._open_cells(land, budget, tolerance, finest)
            if not len(middles):
                break
            margin = np.full((len(middles), *self.allowed.shape), np.nan)
            for i, timeout in enumerate(middles):
                margin[i, services] = margins(float(timeout), services)
            land.add(middles, np.array([self.costs(float(timeout)) for timeout in middles]), margin, np.isnan(margin))
            on_progress(0.7 + 0.3 * (turn + 1) / rounds)
        return gap + SAME

    def _margins(self, timeout: float, slos: Sequence[Slo], services: NDArray[np.intp], kept_free: Array | float) -> Array:
        """Least over the SLOs of the probability of keeping it less what was promised: (len(services), max_batch_size)."""
        latencies = np.array([slo.latency for slo in slos])
        quantiles = np.array([slo.quantile for slo in slos])
        return np.asarray((self.within(timeout, latencies, services) - quantiles - kept_free).min(axis=-1))

    def _ceiling(self, timeout: float, slos: Sequence[Slo]) -> Array:
        """What the margins cannot exceed, from batch sizes alone: (n_services, max_batch_size)."""
        return np.asarray(np.min([slo.error_budget - self._late_at_least(timeout, slo.latency) for slo in slos], axis=0))

    def _late_at_least(self, timeout: float, latency: float) -> Array:
        """The probability of a latency beyond this (s) is no less, from batch sizes alone: (n_services, max_batch_size)."""
        if (timeout, latency) not in self._surely_late:
            law = self.law(timeout)
            late = (self.response[..., 0] + timeout > latency * (1 + 1e-9)).astype(np.float64)
            self._surely_late[timeout, latency] = late @ np.tril(law.batch_size_pmf, -1).T / law.mean_batch_size
        return self._surely_late[timeout, latency]

    def _open_cells(self, land: Landscape, budget: float, tolerance: float, finest: float) -> tuple[float, Array, NDArray[np.intp]]:
        """The gap, the middles of the cells that may hold a cheaper setting, most promising first, and the functions of those."""
        best = float(land.kept_cost(budget).min(initial=np.inf))
        limit = min(best * (1 - tolerance), budget)  # where nothing is kept yet, a cell may still hold what is
        if not np.isfinite(limit) or len(land.timeouts) < 2:
            return 0.0, np.empty(0), np.empty(0, dtype=np.intp)
        least = land.least_cost_between()
        wide = (np.diff(land.timeouts) > finest)[:, None, None]
        may = wide & land.may_keep_between() & (least < limit)
        lower = np.where(may, least, np.inf).min(axis=(1, 2))
        gap = max(0.0, 1 - float(lower.min()) / best) if may.any() and np.isfinite(best) else tolerance
        chosen = [i for i in np.argsort(lower, kind="stable") if np.isfinite(lower[i])][:CELLS_A_ROUND]
        middles = np.sort((land.timeouts[:-1] + land.timeouts[1:])[chosen] / 2)
        return gap, middles, np.flatnonzero(may[chosen].any(axis=(0, 2)))


def _sway(x: Array, values: Array) -> Array:
    """How far values over ``x`` may stray between neighbours beyond both ends: h^2/8 of the larger curvature, by cell."""
    if len(x) < 3:
        return np.zeros((len(x) - 1, *values.shape[1:]))
    shape = (-1, *(1,) * (values.ndim - 1))
    step = np.diff(x).reshape(shape)
    slopes = np.diff(values, axis=0) / step
    curvature = np.abs(2 * np.diff(slopes, axis=0) / (step[:-1] + step[1:]))
    curvature = np.where(np.isfinite(curvature), curvature, 0.0)
    at_ends = np.concatenate([curvature[:1], curvature, curvature[-1:]])
    return np.asarray(step**2 / 8 * np.maximum(at_ends[:-1], at_ends[1:]))
