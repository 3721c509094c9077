"""What commands print with ``--json``: an answer, a prediction, a run, a cost and an estimate as plain data, in seconds and USD.

An estimate that is infinite or unknown is ``null``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np

from sluice.batching.documents import Plan, PolicyDocument, Slo, percentile_name
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH, Prices
from sluice.optimizer.function import LatencyPrediction
from sluice.optimizer.recommend import Answer, EveryLoad, FunctionSetting, KeptWarm, OverflowSetting, WorkerSetting
from sluice.optimizer.recommend.candidate import Candidate, prediction_of, shown_percentiles
from sluice.optimizer.report import wording
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.latency_statistics import ClassStatistics
from sluice.optimizer.simulation.several_queues import SeveralQueues
from sluice.optimizer.simulation.sized_deployment import SizedDeployment
from sluice.optimizer.simulation.statistics import RunStatistics, Series, ServingStatistics

RUN_PERCENTILES = (50.0, 95.0, 99.0)
N_POINTS = 41  # of a CDF

Document = dict[str, object]


def answer_document(answer: Answer, plan: Plan) -> Document:
    """An answer, with the plan made of it."""
    return {
        "version": 1,
        "plan": plan,
        "slos": list(answer.slos),
        "arrival_rate": answer.arrival_rate,
        "recorded": recorded_document(answer.question.recorded),
        "late_on_record": None if answer.on_record is None else [estimate_document(share) for share in answer.on_record.late],
        "late_on_fit": None if answer.on_fit is None else [estimate_document(share) for share in answer.on_fit.late],
        "cost_again": None if answer.cost_again is None else estimate_document(answer.cost_again),
        "best": _setting(answer.best, answer),
        "no_batching": _setting(answer.no_batching, answer) | {"keeps_slos": answer.no_batching_keeps_slo},
        "winner": answer.winner.name,
        "started": answer.started,
        "feasible": answer.feasible,
        "workers": [_workers(setting, answer) for setting in answer.workers],
        "refused_workers": dict(answer.refused_workers),
        "overflow": None if answer.overflow is None else _overflow(answer.overflow, answer),
        "refused_overflow": answer.refused_overflow or None,
        "kept_warm": None if answer.kept_warm is None else _kept_warm(answer.kept_warm, answer),
        "every_load": None if answer.every_load is None else _every_load(answer.every_load, answer),
        "kinds": {kind: candidate.cost.in_all(answer.arrival_rate) for kind, candidate in answer.kinds.items()},
        "runners_up": [_setting(runner_up, answer) for runner_up in answer.runners_up],
        "frontier": list(answer.frontier),
        "sensitivity": list(answer.sensitivity),
        "break_even_arrival_rate": answer.break_even_arrival_rate,
        "buffer_pays": wording.pays(answer),
        "gap": answer.gap,
        "in_doubt": list(answer.in_doubt),
        "at_longest_timeout": answer.at_longest_timeout,
        "settings_compared": answer.n_settings,
        "prices": prices_document(answer.question.billing.prices),
    }


def recorded_document(arrivals: TraceArrivals | None) -> Document | None:
    """The arrivals that costs are those of; ``None`` where they are those of the process."""
    return None if arrivals is None else {"n_requests": arrivals.n_requests, "seconds": arrivals.span}


def _fitted(candidate: Candidate, answer: Answer) -> Document:
    """Beside a cost on arrivals that were recorded what the process has."""
    return {} if candidate.fitted is None else {"fitted_cost": cost_document(candidate.fitted, answer.arrival_rate)}


def _setting(setting: FunctionSetting, answer: Answer) -> Document:
    return {
        "memory_mb": setting.memory_mb,
        "batch_size": setting.batch_size,
        "timeout": setting.timeout,
        "policy": PolicyDocument.of(setting.policy),
        "latency": prediction_of(setting, shown_percentiles(answer.slos)).latency,
        "mean_batch_size": setting.mean_batch_size,
        "cold_starts": setting.cold_starts,
        "cold_requests": setting.cold.requests,
        "cost": cost_document(setting.cost, answer.arrival_rate),
        **_fitted(setting, answer),
    }


def _kept_warm(warm: KeptWarm, answer: Answer) -> Document:
    return _setting(warm.setting, answer) | {
        "provisioned": warm.warm.provisioned,
        "pinged_every": warm.warm.pinged_every or None,
        "pinged": warm.warm.pinged if warm.warm.pinged_every else 0,
        "on_demand": warm.on_demand,
        "latency": prediction_of(warm, shown_percentiles(answer.slos)).latency,
        "cold_starts": warm.cold_starts,
        "cold_requests": warm.cold.requests,
        "cost": cost_document(warm.cost, answer.arrival_rate),
        **_fitted(warm, answer),
        "competes": answer.warm_competes,
    }


def _workers(setting: WorkerSetting, answer: Answer) -> Document:
    return _simulated(setting, answer) | {"load": setting.load}


def _overflow(setting: OverflowSetting, answer: Answer) -> Document:
    return _simulated(setting, answer) | {
        "memory_mb": setting.memory_mb,
        "beside": PolicyDocument.of(setting.overflow.policy),
        "by_function": estimate_document(setting.by_function),
        "cold_starts": setting.cold_starts,
    }


def _every_load(plan: EveryLoad, answer: Answer) -> Document:
    return {
        "taken": answer.by_function is plan,
        "functions": [
            {
                "function": of.called,
                "memory_mb": of.service.memory_mb,
                "sizes": of.stretches,
                "policy": PolicyDocument.of(of.policy),
                "cold_starts": of.cold_starts,
            }
            for of in plan.functions
        ],
        "batch_size": plan.batch_size,
        "mean_batch_size": plan.mean_batch_size,
        "cost": cost_document(plan.cost, answer.arrival_rate),
        **_fitted(plan, answer),
        "loads": [
            {
                "factor": at.factor,
                "arrival_rate": at.arrival_rate,
                "cost_per_request": at.cost_per_request,
                "least_cost": at.least_cost,
                "regret": at.regret,
                "simulated_cost": at.simulated_cost,
                "simulated_regret": at.simulated_regret,
                "late": [estimate_document(share) for share in at.late],
                "mean_batch_size": at.mean_batch_size,
                "cold_starts": at.cold_starts,
                "warm": at.warm,
            }
            for at in plan.loads
        ],
    }


def _simulated(setting: WorkerSetting | OverflowSetting, answer: Answer) -> Document:
    return {
        "name": setting.name,
        "workers": setting.workers,
        "policy": PolicyDocument.of(setting.policy),
        "latency": {name: estimate_document(estimate) for name, estimate in setting.latency.items()},
        "violations": [estimate_document(share) for share in setting.violations],
        "in_doubt": list(setting.in_doubt),
        "keeps_slos": setting.keeps_slos,
        "utilisation": setting.utilisation,
        "mean_batch_size": setting.mean_batch_size,
        "cost": cost_document(setting.cost, answer.arrival_rate),
        **_fitted(setting, answer),
        "usd_per_month": setting.cost.per_request * answer.arrival_rate * SECONDS_PER_MONTH,
        "requests_simulated": setting.n_requests,
        "confidence": setting.confidence,
    }


def prediction_document(prediction: LatencyPrediction, latency: Mapping[str, float]) -> Document:
    """What size-or-timeout does before an elastic function; ``latency`` are the percentiles (s) to be shown, by name."""
    times = np.linspace(0, prediction.longest, N_POINTS)
    return {
        "method": prediction.method,
        "batch_size": prediction.batch_size,
        "timeout": prediction.timeout,
        "latency": dict(latency),
        "cdf": [[float(t), float(p)] for t, p in zip(times, prediction.cdf(times), strict=True)],
        "batch_size_pmf": prediction.batch_size_pmf.tolist(),
        "mean_batch_size": prediction.mean_batch_size,
    }


def run_document(run: RunStatistics, slos: Sequence[Slo]) -> Document:
    """What a deployment did, under SLOs whose latencies were asked for; with its series, if it has one."""
    percentiles = sorted({*RUN_PERCENTILES, *(slo.percentile for slo in slos)})
    document = _table(run.deployment) if isinstance(run.deployment, Deployment) else _queues(run, slos)
    if run.classes:
        document["classes"] = [_class(of) for of in run.classes]
    document |= {
        "latency": {percentile_name(p): estimate_document(run.percentile(p)) for p in percentiles},
        "mean_latency": estimate_document(run.mean_latency),
        "violations": [estimate_document(run.violations(k)) for k in range(len(slos))],
        "violation_ratios": [run.violation_ratio(k) for k in range(len(slos))],
        "keeps_slos": run.keeps(slos),
        "surely_keeps_slos": run.surely_keeps(slos),
        "answered": run.answered,
        "dropped": run.dropped,
        "unanswered": run.unanswered,
        "batches": run.n_batches,
        "cold_starts": run.cold_starts,
        "cold_at_start": run.cold_at_start,
        "cold_share": estimate_document(run.cold_share),
        "mean_batch_size": run.mean_batch_size,
        "batch_size_pmf": run.batch_size_pmf.tolist(),
        "by_function": run.by_function,
        "mean_servers": run.worker_seconds / run.span,
        "utilisation": run.utilisation,
        "functions": [_serving(side) for side in run.serving],
        "energy_per_request": run.energy_per_request,
        "cost": cost_document(run.cost),
    }
    return document if run.series is None else document | {"series": _series(run.series)}


def _serving(side: ServingStatistics) -> Document:
    """What served the batches of one table."""
    return {
        "function": side.serving.function,
        "memory_mb": side.serving.service.memory_mb if side.serving.elastic else None,
        "batches": side.batches,
        "requests": side.requests,
        "share": side.share,
        "mean_batch_size": side.requests / side.batches if side.batches else None,
        "cold_starts": side.cold_starts,
        "cold_at_start": side.cold_at_start,
        "billed_duration": side.billed_duration,
        "utilisation": side.utilisation,
        "cost": cost_document(side.cost),
    }


def _table(deployment: Deployment) -> Document:
    tables = deployment.schedule.tables
    return {
        "policy": {"kind": tables[-1].kind, "parameters": dict(tables[-1].parameters), "tables": len(tables)},
        "memory_mb": next((side.service.memory_mb for side in deployment.serving if side.elastic), None),
    }


def _queues(run: RunStatistics, slos: Sequence[Slo]) -> Document:
    """What each of several queues did; of one of too few requests for estimates only how many they are."""
    assert isinstance(run.deployment, SeveralQueues)
    memory = set(run.deployment.memory_sizes)
    each = [{"n_requests": of.n_requests, **(run_document(of, slos) if of.estimates else {})} for of in run.queues]
    document: Document = {"memory_mb": memory.pop() if len(memory) == 1 else None}
    if isinstance(run.deployment, SizedDeployment):
        ends = [up_to if isfinite(up_to) else None for up_to in run.deployment.ends]
        return document | {"classes": [{"up_to": up_to, **of} for up_to, of in zip(ends, each, strict=True)]}
    return document | {"routes": [{"name": name, **of} for name, of in zip(run.deployment.names, each, strict=True)]}


def _class(of: ClassStatistics) -> Document:
    """What the requests of a class met; of too few for estimates how many they are and how many were late."""
    document: Document = {"name": of.request_class.name, "slack": of.request_class.slack, "slo": of.request_class.slo}
    document |= {"n_requests": of.n_requests, "dropped": of.dropped, "unanswered": of.unanswered}
    if of.estimates:
        document["latency"] = {percentile_name(p): estimate_document(of.percentile(p)) for p in shown_class_percentiles(of)}
        document["mean_latency"] = estimate_document(of.mean_latency)
    if of.slos:
        document |= {
            "violations": estimate_document(of.violations()) if of.estimates else None,
            "violation_ratio": of.violation_ratio(),
            "keeps_slo": of.keeps(of.slos),
            "surely_keeps_slo": of.kept,
        }
    return document


def shown_class_percentiles(of: ClassStatistics) -> list[float]:
    """The percentiles (0-100) that are told of a class: that of its promise among them."""
    return sorted({*RUN_PERCENTILES, *(slo.percentile for slo in of.slos)})


def _series(series: Series) -> Document:
    names = ("edges", "arrivals", "answered", "in_time", "mean_latency")
    return {name: getattr(series, name).tolist() for name in names}


def cost_document(cost: BatchCost, arrival_rate: float | None = None) -> Document:
    """USD per request, in all and by term, and USD per month of what is fixed; with all of it at a rate (requests/s) told."""
    document: Document = {
        "per_request": cost.per_request,
        "moving": cost.moving,
        "by_request": cost.by_request,
        "terms": cost.terms(),
        "fixed_per_month": cost.fixed_per_month,
        "fixed_terms": dict(cost.fixed_terms),
    }
    return document if arrival_rate is None else document | {"in_all": cost.in_all(arrival_rate)}


def estimate_document(estimate: Estimate) -> dict[str, float | None]:
    """Its value and the ends of its interval."""
    return {name: value if isfinite(value) else None for name, value in estimate._asdict().items()}


def prices_document(prices: Prices) -> Document:
    """Where and when the prices were read; of another region than the dated list's also which are as there (``as_dated``)."""
    document: Document = {"region": prices.region, "read_on": prices.read_on}
    return document | {"as_dated": prices.as_dated} if prices.as_dated else document
