"""The page, its figures and its sentences say what the recommendation says."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sluice.optimizer.report.page as page_module
from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing import SECONDS_PER_MONTH, BatchCost, Billing
from sluice.optimizer.recommend import Answer, Limits, Question, WorkerOffer, WorkerSetting, choose_workers, recommend
from sluice.optimizer.recommend.words import between, in_brackets, leaves, less, milliseconds
from sluice.optimizer.report import figures, wording
from sluice.optimizer.report.alternatives import alternatives
from sluice.optimizer.report.evidence import Seen, simulate_setting
from sluice.optimizer.report.page import Subject, report_page
from sluice.optimizer.report.svg import inline_svg
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.traces.trace import Trace

ARRIVALS = mmpp2(150, 20, 2, 4)
SLOS = (Slo(0.1, 95), Slo(0.15, 99))
VOID = {"meta", "link", "br", "img", "hr", "input"}


def profile() -> ServiceProfile:
    quantiles = ((0.1, 0.9), (0.5, 1.0), (0.9, 1.1), (0.99, 1.5))
    points = [
        ProfilePoint(
            memory_mb,
            size,
            ServiceTime(
                (0.006 + 0.001 * size) * 1769 / memory_mb,
                [(q, (0.006 + 0.001 * size) * 1769 / memory_mb * x) for q, x in quantiles],
                99,
            ),
            (0.006 + 0.001 * size) * 1769 / memory_mb,
        )
        for memory_mb in (885, 1769)
        for size in (1, 4, 16)
    ]
    return ServiceProfile(function="<b>mlp</b>-{memory_mb}", points=points, init={1769: ServiceTime(0.4)}, measured_at="2026-11-01")


@pytest.fixture(scope="module")
def answer() -> Answer:
    return recommend(Question(ARRIVALS, profile(), SLOS, billing=Billing(cold_start_probability=0.01)))


@pytest.fixture(scope="module")
def subject(answer: Answer) -> Subject:
    trace = Trace(ARRIVALS.sample(1000, np.random.default_rng(1)), "trace.csv")
    measured = Seen("measured", 300, np.array([0.1, 0.5, 0.9, 0.97]), np.array([0.01, 0.05, 0.1, 0.2]))
    return subject_of(answer, trace=trace, measured=measured)


def subject_of(answer: Answer, arrivals: ArrivalProcess = ARRIVALS, **others: Any) -> Subject:
    known: dict[str, Any] = {
        "model": "mlp",
        "command": "sluice recommend --out 'a & b.json'",
        "made_at": datetime(2026, 11, 21, tzinfo=UTC),
    }
    return Subject(answer, arrivals.document(), **known | others)


def drawn(subject: Subject) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_module, "N_SIMULATED", 5000)
        return report_page(subject, np.random.default_rng(0))


@pytest.fixture(scope="module")
def html(subject: Subject) -> str:
    return drawn(subject)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose figures are made but not drawn, for what is read in their text and tables."""
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
    monkeypatch.setattr(page_module, "inline_svg", lambda figure, name, title: f'<svg aria-label="{title}"></svg>')


class Page(HTMLParser):
    """Elements that are open or were opened, and the tables of each section as rows of exact values."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.tables: dict[str, list[dict[str, list[str]]]] = {}
        self.section = "head"
        self.row, self.cell = "", ""
        self.exact: str | None = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]
        given = dict(attributes)
        if tag == "section":
            self.section = given["id"] or ""
        elif tag == "tbody":
            self.tables.setdefault(self.section, []).append({})
        elif tag == "data":
            self.exact = given["value"]
        elif tag in ("td", "th"):
            self.cell, self.exact = "", None
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"
        if tag == "th" and "tbody" in self.open:
            self.row = self.cell
            self.tables[self.section][-1][self.row] = []
        elif tag == "td":
            self.tables[self.section][-1][self.row].append(self.exact or self.cell)

    def handle_data(self, data: str) -> None:
        self.cell += data

    def values(self, section: str, table: int = 0) -> dict[str, list[float]]:
        """The numbers of a table by row; cells without one are left out."""
        rows = self.tables[section][table]
        return {name: [float(cell) for cell in cells if re.fullmatch(r"[-+\d.e]*\d", cell)] for name, cells in rows.items()}


@pytest.mark.full
def test_every_element_is_closed_and_every_identifier_is_unique_and_found(html: str) -> None:
    page = Page(html)
    assert page.open == []
    identifiers = [value for _, name, value in page.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert set(re.findall(r"(?:url\(|href=\")#([\w-]+)", html)) <= set(identifiers)


def test_nothing_is_loaded_from_elsewhere(html: str) -> None:
    for tag, name, value in Page(html).attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
            assert value.startswith("#"), (tag, name, value)
    assert "@import" not in html and not re.search(r"url\((?!#)", html) and "<script" not in html and "<link" not in html
    assert set(re.findall(r"https?://[^\"' )<]+", html)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


@pytest.mark.full
def test_the_page_is_small_and_the_same_again(subject: Subject, html: str) -> None:
    assert 50_000 < len(html.encode()) < 1_000_000
    assert drawn(subject) == html


def test_what_others_named_is_escaped(html: str) -> None:
    assert "<b>" not in html and "&lt;b&gt;mlp&lt;/b&gt;-{memory_mb}" in html
    assert "a &amp; b.json" in html


def test_the_settings_are_those_of_the_answer(answer: Answer, html: str) -> None:
    rows = Page(html).values("head")
    settings = {"recommended": answer.best, "no batching": answer.no_batching}
    settings |= {f"runner-up {i}": setting for i, setting in enumerate(answer.runners_up, 1)}
    assert rows.keys() == settings.keys()
    for name, setting in settings.items():
        latency = [setting.latency.percentile(slo.percentile) for slo in SLOS]
        assert rows[name] == [*latency, setting.mean_batch_size, setting.cost.by_request]
    for sentence in (wording.verdict(answer), wording.headline(answer), wording.kept(answer)):
        assert sentence in html
    assert all(sentence in html for sentence in wording.proof(answer))


def test_every_term_of_the_cost_is_on_the_page(answer: Answer, html: str) -> None:
    page = Page(html)
    costs = [answer.best.cost, answer.no_batching.cost, answer.runners_up[0].cost]
    terms, fixed = page.values("cost", 0), page.values("cost", 1)
    for term in BatchCost().terms():
        assert terms[wording.named(term)] == [cost.terms()[term] for cost in costs]
    assert terms["all by the request"] == [cost.by_request for cost in costs]
    assert fixed["in all"] == [cost.fixed_per_month for cost in costs]
    for part in answer.best.cost.fixed_terms:
        assert fixed[wording.named_part(part)] == [cost.fixed_terms.get(part, 0.0) for cost in costs]


def test_frontier_and_sensitivity_are_those_of_the_answer(answer: Answer, html: str) -> None:
    page = Page(html)
    costs = [cells[0] for cells in page.values("frontier").values()]
    assert costs == [point.cost_per_request for point in answer.frontier]
    shown = list(page.values("sensitivity").values())
    cases = [[*case.latency.values(), case.mean_batch_size, case.cost_per_request] for case in answer.sensitivity]
    assert [shown[0], shown[-1]] == cases and len(shown) == 3


def test_latency_percentiles_stand_beside_what_was_seen(answer: Answer, html: str) -> None:
    rows = Page(html).tables["latency"][0]
    for name, level in (("p50", 50), ("p95", 95)):
        assert float(rows[name][0]) == answer.best.latency.percentile(level)
    exact, _, simulated, on_trace, measured, unbatched = rows["p99"]
    assert float(simulated) == pytest.approx(float(exact), rel=0.2) and float(on_trace) > 0
    assert measured == "-"  # three per cent of the replay failed
    assert float(unbatched) == answer.no_batching.latency.percentile(99)
    assert float(rows["p50"][4]) == 0.05


def test_a_simulation_contains_the_exact_law(answer: Answer) -> None:
    best = answer.best
    rng = np.random.default_rng(3)
    service = service_times(profile(), best.memory_mb, best.batch_size)
    seen = simulate_setting("simulated", best, service, np.cumsum(ARRIVALS.sample(400_000, rng)), [50.0, 95.0, 99.0], rng)
    for percentile, (value, low, high) in seen.estimates.items():
        assert abs(value - best.latency.percentile(percentile)) <= 4 * (high - low) / 2 / 1.96, percentile
    assert seen.batch_size_pmf is not None and seen.batch_size_pmf.sum() == pytest.approx(1)
    assert seen.batch_size_pmf == pytest.approx(best.latency.batch_size_pmf, abs=0.005)


def test_no_batching_has_a_page_too() -> None:
    law = ServiceProfile(function="f", service_time=LinearServiceTime(0.0, 0.1), max_batch_size=4)
    arrivals = poisson(1)
    answer = recommend(Question(arrivals, law, Slo(0.1, 95), limits=Limits((1024,))))
    assert answer.best.batch_size == 1
    html = drawn(subject_of(answer, arrivals))
    assert "Call the function directly, with 1024 MB and no buffer." in html and "BATCH&#39;s approximation" not in html
    assert "of unknown date" in html and "A Poisson process." in html
    assert "no batching" not in Page(html).tables["head"][0]


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_a_table_that_waits_to_the_last_moment_has_a_page_too() -> None:
    law = ServiceProfile(function="f", service_time=LinearServiceTime(0.006, 0.001), max_batch_size=8)
    arrivals = poisson(60)
    answer = recommend(Question(arrivals, law, Slo(0.1, 99.9), limits=Limits((1769,))))
    assert answer.best.table is not None
    page = Page(html := drawn(subject_of(answer, arrivals)))
    assert wording.headline(answer) in html and wording.kept(answer) in html and "BATCH" not in html
    assert page.tables["head"][0]["recommended"][1] == "8 or 92 to 86 ms"
    predicted, simulated, *_ = page.tables["latency"][0]["p50"]
    assert float(predicted) == answer.best.latency.percentile(50) == pytest.approx(float(simulated), rel=0.1)
    assert any(f"up to {milliseconds(point.timeout)}" in html for point in answer.frontier if point.kind == "deadline")


def line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    (found,) = [drawn_line for drawn_line in axes.get_lines() if drawn_line.get_label() == label]
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def test_the_curve_of_the_figure_is_the_cdf_and_promises_are_marked(answer: Answer) -> None:
    best = answer.best.latency
    (axes,) = figures.latency_cdf(best, None, None, [], SLOS).axes
    times, percent = line(axes, "predicted, exact")
    assert percent == pytest.approx(100 * best.cdf(times))
    corners = {(float(np.asarray(found.get_xdata())[1]), float(np.asarray(found.get_ydata())[1])) for found in axes.get_lines()[1:]}
    assert corners == {(slo.latency, slo.percentile) for slo in SLOS}


def test_the_tail_spans_90_to_three_nines(answer: Answer) -> None:
    best = answer.best.latency
    (axes,) = figures.latency_tail(best, None, [], SLOS).axes
    latencies, nines = line(axes, "predicted, exact")
    assert (latencies[0], latencies[-1]) == pytest.approx((best.quantile(0.9), best.quantile(0.999)))
    assert (nines[0], nines[-1]) == pytest.approx((1, 3), abs=1e-3)


def test_the_frontier_shows_the_settings_of_the_answer(answer: Answer) -> None:
    (axes,) = figures.frontier(answer).axes
    for label, setting in (("recommended", answer.best), ("no batching", answer.no_batching)):
        latency, cost = line(axes, label)
        assert latency[0] == setting.latency.percentile(95) and cost[0] == 1e6 * setting.cost.per_request
    latency, _ = line(axes, "runners-up")
    assert len(latency) == len(answer.runners_up)


def test_bars_end_where_the_cost_does(answer: Answer) -> None:
    costs = {of.name: of.cost for of in alternatives(answer, runners_up=1)}
    rate = ARRIVALS.arrival_rate
    for figure, totals in (
        (figures.cost_breakdown(costs), [1e6 * cost.by_request for cost in costs.values()]),
        (figures.monthly_bill(costs, rate), [cost.in_all(rate) * rate * SECONDS_PER_MONTH for cost in costs.values()]),
    ):
        ends: dict[float, float] = {}
        for bar in figure.axes[0].patches:
            x, y = bar.get_xy()  # type: ignore[attr-defined]
            ends[y] = max(ends.get(y, 0.0), x + bar.get_width())  # type: ignore[attr-defined]
        assert [ends[y] for y in sorted(ends, reverse=True)] == pytest.approx(totals)


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_workers_stand_beside_the_function_in_every_figure(answer: Answer) -> None:
    offer = WorkerOffer("gpu", service_times(profile(), 1769), price_per_hour=1e-4)
    workers = choose_workers(ARRIVALS, offer, SLOS)
    both = replace(answer, workers=(workers,))
    name = f"{workers.workers} × gpu"
    (axes,) = figures.latency_cdf(answer.best.latency, None, None, [], SLOS, workers).axes
    assert f"{name}, simulated" in axes.get_legend_handles_labels()[1]
    (axes,) = figures.frontier(both).axes
    latency, cost = line(axes, name)
    assert latency[0] == workers.latency["p95"].value and cost[0] == 1e6 * workers.cost.per_request
    first, second, *_ = alternatives(both)
    assert (first.name, first.runs_on, second.name) == ("recommended", name, "function")
    assert (first.cost, first.latency["p99"]) == (workers.cost, workers.latency["p99"].value)
    html = drawn(subject_of(both))
    assert Page(html).values("head")["recommended"][-1] == workers.cost.per_request
    assert wording.headline(both) in html and wording.kept(both) in html


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (policies.no_batching(), "one by one"),
        (policies.size_or_timeout(8, 0.02), "8 or 20 ms"),
        (policies.size_or_timeout(8, 0.0), "up to 8, at once"),
        (policies.greedy(8, 2), "up to 8, at once"),
        (policies.deadline(0.5, [0.01, 0.02, 0.04, 0.08], None), "4 or 480 to 420 ms"),
    ],
)
def test_a_policy_is_told_in_a_few_words(policy: policies.Policy, words: str) -> None:
    assert leaves(policy) == words


def test_requests_see_the_larger_batches() -> None:
    assert figures.by_requests(np.array([0.5, 0.0, 0.5])) == pytest.approx([0.25, 0.0, 0.75])


def test_a_latency_without_width_is_drawn() -> None:
    law = ServiceProfile(function="f", service_time=LinearServiceTime(0.01, 0.0), max_batch_size=1)
    answer = recommend(Question(poisson(1), law, Slo(0.01, 95), limits=Limits((128,))))
    for figure in (
        figures.latency_cdf(answer.best.latency, None, None, [], answer.slos),
        figures.latency_tail(answer.best.latency, None, [], answer.slos),
        figures.frontier(answer),
    ):
        low, high = figure.axes[0].get_xlim()
        assert low < 0.01 < high


def test_a_figure_in_the_page_keeps_its_text_and_takes_the_ink_of_the_page(answer: Answer) -> None:
    root = ElementTree.fromstring(inline_svg(figures.frontier(answer), "frontier", "Least cost"))
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"p95 latency", "USD per million requests", "recommended"} <= texts
    assert root.get("aria-label") == "Least cost" and root.get("width") is None
    whole = ElementTree.tostring(root, encoding="unicode")
    assert "currentColor" in whole and "#000000" not in whole and "<ns0:metadata" not in whole
    assert all(name.startswith("frontier-") for name in re.findall(r'id="([^"]*)"', whole))


@pytest.mark.parametrize(
    ("quantiles", "latencies"),
    [([0.5], [0.1]), ([0.5, 0.4], [0.1, 0.2]), ([0.5, 0.9], [0.2, 0.1]), ([0.5, 1.1], [0.1, 0.2]), ([0.5, 0.9], [0.1, np.inf])],
)
def test_points_of_no_quantile_function_are_refused(quantiles: list[float], latencies: list[float]) -> None:
    with pytest.raises(
        InvalidInput, match=r"measured: quantiles: \[.*\] is not allowed; allowed: at least two pairs \[q, seconds\]"
    ):
        Seen("measured", 5, np.array(quantiles), np.array(latencies))


def test_the_verdict_on_a_buffer_follows_the_arrival_rate(answer: Answer) -> None:
    rate = answer.break_even_arrival_rate
    assert rate is not None
    with_it, direct = wording.months(answer)
    assert wording.pays(answer) == (answer.arrival_rate > rate) == (with_it < direct)
    never = replace(answer, break_even_arrival_rate=None)
    assert "; it pays at no rate" in wording.verdict(never)


def test_where_another_stack_would_pay_the_verdict_names_the_cheapest(answer: Answer) -> None:
    (here, direct), by_stack = wording.months(answer), wording.months_by_stack(answer)
    assert here == pytest.approx(by_stack["nat"]) and here > direct > min(by_stack.values()) == by_stack["small"]
    assert wording.verdict(answer).endswith(f"; with --stack small it would be {by_stack['small']:.2f}.")
    slow = recommend(Question(poisson(20.0), profile(), SLOS))
    assert wording.months(slow)[1] < min(wording.months_by_stack(slow).values())
    assert "--stack" not in wording.verdict(slow)


@pytest.mark.parametrize("rate", [600.0, 700.0])
def test_who_goes_to_workers_pays_no_network_on_any_stack(rate: float) -> None:
    offer, billing = WorkerOffer("box", service_times(profile(), 1769), price_per_hour=0.05), Billing(payload_bytes=30_000)
    answer = recommend(Question(poisson(rate), profile(), SLOS, billing, offers=(offer,)))
    assert (answer.winner is answer.overflow) == (rate == 700) and answer.winner is not answer.by_function
    by_stack, fixed = wording.months_by_stack(answer), sum(billing.prices.on("public").fixed_terms().values())
    moved = by_stack["nat"] - by_stack["public"] - (sum(billing.prices.fixed_terms().values()) - fixed)
    assert by_stack["nat"] == pytest.approx(wording.months(answer)[0])
    assert moved == pytest.approx(answer.winner.cost.network * rate * SECONDS_PER_MONTH, rel=0.02)


def test_a_longest_timeout_and_a_missing_alternative_are_said(answer: Answer) -> None:
    proof = " ".join(wording.proof(replace(answer, at_longest_timeout=True, no_batching_keeps_slo=False)))
    assert "is the longest allowed" in proof and "Without batching no memory size keeps the SLO." in proof
    assert "without batching no memory size keeps the SLO" in wording.saving(replace(answer, no_batching_keeps_slo=False))


def test_what_rounds_to_nothing_is_said_to_be_little() -> None:
    assert [less(part) for part in (0.25, 4e-5, 0.0, -4e-5, -0.0312)] == [
        "saves 25.00 %",
        "saves less than 0.01 %",
        "saves nothing",
        "saves less than 0.01 %",
        "costs 3.12 % more",
    ]
    assert wording.decision("5.00 USD", 4.999, 5.0) == "Deploy: 5.00 USD, as much as calling the function directly."
    dearer = wording.decision("5.00 USD", 5.001, 5.0)
    assert dearer == "Do not deploy for this alone: 5.00 USD, as much as calling the function directly."
    assert "1.00 less than calling" in wording.decision("4.00 USD", 4.0, 5.0)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (1.25, "1.25 times less than no batching ("),
        (1.004, "as much as no batching ("),
        (0.996, "as much as no batching ("),
        (0.8, "1.25 times what it is without batching ("),
    ],
)
def test_what_no_batching_costs_as_much_as_is_not_told_as_a_number_of_times(answer: Answer, times: float, said: str) -> None:
    other = BatchCost(compute=times * answer.winner.cost.by_request)
    assert f" USD per million requests, {said}" in wording.saving(
        replace(answer, no_batching=replace(answer.no_batching, cost=other))
    )


def test_an_interval_whose_ends_are_written_alike_is_one_number(answer: Answer) -> None:
    assert (between("495", "495"), between("495", "496")) == ("495", "495 to 496")
    assert in_brackets("495", "495", "495") == ""
    assert (in_brackets("495", "494", "494"), in_brackets("495", "494", "496")) == (" (494)", " (494 to 496)")
    workers = choose_workers(ARRIVALS, WorkerOffer("gpu", service_times(profile(), 1769), price_per_hour=1e-4), SLOS)
    certain = replace(answer, workers=(replace(workers, latency=dict.fromkeys(workers.latency, Estimate(0.04, 0.04, 0.04))),))
    assert isinstance(certain.winner, WorkerSetting) and "p95 40 ms (40 with 95 % confidence)" in wording.kept(certain)
