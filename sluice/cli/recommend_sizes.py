"""`sluice recommend` where requests have sizes: the classes, their tables, and what they do on a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import numpy as np
from rich.table import Column, Table

from sluice.batching.documents import ArrivalDocument, RequestSize
from sluice.cli import output
from sluice.cli.answered import Answered
from sluice.cli.cost_table import cost_table
from sluice.optimizer.recommend import Question, SizedAnswer, recommend_classes
from sluice.optimizer.recommend.size_sampling import size_uncertainty
from sluice.optimizer.report import sizes as told
from sluice.optimizer.report.wording import at_rate, per_million, priced, promise


def answered_by_size(
    question: Question,
    arrivals: ArrivalDocument,
    most_classes: int,
    size: RequestSize,
    titled: tuple[str, str, datetime],
    on_progress: Callable[[float], None],
) -> Answered:
    """The answer for requests of different size; ``titled`` are model, command line and date."""
    model, command, made_at = titled
    answer = recommend_classes(question, most_classes, on_progress=on_progress)
    answer = replace(answer, uncertainty=size_uncertainty(answer, np.random.default_rng(0)))
    plan = answer.plan(model, size, arrivals, made_at)

    def page() -> str:
        from sluice.optimizer.report.sized_page import sized_page  # with matplotlib

        return sized_page(answer, model, command, made_at)

    return Answered(plan, page, lambda: told.sized_document(answer, plan), lambda: _show(answer))


def _show(answer: SizedAnswer) -> None:
    for sentence in (told.verdict(answer), told.headline(answer), *told.sentences(answer)):
        output.stdout.print(sentence)
    output.stdout.print(_classes(answer))
    output.stdout.print(cost_table(told.compared(answer)))
    output.stdout.print(priced(answer.question.billing.prices))


def _classes(answer: SizedAnswer) -> Table:
    slos, run = answer.question.slos, answer.run
    title = f"{promise(slos)}, {at_rate(answer.question)}"
    table = Table(Column("size", width=11), "runs on", "leaves", title=title, padding=(0, 1, 0, 0))
    simulated = [f"{slos[0].name} ms\nrun"] if run is not None else []
    for name in ("share\n%", *(f"{slo.name} ms" for slo in slos), *simulated, "mean\nbatch", "USD per\nmillion"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in told.rows(answer):
        latency = [f"{1e3 * seconds:.4g}" for seconds in row.latency.values()]
        seen = ["-" if row.simulated is None else f"{1e3 * row.simulated:.4g}"] if run is not None else []
        figures = [f"{100 * row.share:.3g}", *latency, *seen, f"{row.mean_batch_size:.2f}", per_million(row.cost)]
        table.add_row(row.name, row.runs_on, row.leaves, *figures, style="bold" if row.name == "recommended" else None)
    return table
