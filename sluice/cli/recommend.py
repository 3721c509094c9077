"""`sluice recommend`: the cheapest setting that keeps percentile SLOs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import click
import numpy as np
from rich.progress import Progress
from rich.table import Column, Table

from sluice.batching.documents import ArrivalDocument, RequestSize, require_model
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.cli import output
from sluice.cli.answered import Answered
from sluice.cli.class_arrivals import OPTION as CLASS
from sluice.cli.command_line import command_line
from sluice.cli.cost_table import cost_table
from sluice.cli.file_kinds import PAGE, PLAN, written_option
from sluice.cli.measured import read_measured
from sluice.cli.profile_files import warn_of_machine
from sluice.cli.question_options import question_options
from sluice.cli.recommend_classes import answered_by_class
from sluice.cli.recommend_sizes import answered_by_size
from sluice.cli.size_options import class_options
from sluice.cli.trace_options import read_recorded, warn_of_other_rate
from sluice.cli.values import FILE
from sluice.optimizer.recommend import Answer, Application, EveryLoad, Question, recommend
from sluice.optimizer.recommend.comparisons import FrontierPoint
from sluice.optimizer.recommend.recorded import recorded
from sluice.optimizer.recommend.size_classes import WORKERS_BY_HAND
from sluice.optimizer.recommend.words import milliseconds
from sluice.optimizer.report import wording
from sluice.optimizer.report.alternatives import alternatives
from sluice.optimizer.report.documents import answer_document
from sluice.optimizer.report.evidence import Seen
from sluice.optimizer.report.wording import per_million

MACHINES = "Machines compete by --worker PROFILE:MACHINE."
MACHINES_OF_SIZES = f"Machines do not compete beside sizes: {WORKERS_BY_HAND}."


@click.command("recommend")
@question_options
@class_options
@click.option(
    "--model",
    metavar="NAME",
    help="Name of the model in the plan  [default: that of the profile]",
)
@written_option("--out", kinds=(PLAN,), help="Write the plan here.")
@written_option("--report", kinds=(PAGE,), help="Write a page about the answer here: HTML, one file.")
@click.option("--trace", type=FILE, metavar="FILE", help="Recorded arrivals that costs are those of  [default: those of the fit]")
@click.option("--measured", type=FILE, metavar="FILE", help="For the report: latencies that `sluice replay --out` measured.")
@output.json_option
@click.pass_context
def command(
    context: click.Context,
    question: Question,
    applications: tuple[Application, ...],
    arrivals: ArrivalDocument,
    size_column: str | None,
    most_classes: int,
    size: RequestSize,
    model: str | None,
    out: str | None,
    report: str | None,
    trace: str | None,
    measured: str | None,
    as_json: bool,
) -> None:
    """Find what keeps percentile SLOs at least cost: a function, workers, or both.

    Of the function memory size, batch size and holds; of workers their number and table; of both also when the function takes over.
    Of several applications (--class) also who shares a queue.
    """
    sized = question.mix is not None
    for name, path in (("trace", trace), ("measured", measured)):
        require(
            path is None or not applications, name, path, f"none beside {CLASS}: sluice simulate --policy PLAN runs the plan on one"
        )
    if measured is not None and report is None:
        raise InvalidInput("measured", measured, "only with --report, which shows it")
    require(measured is None or not sized, "measured", measured, "none beside sizes")
    function = question.profile.function
    model = question.profile.model if model is None else model
    if not model:
        raise InvalidInput("--model", NOT_GIVEN, f"the name of what {function} serves, which the profile does not tell")
    require_model("--model", model)
    warn_of_machine(question.profile, MACHINES_OF_SIZES if sized else MACHINES)
    seen = read_measured(measured) if measured is not None else None
    observed = read_recorded(trace, size_column) if trace is not None else None
    if observed is not None:
        if sized and observed.sizes is None:
            raise InvalidInput("size_column", NOT_GIVEN, "the column of the trace that has the sizes of its requests")
        question = replace(question, recorded=recorded(observed.times, observed.sizes if sized else None))
        warn_of_other_rate(question.arrivals.arrival_rate, question.arrival_rate)
    made_at = datetime.now(UTC)
    with Progress(console=output.stderr, transient=True, disable=not output.stderr.is_terminal) as progress:
        task = progress.add_task("searching", total=None)  # it moves to and fro until a part is done

        def on_progress(fraction: float) -> None:
            progress.update(task, completed=fraction, total=1.0)

        titled = (model, command_line(context), made_at)
        if applications:
            answered = answered_by_class(question, applications, titled)
        elif sized:
            answered = answered_by_size(question, arrivals, most_classes, size, titled, on_progress)
        else:
            answer = recommend(question, on_progress)
            subject = (answer, arrivals, *titled, observed, seen)
            plan, frontier = answer.plan(model, arrivals, made_at), answer.frontier  # which takes as long as the answer
            shown = answer, seen, frontier
            answered = Answered(plan, lambda: _page(*subject), lambda: answer_document(answer, plan), lambda: _show(*shown))
    answered.give(out, report, as_json)


def _page(*subject: Any) -> str:
    from sluice.optimizer.report.page import Subject, report_page  # with matplotlib, which takes longer to import than the search

    return report_page(Subject(*subject), np.random.default_rng(0))


def _show(answer: Answer, seen: Seen | None, frontier: Sequence[FrontierPoint]) -> None:
    reached = {} if seen is None else {slo.name: seen.percentile(slo.percentile) for slo in answer.slos}
    if reached and (late := wording.measured_late(answer.slos, reached)):
        output.stdout.print(late)
    elif broken := wording.late_in_run(answer):
        output.stdout.print(broken)
    output.stdout.print(wording.verdict(answer))
    output.stdout.print(_settings(answer))
    for sentence in (
        wording.headline(answer),
        wording.kept(answer),
        *wording.kept_free(answer),
        wording.saving(answer),
        *wording.billed_on(answer),
        wording.contained(answer),
        *wording.stacks(answer),
        *wording.cold_starts(answer),
        *wording.started(answer),
        *wording.kept_warm(answer),
        *wording.every_load(answer),
        *wording.proof(answer),
    ):
        output.stdout.print(sentence)
    output.stdout.print(cost_table({of.name: of.cost for of in alternatives(answer, workers=1, runners_up=0)}))
    if isinstance(answer.by_function, EveryLoad):
        output.stdout.print(_loads(answer.by_function))
    else:
        output.stdout.print(_sensitivity(answer))
    output.stdout.print(_frontier(answer, frontier))
    output.stdout.print(wording.priced(answer.question.billing.prices))


def _settings(answer: Answer) -> Table:
    title = f"{wording.promise(answer.slos)}, {wording.at_rate(answer.question)}"
    table = Table(Column("", min_width=11), "runs on", Column("leaves", min_width=10), title=title)
    for name in (*(f"{slo.name} ms" for slo in answer.slos), "mean\nbatch", "USD per\nmillion"):
        table.add_column(name, justify="right", no_wrap=True)
    for of in alternatives(answer):
        latency = [f"{1e3 * seconds:.4g}" for seconds in of.latency.values()]
        figures = [*latency, f"{of.mean_batch_size:.2f}", per_million(of.cost.by_request)]
        table.add_row(of.name, of.runs_on, of.leaves, *figures, style="bold" if of.name == "recommended" else None)
    return table


def _loads(plan: EveryLoad) -> Table:
    table = Table("requests\nper s", title="the plan for every load, in USD per million requests")
    for name in (
        "this\nplan",
        "least at\nthe rate",
        "more,\n%",
        "in a run\nmore, %",
        "mean\nbatch",
        "late at\nmost, %",
        "cold,\n%",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for at in plan.loads:
        table.add_row(
            f"{at.arrival_rate:.4g}",
            *(per_million(usd) for usd in (at.cost_per_request, at.least_cost)),
            *(wording.percent(part) for part in (at.regret, at.simulated_regret)),
            f"{at.mean_batch_size:.2f}",
            wording.small(max(share.high for share in at.late)),
            wording.small(at.cold_starts),
        )
    return table


def _of_fit(answer: Answer) -> str:
    """What a title adds where other costs are of the arrivals recorded."""
    return "" if answer.question.recorded is None else "; arrivals as fitted"


def _sensitivity(answer: Answer) -> Table:
    table = Table("requests/s", title=f"the setting of the function when the load changes{_of_fit(answer)}")
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


def _frontier(answer: Answer, points: Sequence[FrontierPoint]) -> Table:
    percentile = answer.slo.name
    table = Table(
        f"{percentile} at most",
        title=f"what a {percentile} costs, kept with {100 * answer.question.goal.confidence:g} % confidence{_of_fit(answer)}",
    )
    for name in ("USD per million", "memory", "batch size", "timeout"):
        table.add_column(name, justify="right")
    for point in points:
        table.add_row(
            milliseconds(point.latency),
            per_million(point.cost_per_request),
            f"{point.memory_mb} MB",
            str(point.batch_size),
            wording.timeout(point),
        )
    return table
