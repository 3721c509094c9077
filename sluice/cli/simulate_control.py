"""`sluice simulate --policy control`: a plan that is tuned while the requests come, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np
from rich.table import Column, Table

from sluice.batching.documents import Slo, percentile_name
from sluice.batching.errors import InvalidInput, require
from sluice.cli.given import require_none_given
from sluice.optimizer.baselines import Situation
from sluice.optimizer.baselines.names import CONTROL
from sluice.optimizer.recommend.words import promised
from sluice.optimizer.report.wording import per_million
from sluice.optimizer.simulation.batch_means import FEWEST_REQUESTS, Estimate, estimate_quantile
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, ServiceChange, simulate_control

NAME = CONTROL
OPTION = "--service-change"


def service_changes(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> list[ServiceChange]:
    """``AT:FACTOR``, repeated."""
    found = []
    for text in texts:
        at, colon, factor = text.partition(":")
        try:
            numbers = float(at), float(factor)
        except ValueError:
            numbers = None
        if not colon or numbers is None:
            raise InvalidInput(OPTION, text, "AT:FACTOR, seconds from the first request and a number > 0")
        found.append(ServiceChange(*numbers))
        allowed = f"one change at a time, where another is at {numbers[0]:g} s too"
        require(numbers[0] not in [change.at for change in found[:-1]], OPTION, text, allowed)
    return found


def written(change: ServiceChange) -> str:
    """As the option has it."""
    return f"{change.at:g}:{change.factor:g}"


def controlled(
    situation: Situation, changes: Sequence[ServiceChange], kept_in: float, seed: int, on_progress: Callable[[float], None]
) -> ControlledRun:
    """The function of a situation under a tuner that knows its profile, over the requests that are run; or its workers.

    Promises are to be kept in every ``kept_in`` seconds. Workers that are given may serve in its place. Where so many of them are
    asked for, and their profile is the function's, they are all there is, and what is tuned is their table.

    Raises
    ------
    InvalidInput
        No SLO; requests with sizes or classes.
    """
    require(bool(situation.slos), "slo", None, f"an SLO, by which policy {NAME} goes")
    function, run = situation.any_function, situation.workload.run
    require_none_given(("sizes", "size_column", "class_texts", "class_column"), f"none with policy {NAME}")
    require(run.n_requests >= FEWEST_REQUESTS, "n_requests", run.n_requests, f"at least {FEWEST_REQUESTS}, for intervals")
    fixed = situation.worker is not None and situation.worker.function == function.profile.function
    given = situation.workers is None or situation.worker is not None
    require(given, "--servers", situation.workers, f"of policy {NAME} only with the workers that they are: --worker PROFILE:USD")
    setup = TuningSetup(
        function.profile.model or "model",
        situation.slos,
        function.profile,
        memory_sizes=situation.memory_sizes,
        billing=function.billing,
        environments=function.environments or TuningSetup.environments,
        max_batch_size=function.max_batch_size,
        offers=tuple(situation.offers),
        servers=situation.workers if fixed else None,
    )
    start, end = float(situation.times[0]), float(situation.times[-1])
    for change in changes:
        allowed = f"a change while requests come, which they do for {end - start:.4g} s"
        require(start + change.at <= end, OPTION, written(change), allowed)
    from_start = [ServiceChange(start + change.at, change.factor) for change in changes]
    settings = TuningSettings(kept_in=kept_in)
    return simulate_control(setup, situation.times, settings=settings, changes=from_start, seed=seed, on_progress=on_progress)


def document(run: ControlledRun, slos: Sequence[Slo], kept_in: float) -> dict[str, Any]:
    """As JSON has it."""
    n, _ = run.late_by_window(kept_in, slos[0].latency)
    return {
        "n_requests": len(run.latency),
        "latency": {slo.name: percentile_of(run, slo) for slo in slos},
        "violations": [float((~(run.latency <= slo.latency)).mean()) for slo in slos],
        "cost_per_request": run.cost_per_request,
        "by_request": run.by_request,
        "energy_per_request": None if np.isnan(run.joules).any() else float(run.joules.mean()),
        "batches": run.batches,
        "cold_starts": run.cold,
        "windows": {"seconds": kept_in, "n": len(n), "kept": kept(run, slos, kept_in)},
        "changes": len(run.plans),
        "decisions": [decision.document() for decision in run.decisions],
    }


def percentile_of(run: ControlledRun, slo: Slo) -> Estimate:
    """Of the latency, s."""
    return estimate_quantile(run.latency, slo.quantile)


def kept(run: ControlledRun, slos: Sequence[Slo], kept_in: float) -> int:
    """Windows of so many seconds in which every promise was kept."""
    late = [of / n <= slo.error_budget for slo in slos for n, of in [run.late_by_window(kept_in, slo.latency)]]
    return int(np.logical_and.reduce(late).sum())


def table(run: ControlledRun) -> Table:
    """What was decided, and why."""
    start = float(run.arrival_times[0])
    found = Table(Column("s", justify="right"), "because", Column("1/s", justify="right"), Column("decided", overflow="fold"))
    for decision in run.decisions:
        said = " ".join(part for part in (decision.why + ".", decision.alarm and decision.alarm + ".") if part)
        rate = f"{decision.arrival_rate:.4g}" if decision.arrival_rate else ""
        found.add_row(f"{decision.at - start:.0f}", decision.trigger.kind, rate, said, style=None if decision.plan else "dim")
    return found


def sentence(run: ControlledRun, slos: Sequence[Slo], kept_in: float) -> str:
    """What came of it."""
    n, _ = run.late_by_window(kept_in, slos[0].latency)
    late = " and ".join(f"{100 * (~(run.latency <= slo.latency)).mean():.3g} % beyond {promised(slo.latency)}" for slo in slos)
    percentiles = ", ".join(f"{percentile_name(slo.percentile)} {1e3 * percentile_of(run, slo).value:.4g} ms" for slo in slos)
    return (
        f"{NAME}: {per_million(run.by_request)} USD per million requests; {percentiles}, {late}; "
        f"{kept(run, slos, kept_in)} of {len(n)} windows of {kept_in:g} s kept; mean batch {len(run.latency) / run.batches:.2f}, "
        f"{run.cold} cold starts; {len(run.decisions)} decisions, {len(run.plans)} plans."
    )
