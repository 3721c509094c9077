"""The page that tells of a recommendation: one HTML file that loads nothing from elsewhere.

Every number that is shown stands in a ``<data value=...>`` element with its exact value, seconds or USD. Two pages of the same
question, the same random source and the same time are the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from sluice.batching.documents import ArrivalDocument, percentile_name
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.function.latency import LatencyPrediction, predict_latency
from sluice.optimizer.recommend import Answer, EveryLoad
from sluice.optimizer.recommend.candidate import predicted_cost
from sluice.optimizer.recommend.words import in_brackets, milliseconds
from sluice.optimizer.report import figures, wording
from sluice.optimizer.report.alternatives import alternatives
from sluice.optimizer.report.evidence import Seen, on_trace, simulate_setting
from sluice.optimizer.report.svg import inline_svg
from sluice.optimizer.report.trace_plot import plot_trace
from sluice.optimizer.report.wording import named, named_part, per_million
from sluice.optimizer.service.by_size import service_times_under
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.traces.trace import Trace

N_SIMULATED = 500_000
LAGS = (1, 10, 100)
MAX_TRACE = 1_000_000  # arrivals of a trace that are simulated
PERCENTILES = (10.0, 50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True, eq=False)
class Subject:
    """What the page is about: an answer, and what else is known.

    Parameters
    ----------
    arrivals : ArrivalDocument
        Where the process of the question is from.
    command : str
        The command that gives this answer again.
    trace : Trace, optional
        Arrivals to run what is recommended on, and the function's best setting, beside a sample of the process.
    measured : Seen, optional
        Latencies of a replay against the running buffer.
    """

    answer: Answer
    arrivals: ArrivalDocument
    model: str
    command: str
    made_at: datetime
    trace: Trace | None = None
    measured: Seen | None = None


@dataclass(frozen=True)
class Cell:
    """What a table shows, and the number behind it."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Row:
    """A named row of a table."""

    name: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class Table:
    """A table; ``strong`` rows stand out; one with a ``folded`` line shows only that until it is opened."""

    head: Sequence[str]
    rows: Sequence[Row]
    strong: Sequence[int] = ()
    folded: str = ""


@dataclass(frozen=True)
class Section:
    """Figures with one caption, and the numbers in them: ``beside`` them, or below. A ``wide`` figure has panels of its own."""

    name: str
    title: str
    caption: str
    figures: Sequence[Markup] = ()
    tables: Sequence[Table] = ()
    beside: Table | None = None
    wide: bool = False


def report_page(subject: Subject, rng: np.random.Generator) -> str:
    """The page as HTML; ``rng`` draws the arrivals and the service times of the simulation."""
    page = _Page(subject, rng)
    return rendered(
        title=f"{subject.model}: {wording.promise(subject.answer.slos)}",
        headline=page.headline(),
        verdict=page.verdict(),
        settings=page.settings(),
        sections=page.sections(),
        assumptions=page.assumptions(),
        command=subject.command,
    )


def rendered(**parts: object) -> str:
    """The template with its title, headline, verdict, settings, sections, assumptions and command."""
    environment = Environment(loader=PackageLoader("sluice.optimizer.report", "."), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("template.html").render(**parts)


class _Page:
    def __init__(self, subject: Subject, rng: np.random.Generator) -> None:
        self.subject = subject
        self.answer = answer = subject.answer
        self.question = answer.question
        self.process = answer.question.arrivals
        best = answer.best
        service = service_times_under(self.question.profile, best.memory_mb, best.batch_size, self.question.mix)
        self.workers = answer.simulated
        self.of_function = "" if answer.winner is best else "Of the function's best setting, which is not recommended here. "
        self.percentiles = sorted({*PERCENTILES, *(slo.percentile for slo in answer.slos)})
        self.paper = None
        if best.batch_size > 1 and best.table is None:
            self.paper = predict_latency(self.process, service, best.batch_size, best.timeout, "batch-paper")
        runs = {"simulated": np.cumsum(self.process.sample(N_SIMULATED, rng))}
        if subject.trace is not None:
            runs["simulated on the trace"] = subject.trace.times[:MAX_TRACE]
        self.seen = [simulate_setting(name, best, service, times, self.percentiles, rng) for name, times in runs.items()]
        self.on_trace = None
        if subject.trace is not None and answer.winner is not best:
            self.on_trace = on_trace(answer, runs["simulated on the trace"])
        if subject.measured is not None:
            self.seen.append(subject.measured)

    def headline(self) -> str:
        """Whether to deploy; or that the promise was measured not to be kept."""
        measured = self.subject.measured
        if measured is None:
            return wording.late_in_run(self.answer) or wording.verdict(self.answer)
        reached = {slo.name: measured.percentile(slo.percentile) for slo in self.answer.slos}
        return wording.measured_late(self.answer.slos, reached) or wording.verdict(self.answer)

    def verdict(self) -> list[str]:
        answer = self.answer
        seen = [] if self.on_trace is None else [wording.seen_on_trace(answer, self.on_trace)]
        first = [sentence for sentence in (wording.verdict(answer),) if sentence != self.headline()]
        cost = (wording.saving(answer), *wording.billed_on(answer), wording.contained(answer), *wording.stacks(answer))
        beside = (*wording.kept_free(answer), *wording.every_load(answer), *wording.proof(answer))
        return [*first, wording.headline(answer), wording.kept(answer), *seen, *cost, *beside]

    def settings(self) -> Table:
        head = ["", "runs on", "leaves with, or after", *(slo.name for slo in self.answer.slos), "mean batch"]
        rows = [
            Row(
                of.name,
                [
                    Cell(of.runs_on),
                    Cell(of.leaves),
                    *map(latency_cell, of.latency.values()),
                    Cell(f"{of.mean_batch_size:.2f}", of.mean_batch_size),
                    usd_cell(of.cost.by_request),
                ],
            )
            for of in alternatives(self.answer)
        ]
        return Table([*head, "USD per million requests"], rows, strong=[0])

    def sections(self) -> list[Section]:
        return [self._latency(), self._frontier(), self._batch_sizes(), self._cost(), self._sensitivity(), self._arrivals()]

    def _latency(self) -> Section:
        answer, best = self.answer, self.answer.best
        unbatched = answer.no_batching.latency if best.batch_size > 1 else None
        paper = self.paper
        columns: dict[str, LatencyPrediction | Seen] = {"predicted, exact": best.latency}
        if paper is not None:
            columns["BATCH's approximation"] = paper
        columns |= {seen.name: seen for seen in self.seen}
        if unbatched is not None:
            columns["no batching, predicted"] = unbatched
        rows = [Row(percentile_name(p), [_percentile(law, p) for law in columns.values()]) for p in self.percentiles]
        head = ["percentile", *columns]
        if self.workers is not None:
            head.append(f"{self.workers.runs_on}, simulated")
            rows = [Row(row.name, [*row.cells, _estimate(self.workers.latency.get(row.name))]) for row in rows]
        whole = figures.latency_cdf(best.latency, paper, unbatched, self.seen, answer.slos, self.workers)
        tail = figures.latency_tail(best.latency, paper, self.seen, answer.slos, self.workers)
        runs = "; ".join(f"{seen.name}: {seen.n_requests} requests" for seen in self.seen)
        return Section(
            "latency",
            "Latency",
            f"{self.of_function}Share of the requests answered within a latency, from the arrival of the request to its answer; on "
            f"the right the last tenth on a scale that gives each nine the same room. Dotted: what is promised. {runs}.",
            [
                svg(whole, "cdf", "Latency distribution"),
                svg(tail, "tail", "Tail of the latency distribution"),
            ],
            [Table(head, rows, folded="Latency percentiles; of simulations with 95 % confidence intervals")],
        )

    def _of_fit(self) -> str:
        """What a caption adds where other costs are of the arrivals recorded."""
        return "" if self.answer.question.recorded is None else ", arrivals being as fitted"

    def _frontier(self) -> Section:
        percentile = self.answer.slo.name
        rows = [
            Row(
                milliseconds(point.latency),
                [
                    usd_cell(point.cost_per_request),
                    Cell(f"{point.memory_mb} MB", point.memory_mb),
                    Cell(str(point.batch_size), point.batch_size),
                    Cell("-") if point.batch_size == 1 else Cell(wording.timeout(point), point.timeout),
                ],
            )
            for point in self.answer.frontier
        ]
        return Section(
            "frontier",
            "What a latency costs",
            f"The least bill of the function at which {percentile} is at most so long{self._of_fit()}. Dotted: what is promised.",
            [svg(figures.frontier(self.answer), "frontier", f"Least cost by {percentile} latency")],
            beside=Table([f"{percentile} at most", "USD per million", "memory", "batch size", "timeout"], rows),
        )

    def _batch_sizes(self) -> Section:
        pmf = self.answer.best.latency.batch_size_pmf
        seen = [sample for sample in self.seen if sample.batch_size_pmf is not None]
        rows = []
        for k in range(len(pmf)):
            shares = [pmf, figures.by_requests(pmf)]
            shares += [sample.batch_size_pmf for sample in seen if sample.batch_size_pmf is not None]
            rows.append(Row(str(k + 1), [Cell(f"{100 * share[k]:.3f}", float(share[k])) for share in shares]))
        head = ["batch size", "batches, %", "requests, %", *(f"batches {sample.name}, %" for sample in seen)]
        return Section(
            "batch-sizes",
            "Batch sizes",
            f"{self.of_function}How many requests leave together: as a share of the batches, and as requests see it, most of whom "
            "are in large ones.",
            [
                svg(figures.batch_sizes(pmf, seen, "batches"), "sizes", "Batch sizes, by batches"),
                svg(figures.batch_sizes(pmf, seen, "requests"), "sizes-of-requests", "Batch sizes, by requests"),
            ],
            [Table(head, rows, folded="Every batch size")],
        )

    def _cost(self) -> Section:
        rate = self.answer.arrival_rate
        costs = {of.name: of.cost for of in alternatives(self.answer, workers=3, runners_up=1)}
        rows = cost_rows(costs)
        rows.append(Row(f"everything, at {rate:.4g} requests/s", [usd_cell(cost.in_all(rate)) for cost in costs.values()]))
        parts = dict.fromkeys(part for cost in costs.values() for part in cost.fixed_terms)
        fixed = [Row(named_part(part), [_dollars(cost.fixed_terms.get(part, 0.0)) for cost in costs.values()]) for part in parts]
        fixed.append(Row("in all", [_dollars(cost.fixed_per_month) for cost in costs.values()]))
        return Section(
            "cost",
            "Cost",
            "Left: what a request costs, term by term. Right: a month at this arrival rate, with what is paid whether or not a "
            "request comes.",
            [
                svg(figures.cost_breakdown(costs), "terms", "Cost per million requests, by term"),
                svg(figures.monthly_bill(costs, rate), "month", "Cost of a month"),
            ],
            [
                Table(["USD per million requests", *costs], rows, strong=[len(rows) - 2]),
                Table(["USD per month, fixed", *costs], fixed, strong=[len(fixed) - 1]),
            ],
        )

    def _sensitivity(self) -> Section:
        answer, best = self.answer, self.answer.best
        head = [
            "requests/s",
            *(slo.name for slo in answer.slos),
            "mean batch",
            "USD per million requests",
            "SLO kept",
        ]
        as_is = Row(
            f"{self.process.arrival_rate:.4g} (as it is)",
            [
                *(latency_cell(best.latency.percentile(slo.percentile)) for slo in answer.slos),
                Cell(f"{best.mean_batch_size:.2f}", best.mean_batch_size),
                usd_cell(predicted_cost(best).by_request),
                Cell("yes" if answer.feasible else "no"),
            ],
        )
        rows = [
            Row(
                f"{case.arrival_rate:.4g} ({100 * (case.factor - 1):+.0f} %)",
                [
                    *(latency_cell(case.latency[slo.name]) for slo in answer.slos),
                    Cell(f"{case.mean_batch_size:.2f}", case.mean_batch_size),
                    usd_cell(case.cost_per_request),
                    Cell("yes" if case.keeps_slos else "no"),
                ],
            )
            for case in answer.sensitivity
        ]
        before = sum(case.factor < 1 for case in answer.sensitivity)
        rows.insert(before, as_is)
        slower = f"when requests come more slowly or faster in the same pattern{self._of_fit()}"
        caption = f"{self.of_function}The setting, left as it is, {slower}."
        tables = [Table(head, rows, strong=[before])]
        if isinstance(answer.by_function, EveryLoad):
            tables.append(_every_load(answer.by_function))
        return Section("sensitivity", "When the load changes", caption, tables=tables)

    def _arrivals(self) -> Section:
        process, document, trace = self.process, self.subject.arrivals, self.subject.trace
        head, rows = ["", document.fitted_from.get("fit", document.model)], []
        of_process = [process.arrival_rate, process.scv, *process.autocorrelation(LAGS).tolist()]
        of_trace: list[float | None] = [None] * len(of_process)
        if trace is not None:
            seen = trace.statistics()
            of_trace = [seen.arrival_rate, seen.scv, *trace.autocorrelation(LAGS).tolist()]
        names = ["arrival rate, requests/s", "squared coefficient of variation of the gaps"]
        names += [f"autocorrelation of the gaps, lag {lag}" for lag in LAGS]
        for name, fitted, observed in zip(names, of_process, of_trace, strict=True):
            cells = [Cell(f"{round(value, 9) + 0.0:.4g}", value) for value in (fitted, observed) if value is not None]
            rows.append(Row(name, cells))
        kind = {"poisson": "A Poisson process", "mmpp": "An MMPP"}.get(document.model, "A MAP")
        caption = kind if process.n_phases == 1 else f"{kind} of {process.n_phases} phases"
        source = document.fitted_from.get("source")
        caption += f", fitted to {source}." if source else "."
        panels = []
        if trace is not None:
            head.append(f"trace ({len(trace)} arrivals, {trace.duration:.4g} s)")
            panels.append(svg(plot_trace(trace, process), "trace", "The trace and its fit"))
        return Section("arrivals", "Arrivals", caption, panels, [Table(head, rows)], wide=True)

    def cold_starts(self) -> str:
        told, kept = self.question.billing.cold_start_probability, self.question.environments.keep_alive
        estimated = f"estimated, as environments are kept for {kept:g} s"
        by_function = self.answer.by_function
        return f"{wording.small(by_function.cold_starts)} % of the invocations, {estimated if told is None else 'as told'}"

    def assumptions(self) -> list[tuple[str, str]]:
        subject, answer, billing = self.subject, self.answer, self.question.billing
        profile, prices = self.question.profile, billing.prices
        sizes = ", ".join(map(str, profile.memory_sizes)) or f"{answer.best.memory_mb} (a linear law for all)"
        facts = [
            ("function", profile.function),
            ("profile", f"measured {profile.measured_at}" if profile.measured_at else "of unknown date"),
            ("memory sizes in it", f"{sizes} MB"),
            ("prices", f"{prices.told}; {prices.currency}; {billing.architecture}"),
            ("billed in steps of", milliseconds(billing.step)),
            ("cold starts", self.cold_starts()),
            ("environments that the buffer starts with the plan", f"{answer.started}"),
            ("part of the SLO kept free", f"{100 * self.question.goal.headroom:g} %"),
            (
                "confidence, as the fit is uncertain",
                f"{100 * self.question.goal.confidence:g} %" if self.question.without else "none",
            ),
            (
                "latency of the function",
                "exact for the arrival process and the measured service times"
                + ("" if self.paper is None else "; the approximation of BATCH beside it"),
            ),
            ("the function", "elastic: every batch starts at once, and its service time does not depend on the load"),
            ("search", " ".join(wording.proof(answer))),
            ("made at", subject.made_at.isoformat(timespec="seconds")),
        ]
        return facts


def svg(figure: Figure, name: str, title: str) -> Markup:
    """A figure to stand in a page."""
    return Markup(inline_svg(figure, name, title))


def latency_cell(seconds: float) -> Cell:
    """Seconds, as a table shows a latency."""
    return Cell(milliseconds(seconds), seconds)


def usd_cell(per_request: float) -> Cell:
    """USD per request, as a table shows a cost."""
    return Cell(per_million(per_request) if per_request else "0", per_request)


def cost_rows(costs: Mapping[str, BatchCost]) -> list[Row]:
    """What a request costs under each, term by term."""
    terms = [cost.terms() for cost in costs.values()]
    rows = [Row(named(term), [usd_cell(by_term[term]) for by_term in terms]) for term in terms[0]]
    return [*rows, Row("all by the request", [usd_cell(cost.by_request) for cost in costs.values()])]


def cost_section(costs: Mapping[str, BatchCost]) -> Section:
    """The same as a section."""
    rows = cost_rows(costs)
    table = Table(["USD per million requests", *costs], rows, strong=[len(rows) - 1])
    return Section("cost", "Cost", "What a request costs, term by term.", tables=[table])


def _dollars(usd: float) -> Cell:
    return Cell(f"{usd:.2f}" if usd else "0", usd)


def _every_load(plan: EveryLoad) -> Table:
    rows = [
        Row(
            f"{at.arrival_rate:.4g}",
            [
                *map(usd_cell, (at.cost_per_request, at.least_cost)),
                *(Cell(f"{wording.percent(part)} %", part) for part in (at.regret, at.simulated_regret)),
                Cell(f"{at.mean_batch_size:.2f}", at.mean_batch_size),
                Cell(wording.small(at.cold_starts), at.cold_starts),
            ],
        )
        for at in plan.loads
    ]
    head = ["requests/s", "USD per million, the plan", "the cheapest table of that rate", "more", "more, simulated", "mean batch"]
    return Table([*head, "cold, %"], rows, strong=[k for k, at in enumerate(plan.loads) if at.factor == 1])


def _percentile(law: LatencyPrediction | Seen, percentile: float) -> Cell:
    seconds = law.percentile(percentile)
    if seconds is None:
        return Cell("-")
    if not isinstance(law, Seen) or percentile not in law.estimates:
        return latency_cell(seconds)
    return _estimate(law.estimates[percentile])


def _estimate(estimate: Estimate | None) -> Cell:
    if estimate is None:
        return Cell("-")
    value, low, high = estimate
    interval = in_brackets(*(f"{1e3 * seconds:.4g}" for seconds in (value, low, high)))
    return Cell(f"{milliseconds(value)}{interval}", value)
