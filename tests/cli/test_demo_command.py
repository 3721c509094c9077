"""`sluice demo` says its answer first, and whether to deploy at the rate that it ran at."""

from __future__ import annotations

from io import StringIO

import msgspec
import pytest
from rich.console import Console

from sluice.batching.documents import Plan, PolicyDocument, Slo
from sluice.batching.policy import no_batching
from sluice.cli.demo import conclusion, live_conclusion, live_table
from sluice.local.demo import DemoReport, Row
from sluice.local.live_demo import CONTROL, STATIC, LivePhase, LiveRow
from sluice.optimizer.arrivals import poisson
from tests.cli.conftest import Run


def row(name: str, billed: float, kept: bool = True) -> Row:
    figures = dict.fromkeys(("predicted_latency", "measured_latency", "predicted_batch_size", "measured_batch_size"), 1.0)
    counts = dict.fromkeys(("memory_mb", "requests", "failures", "invocations", "cold_starts"), 1)
    return Row(
        name=name,
        function="f",
        policy="p",
        slo_kept=kept,
        predicted_cost=1e-6,
        billed_cost=billed,
        lateness_p99=0.0,
        **figures,
        **counts,
    )


def report(recommended: Row, break_even: float | None) -> DemoReport:
    return DemoReport(
        network="mlp",
        trace="t.csv",
        scale=5.0,
        slo=Slo(0.2),
        arrivals=poisson(20.9).document(),
        plan=Plan(model="m", function="f", policy=PolicyDocument.of(no_batching())),
        rows=[row("no batching", 8e-7), recommended],
        live=[],
        break_even_arrival_rate=break_even,
        moving_cost=9e-7,
        seconds=200.0,
    )


@pytest.mark.parametrize(
    ("recommended", "break_even", "said"),
    [
        (
            row("recommended", 1e-7),
            61.2,
            "The recommended setting kept the promise, 95 % within 200 ms, and was billed 8.0 times less than no batching. "
            "A deployed buffer earns its fixed cost from 61 requests/s on; here 20.9: do not deploy one for this alone.",
        ),
        (row("recommended", 1e-7), 9.0, "from 9 requests/s on; here 20.9: it pays."),
        (
            row("recommended", 16e-7, kept=False),
            None,
            "did not keep the promise, 95 % within 200 ms, and was billed 2.0 times as much as no batching. "
            "A deployed buffer would earn its fixed cost at no rate: do not deploy one to save money.",
        ),
        (
            row("recommended", 1e-7),
            None,
            "at no rate, as batching saves 0.700 USD per million requests and moving their bytes through it costs 0.900: do not",
        ),
    ],
)
def test_the_conclusion_answers_whether_it_kept_saved_and_would_pay(recommended: Row, break_even: float | None, said: str) -> None:
    assert said in conclusion(report(recommended, break_even))


def live(name: str, *late_at_last: float) -> LiveRow:
    figures = dict.fromkeys(("predicted_latency", "modelled_latency", "measured_latency", "late"), 0.25)
    phases = [
        LivePhase(requests=10, late_at_last=late, predicted_cost=1e-7, modelled_cost=1e-7, billed_cost=2e-7, **figures)
        for late in late_at_last
    ]
    return LiveRow(name=name, phases=phases, plans=2, failures=0)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [live(STATIC, 0, 0, 0, 0.9), live(CONTROL, 0.05, 0, 0, 0)],
            "Live control kept the promise in the second half of every phase, at 0.200 USD per million requests; "
            "static (90 % late, function slower) did not.",
        ),
        ([live(STATIC, 0, 0, 0, 0), live(CONTROL, 0, 0, 0, 0)], "per million requests; so did the others."),
        (
            [live(STATIC, 0, 0, 0, 0), live(CONTROL, 0, 0.06, 0, 0)],
            "Live control did not keep the promise in the second half of every phase (controlled (6 % late, load × 3)); "
            "the others did.",
        ),
    ],
)
def test_the_second_conclusion_says_whether_control_kept_the_promise_and_who_did_not(rows: list[LiveRow], said: str) -> None:
    told = msgspec.structs.replace(report(row("recommended", 1e-7), 9.0), live=rows)
    assert said in live_conclusion(told)
    shown = Console(width=120, file=StringIO())
    shown.print(live_table(told))
    assert "load × 3: p95 predicted, measured" in shown.file.getvalue() and "250, 250 ms" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_the_demo_makes_one_promise(exit_of: Run) -> None:
    code, _, err = exit_of("demo", "--slo", "p95=0.2", "--slo", "p99=0.4")
    assert code == 2 and "slo: ['p95', 'p99'] is not allowed; allowed: one alone, as the demo makes one promise" in err
