"""`sluice recommend`: the cheapest setting that keeps percentile SLOs."""

from __future__ import annotations

from datetime import UTC, datetime
from math import isfinite

import click
import numpy as np
from rich.progress import Progress
from rich.table import Column, Table

from sluice.batching.documents import ArrivalDocument, Plan, PolicyDocument, ServiceProfile, Slo, percentile_name, write
from sluice.batching.errors import InvalidInput
from sluice.cli import output
from sluice.cli.arrival_options import arrival_options, cost_options, profile_option
from sluice.cli.command_line import command_line
from sluice.cli.costs import cost_document, cost_table
from sluice.cli.measured import read_measured
from sluice.cli.slo_options import slo_options
from sluice.cli.worker_offers import provisioned_offers, read_worker
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.recommend.answer import PERCENTILES, Recommendation, Setting
from sluice.optimizer.recommend.recommend import MAX_BATCH_SIZE, POLICIES, PREMIUM, recommend
from sluice.optimizer.recommend.workers import WorkerSetting
from sluice.optimizer.report import wording
from sluice.optimizer.report.alternatives import alternatives
from sluice.optimizer.report.wording import milliseconds, per_million
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.traces.trace import read_trace


@click.command("recommend")
@arrival_options
@profile_option
@slo_options()
@click.option("--objective", type=click.Choice(["cost", "latency"]), default="cost", show_default=True, help="What to minimise.")
@click.option("--max-cost", type=float, metavar="USD", help="Most USD per request (1e-6: 1 USD per million).")
@click.option("--memory", "memory_sizes", type=int, multiple=True, metavar="MB", help="Consider only this size; may be repeated.")
@click.option("--max-batch-size", type=int, default=MAX_BATCH_SIZE, show_default=True, help="Largest batch considered.")
@click.option(
    "--max-timeout", type=float, metavar="SECONDS", help="Longest considered  [default: twice the longest latency promised]"
)
@click.option(
    "--timeout", "timeouts", type=float, multiple=True, metavar="SECONDS", help="Consider only this one; may be repeated."
)
@click.option(
    "--policies",
    type=click.Choice(POLICIES),
    default="all",
    show_default=True,
    help="Whether tables compete that wait to the last moment, which keeps the SLOs whatever the arrivals do.",
)
@click.option(
    "--premium",
    type=float,
    default=PREMIUM,
    show_default=True,
    metavar="PART",
    help="Part of the cost that such a table may cost more and still be taken.",
)
@click.option("--headroom", type=float, default=0.0, show_default=True, help="Part of the SLOs' latencies kept free.")
@click.option(
    "--worker",
    "worker_texts",
    multiple=True,
    metavar="PROFILE:PRICE",
    help="Workers that compete: their profile, and a machine of the price list or USD per hour; may be repeated.",
)
@click.option("--provisioned", is_flag=True, help="Provisioned concurrency competes, at every memory size considered.")
@click.option("--model", default="model", show_default=True, metavar="NAME", help="Name of the model in the plan.")
@cost_options
@click.option("--out", metavar="FILE", help="Write the plan here.")
@click.option("--report", metavar="FILE", help="Write a page about the answer here: HTML, one file.")
@click.option("--trace", metavar="FILE", help="For the report: a trace to run the recommended setting on.")
@click.option("--measured", metavar="FILE", help="For the report: latencies that `sluice replay --out` measured.")
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    arrivals: ArrivalDocument,
    profile: ServiceProfile,
    slos: tuple[Slo, ...],
    objective: str,
    max_cost: float | None,
    memory_sizes: tuple[int, ...],
    max_batch_size: int,
    max_timeout: float | None,
    timeouts: tuple[float, ...],
    worker_texts: tuple[str, ...],
    provisioned: bool,
    policies: str,
    premium: float,
    headroom: float,
    model: str,
    billing: Billing,
    out: str | None,
    report: str | None,
    trace: str | None,
    measured: str | None,
    as_json: bool,
) -> None:
    """Find the memory size, batch size and holds of least cost that keep percentile SLOs, or the workers that do it for less."""
    for name, path in (("trace", trace), ("measured", measured)):
        if path is not None and report is None:
            raise InvalidInput(name, path, "only with --report, which shows it")
    if timeouts and max_timeout is not None:
        raise InvalidInput("max_timeout", max_timeout, "only without --timeout, which names those considered")
    process = ArrivalProcess.of(arrivals)
    seen = read_measured(measured) if measured is not None else None
    observed = read_trace(trace) if trace is not None else None
    offers = [read_worker(text, billing.prices, max_batch_size) for text in worker_texts]
    if provisioned:
        offers += provisioned_offers(profile, memory_sizes, billing, max_batch_size)
    with Progress(console=output.stderr, transient=True, disable=not output.stderr.is_terminal) as progress:
        task = progress.add_task("searching", total=1.0)
        answer = recommend(
            process,
            profile,
            slos,
            objective=objective,
            max_cost=max_cost,
            memory_sizes=memory_sizes or None,
            max_batch_size=max_batch_size,
            timeouts=timeouts or None,
            max_timeout=max_timeout,
            payload_bytes=billing.payload_bytes,
            answer_bytes=billing.answer_bytes,
            headroom=headroom,
            prices=billing.prices,
            architecture=billing.architecture,
            granularity=billing.granularity,
            cold_start_probability=billing.cold_start_probability,
            snap_start=billing.snap_start,
            workers=offers,
            policies=policies,
            premium=premium,
            on_progress=lambda fraction: progress.update(task, completed=fraction),
        )
    made_at = datetime.now(UTC)
    plan = answer.plan(profile, model, arrivals, made_at)
    if out is not None:
        output.write_file(out, write(plan))
        output.stderr.print(f"wrote {out}")
    if report is not None:
        from sluice.optimizer.report.page import (  # with matplotlib, which takes longer to import than the search
            Subject,
            report_page,
        )

        with output.stderr.status("drawing ..."):
            subject = Subject(
                answer=answer,
                arrivals=arrivals,
                profile=profile,
                prices=billing.prices,
                model=model,
                command=command_line(context),
                made_at=made_at,
                architecture=billing.architecture,
                granularity=billing.granularity,
                cold_start_probability=billing.cold_start_probability,
                headroom=headroom,
                trace=observed,
                measured=seen,
            )
            page = report_page(subject, np.random.default_rng(0))
        output.write_file(report, page.encode())
        output.stderr.print(f"wrote {report}")
    if as_json:
        output.print_json(_document(answer, plan, process.arrival_rate, billing))
    else:
        _show(answer, process.arrival_rate)
        output.stdout.print(f"prices: {billing.prices.region}, read {billing.prices.read_on}")


def _document(answer: Recommendation, plan: Plan, arrival_rate: float, billing: Billing) -> dict[str, object]:
    percentiles = sorted({*PERCENTILES, *(slo.percentile for slo in answer.slos)})

    def setting(of: Setting) -> dict[str, object]:
        return {
            "memory_mb": of.memory_mb,
            "batch_size": of.batch_size,
            "timeout": of.timeout,
            "policy": PolicyDocument.of(of.policy()),
            "latency": {percentile_name(p): of.latency.percentile(p) for p in percentiles},
            "mean_batch_size": of.mean_batch_size,
            "cost": cost_document(of.cost) | {"in_all": of.cost.in_all(arrival_rate)},
        }

    return {
        "version": 1,
        "plan": plan,
        "slos": list(answer.slos),
        "arrival_rate": arrival_rate,
        "best": setting(answer.best),
        "no_batching": setting(answer.no_batching) | {"keeps_slos": answer.no_batching_keeps_slo},
        "winner": answer.winner.name if isinstance(answer.winner, WorkerSetting) else "function",
        "feasible": answer.feasible,
        "workers": [_pool_document(pool) for pool in answer.workers],
        "refused_workers": dict(answer.refused_workers),
        "runners_up": [setting(runner_up) for runner_up in answer.runners_up],
        "frontier": list(answer.frontier),
        "sensitivity": list(answer.sensitivity),
        "break_even_arrival_rate": answer.break_even_arrival_rate,
        "buffer_pays": wording.pays(answer, arrival_rate),
        "gap": answer.gap,
        "at_longest_timeout": answer.at_longest_timeout,
        "settings_compared": answer.n_settings,
        "prices": {"region": billing.prices.region, "read_on": billing.prices.read_on},
    }


def _pool_document(pool: WorkerSetting) -> dict[str, object]:
    return {
        "name": pool.name,
        "workers": pool.workers,
        "policy": PolicyDocument.of(pool.policy),
        "latency": {name: _estimate_document(estimate) for name, estimate in pool.latency.items()},
        "violations": [_estimate_document(share) for share in pool.violations],
        "keeps_slos": pool.keeps_slos,
        "utilisation": pool.utilisation,
        "load": pool.load,
        "mean_batch_size": pool.mean_batch_size,
        "cost": cost_document(pool.cost) | {"in_all": pool.cost.in_all(pool.arrival_rate)},
        "usd_per_month": pool.usd_per_month,
        "requests_simulated": pool.n_requests,
        "confidence": pool.confidence,
    }


def _estimate_document(estimate: Estimate) -> dict[str, float | None]:
    return {name: value if isfinite(value) else None for name, value in estimate._asdict().items()}


def _show(answer: Recommendation, arrival_rate: float) -> None:
    output.stdout.print(_settings(answer, arrival_rate))
    verdict = (wording.headline(answer), wording.kept(answer), wording.saving(answer), wording.break_even(answer, arrival_rate))
    for sentence in verdict:
        output.stdout.print(sentence)
    for sentence in wording.proof(answer):
        output.stdout.print(sentence)
    output.stdout.print(cost_table({of.name: of.cost for of in alternatives(answer, pools=1, runners_up=0)}))
    output.stdout.print(_sensitivity(answer, arrival_rate))
    output.stdout.print(_frontier(answer))


def _settings(answer: Recommendation, arrival_rate: float) -> Table:
    title = f"{wording.promise(answer.slos)}, at {arrival_rate:.4g} requests/s"
    table = Table(Column("", min_width=11), "runs on", Column("leaves", min_width=10), title=title)
    for name in (*(f"{slo.name} ms" for slo in answer.slos), "mean\nbatch", "USD per\nmillion"):
        table.add_column(name, justify="right", no_wrap=True)
    for of in alternatives(answer):
        latency = [f"{1e3 * seconds:.4g}" for seconds in of.latency.values()]
        figures = [*latency, f"{of.mean_batch_size:.2f}", per_million(of.cost.per_request)]
        table.add_row(of.name, of.runs_on, of.leaves, *figures, style="bold" if of.name == "recommended" else None)
    return table


def _sensitivity(answer: Recommendation, arrival_rate: float) -> Table:
    table = Table("requests/s", title="the setting of the function when the load changes")
    for name in (*(slo.name for slo in answer.slos), "mean batch", "USD per million", "SLO kept"):
        table.add_column(name, justify="right")
    for case in answer.sensitivity:
        table.add_row(
            f"{case.arrival_rate:.4g} ({100 * (case.factor - 1):+.0f} %)",
            *(milliseconds(seconds) for seconds in case.latency.values()),
            f"{case.mean_batch_size:.2f}",
            per_million(case.cost_per_request),
            "yes" if case.keeps_slos else "no",
        )
    return table


def _frontier(answer: Recommendation) -> Table:
    percentile = answer.slo.name
    table = Table(f"{percentile} at most", title=f"what a {percentile} costs")
    for name in ("USD per million", "memory", "batch size", "timeout"):
        table.add_column(name, justify="right")
    for point in answer.frontier:
        table.add_row(
            milliseconds(point.latency),
            per_million(point.cost_per_request),
            f"{point.memory_mb} MB",
            str(point.batch_size),
            wording.timeout(point),
        )
    return table
