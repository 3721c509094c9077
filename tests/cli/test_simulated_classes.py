"""`sluice simulate` with classes of requests: in one queue and by routes, arrivals by class and of a trace, tables, errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.batching import Policy
from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, RequestClass, RequestSize, Route, Slo, write
from sluice.cli.arrival_options import WAY
from sluice.optimizer.arrivals import mmpp2
from tests.cli.conftest import Document, Run

INF = float("inf")
CLASSES = [RequestClass("quick", Slo(0.1)), RequestClass("report", Slo(1.0, 99)), RequestClass("nightly", slack=5.0)]
EACH = ("--class", "quick:40", "--class", "report:15", "--class", "nightly:5")


def table(policy: Policy) -> PolicyDocument:
    return PolicyDocument.of(policy)


HELD = table(policies.size_or_timeout(8, 0.08))


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Write a plan: the name of its file."""

    def write_plan(name: str = "plan.json", **fields: Any) -> str:
        path = tmp_path / name
        path.write_bytes(write(Plan(model="m", slo=Slo(0.1), **{"classes": CLASSES, **fields})))
        return str(path)

    return write_plan


@pytest.fixture
def plan(written: Callable[..., str]) -> str:
    return written(function="mlp-1769", policy=HELD)


@pytest.fixture
def asked(profile: str) -> tuple[str, ...]:
    return ("simulate", "--profile", profile, "--memory", "1769", "--requests", "6000", "--init", "0")


def test_what_each_class_of_a_plan_met_is_told(document_of: Document, asked: tuple[str, ...], plan: str) -> None:
    answer = document_of(*asked, *EACH, "--policy", plan)
    run = answer["policies"][plan]
    quick, report, nightly = run["classes"]
    assert [of["name"] for of in run["classes"]] == ["quick", "report", "nightly"]
    assert sum(of["n_requests"] for of in run["classes"]) == answer["n_requests"] == 6000
    assert [of["slack"] for of in run["classes"]] == [0.0, pytest.approx(0.9), 5.0]
    assert quick["keeps_slo"] and quick["surely_keeps_slo"] and quick["violation_ratio"] == 0.0
    assert quick["violations"]["value"] == 0.0 < quick["violations"]["high"] < 0.05
    assert set(quick["latency"]) == {"p50", "p95", "p99"} and quick["latency"]["p99"]["value"] < 0.1
    assert report["slo"] == {"latency": 1.0, "percentile": 99.0} and "violations" not in nightly
    assert run["surely_keeps_slos"] is True and answer["winner"] == plan and answer["planned_rate"] == pytest.approx(60)


def test_a_policy_that_knows_no_classes_serves_them_alike_under_the_promises_of_the_plan(
    document_of: Document, asked: tuple[str, ...], plan: str
) -> None:
    answer = document_of(*asked, *EACH, "--policy", plan, "--policy", "size-or-timeout:8,0.12")
    alike = answer["policies"]["size-or-timeout:8,0.12"]
    assert [of["slack"] for of in alike["classes"]] == [0.0] * 3 and alike["classes"][0]["slo"]["latency"] == 0.1
    assert not alike["keeps_slos"] and not alike["classes"][0]["keeps_slo"] and alike["classes"][1]["keeps_slo"]
    assert answer["winner"] == plan


def test_a_policy_alone_tells_of_classes_without_a_promise(document_of: Document, asked: tuple[str, ...]) -> None:
    answer = document_of(*asked, "--class", "a:30", "--class", "b:10", "--policy", "no-batching")
    assert [(of["name"], of["slo"]) for of in answer["policies"]["no-batching"]["classes"]] == [("a", None), ("b", None)]
    assert answer["winner"] is None


def test_classes_that_choose_their_route_have_queues_of_their_own(
    document_of: Document, asked: tuple[str, ...], written: Callable[..., str]
) -> None:
    classes = [RequestClass("quick", Slo(0.1), route="fast"), RequestClass("report", Slo(1.0), route="slow")]
    routes = [
        Route("fast", "mlp-1769", HELD, 0.5),
        Route("slow", "mlp-1769", table(policies.size_or_timeout(8, 0.9)), 0.5),
    ]
    path = written(routes=routes, classes=classes)
    run = document_of(*asked, "--class", "report:5", "--class", "quick:40", "--policy", path)["policies"][path]
    assert [of["name"] for of in run["routes"]] == ["fast", "slow"]
    fast, slow = run["routes"]
    assert fast["n_requests"] + slow["n_requests"] == 6000 and slow["n_requests"] < 1000
    assert [of["name"] for of in fast["classes"]] == ["quick"] and {of["name"] for of in run["classes"]} == {"quick", "report"}
    assert slow["mean_batch_size"] > fast["mean_batch_size"] and run["surely_keeps_slos"] is True
    assert run["batches"] == fast["batches"] + slow["batches"]


def test_a_table_with_columns_is_run(document_of: Document, asked: tuple[str, ...], written: Callable[..., str]) -> None:
    """Nobody in a hurry waits for a patient request, which waits for one in a hurry for 2 s."""
    grid = Policy([INF, 2.0, 0.0, 0.0], [0, 1, 1, 2], columns=2)
    path = written(function="mlp-1769", policy=table(grid), classes=CLASSES[:2])
    quick, report = document_of(*asked, "--class", "quick:1", "--class", "report:0.01", "--policy", path)["policies"][path][
        "classes"
    ]
    assert quick["latency"]["p99"]["value"] == pytest.approx(0.007 + WAY, rel=0.01)
    assert report["n_requests"] > 20 and report["violation_ratio"] > 0.1


def test_arrivals_of_a_class_are_a_rate_a_document_or_a_trace(
    document_of: Document, asked: tuple[str, ...], plan: str, tmp_path: Path
) -> None:
    document, trace = tmp_path / "arrivals.json", tmp_path / "trace.csv"
    document.write_bytes(write(mmpp2(80, 10, 1, 1).document()))
    trace.write_text("t\n" + "\n".join(f"{t:.5f}" for t in np.cumsum(np.random.default_rng(0).exponential(0.1, 500))) + "\n")
    given = ("--class", f"quick:{document}", "--class", f"report:{trace}", "--class", "nightly:2")
    answer = document_of(*asked, *given, "--policy", plan)
    n = [of["n_requests"] for of in answer["policies"][plan]["classes"]]
    assert answer["planned_rate"] == pytest.approx(45 + 10 + 2, rel=0.05)
    assert n[0] / 6000 == pytest.approx(45 / 57, abs=0.05) and n[2] < n[1] < n[0]


@pytest.fixture
def classed_trace(tmp_path: Path) -> str:
    """A file: 1000 Poisson arrivals at 50/s, nine of ten of them reports."""
    rng = np.random.default_rng(0)
    rows = zip(np.cumsum(rng.exponential(0.02, 1000)), rng.choice(["quick", "report"], 1000, p=[0.1, 0.9]), strict=True)
    path = tmp_path / "trace.csv"
    path.write_text("time,kind\n" + "\n".join(f"{time:.6f},{name}" for time, name in rows) + "\n")
    return str(path)


def test_the_requests_of_a_trace_are_of_the_classes_in_its_column(
    document_of: Document, profile: str, plan: str, classed_trace: str
) -> None:
    asked = ("simulate", "--profile", profile, "--memory", "1769", "--trace", classed_trace, "--class-column", "kind")
    run = document_of(*asked, "--policy", plan)["policies"][plan]
    names = [row.split(",")[1] for row in Path(classed_trace).read_text().split()[1:]]
    half = sum(of["n_requests"] for of in run["classes"])  # the rest was learned from
    assert {of["name"]: of["n_requests"] for of in run["classes"]} == {
        name: names[-half:].count(name) for name in ("quick", "report")
    }


def test_the_table_tells_of_every_class(shown_by: Callable[..., str], asked: tuple[str, ...], plan: str) -> None:
    shown = shown_by(*asked, *EACH, "--policy", plan)
    lines = [" ".join(line.replace("│", " ").split()) for line in shown.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("quick "))
    assert "p95 100 ms 0 %" in lines[start] and "kept 0 to" in lines[start + 1]
    assert any(line.startswith("nightly ") for line in lines) and "p99 1000 ms" in " ".join(lines)
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "Cheapest that surely keeps the SLO:" in shown


def test_a_class_of_too_few_requests_to_say_is_said(shown_by: Callable[..., str], asked: tuple[str, ...], plan: str) -> None:
    shown = " ".join(
        shown_by(*asked, "--class", "quick:99", "--class", "report:0.5", "--class", "nightly:0.5", "--policy", plan).split()
    )
    assert "None of these surely keeps the SLO. Might keep it:" in shown
    assert "USD; report 0 %; more requests would tell." in shown and "perhaps" in shown


SHARED = {"function": "mlp-1769", "policy": HELD}
BY_SIZE = {
    "routes": [Route("small", "mlp-1769", HELD, 0.5, up_to=9.0), Route("large", "mlp-1769", HELD, 0.5)],
    "size": RequestSize("bytes"),
}


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        (SHARED, ("--poisson", "9"), "plan.json: classes: 'quick, report, nightly' .* --class NAME:ARRIVALS, or --trace"),
        (SHARED, ("--class", "quick:1", "--class", "report:1"), "plan.json: class: 'nightly' .* --class nightly:ARRIVALS"),
        (SHARED, (*EACH, "--class", "slow:1"), "class: 'slow' .* one of .*plan.json: quick, report, nightly"),
        (SHARED, (*EACH, "--class", "quick:1"), "--class: 'quick' .* each class once"),
        (SHARED, ("--class", "quick"), "--class: 'quick' .* NAME:ARRIVALS, the arrivals a rate"),
        (SHARED, ("--class", "a b:1"), "--class: 'a b:1' .* NAME:ARRIVALS, the arrivals a rate"),
        (SHARED, ("--class", "quick:nowhere"), "nowhere"),
        (SHARED, ("--class", "quick:-1"), "--class: 'quick:-1' .* a rate above 0"),
        (SHARED, (*EACH, "--poisson", "9"), "--poisson: 9.0 .* none beside --class, which has the"),
        (SHARED, ("--poisson", "9", "--class-column", "kind"), "--class-column: 'kind' .* only with --trace"),
        (BY_SIZE, EACH, "plan.json: classes: 3 .* none, as the routes are chosen by size"),
        (
            {**SHARED, "policy": table(Policy([INF, 1, 0, 0], [0, 1, 1, 2], columns=2)), "classes": []},
            ("--poisson", "9"),
            "columns: 2",
        ),
    ],
)
def test_classes_and_arrivals_that_do_not_fit_are_refused(
    exit_of: Run, profile: str, written: Callable[..., str], fields: dict[str, Any], options: tuple[str, ...], message: str
) -> None:
    path = written(**fields)
    code, _, err = exit_of("simulate", "--profile", profile, "--memory", "1769", *options, "--policy", path)
    assert code == 2 and re.search(message, err), err
