"""The page that tells of an answer to several applications, on the template of ``page``."""

from __future__ import annotations

from datetime import datetime

from matplotlib.figure import Figure

from sluice.optimizer.recommend import SharingAnswer
from sluice.optimizer.recommend.words import milliseconds
from sluice.optimizer.report import sharing as told
from sluice.optimizer.report.page import Cell, Row, Section, Table, cost_section, latency_cell, rendered, svg, usd_cell

MOST_DRAWN = 8  # applications whose latency is drawn


def sharing_page(answer: SharingAnswer, model: str, command: str, made_at: datetime) -> str:
    """The page as HTML."""
    billing = answer.question.billing
    assumptions = [
        ("function", answer.question.profile.function),
        ("applications", "arrive independently of each other"),
        ("the function", "elastic: every batch starts at once, and its service time does not depend on the load"),
        ("prices", billing.prices.told),
        ("billed in steps of", milliseconds(billing.step)),
        ("made at", made_at.isoformat(timespec="seconds")),
    ]
    return rendered(
        title=f"{model}: {len(answer.applications)} applications",
        headline=told.verdict(answer),
        verdict=[told.headline(answer), *told.sentences(answer)],
        settings=_applications(answer),
        sections=[_queues(answer), _latency(answer), cost_section(answer.compared)],
        assumptions=assumptions,
        command=command,
    )


def _applications(answer: SharingAnswer) -> Table:
    rows = [
        Row(
            of.name,
            [
                Cell(f"{of.arrival_rate:.4g}", of.arrival_rate),
                Cell(of.promised),
                latency_cell(of.reached.value),
                Cell(of.shares_with or "nobody"),
                latency_cell(of.slack),
            ],
        )
        for of in told.application_rows(answer)
    ]
    return Table(["application", "requests/s", "promised", "predicted", "shares with", "may wait longer"], rows)


def _queues(answer: SharingAnswer) -> Section:
    rows = [
        Row(
            of.named,
            [
                Cell(of.runs_on, of.memory_mb),
                Cell(of.leaves),
                Cell(f"{of.mean_batch_size:.2f}", of.mean_batch_size),
                usd_cell(of.cost.by_request),
            ],
        )
        for of in answer.queues
    ]
    head = ["queue", "runs on", "leaves with, or after", "mean batch", "USD per million requests"]
    return Section("queues", "Queues", "Who shares a queue, and what serves it.", tables=[Table(head, rows)])


def _latency(answer: SharingAnswer) -> Section:
    drawn = [(of.name, queue.curve(k)) for queue in answer.queues for k, of in enumerate(queue.applications)][:MOST_DRAWN]
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, (times, shares) in drawn:
        axes.plot(1e3 * times, shares, label=name)
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share of the requests")
    axes.legend()
    caption = "Share of the requests of each application that are answered within a latency."
    return Section("latency", "Latency", caption, [svg(figure, "cdf", "Latency of each application")])
