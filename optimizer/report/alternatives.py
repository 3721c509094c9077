"""The recommended setting and what it is compared with, in one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend.answer import Recommendation, Setting
from sluice.optimizer.recommend.workers import WorkerSetting
from sluice.optimizer.report.wording import leaves


@dataclass(frozen=True, eq=False)
class Alternative:
    """One way to serve the requests.

    ``runs_on`` and ``leaves`` say in a few words on what, and with how many requests or after how long a batch leaves; ``latency``
    has the percentiles (s) of the SLOs by name (``"p95"``).
    """

    name: str
    runs_on: str
    leaves: str
    latency: Mapping[str, float]
    mean_batch_size: float
    cost: BatchCost


def alternatives(answer: Recommendation, pools: int | None = None, runners_up: int | None = None) -> list[Alternative]:
    """The recommended one first; then the function's best setting, no batching, pools of workers and runners-up, as far as others.

    ``pools`` and ``runners_up`` bound how many of each.
    """
    names = [slo.name for slo in answer.slos]
    winner = answer.winner
    found = []
    if isinstance(winner, WorkerSetting):
        found.append(_of_workers(names, "recommended", winner))
    function = "recommended" if winner is answer.best else "function"
    found.append(_of_function(answer, function, answer.best))
    if answer.best.batch_size > 1:
        found.append(_of_function(answer, "no batching", answer.no_batching))
    others = [pool for pool in answer.workers if pool is not winner]
    found += [_of_workers(names, f"workers {i}", pool) for i, pool in enumerate(others[:pools], 1)]
    found += [_of_function(answer, f"runner-up {i}", setting) for i, setting in enumerate(answer.runners_up[:runners_up], 1)]
    return found


def _of_function(answer: Recommendation, name: str, setting: Setting) -> Alternative:
    return Alternative(
        name,
        f"{setting.memory_mb} MB",
        leaves(setting.policy()),
        {slo.name: setting.latency.percentile(slo.percentile) for slo in answer.slos},
        setting.mean_batch_size,
        setting.cost,
    )


def _of_workers(names: Sequence[str], name: str, pool: WorkerSetting) -> Alternative:
    return Alternative(
        name,
        f"{pool.workers} × {pool.name}",
        leaves(pool.policy),
        {percentile: pool.latency[percentile].value for percentile in names},
        pool.mean_batch_size,
        pool.cost,
    )
