"""`sluice recommend` as its users meet it: the plan, the document, the tables, the page, exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import sluice.optimizer.recommend.every_load as every_load_module
import sluice.optimizer.report.page as page_module
from sluice.batching.documents import (
    ArrivalDocument,
    LinearServiceTime,
    Plan,
    ProfilePoint,
    ServiceProfile,
    ServiceTime,
    read,
    write,
)
from sluice.local.replay import Replay
from sluice.optimizer.billing.cost import BatchCost
from tests.cli.conftest import Document, Run, Shown

pytestmark = pytest.mark.usefixtures("searched_once")


@pytest.fixture(autouse=True)
def _short_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "N_SIMULATED", 5000)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose figures are made of the answer but not drawn, for what is read in their text and tables."""
    monkeypatch.setattr(Figure, "draw_without_rendering", lambda figure: None)
    monkeypatch.setattr(page_module, "inline_svg", lambda figure, name, title: f'<svg aria-label="{title}"></svg>')


def linear(path: Path, function: str, law: LinearServiceTime, max_batch_size: int) -> str:
    """A profile that is written there, of a batch of each size in a fixed time."""
    path.write_bytes(write(ServiceProfile(function=function, service_time=law, max_batch_size=max_batch_size)))
    return str(path)


@pytest.fixture
def ask(profile: str) -> tuple[str, ...]:
    """The question that most tests ask, without its SLO."""
    return ("recommend", "--poisson", "100", "--profile", profile)


def test_what_fit_writes_becomes_a_plan_the_buffer_can_read(
    profile: str, tmp_path: Path, shown_by: Shown, document_of: Document
) -> None:
    trace, arrivals = tmp_path / "trace.csv", tmp_path / "arrivals.json"
    plan = tmp_path / "plans" / "today" / "mlp.json"  # in a directory that is new
    trace.write_text("gap\n" + "\n".join(map(str, np.random.default_rng(0).exponential(0.01, 2000))))
    shown_by("fit", str(trace), "--model", "poisson", "--out", str(arrivals))
    answer = document_of(
        *("recommend", "--arrivals", str(arrivals), "--profile", profile, "--slo", "0.1", "--model", "mlp", "--out", str(plan))
    )
    written = read(Plan, plan.read_bytes())
    assert written.model == "mlp" and written.function == f"mlp-{written.memory_mb}"
    assert written.arrivals is not None and written.arrivals.arrival_rate == pytest.approx(answer["arrival_rate"], rel=1e-6)
    assert answer["arrival_rate"] == pytest.approx(100, rel=0.1)
    assert written.arrivals.without == [] and len(read(ArrivalDocument, arrivals.read_bytes()).without) == 8
    assert written.policy is not None and written.policy.policy().max_batch_size == answer["best"]["batch_size"]
    assert answer["best"]["cost"]["per_request"] < answer["no_batching"]["cost"]["per_request"]
    assert written.predicted is not None
    assert written.predicted.cost_without_batching == answer["no_batching"]["cost"]["per_request"]


@pytest.mark.full
def test_several_percentiles_are_kept_at_once_and_reach_the_plan(ask: tuple[str, ...], document_of: Document) -> None:
    answer = document_of(*ask, "--slo", "p95=0.08", "--slo", "p99=0.2", "--slo", "p99.9=0.5")
    latency = answer["best"]["latency"]
    assert latency["p95"] <= 0.08 * (1 + 1e-6) and latency["p99"] <= 0.2 and latency["p99.9"] <= 0.5
    assert answer["plan"]["slo"] == {"latency": 0.08, "percentile": 95.0}
    assert answer["plan"]["other_slos"] == [{"latency": 0.2, "percentile": 99.0}, {"latency": 0.5, "percentile": 99.9}]
    assert answer["plan"]["predicted"]["latency"].keys() >= {"p95", "p99", "p99.9"}
    alone = document_of(*ask, "--slo", "p99=0.2")
    assert alone["best"]["cost"]["per_request"] < answer["best"]["cost"]["per_request"]


@pytest.mark.full
def test_one_slo_may_be_written_in_either_form(ask: tuple[str, ...], document_of: Document) -> None:
    plain = document_of(*ask, "--slo", "0.1", "--percentile", "99")
    named = document_of(*ask, "--slo", "p99=0.1")
    assert plain["best"] == named["best"] and plain["slos"] == named["slos"]
    assert document_of(*ask, "--slo", "0.1")["slos"] == [{"latency": 0.1, "percentile": 95.0}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--slo 0", "slo.latency: 0.0 is not allowed; allowed: a number of seconds > 0"),
        ("--slo -1", "slo.latency: -1.0 is not allowed"),
        ("--slo nan", "--slo: 'nan' is not allowed; allowed: a number of seconds"),
        (
            "--slo soon",
            "--slo: 'soon' is not allowed; allowed: a number of seconds, or one with its unit (us, ms, s",
        ),
        ("--slo 1e6s", "--slo: '1e6s' is not allowed; allowed: at most 3600 s"),
        ("--slo p95=0.2 --slo p99=1e9s", "--slo: '1e9s' is not allowed; allowed: at most 3600 s"),
        ("--slo inf", "--slo: 'inf' is not allowed; allowed: a number of seconds, or one with its unit"),
        ("--slo p95=soon", "--slo: 'soon' is not allowed; allowed: a number of seconds, or one with its unit"),
        ("--slo pmost=0.2", "--slo: 'pmost=0.2' is not allowed; allowed: one latency (with --percentile), or pP=LATENCY"),
        ("--slo 95=0.2", "--slo: '95=0.2' is not allowed"),
        ("--slo p100=0.2", "slo.percentile: 100.0 is not allowed; allowed: a number strictly between 0 and 100"),
        ("--slo p0=0.2", "slo.percentile: 0.0 is not allowed"),
        ("--slo 0.1 --percentile 100", "slo.percentile: 100.0 is not allowed"),
        ("--slo p0.95=0.5", "percentile: 0.95 is not allowed; allowed: percent of the requests, at least 1; did you mean p95?"),
        ("--slo 0.5 --percentile 0.99", "percentile: 0.99 is not allowed; allowed: percent of the requests, at least 1"),
        ("--slo p99=0.2 --slo p95=0.4", "slo: 'p95=0.4' is not allowed; allowed: a latency below that of p99=0.2"),
        ("--slo p95=0.2 --slo p95.0=0.3", "slo: ['p95=0.2', 'p95.0=0.3'] is not allowed; allowed: each percentile once"),
        ("--slo 0.2 --slo 0.3", "slo: ['0.2', '0.3'] is not allowed; allowed: one latency (with --percentile), or"),
        ("--slo 0.2 --slo p99=0.3", "slo: ['0.2', 'p99=0.3'] is not allowed"),
        ("--slo p95=0.2 --percentile 99", "percentile: 99.0 is not allowed; allowed: only beside --slo DURATION"),
        ("--slo 1 --prices /nowhere.json", "--prices: '/nowhere.json' is not allowed; allowed: a file that exists"),
        ("--slo 1 --headroom 1", "headroom: 1.0 is not allowed"),
        ("--slo 1 --premium 5", "premium: 5.0 is not allowed; allowed: a part of the cost from 0 to 1 (0.05 for 5 %)"),
        ("--slo 1 --policies greedy", "'greedy' is not one of 'all', 'size-or-timeout'"),
        ("--slo 1 --max-timeout -1", "max_timeout: -1.0 is not allowed"),
        ("--slo 1 --timeout -1", "timeouts: [-1.0] is not allowed"),
        ("--slo 1 --timeout 0.1 --max-timeout 1", "max_timeout: 1.0 is not allowed; allowed: only without timeouts"),
        ("--slo 1 --objective latency", "max_cost: none was given"),
        ("--slo 1 --max-batch-size 0", "--max-batch-size: 0 is not allowed"),
        ("--slo 1 --payload-bytes 99999999", "payload_bytes: 99999999 is not allowed"),
        ("--slo 1 --memory 1024", "memory_mb: 1024 is not allowed; allowed: one of the profile's"),
        ("--slo 1 --cold-start-probability -1", "cold_start_probability: -1.0 is not allowed; allowed: 0 to 1"),
        ("--slo 1 --worker gpu.json", "worker: 'gpu.json' is not allowed; allowed: PROFILE.json:MACHINE"),
        ("--slo 1 --answer-bytes -1", "answer_bytes: -1 is not allowed"),
        ("--slo 1 --stack tiny", "stack: 'tiny' is not allowed; allowed: one of nat, lambda-endpoint, endpoints, public, small"),
        ("--slo 1 --log-bytes -1", "--log-bytes: -1 is not allowed; allowed: bytes >= 0"),
        ("--slo 1 --buffer-per-month -1", "--buffer-per-month: -1.0 is not allowed; allowed: USD >= 0"),
        ("--slo 1 --buffer-overhead -1", "--buffer-overhead: -1.0 is not allowed; allowed: a number of seconds >= 0"),
        ("--slo 1 --trace t.csv", "trace: 't.csv' is not allowed; allowed: a file that exists"),
        ("--slo 1 --measured m.json", "measured: 'm.json' is not allowed; allowed: only with --report"),
        (
            "--slo 1 --report out.html --measured absent.json",
            "--measured: 'absent.json' is not allowed; allowed: a file that exists",
        ),
        ("--slo 1 --report out.html --trace absent.csv", "trace: 'absent.csv' is not allowed"),
        ("", "--slo: none was given; needed: a latency such as 200ms"),
    ],
)
def test_misuse_exits_2_and_names_the_field(arguments: str, message: str, ask: tuple[str, ...], exit_of: Run) -> None:
    code, out, err = exit_of(*ask, *arguments.split())
    assert (code, out) == (2, "") and message in err, err


def test_a_name_that_no_model_has_is_refused_before_anything_is_computed(
    ask: tuple[str, ...], exit_of: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.cli.recommend.recommend", lambda *question: pytest.fail("a plan was searched"))
    code, _, err = exit_of(*ask, "--slo", "0.2", "--model", "a b")
    assert code == 2 and "--model: 'a b' is not allowed; allowed: 1 to 128 of A-Z a-z 0-9 . _ -" in err


def test_an_slo_has_its_unit_or_is_of_seconds(ask: tuple[str, ...], exit_of: Run) -> None:
    said = {slo: exit_of(*ask, "--slo", slo, "--timeout", "100ms")[1] for slo in ("0.2", "200ms", "p95=0.2s", "p95=200000us")}
    assert "95 % within 200 ms" in said["0.2"] and len(set(said.values())) == 1
    assert "95 % within 200 s" in exit_of(*ask, "--slo", "200s", "--timeout", "0.1")[1]


def test_a_budget_below_the_cheapest_exits_1_and_names_the_cheapest(ask: tuple[str, ...], exit_of: Run) -> None:
    code, _, err = exit_of(*ask, "--slo", "0.1", "--max-cost", "1e-12")
    assert code == 1 and "for 1e-12 USD per request: the cheapest costs" in err and "best found: {" in err


def test_what_is_infeasible_is_one_json_document_too(exit_of: Run, profile: str) -> None:
    code, out, err = exit_of("recommend", "--poisson", "200", "--profile", profile, "--slo", "0.001", "--json")
    answer = json.loads(out)
    assert code == 1 and answer["infeasible"] in err and "the best reachable is 0.012 s at 1769 MB" in err
    assert answer["best"]["memory_mb"] == 1769 and answer["best"]["latency"] == pytest.approx(0.012)


@pytest.mark.full
def test_a_machine_that_costs_nothing_is_compared_without_a_ratio(exit_of: Run, profile: str, tmp_path: Path) -> None:
    worker = tmp_path / "own.json"
    worker.write_text('{"function": "http://own:80", "service_time": {"intercept": 0.001, "slope": 0.0003}, "max_batch_size": 32}')
    code, out, err = exit_of("recommend", "--poisson", "200", "--profile", profile, "--slo", "0.06", "--worker", f"{worker}:0")
    assert code == 0, err
    assert "beside" in out and "for the best setting of the function" in " ".join(out.split())


def test_the_document_proves_its_answer(ask: tuple[str, ...], document_of: Document) -> None:
    answer = document_of(*ask, "--slo", "p95=0.1", "--slo", "p99=0.2", "--cold-start-probability", "0.01")
    best, none = answer["best"], answer["no_batching"]
    for setting in (best, none, *answer["runners_up"]):
        cost = setting["cost"]
        assert cost["terms"].keys() == BatchCost().terms().keys()
        assert sum(cost["terms"].values()) == pytest.approx(cost["by_request"])
        assert best["cost"]["per_request"] <= cost["per_request"] * (1 + 1e-9)
        assert setting["latency"].keys() == {"p50", "p90", "p95", "p99"}
    assert best["cost"]["terms"]["init"] > 0
    assert none["batch_size"] == 1 and none["keeps_slos"] is True
    assert [case["factor"] for case in answer["sensitivity"]] == [0.8, 1.2]
    assert all(case["latency"].keys() == {"p95", "p99"} for case in answer["sensitivity"])
    costs = [point["cost_per_request"] for point in answer["frontier"]]
    assert costs == sorted(costs, reverse=True) and len(costs) > 2
    assert 0 <= answer["gap"] < 0.01 and answer["settings_compared"] > 100 and answer["at_longest_timeout"] is False
    assert answer["buffer_pays"] is (answer["arrival_rate"] > answer["break_even_arrival_rate"])
    assert answer["prices"]["region"] == "us-east-1"


def test_the_tables_show_what_people_need(ask: tuple[str, ...], shown_by: Shown) -> None:
    shown = " ".join(shown_by(*ask, "--slo", "p95=0.1", "--slo", "p99=0.2").split())
    for text in (
        *("recommended", "no batching", "runner-up 1", "USD per million", "request fee", "logs", "fixed, per month"),
        *("80 (-20 %)", "120 (+20 %)", "SLO kept", "what a p95 costs", "p95 at most", "95 % within 100 ms and 99 % within 200 ms"),
        *("Hold requests until", "times less than no batching", "with a buffer (105.02 of it fixed)", "; it pays from"),
        *("settings of the function compared; no timeout in between is cheaper by more than 0.01 %", "prices: us-east-1, read 20"),
    ):
        assert text in shown, text
    assert "as fitted" not in shown


@pytest.mark.full
def test_a_bound_on_the_timeout_that_binds_is_said(ask: tuple[str, ...], shown_by: Shown, document_of: Document) -> None:
    bound = (*ask, "--slo", "0.5", "--max-timeout", "0.005")
    assert document_of(*bound)["at_longest_timeout"] is True
    assert "The timeout is the longest allowed (5 ms)" in shown_by(*bound)
    assert "the longest allowed" not in shown_by(*ask, "--slo", "0.05")


def test_only_the_timeouts_named_are_considered(ask: tuple[str, ...], document_of: Document) -> None:
    answer = document_of(*ask, "--slo", "0.1", "--timeout", "0.01", "--timeout", "0.02")
    considered = [answer["best"], *answer["runners_up"]]
    assert {setting["timeout"] for setting in considered if setting["batch_size"] > 1} <= {0.01, 0.02}


@pytest.mark.full
def test_a_table_that_waits_to_the_last_moment_wins_where_it_is_cheapest_and_may_be_left_out(
    profile: str, shown_by: Shown, document_of: Document
) -> None:
    ask = ("recommend", "--poisson", "60", "--profile", profile, "--slo", "p99.9=0.1", "--loads", "1")
    answer, alone = document_of(*ask), document_of(*ask, "--policies", "size-or-timeout")
    policy = answer["plan"]["policy"]
    assert policy["kind"] == "deadline" and policy == answer["best"]["policy"] and policy["servers"] is None
    assert answer["winner"] == "function" and answer["best"]["timeout"] == policy["hold"][1] > policy["hold"][-2] > 0
    assert alone["plan"]["policy"]["kind"] == "size_or_timeout" and alone["best"] in answer["runners_up"]
    assert answer["best"]["cost"]["per_request"] < alone["best"]["cost"]["per_request"]
    assert {"deadline"} <= {point["kind"] for point in answer["frontier"]} and {p["kind"] for p in alone["frontier"]} == {
        "size_or_timeout"
    }
    shown = " ".join(shown_by(*ask).split())
    assert "or waiting for one more would make the oldest late: 87 ms with one waiting," in shown
    assert "kept for any arrivals one by one" in shown and "8 or 87 to 81 ms" in shown


def test_a_premium_takes_the_table_though_it_costs_more(profile: str, document_of: Document) -> None:
    ask = ("recommend", "--poisson", "60", "--profile", profile, "--slo", "p60=0.05", "--loads", "1")
    cheapest, table = document_of(*ask), document_of(*ask, "--premium", "1")
    assert cheapest["plan"]["policy"]["kind"] == "size_or_timeout" and table["plan"]["policy"]["kind"] == "deadline"
    assert cheapest["best"]["cost"]["per_request"] < table["best"]["cost"]["per_request"]
    assert table["best"]["latency"]["p99"] <= 0.05


def test_what_batching_does_not_save_is_said(tmp_path: Path, shown_by: Shown) -> None:
    path = linear(tmp_path / "linear.json", "f", LinearServiceTime(0.0, 0.1), 4)
    ask = ("recommend", "--poisson", "1", "--profile", path, "--slo", "0.1", "--memory", "1024", "--architecture", "x86_64")
    shown = " ".join(shown_by(*ask).split())
    assert shown.startswith("Deploy no buffer: batching saves nothing here. Calling the function directly costs 4.91 USD per month")
    assert "no batch size is cheaper" in shown and "Call the function directly, with 1024 MB and no buffer." in shown


def test_where_no_batch_is_known_or_allowed_nothing_is_said_of_what_batching_saves(tmp_path: Path, shown_by: Shown) -> None:
    ask = ("recommend", "--poisson", "1", "--slo", "0.5", "--memory", "1024", "--loads", "1")
    several = linear(tmp_path / "several.json", "f", LinearServiceTime(0.1, 0.01), 4)
    alone = linear(tmp_path / "alone.json", "f", LinearServiceTime(0.1, 0.01), 1)
    for options, why in (
        (("--profile", alone), "the profile knows no batch of several requests (sluice profile --batch-size 1,2,4,8)"),
        (("--profile", several, "--max-batch-size", "1"), "--max-batch-size 1 allows no batch of several requests"),
    ):
        shown = " ".join(shown_by(*ask, *options).split())
        assert shown.startswith(f"What a buffer would save is not known: {why}. Calling the function directly costs")
        assert "per million requests; batches were not compared." in shown and "saves nothing" not in shown


def test_a_linear_profile_is_recommended_at_a_stated_memory(tmp_path: Path, document_of: Document) -> None:
    path = linear(tmp_path / "linear.json", "f", LinearServiceTime(0.001, 0.0003), 16)
    answer = document_of("recommend", "--poisson", "100", "--profile", path, "--slo", "0.05", "--memory", "1024")
    assert answer["plan"]["memory_mb"] == 1024


@pytest.fixture
def machine(tmp_path: Path) -> str:
    """A profile of a worker that answers in 2 ms and 0.1 ms a request."""
    return linear(tmp_path / "gpu.json", "http://10.0.0.5:8000", LinearServiceTime(0.002, 0.0001), 16)


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_workers_that_cost_less_win_and_the_plan_names_them(
    ask: tuple[str, ...], machine: str, tmp_path: Path, shown_by: Shown, document_of: Document
) -> None:
    report = tmp_path / "out.html"
    asked = (
        *ask,
        "--architecture",
        "x86_64",  # of arm64 no buffer would pay here
        "--slo",
        "p95=0.1",
        "--slo",
        "p99.9=0.2",
        "--worker",
        f"{machine}:0.0001",
        "--worker",
        f"{machine}:100",
        "--provisioned",
    )
    answer = document_of(*asked, "--report", str(report))
    cheap, *others = answer["workers"]
    assert answer["winner"] == cheap["name"] == "gpu:0.0001" and answer["feasible"] is True
    assert {"gpu:100", "provisioned, 512 MB", "provisioned, 1769 MB"} == {setting["name"] for setting in others}
    assert answer["plan"]["function"] == "http://10.0.0.5:8000" and answer["plan"]["policy"]["servers"] == cheap["workers"]
    assert cheap["cost"]["per_request"] < answer["best"]["cost"]["per_request"]
    assert cheap["cost"]["terms"]["machines"] == pytest.approx(cheap["workers"] * 0.0001 / 3600 / 100)
    assert cheap["latency"]["p95"]["low"] <= cheap["latency"]["p95"]["value"] <= cheap["latency"]["p95"]["high"] <= 0.1
    shown = " ".join(shown_by(*asked).split())
    assert "Serve with 1 worker (gpu:0.0001); a free one takes" in shown and "│ function " in shown and "workers 1" in shown
    assert "Deploy: the workers with a buffer" in shown and "USD per month at 100 requests/s" in shown
    html = report.read_text()
    assert "Serve with 1 worker (gpu:0.0001)" in html and "which is not recommended here" in html
    assert f'value="{cheap["latency"]["p95"]["value"]}"' in html and f'value="{cheap["cost"]["per_request"]}"' in html


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_workers_may_keep_what_the_function_cannot(
    profile: str, machine: str, tmp_path: Path, shown_by: Shown, document_of: Document
) -> None:
    report = tmp_path / "out.html"
    asked = ("recommend", "--poisson", "100", "--profile", profile, "--slo", "0.01", "--worker", f"{machine}:1", "--provisioned")
    answer = document_of(*asked, "--report", str(report))
    assert answer["winner"] == "gpu:1" and answer["feasible"] is False and answer["no_batching"]["keeps_slos"] is False
    assert answer["refused_workers"].keys() == {"provisioned, 512 MB", "provisioned, 1769 MB"}
    shown = " ".join(shown_by(*asked).split())
    assert "no setting of the function does it" in shown and "provisioned, 512 MB is not in the answer: no number of" in shown
    assert "No setting of the function keeps the SLO; the quickest is shown" in shown
    assert "is taken as 5 ms, which nobody measured (sluice profile --buffer). It is kept free of the promise; the" in shown
    without = document_of(*asked, "--buffer-overhead", "0")["workers"][0]["latency"]["p95"]["value"]
    assert answer["workers"][0]["latency"]["p95"]["value"] <= 0.005 and without <= 0.01
    assert "gpu:1" in report.read_text()


@pytest.mark.full
def test_workers_that_cost_more_do_not_win(ask: tuple[str, ...], machine: str, document_of: Document) -> None:
    answer = document_of(*ask, "--slo", "0.1", "--worker", f"{machine}:100")
    assert answer["winner"] == "function" and [setting["name"] for setting in answer["workers"]] == ["gpu:100"]
    assert answer["plan"]["memory_mb"] == answer["best"]["memory_mb"]


@pytest.fixture
def core(tmp_path: Path) -> str:
    """A profile of a slow worker, a request after the other."""
    return linear(tmp_path / "core.json", "http://10.0.0.6:8500", LinearServiceTime(0.0, 0.02), 8)


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_a_plan_of_both_is_written_and_does_in_simulation_what_was_predicted(
    profile: str, core: str, tmp_path: Path, exit_of: Run, document_of: Document
) -> None:
    plan, report, trace = tmp_path / "plan.json", tmp_path / "out.html", tmp_path / "trace.csv"
    told = ("--mmpp2", "200,10,0.2,0.1", "--profile", profile, "--slo", "0.1", "--worker", f"{core}:0.002")
    trace.write_text("gap\n" + "\n".join(map(str, np.random.default_rng(0).exponential(0.01, 3000))))
    answer = document_of("recommend", *told, "--out", str(plan), "--report", str(report), "--trace", str(trace))
    both = answer["overflow"]
    assert answer["winner"] == both["name"] == "core:0.002 and function" and answer["refused_overflow"] is None
    costs = list(answer["kinds"].values())
    assert next(iter(answer["kinds"])) == "workers and function" and costs == sorted(costs)
    written = read(Plan, plan.read_bytes())
    assert written.function == "http://10.0.0.6:8500" and written.policy.servers == both["workers"]
    assert [beside.function for beside in written.beside] == [f"mlp-{both['memory_mb']}"]
    run = document_of("simulate", *told, "--policy", str(plan))["policies"][str(plan)]
    assert run["by_function"] == pytest.approx(both["by_function"]["value"], rel=0.1) and run["keeps_slos"]
    assert run["cost"]["per_request"] == pytest.approx(both["fitted_cost"]["per_request"], rel=0.05)
    on_trace = document_of("simulate", *told, "--trace", str(trace), "--policy", str(plan))["policies"][str(plan)]
    assert on_trace["cost"]["per_request"] == pytest.approx(both["cost"]["per_request"], rel=1e-9)
    html = report.read_text()
    assert "On the trace itself: kept, " in html and "% of the requests by the function" in html
    assert f"{both['workers']} × core:0.002, {both['memory_mb']} MB" in html
    code, out, _ = exit_of("recommend", *told, "--trace", str(trace))
    said = " ".join(out.split())
    assert code == 0 and "at the last moment the function with" in said and "% less in all than" in said
    assert "when the load changes; arrivals as fitted" in said and "95 % confidence; arrivals as fitted" in said
    assert html.count(", arrivals being as fitted") == 2


@pytest.mark.full
def test_bytes_price_what_moves_them_and_bound_the_batch(ask: tuple[str, ...], document_of: Document) -> None:
    light, heavy = (
        document_of(*ask, "--slo", "0.1", *more) for more in ((), ("--payload-bytes", "2000000", "--answer-bytes", "9"))
    )
    assert light["best"]["cost"]["terms"]["network"] == 0 < heavy["best"]["cost"]["terms"]["network"]
    assert heavy["best"]["batch_size"] <= 3


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_the_page_names_the_command_that_gives_it_again(ask: tuple[str, ...], tmp_path: Path, exit_of: Run) -> None:
    report = tmp_path / "pages" / "it's out.html"  # in a directory that is new
    code, out, err = exit_of(*ask, "--slo", "p95=0.1", "--slo", "p99=0.2", "--report", str(report), "--json")
    assert code == 0 and "wrote" in err
    html = report.read_text()
    command = re.search(r"<code>(.*?)</code>", html)
    assert command is not None
    words = shlex.split(command[1].replace("&#39;", "'").replace("&#34;", '"'))
    assert words == [*("sluice", *ask), "--slo", "p95=0.1", "--slo", "p99=0.2", "--report", str(report), "--json"]
    again = tmp_path / "again.html"
    words[words.index(str(report))] = str(again)
    code, same, _ = exit_of(*words[1:])
    assert code == 0 and json.loads(same)["best"] == json.loads(out)["best"]


@pytest.mark.full
@pytest.mark.usefixtures("undrawn")
def test_the_page_shows_the_trace_and_what_was_measured(ask: tuple[str, ...], tmp_path: Path, exit_of: Run) -> None:
    rng = np.random.default_rng(0)
    trace, measured, report = tmp_path / "trace.csv", tmp_path / "replay.json", tmp_path / "out.html"
    trace.write_text("gap\n" + "\n".join(map(str, rng.exponential(0.01, 2000))))
    n = 1000
    latency, status = rng.uniform(0.01, 0.1, n), np.where(rng.random(n) < 0.97, 200, 500)
    replay = Replay(np.arange(n) * 0.01, latency, np.zeros(n), status, {}, 10.0, 1.0, 1.0)
    for document in (replay.document(), replay.document()["summary"]):  # as --out and as --json write it
        measured.write_text(json.dumps(document))
        code, _, err = exit_of(
            *(*ask, "--slo", "p95=0.1", "--slo", "p99=0.2", "--report", str(report)),
            *("--trace", str(trace), "--measured", str(measured), "--json"),
        )
        assert code == 0, err
        html = report.read_text()
        assert "simulated on the trace: 2001 requests" in html and "measured: 1000 requests" in html
        assert "The trace and its fit" in html
        row = re.search(r'<th scope="row">p95</th>(.*?)</tr>', html)
        assert row is not None and f'value="{dict(replay.summary().quantiles)[0.95]}"' in row[1]
        beyond = re.search(r'<th scope="row">p99</th>(.*?)</tr>', html)  # three per cent were not answered
        assert beyond is not None and "<td>-</td>" in beyond[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "allowed: what `sluice replay --out FILE` or `--json` wrote"),
        ("[]", "allowed: what `sluice replay --out FILE` or `--json` wrote"),
        ('{"summary": {"requests": 5}}', "missing required field `quantiles`"),
        ('{"requests": 5, "quantiles": [[0.5, "slow"]]}', "Expected `float`, got `str`"),
        ('{"requests": 5, "quantiles": []}', "measured: quantiles: [] is not allowed; allowed: at least two pairs [q, seconds]"),
        ('{"requests": 5, "quantiles": [[0.5, 0.2], [0.6, 0.1]]}', "measured: quantiles: [(0.5, 0.2), (0.6, 0.1)] is not allowed"),
        ('{"requests": 5, "quantiles": [[0.5, 0.1], [1.5, 0.2]]}', "measured: quantiles: [(0.5, 0.1), (1.5, 0.2)] is not allowed"),
    ],
)
def test_a_measurement_that_is_none_exits_2_before_the_search(
    text: str, message: str, ask: tuple[str, ...], tmp_path: Path, exit_of: Run
) -> None:
    measured, report = tmp_path / "measured.json", tmp_path / "out.html"
    measured.write_text(text)
    code, out, err = exit_of(*ask, "--slo", "0.1", "--report", str(report), "--measured", str(measured))
    assert (code, out) == (2, "") and message in err, err
    assert not report.exists()


@pytest.mark.full
def test_quick_phases_and_a_long_slo_are_answered_by_simulation(profile: str, exit_of: Run) -> None:
    few = ("--memory", "1769", "--max-batch-size", "4", "--loads", "1")
    code, out, err = exit_of("recommend", "--mmpp2", "20000,1,100,1", "--profile", profile, "--slo", "200s", *few)
    assert code == 0, err
    assert "by simulation p95" in " ".join(out.split()) and "with 95 % confidence" in " ".join(out.split())


@pytest.mark.full
def test_a_plan_is_for_the_model_that_was_measured_unless_another_is_named(ask: tuple[str, ...], document_of: Document) -> None:
    assert document_of(*ask, "--slo", "0.2")["plan"]["model"] == "mlp"
    assert document_of(*ask, "--slo", "0.2", "--model", "other")["plan"]["model"] == "other"


def test_a_profile_of_a_worker_names_its_model_and_is_told_to_be_taken_for_a_function(tmp_path: Path, exit_of: Run) -> None:
    path = tmp_path / "worker.json"
    law = LinearServiceTime(0.01, 0.001)
    ask = ("recommend", "--poisson", "50", "--slo", "0.2", "--memory", "1769", "--json", "--profile", str(path))
    path.write_bytes(write(ServiceProfile(function="http://10.0.0.5:8500", model="encoder", service_time=law, max_batch_size=8)))
    code, out, err = exit_of(*ask)
    assert code == 0 and json.loads(out)["plan"]["model"] == "encoder"
    assert "http://10.0.0.5:8500 is a machine; as --profile it is taken for a function: paid by use" in err
    path.write_bytes(write(ServiceProfile(function="http://10.0.0.5:8500", service_time=law, max_batch_size=8)))
    code, _, err = exit_of(*ask)
    assert code == 2 and "--model: none was given; needed: the name of what http://10.0.0.5:8500 serves" in err


@pytest.fixture
def two_sizes(tmp_path: Path) -> str:
    """A profile of two memory sizes, of which little is cheap for one request and much for many."""
    path = tmp_path / "two.json"
    laws = {512: (0.004, 0.012), 1769: (0.006, 0.001)}
    points = [
        ProfilePoint(memory_mb, n, ServiceTime(intercept + slope * n), intercept + slope * n)
        for memory_mb, (intercept, slope) in laws.items()
        for n in (1, 2, 4)
    ]
    path.write_bytes(write(ServiceProfile(function="mlp-{memory_mb}:live", points=points)))
    return str(path)


@pytest.mark.full
def test_a_plan_for_every_load_is_written_and_its_regret_shown(
    two_sizes: str, tmp_path: Path, shown_by: Shown, document_of: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(every_load_module, "N_SIMULATED", 4096)
    plan, page = tmp_path / "plan.json", tmp_path / "page.html"
    asked = ("recommend", "--poisson", "5", "--profile", two_sizes, "--slo", "0.1")
    text = shown_by(*asked, "--out", str(plan), "--report", str(page))
    assert "let the size of the batch choose the function: 1 with 512 MB; 2 to 4 with 1769 MB" in " ".join(text.split())
    assert "From 0.5 to 5000 requests/s the plan costs at most" in " ".join(text.split())
    assert "the plan for every load, in USD per million requests" in text
    written = read(Plan, plan.read_bytes())
    assert [written.function, *(of.function for of in written.beside)] == ["mlp-1769:live", "mlp-512:live"]
    assert "the cheapest table of that rate" in page.read_text()
    document = document_of(*asked, "--loads", "0.5:20")
    assert document["winner"] == "function" and document["plan"]["beside"]
    assert [document["every_load"]["loads"][k]["arrival_rate"] for k in (0, -1)] == [2.5, 100]
    assert document["every_load"]["taken"] and document_of(*asked, "--loads", "1")["every_load"] is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("10", "--loads: '10' is not allowed; allowed: LOW:HIGH, two multiples of the arrival rate, as in 0.1:1000; or 1"),
        ("2:10", "loads: (2.0, 10.0) is not allowed; allowed: two multiples of the arrival rate with 1 between them"),
        ("nan:10", "loads: (nan, 10.0) is not allowed"),
    ],
)
def test_loads_that_are_none_exit_2_and_are_named(value: str, message: str, ask: tuple[str, ...], exit_of: Run) -> None:
    code, _, error = exit_of(*ask, "--slo", "0.2", "--loads", value)
    assert code == 2 and message in error


@pytest.mark.full
def test_at_95_percent_confidence_a_timeout_keeps_some_free_and_at_even_odds_nothing(
    profile: str, tmp_path: Path, shown_by: Shown, document_of: Document
) -> None:
    trace, arrivals = tmp_path / "trace.csv", tmp_path / "arrivals.json"
    trace.write_text("gap\n" + "\n".join(map(str, np.random.default_rng(0).exponential(0.01, 2000))))
    shown_by("fit", str(trace), "--model", "poisson", "--out", str(arrivals))
    asked = ("recommend", "--arrivals", str(arrivals), "--profile", profile, "--slo", "0.1", "--model", "mlp")
    by_timeout = (*asked, "--policies", "size-or-timeout")
    free = [document_of(*by_timeout, "--confidence", confidence)["in_doubt"] for confidence in ("0.5", "0.95")]
    assert free[0] == [0.0] and 0 < free[1][0] < 0.02


def measured_profile(path: Path) -> str:
    """A profile with quantiles, the way and the bytes, as `sluice profile --buffer` writes it."""
    points = [
        ProfilePoint(
            1769, b, ServiceTime(0.006 + 0.001 * b, [(0.9, 0.007 + 0.001 * b), (0.95, 0.008 + 0.001 * b)], 50), 0.006 + 0.001 * b
        )
        for b in (1, 4, 8)
    ]
    way = ServiceTime(0.003, [(0.5, 0.003), (0.95, 0.005)], 100)
    path.write_bytes(
        write(ServiceProfile(function="mlp-{memory_mb}", points=points, way=way, request_bytes=4000, answer_bytes=1000))
    )
    return str(path)


def test_the_verdict_comes_first_and_a_number_says_what_is_in_it(tmp_path: Path, shown_by: Shown) -> None:
    ask = ("recommend", "--profile", measured_profile(tmp_path / "p.json"), "--slo", "0.2", "--loads", "1")
    little, much = (
        " ".join(shown_by(*ask, "--poisson", rate, *dear).split()) for rate, dear in (("5", ()), ("800", ("--log-bytes", "750")))
    )
    assert little.startswith("Do not deploy for this alone: the function with a buffer (105.02 of it fixed) costs ")
    assert "more than calling the function directly (" in little
    assert much.startswith("Deploy: the function with a buffer (105.02 of it fixed) costs ") and "; it pays from " in much
    assert "moving 4000 bytes there and 1000 back; not the 105.02 USD per month of the buffer." in little
    assert "no log (functions log at WARN)" in little and "750 bytes of log an invocation" in much
    of_each = re.search(r"by how the buffer is deployed \(--stack, docs/deploy.md\): nat ([0-9.]+), .* small ([0-9.]+)\.", little)
    assert of_each is not None and f"costs {of_each[1]} USD per month" in little and float(of_each[2]) < float(of_each[1])
    small = " ".join(shown_by(*ask, "--poisson", "5", "--stack", "small").split())
    assert f"costs {of_each[2]} USD per month" in small
    shared = " ".join(shown_by(*ask, "--poisson", "5", "--buffer-per-month", "0").split())
    assert "of it fixed" not in shared.partition(".")[0]


def test_all_that_scales_with_requests_is_in_the_number_and_logs_are_in_what_is_minimised(
    tmp_path: Path, document_of: Document
) -> None:
    ask = ("recommend", "--profile", measured_profile(tmp_path / "p.json"), "--slo", "0.2", "--loads", "1", "--poisson", "50")
    plain, logged = document_of(*ask), document_of(*ask, "--log-bytes", "100000")
    cost = plain["best"]["cost"]
    assert (
        cost["moving"] > 0 == plain["no_batching"]["cost"]["moving"] and cost["by_request"] == cost["per_request"] + cost["moving"]
    )
    assert logged["best"]["cost"]["terms"]["logs"] > 0 and logged["best"]["mean_batch_size"] >= plain["best"]["mean_batch_size"]
    assert document_of(*ask, "--payload-bytes", "1", "--answer-bytes", "0")["best"]["cost"]["moving"] < cost["moving"] / 1000
    assert plain["frontier"][-1]["cost_per_request"] == pytest.approx(cost["by_request"], rel=0.02)


def test_the_way_is_the_profiles_or_told_or_assumed_and_said_to_be(
    tmp_path: Path, profile: str, shown_by: Shown, document_of: Document
) -> None:
    measured = ("recommend", "--profile", measured_profile(tmp_path / "p.json"), "--poisson", "50", "--slo", "0.2", "--loads", "1")
    assumed = ("recommend", "--profile", profile, "--poisson", "50", "--slo", "0.2", "--loads", "1")
    assert "is taken as 3 ms, as measured 100 times." in " ".join(shown_by(*measured).split())
    assert "are kept free, as the profile is a sample (95 % confidence)." in " ".join(shown_by(*measured).split())
    far = " ".join(shown_by(*measured[:-3], "p99.9=0.2", "--loads", "1").split())
    assert "up to their p95; what is beyond, for the p99.9, is estimated from their tail." in far
    assert "is taken as 5 ms, which nobody measured (sluice profile --buffer)." in " ".join(shown_by(*assumed).split())
    latency = [document_of(*measured, "--buffer-overhead", told)["no_batching"]["latency"]["p95"] for told in ("0", "0.02")]
    assert latency[1] - latency[0] == pytest.approx(0.02)
    setting = ("--memory", "1769", "-b", "1", "-t", "0")
    predicted = document_of("predict", "--poisson", "50", "--profile", measured[2], *setting)["latency"]["p95"]
    assert predicted == pytest.approx(document_of(*measured)["no_batching"]["latency"]["p95"])


@pytest.mark.usefixtures("undrawn")
def test_a_promise_that_was_measured_to_be_missed_opens_the_answer_and_the_page(
    tmp_path: Path, profile: str, shown_by: Shown
) -> None:
    page, seen = tmp_path / "page.html", tmp_path / "seen.json"
    ask = ("recommend", "--profile", profile, "--poisson", "50", "--slo", "0.1", "--loads", "1", "--report", str(page))
    for quantiles, first in (
        ([[0.5, 0.05], [0.99, 0.15]], "Measured: the promise is not kept (p95 "),
        ([[0.1, 0.05], [0.9, 0.06]], "Measured: the promise is not kept (p95 never, promised 100 ms)."),
        ([[0.1, 0.05], [0.99, 0.06]], "Do not deploy for this alone: "),
    ):
        seen.write_text(json.dumps({"requests": 100, "quantiles": quantiles}))
        assert " ".join(shown_by(*ask, "--measured", str(seen)).split()).startswith(first)
        assert re.search(r'class="headline">([^<]*)', page.read_text())[1].startswith(first)  # type: ignore[index]
