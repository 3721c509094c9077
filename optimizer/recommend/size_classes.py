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

import numpy as np

from sluice.batching.documents import ArrivalDocument, Plan, PolicyDocument, Prediction, RequestSize, Route, percentile_name
from sluice.batching.errors import NOT_GIVEN, Infeasible, InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cost import BatchCost, invocation_costs
from sluice.optimizer.function.latency import LatencyPrediction, mixture
from sluice.optimizer.recommend.candidate import shown_percentiles
from sluice.optimizer.recommend.function_choice import choose_setting
from sluice.optimizer.recommend.function_setting import FunctionSetting, FunctionSettings
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.service.by_size import service_by_size
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.sized_run import SizedQueue, SizedRun, simulate_sizes

MOST_CLASSES = 4
MOST_BOUNDARIES = 10  # between which are 55 classes
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
        USD per request of the cheapest partition into so many classes, inf where none keeps the SLOs.
    boundaries : tuple of float
        The largest sizes of classes that were considered, ascending.
    """

    question: Question
    one_queue: FunctionSetting | None
    no_batching: FunctionSetting | None
    classes: tuple[SizeClass, ...]
    by_number: Mapping[int, float]
    boundaries: tuple[float, ...]

    @property
    def latency(self) -> LatencyPrediction:
        """Of all requests."""
        return mixture([of.best.latency for of in self.classes], np.array([of.share for of in self.classes]))

    @property
    def cost(self) -> BatchCost:
        """Of a request of any class; the buffer's fixed cost is paid once, that of a snapshot for each memory size."""
        parts = [(of.share, of.best.cost.terms()) for of in self.classes]
        terms = {name: sum(share * of[name] for share, of in parts) for name in parts[0][1]}
        by_memory = {of.best.memory_mb: of.best.cost.fixed_terms for of in self.classes}
        fixed = {name: usd for terms in by_memory.values() for name, usd in terms.items()}
        if "snapshot" in fixed:
            fixed["snapshot"] = sum(terms["snapshot"] for terms in by_memory.values())
        return BatchCost(**terms, fixed_terms=fixed)

    @property
    def saving(self) -> float | None:
        """The part of the cost without regard to size that is saved; ``None`` where that keeps no SLO."""
        return None if self.one_queue is None else 1 - self.cost.per_request / self.one_queue.cost.per_request

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
            predicted=Prediction(latency, self.cost.per_request, self.latency.mean_batch_size),
            arrivals=arrivals and arrivals.alone(),
            made_at=(made_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        )


def simulate_answer(answer: SizedAnswer, arrival_times: Array, sizes: Array, rng: np.random.Generator) -> SizedRun:
    """What the answer does with requests that arrive at ``arrival_times`` (s) with their own ``sizes``."""
    *_, last = answer.classes
    queues = [
        SizedQueue(np.inf if of is last else of.up_to, sized_deployment(of.question, of.best, float(sizes.max())))
        for of in answer.classes
    ]
    return simulate_sizes(queues, arrival_times, sizes, rng)


def sized_deployment(question: Question, setting: FunctionSetting, largest: float) -> Deployment:
    """A setting as it is run with requests of sizes up to ``largest``, perhaps beyond those of the mix that it was found for.

    Raises
    ------
    InvalidInput
        A size beyond the largest measured, or one that was not measured in batches as large as the setting's.
    """
    assert question.mix is not None
    end = max(largest, question.mix.largest)
    by_size = service_by_size(question.profile, setting.memory_mb, setting.batch_size, end)
    return Deployment(setting.policy, by_size.under(question.mix), billing=question.billing)


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
    require(not names, "offers", names, "none beside sizes: classes are made for the function alone")
    goal = question.goal
    require(goal.objective == "cost", "objective", goal.objective, "cost, where requests have sizes")
    require(goal.max_cost is None, "max_cost", goal.max_cost, "none, where requests have sizes")
    edges = _edges(boundaries or candidate_boundaries(mix, question.profile.sizes), mix)
    by_number, ends, classes, nearest = _cheapest(question, mix, edges, most, on_progress)
    least = min(by_number.values())
    if not np.isfinite(least):
        assert nearest is not None
        raise nearest
    number = min(k for k, usd in by_number.items() if usd <= least * (1 + WORTH))
    whole = classes.get((0, len(edges) - 1))
    chosen = [classes[pair] for pair in ends[number]]
    return SizedAnswer(
        question,
        None if whole is None else whole.best,
        _no_batching(question),
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
) -> tuple[dict[int, float], dict[int, list[Part]], dict[Part, SizeClass], Infeasible | None]:
    """The cheapest partitions by number, the classes that were found, and why all sizes together have no setting, if so.

    A class is searched for only once it is in a partition that is cheapest by the bounds of all that were not.
    """
    last = len(edges) - 1
    pairs = [(i, j) for i in range(last) for j in range(i + 1, last + 1)] if most > 1 else [(0, last)]
    shares = {(i, j): 1.0 if (i, j) == (0, last) else mix.share(edges[i], edges[j]) for i, j in pairs}
    questions = {
        (i, j): replace(
            question,
            arrivals=question.arrivals.thinned(shares[i, j]),
            mix=mix.between(edges[i], edges[j]),
            without=tuple(arrivals.thinned(shares[i, j]) for arrivals in question.without),
        )
        for i, j in pairs
    }
    cost = np.full((last + 1, last + 1), np.inf)
    for pair, part in questions.items():
        cost[pair] = shares[pair] * _least_cost(part)
    asked: set[Part] = set()
    classes: dict[Part, SizeClass] = {}
    nearest = None
    while True:
        by_number, ends = cheapest_partitions(cost, most)
        open_parts = {of for k, usd in by_number.items() if usd < np.inf for of in ends[k]} - asked
        if not open_parts:
            return by_number, ends, classes, nearest
        for pair in sorted(open_parts):
            asked.add(pair)
            part, share, (i, j) = questions[pair], shares[pair], pair
            try:
                best = choose_setting(FunctionSettings(part), lambda done: None).settings[0]
                classes[pair] = SizeClass(max(edges[i], 0.0), edges[j], share, part, best)
                cost[pair] = share * best.cost.per_request
            except Infeasible as error:
                nearest = error if pair == (0, last) else nearest
                cost[pair] = np.inf
            on_progress(len(asked) / len(pairs))


def _least_cost(question: Question) -> float:
    """USD per request that no setting goes below: batches as good as any, and as large as the busiest phase fills in time."""
    filled = 1 + float(question.arrivals.D1.sum(axis=1).max()) * question.longest_timeout
    least = np.inf
    for service in question.services:
        compute, fee = invocation_costs(service, question.billing)
        each = float((compute / np.arange(1, len(compute) + 1)).min())
        least = min(least, each + fee / min(len(compute), filled))
    return least * (1 - _ROUNDING)


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
