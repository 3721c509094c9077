"""One cost for a plan and a trace: what `recommend`, `predict` and `simulate` say, in text, document and page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import sluice.optimizer.report.page as page_module
from sluice.batching.documents import ArrivalDocument, Plan, read, write
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.fits import arrival_document, fit_arrivals
from sluice.optimizer.traces.trace import read_trace
from tests.cli.conftest import Document, Run, Shown

pytestmark = pytest.mark.usefixtures("searched_once")
SLO = ("--slo", "p95=150ms")


@pytest.fixture(scope="module")
def bursty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bursts that grow from the beginning to the end, as no stationary process has them."""
    rng, path = np.random.default_rng(5), tmp_path_factory.mktemp("bursty") / "trace.csv"
    bursts = [np.concatenate([[rng.exponential(1.0)], rng.exponential(0.004, 1 + k // 20)]) for k in range(300)]
    path.write_text("gap\n" + "\n".join(map(str, np.concatenate(bursts).tolist())))
    return path


@pytest.fixture(scope="module")
def fitted(bursty: Path) -> str:
    path = bursty.with_name("arrivals.json")
    path.write_bytes(write(arrival_document(fit_arrivals(read_trace(str(bursty)), "mmpp2"))))
    return str(path)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "N_SIMULATED", 5000)
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
    monkeypatch.setattr(page_module, "inline_svg", lambda figure, name, title: f'<svg aria-label="{title}"></svg>')


@pytest.fixture
def slow(tmp_path: Path) -> str:
    """A file of arrivals that come alone, one every two seconds."""
    path = tmp_path / "slow.csv"
    path.write_text("gap\n" + "\n".join(["2.0"] * 500))
    return str(path)


def million(usd: float) -> str:
    return f"{1e6 * usd:.4f}"


def test_simulate_runs_what_the_fit_carries_unless_a_number_is_told_and_has_the_cost_that_recommend_says(
    bursty: Path, fitted: str, profile: str, tmp_path: Path, document_of: Document
) -> None:
    plan, law = tmp_path / "plan.json", tmp_path / "law.json"
    asked = ("--arrivals", fitted, "--profile", profile, *SLO)
    said = document_of("recommend", *asked, "--model", "m", "--out", str(plan))["plan"]["predicted"]["cost_per_request"]
    run = document_of("simulate", *asked, "--policy", str(plan))
    assert run["n_requests"] == len(bursty.read_text().splitlines())
    assert run["policies"][str(plan)]["cost"]["per_request"] == pytest.approx(said, rel=1e-9)
    assert document_of("simulate", *asked, "--policy", str(plan), "--requests", "3000")["n_requests"] == 3000
    law.write_bytes(write(read(ArrivalDocument, Path(fitted).read_bytes()).alone()))
    assert document_of("simulate", "--arrivals", str(law), *asked[2:], "--policy", str(plan))["n_requests"] == 200_000


@pytest.mark.usefixtures("undrawn")
def test_every_command_says_one_cost_of_a_plan_on_a_trace(
    bursty: Path, fitted: str, profile: str, tmp_path: Path, shown_by: Shown, document_of: Document
) -> None:
    plan, report = tmp_path / "plan.json", tmp_path / "report.html"
    asked = ("--arrivals", fitted, "--profile", profile)
    answer = document_of("recommend", *asked, *SLO, "--model", "m", "--out", str(plan), "--report", str(report))
    run = document_of("simulate", *asked, "--trace", str(bursty), "--policy", str(plan), *SLO)["policies"][str(plan)]
    usd = answer["plan"]["predicted"]["cost_per_request"]
    assert run["cost"]["per_request"] == pytest.approx(usd, rel=1e-9)
    assert answer["recorded"]["n_requests"] == len(bursty.read_text().splitlines())
    assert answer["cost_again"]["low"] < answer["cost_again"]["value"] < answer["cost_again"]["high"]
    taken = (answer["kept_warm"], "function kept warm"), (answer["every_load"], "function"), (answer["best"], "function")
    chosen = next(of for of, name in taken if of is not None and of.get("taken", True) and name == answer["winner"])
    assert chosen["cost"]["per_request"] == usd
    text = " ".join(shown_by("recommend", *asked, *SLO, "--model", "m").split())
    by_request = chosen["cost"]["by_request"]
    month = chosen["cost"]["in_all"] * answer["arrival_rate"] * SECONDS_PER_MONTH
    assert f"{million(by_request)} USD per million requests" in text and f"{month:.2f} USD per month" in text.partition("  95 %")[0]
    page = report.read_text()
    assert f"{million(by_request)} USD per million requests" in page and f"{month:.2f} USD per month" in page


def test_a_setting_costs_on_the_record_what_simulate_finds(bursty: Path, fitted: str, profile: str, document_of: Document) -> None:
    asked = ("--arrivals", fitted, "--profile", profile, "--memory", "1769")
    predicted = document_of("predict", *asked, "-b", "8", "-t", "0.1")
    named = document_of("simulate", *asked, "--trace", str(bursty), "--policy", "size-or-timeout:8,0.1")
    (run,) = named["policies"].values()
    assert predicted["cost"]["per_request"] == pytest.approx(run["cost"]["per_request"], rel=1e-9)
    assert predicted["fitted_cost"]["per_request"] != pytest.approx(run["cost"]["per_request"], rel=0.01)


@pytest.mark.parametrize("kept", [("--provisioned", "2"), ("--pinged-every", "4min")])
def test_what_is_kept_warm_is_billed_on_the_record_too(
    kept: tuple[str, str], fitted: str, profile: str, document_of: Document
) -> None:
    predicted = document_of(
        "predict", "--arrivals", fitted, "--profile", profile, "--memory", "1769", "-b", "8", "-t", "0.1", *kept
    )
    terms = predicted["cost"]["terms"]
    assert terms["machines" if kept[0] == "--provisioned" else "pings"] > 0
    assert predicted["cost"]["per_request"] == pytest.approx(predicted["fitted_cost"]["per_request"], rel=0.3)


def test_a_trace_takes_the_place_of_the_record_of_the_fit(fitted: str, profile: str, slow: str, document_of: Document) -> None:
    answer = document_of("recommend", "--arrivals", fitted, "--profile", profile, *SLO, "--model", "m", "--trace", slow)
    assert answer["arrival_rate"] == pytest.approx(0.5) and answer["recorded"] == {"n_requests": 501, "seconds": 1000.0}
    assert answer["best"]["cost"]["per_request"] > answer["best"]["fitted_cost"]["per_request"]  # nobody shares a batch there


def test_a_law_alone_is_predicted_and_said_to_be(profile: str, shown_by: Shown, document_of: Document) -> None:
    asked = ("recommend", "--poisson", "20", "--profile", profile, *SLO, "--model", "m")
    assert "Costs are predicted from the arrival process alone" in " ".join(shown_by(*asked).split())
    answer = document_of(*asked)
    assert answer["recorded"] is None and "fitted_cost" not in answer["best"] and answer["cost_again"] is None


def test_where_the_fit_is_far_off_its_cost_stands_beside_what_is_billed(
    fitted: str, profile: str, slow: str, shown_by: Shown
) -> None:
    asked = ("recommend", "--arrivals", fitted, "--profile", profile, *SLO, "--model", "m", "--trace", slow)
    asked += ("--payload-bytes", "500", "--answer-bytes", "500")
    text = " ".join(shown_by(*asked).split())
    said = r"over the 501 arrivals recorded, cold starts in them; the fitted process has ([\d.]+), ([\d.]+) % less\."
    told, billed = re.search(said, text), re.search(r"([\d.]+) USD per million requests", text)
    assert told is not None and billed is not None and "at 0.5 requests/s as recorded" in text
    # Of the cost that stands there, the bytes that are moved in it; digits as they are told.
    assert float(told[2]) == pytest.approx(100 * (1 - float(told[1]) / float(billed[1])), rel=0.02)


def test_latencies_are_headed_by_their_own_rate_where_the_trace_has_another(profile: str, slow: str, exit_of: Run) -> None:
    asked = ("recommend", "--poisson", "200", "--profile", profile, *SLO, "--model", "m", "--loads", "1", "--trace", slow)
    _, out, err = exit_of(*asked)
    assert "warning: latencies are at 200 requests/s, costs those of the trace, with 0.5 a second" in err
    text = " ".join(out.split())
    assert "at 200 requests/s, costs at 0.5 as recorded" in text and "sluice fit" not in text
    _, out, err = exit_of(*(word if word != "200" else "0.52" for word in asked))
    assert "latencies are at" not in err and "costs at" not in out


def test_a_told_share_of_cold_starts_is_billed_on_the_record_as_well(fitted: str, profile: str, document_of: Document) -> None:
    asked = ("predict", "--arrivals", fitted, "--profile", profile, "--memory", "1769", "-b", "8", "-t", "0.1")
    none, half = (document_of(*asked, "--cold-start-probability", share) for share in ("0", "0.5"))
    assert none["cost"]["terms"]["init"] == 0 and half["cost"]["terms"]["init"] > 0
    assert half["cost"]["terms"]["compute"] == none["cost"]["terms"]["compute"]
    ratio = half["cost"]["terms"]["init"] / half["cost"]["terms"]["requests"]
    assert ratio == pytest.approx(half["fitted_cost"]["terms"]["init"] / half["fitted_cost"]["terms"]["requests"])


def test_a_plan_does_not_carry_the_record(fitted: str, profile: str, tmp_path: Path, exit_of: Run) -> None:
    plan = tmp_path / "plan.json"
    code, _, err = exit_of("recommend", "--arrivals", fitted, "--profile", profile, *SLO, "--model", "m", "--out", str(plan))
    assert code == 0, err
    written = read(Plan, plan.read_bytes())
    assert written.arrivals is not None and written.arrivals.recorded_us == []
    assert len(read(ArrivalDocument, Path(fitted).read_bytes()).recorded_us) > 1000


def test_a_trace_that_is_not_there_is_refused_by_predict(fitted: str, profile: str, exit_of: Run) -> None:
    code, out, err = exit_of(
        *("predict", "--arrivals", fitted, "--profile", profile, "--memory", "1769", "-b", "8", "-t", "0.1", "--trace", "none.csv"),
    )
    assert (code, out) == (2, "") and "trace: 'none.csv' is not allowed; allowed: a file that exists" in err


@pytest.mark.proof
def test_of_several_applications_recommend_and_simulate_say_one_cost_of_their_traces_or_documents(
    shown_by: Shown, document_of: Document, profile: str, bursty: Path, fitted: str, slow: str, tmp_path: Path
) -> None:
    plan = str(tmp_path / "plan.json")
    for first, last, loads in ((str(bursty), slow, ()), (fitted, slow, ("--loads", "1"))):
        told = ("--class", f"web:{first}:p95=150ms", "--class", f"report:{last}:p95=1s", *loads)
        answer = document_of("recommend", "--profile", profile, *told, "--out", plan)
        arrivals = ("--class", f"web:{first}", "--class", f"report:{last}")
        ran = document_of("simulate", "--profile", profile, "--policy", plan, *arrivals)["policies"][plan]
        assert answer["cost"]["recommended"]["per_request"] == pytest.approx(ran["cost"]["per_request"], rel=1e-12)
        assert answer["plan"]["predicted"]["cost_per_request"] == answer["cost"]["recommended"]["per_request"]
        assert answer["fitted_cost"]["per_request"] != answer["cost"]["recommended"]["per_request"]
    text = " ".join(shown_by("recommend", "--profile", profile, *told).split())
    assert "Costs are those of a run over the " in text
    drawn = document_of("simulate", "--profile", profile, "--policy", plan, *arrivals, "--requests", "3000")
    assert drawn["n_requests"] == 3000
    by_rate = document_of("recommend", "--profile", profile, *told[:2], "--class", "report:0.5:p95=1s", "--loads", "1")
    assert "fitted_cost" not in by_rate and by_rate["break_even_arrival_rate"] > 0
