"""The page that tells of an answer to requests of different size, on the template of ``page``."""

from __future__ import annotations

from datetime import datetime

import numpy as np
from matplotlib.figure import Figure

from sluice.optimizer.recommend import SizedAnswer
from sluice.optimizer.recommend.words import milliseconds
from sluice.optimizer.report import sizes as told
from sluice.optimizer.report.page import Cell, Row, Section, Table, cost_section, latency_cell, rendered, svg, usd_cell
from sluice.optimizer.report.wording import promise

N_POINTS = 400


def sized_page(answer: SizedAnswer, model: str, command: str, made_at: datetime) -> str:
    """The page as HTML."""
    question = answer.question
    assumptions = [
        ("function", question.profile.function),
        ("sizes measured", ", ".join(f"{size:g}" for size in question.profile.sizes)),
        ("sizes of requests", "drawn independently of each other and of the arrivals"),
        ("a batch", "takes as long as its largest member has it"),
        ("the function", "elastic: every batch starts at once, and its service time does not depend on the load"),
        ("classes", "may end at " + ", ".join(f"{size:g}" for size in answer.boundaries)),
        ("prices", question.billing.prices.told),
        ("billed in steps of", milliseconds(question.billing.step)),
        ("made at", made_at.isoformat(timespec="seconds")),
    ]
    return rendered(
        title=f"{model}: {promise(question.slos)}",
        headline=told.verdict(answer),
        verdict=[told.headline(answer), *told.sentences(answer)],
        settings=_settings(answer),
        sections=[_sizes(answer), _latency(answer), cost_section(told.compared(answer))],
        assumptions=assumptions,
        command=command,
    )


def _settings(answer: SizedAnswer) -> Table:
    slos, rows, run = answer.question.slos, told.rows(answer), answer.run
    simulated = [] if run is None else [f"{slos[0].name}, simulated on the trace"]
    head = ["size", "share, %", "runs on", "leaves with, or after", *(slo.name for slo in slos), *simulated, "mean batch"]
    shown = [
        Row(
            of.name,
            [
                Cell(f"{100 * of.share:.3g}", of.share),
                Cell(of.runs_on),
                Cell(of.leaves),
                *map(latency_cell, of.latency.values()),
                *([] if run is None else [Cell("-") if of.simulated is None else latency_cell(of.simulated)]),
                Cell(f"{of.mean_batch_size:.2f}", of.mean_batch_size),
                usd_cell(of.cost),
            ],
        )
        for of in rows
    ]
    return Table([*head, "USD per million requests"], shown, strong=[len(answer.classes)])


def _sizes(answer: SizedAnswer) -> Section:
    mix = answer.question.mix
    assert mix is not None
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.step(mix.values, np.cumsum(mix.shares), where="post")
    for of in answer.classes[:-1]:
        axes.axvline(of.up_to, linestyle=":", color="C1")
    axes.set_xlabel("size")
    axes.set_ylabel("share of the requests")
    rows = [Row(str(k), [usd_cell(usd) if np.isfinite(usd) else Cell("misses the SLO")]) for k, usd in answer.by_number.items()]
    costs = f"the least cost by the number of classes{told.moving_left_out(answer)}"
    caption = f"Sizes of the requests, and where classes end (dotted); {costs}."
    table = Table(["classes", "USD per million requests"], rows)
    return Section("sizes", "Sizes", caption, [svg(figure, "mix", "Sizes of the requests")], beside=table)


def _latency(answer: SizedAnswer) -> Section:
    law, run = answer.latency, answer.run
    times = np.linspace(0, law.longest, N_POINTS)
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.plot(1e3 * times, law.cdf(times), label="predicted")
    if run is not None:
        axes.plot(1e3 * times, run.share_within(times), label="on the trace")
    for slo in answer.question.slos:
        axes.axvline(1e3 * slo.latency, linestyle=":", color="C3")
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share of the requests")
    axes.legend()
    caption = "Share of the requests of any size that are answered within a latency. Dotted: what is promised."
    return Section("latency", "Latency", caption, [svg(figure, "cdf", "Latency distribution")])
