"""`sluice recommend` for several applications: who shares a queue, and what each may expect."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.table import Column, Table

from sluice.cli import output
from sluice.cli.answered import Answered
from sluice.cli.cost_table import cost_table
from sluice.optimizer.recommend import Application, Question, SharingAnswer, recommend_sharing
from sluice.optimizer.recommend.words import in_brackets
from sluice.optimizer.report import sharing as told
from sluice.optimizer.report.wording import per_million, priced


def answered_by_class(question: Question, applications: Sequence[Application], titled: tuple[str, str, datetime]) -> Answered:
    """The answer for several applications; ``titled`` are model, command line and date."""
    model, command, made_at = titled
    answer = recommend_sharing(question, applications)
    plan = answer.plan(model, made_at)

    def page() -> str:
        from sluice.optimizer.report.sharing_page import sharing_page  # with matplotlib

        return sharing_page(answer, model, command, made_at)

    return Answered(plan, page, lambda: told.sharing_document(answer, plan), lambda: _show(answer))


def _show(answer: SharingAnswer) -> None:
    for sentence in (told.verdict(answer), told.headline(answer), *told.sentences(answer)):
        output.stdout.print(sentence)
    output.stdout.print(_applications(answer))
    output.stdout.print(_queues(answer))
    output.stdout.print(cost_table(answer.compared))
    output.stdout.print(priced(answer.question.billing.prices))


def _applications(answer: SharingAnswer) -> Table:
    table = Table(Column("class", overflow="fold"), title="what each may expect", padding=(0, 1, 0, 0))
    for name in ("requests\nper s", "promised", "predicted\nms", "may wait\nlonger, ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("shares with", overflow="fold")
    for of in told.application_rows(answer):
        value, low, high = (f"{1e3 * seconds:.4g}" for seconds in of.reached)
        reached = value if of.exact else f"{value}{in_brackets(value, low, high)}".replace(" to ", "\nto ")
        table.add_row(of.name, f"{of.arrival_rate:.4g}", of.promised, reached, f"{1e3 * of.slack:.4g}", of.shares_with or "-")
    return table


def _queues(answer: SharingAnswer) -> Table:
    table = Table(Column("queue", overflow="fold"), "runs on", "leaves", title="the queues", padding=(0, 1, 0, 0))
    for name in ("mean\nbatch", "USD per\nmillion"):
        table.add_column(name, justify="right", no_wrap=True)
    for of in answer.queues:
        figures = (f"{of.mean_batch_size:.2f}", per_million(of.cost.by_request))
        table.add_row(of.named, of.runs_on, of.leaves, *figures)
    return table
