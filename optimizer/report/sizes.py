"""What is told of an answer to requests of different size: sentences, rows of tables, the JSON document, the page."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.batching.documents import Plan, PolicyDocument
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend import FunctionSetting, SizedAnswer
from sluice.optimizer.recommend.candidate import prediction_of, shown_percentiles
from sluice.optimizer.recommend.size_classes import WORTH
from sluice.optimizer.recommend.words import between, leaves, milliseconds
from sluice.optimizer.report.documents import Document, cost_document, estimate_document, prices_document, recorded_document
from sluice.optimizer.report.wording import costs_of, decided_by_queues, no_buffer, per_million, promise
from sluice.optimizer.simulation.statistics import RunStatistics


@dataclass(frozen=True)
class ClassRow:
    """A way to serve some of the requests, or all: its ``share`` of them, and seconds and USD per request.

    ``latency`` has the percentiles of the SLOs by name, ``simulated`` the first of them on the trace, ``None`` where there is none.
    """

    name: str
    share: float
    runs_on: str
    leaves: str
    latency: dict[str, float]
    simulated: float | None
    mean_batch_size: float
    cost: float


def headline(answer: SizedAnswer) -> str:
    """What to do and what it saves, in one sentence."""
    usd = per_million(answer.cost.by_request)
    if len(answer.classes) == 1:
        return f"{answer.classes[0].best.instruction[:-1]}, without regard to size: {usd} USD per million requests."
    named = [f"up to {of.up_to:g} {_setting(of.best)}" for of in answer.classes]
    text = f"Batch by size, in {len(answer.classes)} queues: {', '.join(named)}: {usd} USD per million requests"
    if answer.one_queue is None:
        return f"{text}; without regard to size no setting keeps the SLO."
    whole, saved = per_million(answer.one_queue.cost.by_request), answer.saving or 0.0
    times = f"{1 - saved:.2f}"
    if abs(saved) < 5e-5 or (saved < 0 and times == "1.00"):
        return f"{text}, as much as without regard to size ({whole})."
    if saved < 0:
        return f"{text}, {times} times what it is without regard to size ({whole}), where nothing moves through a buffer."
    return f"{text}, {100 * saved:.3g} % less than without regard to size ({whole})."


def verdict(answer: SizedAnswer) -> str:
    """Whether to deploy a buffer, and what a month costs with it and without."""
    rate = answer.question.arrival_rate
    direct = None if answer.no_batching is None else answer.no_batching.cost
    if direct is not None and len(answer.classes) == 1 and answer.classes[0].best.batch_size == 1:
        return no_buffer(direct.in_all(rate), rate, answer.question)
    since = answer.break_even_arrival_rate
    pays = "; it pays at no rate" if since is None else f"; it pays from {since:.4g} requests/s on"
    return decided_by_queues(len(answer.classes), answer.cost, direct, rate, pays)


def sentences(answer: SizedAnswer) -> list[str]:
    """Whether the SLOs are kept, what classes are worth, what costs are those of, what the requests met that were recorded."""
    slos, law, run = answer.question.slos, answer.latency, answer.run
    reached = " and ".join(f"{slo.name} {milliseconds(law.percentile(slo.percentile))}" for slo in slos)
    found = [f"{promise(slos)}: kept in every class; of all requests, by prediction {reached}."]
    if answer.uncertainty is not None and answer.question.mix is not None:
        n, off = answer.question.mix.n_requests, milliseconds(answer.uncertainty)
        found.append(f"The sizes of {n} requests leave {slos[0].name} uncertain by {off} (95 % confidence).")
    least = {k: usd for k, usd in answer.by_number.items() if usd < float("inf")}
    counted = ", ".join(f"{k}: {per_million(usd)}" for k, usd in least.items())
    by_law = ("" if run is None else ", by the process") + moving_left_out(answer)
    found.append(
        f"USD per million by number of classes{by_law}: {counted}. Of those within {100 * WORTH:g} % of the least the fewest are "
        "taken" + ("; size classes are worth nothing here." if len(answer.classes) == 1 else ".")
    )
    found.append(costs_of(answer.question, answer.cost, answer.fitted))
    if run is not None:
        slo = slos[0]
        value, low, high = run.percentile(slo.percentile)
        span = between(f"{1e3 * low:.4g}", f"{1e3 * high:.4g}")
        found.append(
            f"On the trace, every request with its own size: {slo.name} {milliseconds(value)} ({span} "
            f"with 95 % confidence), {per_million(answer.cost.by_request)} USD per million{_cold(run)}."
        )
    return found


def moving_left_out(answer: SizedAnswer) -> str:
    """What costs by the number of classes are without, as it is the same of all."""
    return ", but for moving" if answer.cost.moving else ""


def _cold(run: RunStatistics) -> str:
    return f"; {run.cold_starts} of {run.n_batches} batches started cold" if run.cold_starts else ""


def rows(answer: SizedAnswer) -> list[ClassRow]:
    """The classes by size, all of them together, and what they are compared with."""
    slos, run = answer.question.slos, answer.run
    first = slos[0].percentile

    def row(name: str, share: float, setting: FunctionSetting, cost: BatchCost, simulated: float | None = None) -> ClassRow:
        latency = {slo.name: setting.latency.percentile(slo.percentile) for slo in slos}
        what = (setting.runs_on, leaves(setting.policy), latency, simulated, setting.mean_batch_size, cost.by_request)
        return ClassRow(name, share, *what)

    found = [
        row(f"up to {of.up_to:g}", of.share, of.best, answer.cost_of_class(k), None if run is None else _of_class(run, k, first))
        for k, of in enumerate(answer.classes)
    ]
    law, seen = answer.latency, None if run is None else run.percentile(first).value
    latency = {slo.name: law.percentile(slo.percentile) for slo in slos}
    found.append(ClassRow("recommended", 1.0, "", "", latency, seen, law.mean_batch_size, answer.cost.by_request))
    others = (("without regard to size", answer.one_queue), ("no batching", answer.no_batching))
    return found + [row(name, 1.0, setting, setting.cost) for name, setting in others if setting is not None]


def compared(answer: SizedAnswer) -> dict[str, BatchCost]:
    """The cost of what is recommended, and of what it is compared with, by name."""
    others = {"without regard to size": answer.one_queue, "no batching": answer.no_batching}
    return {"recommended": answer.cost} | {name: setting.cost for name, setting in others.items() if setting is not None}


def sized_document(answer: SizedAnswer, plan: Plan) -> Document:
    """An answer, with the plan made of it and what it did on a trace."""
    question, rate, run = answer.question, answer.question.arrival_rate, answer.run
    mix = question.mix
    assert mix is not None

    def setting(of: FunctionSetting | None, cost: BatchCost | None = None) -> Document | None:
        if of is None:
            return None
        return {
            "memory_mb": of.memory_mb,
            "batch_size": of.batch_size,
            "policy": PolicyDocument.of(of.policy),
            "latency": prediction_of(of, shown_percentiles(question.slos)).latency,
            "mean_batch_size": of.mean_batch_size,
            "cost": cost_document(cost or of.cost, rate),
        }

    return {
        "version": 1,
        "plan": plan,
        "slos": list(question.slos),
        "arrival_rate": rate,
        "sizes": {
            "mean": mix.mean,
            "largest": mix.largest,
            "different": len(mix.values),
            "requests": mix.n_requests,
            "uncertainty": answer.uncertainty,
        },
        "recorded": recorded_document(question.recorded),
        "classes": [
            {"above": of.above, "up_to": of.up_to, "share": of.share, **(setting(of.best, answer.cost_of_class(k)) or {})}
            for k, of in enumerate(answer.classes)
        ],
        "cost": cost_document(answer.cost, rate),
        **({} if answer.fitted is None else {"fitted_cost": cost_document(answer.fitted, rate)}),
        "without_regard_to_size": setting(answer.one_queue),
        "no_batching": setting(answer.no_batching),
        "saving": answer.saving,
        "cost_by_number_of_classes": {str(k): usd if usd < float("inf") else None for k, usd in answer.by_number.items()},
        "boundaries": list(answer.boundaries),
        "simulated": None if run is None else _run_document(answer, run),
        "prices": prices_document(question.billing.prices),
    }


def _run_document(answer: SizedAnswer, run: RunStatistics) -> Document:
    slos = answer.question.slos
    return {
        "n_requests": run.n_requests,
        "latency": {slo.name: estimate_document(run.percentile(slo.percentile)) for slo in slos},
        "late": [run.violation_ratio(k) for k in range(len(slos))],
        "of_class": [{slo.name: _of_class(run, k, slo.percentile) for slo in slos} for k in range(len(answer.classes))],
        "mean_batch_size": run.mean_batch_size,
        "cold_starts": run.cold_starts,
        "cost_per_request": answer.cost.per_request,
    }


def _of_class(run: RunStatistics, k: int, percentile: float) -> float | None:
    """Percentile of the latency of a class, s; ``None`` where too few of it came."""
    return run.queues[k].percentile(percentile).value if run.queues[k].estimates else None


def _setting(setting: FunctionSetting) -> str:
    return f"({leaves(setting.policy)}, {setting.runs_on})"
