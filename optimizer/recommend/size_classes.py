"""Whether requests are batched by size class, and which classes (docs/model.md, section 9).

A class is an interval of sizes with a queue, a table and a memory size of its own. Where sizes are independent of the arrivals
and of each other, the requests of a class arrive as all do, thinned, which is a MAP again, and have the mix cut to the interval;
so each class is an ordinary question, and what its cheapest table costs is what ``choose_setting`` finds. Every class keeps the
SLOs.

Over candidate boundaries the cheapest partition into at most so many classes is found by a dynamic programme: with c(i, j) the cost
of the class between the boundaries i and j, weighted by its share of the requests,

    C_1(j) = c(0, j),     C_k(j) = min_i C_{k-1}(i) + c(i, j).                                                             (9.4)

A class is searched for only once it is in a partition that would be cheapest if every class not yet searched for cost what no
setting of it goes below: so all others are in none.

Of the numbers of classes that cost within ``WORTH`` of the least the smallest is taken: one, where classes are worth nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import numpy as np
from msgspec import UNSET

from sluice.batching.documents import ArrivalDocument, Plan, PolicyDocument, Prediction, RequestSize, Route, percentile_name
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import BatchCost, cost_of_parts
from sluice.optimizer.function.latency import LatencyPrediction, mixture
from sluice.optimizer.recommend.candidate import shown_percentiles
from sluice.optimizer.recommend.comparisons import bill_by_rate, earned_from, unbatched_by_rate, usd_by_rate
from sluice.optimizer.recommend.function_choice import cheapest_setting, choose_setting
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.recorded import cost_of_run, on_record
from sluice.optimizer.service.by_size import SizedServices
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.simulation.deployment import Environments
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.sized_deployment import SizedDeployment, SizedQueue
from sluice.optimizer.simulation.statistics import RunStatistics
from sluice.optimizer.simulation.streaming import simulate_deployments

MOST_CLASSES = 4
MOST_BOUNDARIES = 10  # between which are 55 classes
WORKERS_BY_HAND = (
    "classes are found for the function alone; write the plan of workers by hand, a route with servers for each class, and run it: "
    "sluice simulate --policy PLAN --worker PROFILE:MACHINE --sizes FILE"
)
FIRST_MEMORY_SIZES = 2  # those of the lowest bounds, whose best setting rules out others
_ROUNDING = 1e-9  # of a cost
Part = tuple[int, int]  # a class by the places of its edges
WORTH = 0.01  # of the cost: what another queue and table must save


@dataclass(frozen=True, eq=False)
class SizeClass:
    """The requests larger than ``above`` and at most ``up_to``, a ``share`` of all, and the best setting for them.

    ``question`` is theirs: their arrivals, their mix.
    """

    above: float
    up_to: float
    share: float
    question: Question
    best: FunctionSetting


@dataclass(frozen=True, eq=False)
class SizedAnswer:
    """How to serve requests of different size.

    Parameters
    ----------
    question : Question
        Of all requests, with their mix.
    one_queue : FunctionSetting or None
        The best without regard to size; ``None`` where none keeps the SLOs.
    no_batching : FunctionSetting or None
        Each request alone, in the same way.
    classes : tuple of SizeClass
        By size, ascending; one where more are worth nothing.
    by_number : mapping of int to float
        USD per request of the cheapest partition into so many classes, but for moving it; inf where none keeps the SLOs.
    boundaries : tuple of float
        The largest sizes of classes that were considered, ascending.
    uncertainty : float or None
        Half the width (s) of the interval of the first SLO's percentile that so few sizes leave (``size_sampling``), if asked for.
    """

    question: Question
    one_queue: FunctionSetting | None
    no_batching: FunctionSetting | None
    classes: tuple[SizeClass, ...]
    by_number: Mapping[int, float]
    boundaries: tuple[float, ...]
    uncertainty: float | None = None

    @property
    def latency(self) -> LatencyPrediction:
        """Of all requests."""
        return mixture([of.best.latency for of in self.classes], np.array([of.share for of in self.classes]))

    @cached_property
    def run(self) -> RunStatistics | None:
        """What the queues do with the requests that were recorded, each of its own size; ``None`` where none were."""
        recorded, slos = self.question.recorded, self.question.slos
        if recorded is None or recorded.sizes is None:
            return None
        deployment = self.deployment(SizeMix.of(recorded.sizes), None if self._told else self.question.environments)
        return simulate_deployments({"": deployment}, recorded, [slo.latency for slo in slos])[""]

    @cached_property
    def cost(self) -> BatchCost:
        """Of a request of any class, on those recorded or else as predicted.

        The buffer's fixed cost is paid once, that of a snapshot for each memory size.
        """
        mean = self.latency.mean_batch_size if self._told else None
        return self._predicted if self.run is None else cost_of_run(self.run, self._predicted, mean)

    @property
    def fitted(self) -> BatchCost | None:
        """What is predicted, where ``cost`` is that on requests that were recorded."""
        return None if self.run is None else self._predicted

    def cost_of_class(self, k: int) -> BatchCost:
        """Of a request of the ``k``-th class; as predicted where none of it was recorded."""
        best = self.classes[k].best
        if self.run is None or not self.run.queues[k].answered:
            return best.cost
        return cost_of_run(self.run.queues[k], best.cost, best.mean_batch_size if self._told else None)

    @property
    def _predicted(self) -> BatchCost:
        return cost_of_parts([(of.share, of.best.memory_mb, of.best.cost) for of in self.classes])

    @property
    def _told(self) -> bool:
        """Whether the share of cold starts was told, and is not that of a run."""
        return self.question.billing.cold_start_probability is not None

    @property
    def saving(self) -> float | None:
        """The part of the cost without regard to size that is saved; ``None`` where that keeps no SLO."""
        return None if self.one_queue is None else 1 - self.cost.by_request / self.one_queue.cost.by_request

    @cached_property
    def break_even_arrival_rate(self) -> float | None:
        """Requests/s of all sizes from which on the queues earn the buffer; ``None``: at no rate, or no batching keeps no SLO."""
        here, none = self.question.arrival_rate, self.no_batching
        if none is None:
            return None
        bills = [bill_by_rate(FunctionSettings(of.question), of.best) for of in self.classes]

        def bill(rate: float) -> BatchCost:
            return cost_of_parts(
                [(of.share, of.best.memory_mb, bill(of.share * rate)) for of, bill in zip(self.classes, bills, strict=True)]
            )

        usd = usd_by_rate(bill, here, self.cost, recorded=self.fitted is not None)
        fixed = self.cost.fixed_per_month - none.cost.fixed_per_month
        return earned_from(usd, unbatched_by_rate(FunctionSettings(self.question), none), fixed, here)

    def plan(self, model: str, size: RequestSize, arrivals: ArrivalDocument | None = None, made_at: datetime | None = None) -> Plan:
        """The plan for the buffer: a route for each class, or a plain plan of one, that says how a request's size is read."""
        slos, memory = self.question.slos, {of.best.memory_mb for of in self.classes}
        latency = {percentile_name(p): self.latency.percentile(p) for p in shown_percentiles(slos)}
        *_, last = self.classes
        routes = [
            Route(
                f"size-{i}",
                of.best.function,
                PolicyDocument.of(of.best.policy),
                of.share,
                up_to=None if of is last else of.up_to,
            )
            for i, of in enumerate(self.classes, 1)
        ]
        alone = len(routes) == 1
        return Plan(
            model=model,
            function=routes[0].function if alone else "",
            policy=routes[0].policy if alone else None,
            routes=[] if alone else routes,
            size=size,
            slo=slos[0],
            other_slos=list(slos[1:]),
            memory_mb=memory.pop() if len(memory) == 1 else None,
            predicted=Prediction(
                latency,
                self.cost.per_request,
                self.latency.mean_batch_size,
                cost_without_batching=UNSET if self.no_batching is None else self.no_batching.cost.per_request,
            ),
            arrivals=arrivals and arrivals.alone(),
            made_at=(made_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        )

    def deployment(self, run: SizeMix, environments: Environments | None = None) -> SizedDeployment:
        """The queues as they are run with requests of the sizes of ``run``, perhaps beyond those that they were found for.

        Raises
        ------
        InvalidInput
            A size beyond the largest measured, or one that was not measured in batches as large as those of its queue.
        """
        question, (*inside, _) = self.question, self.classes
        function = Function(question.profile, question.memory_sizes[0], question.billing, environments, mix=run)
        ends = [*(of.up_to for of in inside), np.inf]
        each = zip(self.classes, [-1.0, *ends], ends, strict=False)
        return SizedDeployment([SizedQueue(end, of.best.deployment(function.between(above, end))) for of, above, end in each])


def recommend_classes(
    question: Question,
    most: int = MOST_CLASSES,
    boundaries: Sequence[float] = (),
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> SizedAnswer:
    """The cheapest partition of the sizes into at most ``most`` classes that each keep the SLOs, and the setting of each.

    Parameters
    ----------
    question : Question
        With a mix; of the function alone, at the least cost.
    boundaries : sequence of float
        Largest sizes of classes to be considered; by default ``candidate_boundaries``.

    Raises
    ------
    Infeasible
        No partition considered keeps the SLOs; carries the nearest setting without regard to size.
    InvalidInput
        A question without a mix, with offers of workers, a budget or another objective; fewer than one class.
    """
    mix = question.mix
    if mix is None:
        raise InvalidInput("sizes", NOT_GIVEN, "the mix of the sizes of requests")
    require(most >= 1, "size_classes", most, "an integer >= 1")
    names = [offer.name for offer in question.offers]
    require(not names, "offers", names, f"none beside sizes: {WORKERS_BY_HAND}")
    goal = question.goal
    require(goal.objective == "cost", "objective", goal.objective, "cost, where requests have sizes")
    require(goal.max_cost is None, "max_cost", goal.max_cost, "none, where requests have sizes")
    edges = _edges(boundaries or candidate_boundaries(mix, question.profile.sizes), mix)
    by_number, ends, classes = _cheapest(question, mix, edges, most, on_progress)
    least = min(by_number.values())
    if not np.isfinite(least):
        choose_setting(FunctionSettings(question), lambda done: None)  # which says why, and what comes nearest
    number = min(k for k, usd in by_number.items() if usd <= least * (1 + WORTH))
    whole = classes.get((0, len(edges) - 1))
    chosen = [classes[pair] for pair in ends[number]]
    none = _no_batching(question)
    return SizedAnswer(
        question,
        None if whole is None else on_record(question, whole.best),
        None if none is None else on_record(question, none),
        tuple(chosen if number == 1 else map(_buffered, chosen)),
        by_number,
        tuple(edges[1:]),
    )


def candidate_boundaries(mix: SizeMix, measured: Sequence[float], most: int = MOST_BOUNDARIES) -> list[float]:
    """Sizes at which classes may end: fifths of the requests and measured sizes, the largest size among them.

    Where there are more than ``most``, those go first that part the fewest requests and the least work (size by share).
    """
    fifths = [mix.quantile(part / 5) for part in range(1, 5)]
    inside = [float(size) for size in measured if mix.values[0] <= size < mix.largest]
    found = sorted({*fifths, *inside, mix.largest})
    work = mix.values * mix.shares / mix.mean

    def parted(above: float, up_to: float) -> float:
        here = (mix.values > above) & (mix.values <= up_to)
        return float(mix.shares[here].sum() + work[here].sum())

    found = [size for above, size in zip([-1.0, *found], found, strict=False) if parted(above, size) > 0 or size == mix.largest]
    while len(found) > most:
        smaller = [parted(above, size) for above, size in zip([-1.0, *found], found[:-1], strict=False)]
        del found[int(np.argmin(smaller))]
    return found


def cheapest_partitions(cost: Array, most: int) -> tuple[dict[int, float], dict[int, list[Part]]]:
    """By the number of parts, up to ``most``, the least cost of a partition of the edges, and its parts (from, to).

    ``cost[i, j]``, (n_edges, n_edges), is that of the part from edge ``i`` to edge ``j``, inf where it is not allowed. (9.4)
    """
    last = len(cost) - 1
    best, before = cost[0], np.zeros((1, last + 1), dtype=np.int64)
    totals = {1: float(best[last])}
    for k in range(2, min(most, last) + 1):
        through = best[:, None] + cost
        before = np.vstack([before, through.argmin(axis=0)])
        best = through.min(axis=0)
        totals[k] = float(best[last])
    parts: dict[int, list[Part]] = {}
    for k in totals:
        end, found = last, []
        for row in range(k - 1, -1, -1):
            start = int(before[row, end])
            found.append((start, end))
            end = start
        parts[k] = found[::-1]
    return totals, parts


def _edges(boundaries: Sequence[float], mix: SizeMix) -> list[float]:
    """From below all sizes to the largest of them."""
    inside = sorted({float(size) for size in boundaries if mix.values[0] <= size < mix.largest})
    return [-1.0, *inside, mix.largest]


def _cheapest(
    question: Question, mix: SizeMix, edges: Sequence[float], most: int, on_progress: Callable[[float], None]
) -> tuple[dict[int, float], dict[int, list[Part]], dict[Part, SizeClass]]:
    """The cheapest partitions by number, and the classes that were found.

    A class is searched for only once it is in a partition that is cheapest by the bounds of all that were not.
    """
    last = len(edges) - 1
    pairs = [(i, j) for i in range(last) for j in range(i + 1, last + 1)] if most > 1 else [(0, last)]
    measured = SizedServices(question.profile, question.max_batch_size)
    cost = np.full((last + 1, last + 1), np.inf)
    parts: dict[Part, _OpenClass] = {}
    for i, j in pairs:
        share = 1.0 if (i, j) == (0, last) else mix.share(edges[i], edges[j])
        parts[i, j] = _OpenClass.of(question, share, mix.between(edges[i], edges[j]), measured)
        cost[i, j] = share * parts[i, j].least_cost
    asked: set[Part] = set()
    classes: dict[Part, SizeClass] = {}
    while True:
        by_number, ends = cheapest_partitions(cost, most)
        open_parts = {of for k, usd in by_number.items() if usd < np.inf for of in ends[k]} - asked
        if not open_parts:
            return by_number, ends, classes
        for pair in sorted(open_parts):
            asked.add(pair)
            found, (i, j) = parts[pair].best(question, measured), pair
            cost[pair] = np.inf
            if found is not None:
                part, best = found
                classes[pair] = SizeClass(max(edges[i], 0.0), edges[j], parts[pair].share, part, best)
                cost[pair] = parts[pair].share * best.cost.per_request
            on_progress(len(asked) / len(pairs))


@dataclass(frozen=True, eq=False)
class _OpenClass:
    """A class that may be searched for: its share, arrivals and mix, and by memory size (MB) USD that no setting goes below."""

    share: float
    arrivals: ArrivalProcess
    without: tuple[ArrivalProcess, ...]
    mix: SizeMix
    bounds: Mapping[int, float]

    @classmethod
    def of(cls, question: Question, share: float, mix: SizeMix, measured: SizedServices) -> _OpenClass:
        """With the bounds: batches as good as any, and as large as the busiest phase fills in time."""
        arrivals, billing = question.arrivals.thinned(share), question.billing
        filled = 1 + float(arrivals.D1.sum(axis=1).max()) * question.longest_timeout
        gb_second, fee = billing.prices.gb_second(billing.architecture), billing.prices.function.request
        bounds = {}
        for memory_mb in question.memory_sizes:
            seconds = measured.at(memory_mb, mix.largest).mean_billed_under(mix, billing.step)
            n = np.arange(1, len(seconds) + 1)
            each = float((seconds / n).min()) * memory_mb / 1024 * gb_second
            bounds[memory_mb] = (each + fee / min(len(seconds), filled)) * (1 - _ROUNDING)
        return cls(share, arrivals, tuple(each.thinned(share) for each in question.without), mix, bounds)

    @property
    def least_cost(self) -> float:
        """USD per request that no setting goes below."""
        return min(self.bounds.values())

    def best(self, question: Question, measured: SizedServices) -> tuple[Question, FunctionSetting] | None:
        """The best setting, and the question that it answers; ``None`` where none keeps the SLOs.

        First at the memory sizes of the lowest bounds, then at those that may cost less by their bounds.
        """
        order = sorted(self.bounds, key=lambda memory_mb: self.bounds[memory_mb])
        found: tuple[Question, FunctionSetting] | None = None
        for considered in (order[:FIRST_MEMORY_SIZES], order[FIRST_MEMORY_SIZES:]):
            known = None if found is None else found[1]
            most = np.inf if known is None else known.cost.per_request * (1 + question.premium)
            memory_sizes = tuple(memory_mb for memory_mb in considered if self.bounds[memory_mb] <= most)
            if not memory_sizes:
                break
            limits = replace(question.limits, memory_sizes=memory_sizes)
            of_class = replace(question, arrivals=self.arrivals, without=self.without, recorded=None, mix=self.mix)
            part = replace(of_class, limits=limits, measured=measured)
            best = cheapest_setting(FunctionSettings(part), known)
            if best is not None and best is not known:
                found = part, best
        return found


def _buffered(of: SizeClass) -> SizeClass:
    """With what the buffer costs, which parts the classes, also where this one alone would need none."""
    billing, cost = of.question.billing, of.best.cost
    prices, moved = billing.prices, billing.moved
    cost = replace(
        cost,
        cache=prices.cache_per_request(*moved),
        load_balancer=prices.load_balancer_per_request(*moved),
        network=prices.network_per_request(*moved),
        fixed_terms={**prices.fixed_terms(), **cost.fixed_terms},
    )
    return replace(of, best=replace(of.best, cost=cost))


def _no_batching(question: Question) -> FunctionSetting | None:
    """Every request alone at the cheapest memory size that keeps the SLOs."""
    kept = [setting for setting in FunctionSettings(question).unbatched() if setting.keeps(question.promised)]
    return min(kept, key=lambda setting: setting.cost.per_request, default=None)
