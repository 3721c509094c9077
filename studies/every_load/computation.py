"""The tables of each rate and the one plan, predicted and run at every rate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from sluice.batching.documents import Slo
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.recommend import EveryLoad, Question
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.functions_by_size import Assignment, FunctionsBySize

from ..perceptron import profile
from .results import EVERY_LOAD, Row

LATENCIES = (0.1, 0.5)  # s
PERCENTILE = 95.0
RATES = (0.5, 5.0, 50.0, 300.0)  # requests/s
MADE_FOR = 5.0  # requests/s, the one plan
LOADS = (0.1, 1000.0)


def compute() -> list[Row]:
    """Everything."""
    return [row for latency in LATENCIES for row in of_latency(latency)]


def of_latency(latency: float) -> Iterator[Row]:
    """The tables made for each rate, then the plan for every load, at every rate."""
    asked = Question(poisson(MADE_FOR), profile(), (Slo(latency, PERCENTILE),))
    sizes = FunctionsBySize(FunctionSettings(asked), LOADS)
    plans = {f"{rate:g}": sizes.cheapest_table(rate / MADE_FOR)[0] for rate in RATES} | {EVERY_LOAD: sizes.best()}
    for (made_for, assignment), rate in itertools.product(plans.items(), RATES):
        yield at_rate(sizes, made_for, assignment, rate)


def at_rate(sizes: FunctionsBySize, made_for: str, assignment: Assignment, rate: float) -> Row:
    """One of them at a rate."""
    plan, factor = EveryLoad(sizes, assignment), rate / MADE_FOR
    run, (latency,) = plan.run_at(factor), (slo.latency for slo in sizes.question.slos)
    late, cold = ~(run.latency <= latency), run.cold[run.batch_of]
    functions = "; ".join(f"{of.said}: {of.service.memory_mb} MB" for of in plan.by_size)
    least = sizes.cheapest_table(factor)[1]
    shares = (float(late.mean()), float((late & ~cold).mean()))
    return Row(latency, made_for, functions, rate, sizes.usd(assignment, factor), least, plan.cost_in(run), *shares)
