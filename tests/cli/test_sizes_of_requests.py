"""How commands are told of requests of different size, and what they answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, RequestSize, Route, read, write
from sluice.cli.main import sluice
from sluice.optimizer.report.wording import per_million
from tests.cli.conftest import Document, Run, Shown
from tests.optimizer.sized_profiles import long_tailed, sized_profile

pytestmark = pytest.mark.usefixtures("searched_once")
ASK = ("recommend", "--poisson", "50", "--slo", "0.3", "--profile")


@pytest.fixture(scope="module", autouse=True)
def _few_resamples() -> Iterator[None]:
    """An interval of each answer that is rough, of which no more is asked here than that it is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.optimizer.recommend.size_sampling.RESAMPLES", 8)
        yield


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("sized") / "profile.json"
    path.write_bytes(write(sized_profile(spread=True)))
    return str(path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    sizes = long_tailed(4000)
    times = np.cumsum(np.random.default_rng(7).exponential(0.02, len(sizes)))
    path = tmp_path_factory.mktemp("sized") / "trace.csv"
    path.write_text("time,tokens\n" + "\n".join(f"{t:.6f},{s:.0f}" for t, s in zip(times, sizes, strict=True)))
    return str(path)


@pytest.fixture
def ask(sized: str) -> tuple[str, ...]:
    return (*ASK, sized)


Answered = tuple[dict[str, Any], Path, Path]


@pytest.fixture(scope="module")
def answered(sized: str, trace: str, tmp_path_factory: pytest.TempPathFactory) -> Answered:
    """The answer for the trace, its plan and its page."""
    folder = tmp_path_factory.mktemp("answered")
    plan, page = folder / "plan.json", folder / "page.html"
    asked = (*ASK, sized, "--trace", trace, "--size-column", "tokens", "--size-by", "json:inputs.0.shape.1")
    done = CliRunner().invoke(sluice, [*asked, "--out", str(plan), "--report", str(page), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout), plan, page


def test_sizes_that_all_lie_far_below_those_measured_are_of_another_unit(sized: str, tmp_path: Path, exit_of: Run) -> None:
    mebi, few = tmp_path / "mebi.csv", tmp_path / "few.csv"
    mebi.write_text("size\n" + "\n".join(f"{size / 1000:g}" for size in range(8, 513)))
    few.write_text("size\n" + "\n".join(map(str, range(2, 8))))
    told = ("--poisson", "50", "--profile", sized, "--memory", "1769", "--sizes")
    needed = (
        "sizes: '0.008 to 0.512' is not allowed; allowed: some of at least 0.8, in the unit of the profile, which measured 8 to 512"
    )
    commands = (("predict", "-b", "4", "-t", "0.1"), ("recommend", "--slo", "0.3"), ("simulate", "--policy", "no-batching"))
    for command, *options in commands:
        code, _, err = exit_of(command, *told, str(mebi), *options)
        assert code == 2 and needed in " ".join(err.split())
    assert exit_of("predict", *told, str(few), "-b", "4", "-t", "0.1")[0] == 0


def test_the_trace_gives_the_mix_and_is_what_the_answer_is_run_on(answered: Answered) -> None:
    answer, out, _ = answered
    plan = read(Plan, out.read_bytes())
    assert plan.size == RequestSize("json", "inputs.0.shape.1")
    assert [route.up_to for route in plan.routes] == [*(of["up_to"] for of in answer["classes"][:-1]), None]
    assert [route.share for route in plan.routes] == [of["share"] for of in answer["classes"]]
    assert answer["saving"] > 0.05 and answer["cost"]["per_request"] < answer["without_regard_to_size"]["cost"]["per_request"]
    assert plan.predicted is not None
    predicted, simulated = plan.predicted.latency["p95"], answer["simulated"]["latency"]["p95"]["value"]
    assert simulated == pytest.approx(predicted, rel=0.05)
    assert answer["simulated"]["cost_per_request"] == answer["cost"]["per_request"] == plan.predicted.cost_per_request
    assert answer["cost"]["per_request"] == pytest.approx(answer["fitted_cost"]["per_request"], rel=0.05)
    assert answer["recorded"]["n_requests"] == 4000 and answer["without_regard_to_size"]["cost"] != answer["cost"]
    shares = sum(of["share"] * of["cost"]["by_request"] for of in answer["classes"])
    assert shares == pytest.approx(answer["cost"]["by_request"], rel=0.02)
    assert answer["cost_by_number_of_classes"].keys() <= {"1", "2", "3", "4"}
    assert answer["sizes"]["requests"] == 4000 and 0 < answer["sizes"]["uncertainty"] < 0.05 * predicted


@pytest.mark.parametrize(
    "usd", [pytest.param(usd, marks=pytest.mark.full if usd == "6" else pytest.mark.proof) for usd in ("2", "4", "6", "8", "10")]
)
def test_the_verdict_agrees_with_the_rate_from_which_queues_pay_on_the_record(
    usd: str, ask: tuple[str, ...], trace: str, shown_by: Shown
) -> None:
    text = " ".join(
        shown_by(*ask, "--trace", trace, "--size-column", "tokens", "--size-classes", "2", "--buffer-per-month", usd).split()
    )
    found = re.match(r"(Deploy|Do not deploy).* at ([\d.]+) requests/s, .*?; it pays from ([\d.]+) requests/s on\.", text)
    assert found is not None and (found[1] == "Deploy") == (float(found[3]) <= float(found[2])), text[:300]


@pytest.mark.full
def test_an_answer_for_some_sizes_is_run_on_a_trace_of_others(
    ask: tuple[str, ...], trace: str, tmp_path: Path, document_of: Document, answered: Answered
) -> None:
    """Held out: the mix is that of one file, the run that of another."""
    past = tmp_path / "past.csv"
    past.write_text("tokens\n" + "\n".join(f"{size:.0f}" for size in long_tailed(4000, seed=11)))
    answer = document_of(*ask, "--sizes", str(past), "--trace", trace, "--size-column", "tokens", "--size-classes", "2")
    seen, _, _ = answered
    assert answer["sizes"]["mean"] != seen["sizes"]["mean"] and answer["simulated"]["n_requests"] == 4000
    predicted = answer["plan"]["predicted"]
    assert answer["simulated"]["latency"]["p95"]["value"] == pytest.approx(predicted["latency"]["p95"], rel=0.05)
    assert answer["simulated"]["cost_per_request"] == predicted["cost_per_request"]
    assert answer["fitted_cost"]["per_request"] == pytest.approx(predicted["cost_per_request"], rel=0.05)


@pytest.mark.full
def test_the_first_sentence_says_what_to_do_and_what_it_saves(ask: tuple[str, ...], trace: str, shown_by: Shown) -> None:
    text = " ".join(shown_by(*ask, "--sizes", trace, "--size-column", "tokens").split())
    verdict, _, text = text.partition(" on. ")
    assert re.fullmatch(
        r"Do not deploy for this alone: the queues with a buffer \(105.02 of it fixed\) cost [\d.]+ USD per month at [\d.]+"
        r" requests/s, [\d.]+ more than calling the function directly \([\d.]+\); it pays from [\d.]+ requests/s",
        verdict,
    )
    assert text.startswith("Batch by size, in ") and "% less than without regard to size (" in text
    assert "The sizes of 4000 requests leave p95 uncertain by " in text
    assert "kept in every class" in text and "USD per million by number of classes: 1: " in text
    one = " ".join(shown_by(*ask, "--sizes", trace, "--size-column", "tokens", "--size-classes", "1").split())
    assert "without regard to size: " in one and "Batch by size" not in one


def test_what_classes_save_is_a_part_of_the_cost_that_is_told(ask: tuple[str, ...], trace: str, shown_by: Shown) -> None:
    moved = ("--payload-bytes", "20000", "--max-batch-size", "4", "--size-classes", "2")
    text = " ".join(shown_by(*ask, "--sizes", trace, "--size-column", "tokens", *moved).split())
    told = re.search(r": ([\d.]+) USD per million requests, ([\d.]+) % less than without regard to size \(([\d.]+)\)", text)
    assert told is not None and "USD per million by number of classes, but for moving: 1: 0." in text
    by_size, percent, whole = map(float, told.groups())
    assert whole > 1 and percent == pytest.approx(100 * (1 - by_size / whole), abs=0.05)


@pytest.mark.full
def test_a_terminal_of_80_columns_shows_every_digit(
    ask: tuple[str, ...], trace: str, shown_by: Shown, document_of: Document
) -> None:
    asked = (
        *(word.replace("0.3", "p95=0.3") for word in ask),
        "--slo",
        "p99=0.5",
        "--sizes",
        trace,
        "--size-column",
        "tokens",
        "--size-classes",
        "2",
    )
    row = next(line for line in shown_by(*asked).splitlines() if line.startswith("│recommended"))
    assert f" {per_million(document_of(*asked)['cost']['per_request'])}" in row


@pytest.mark.full
def test_the_page_tells_of_the_classes(answered: Answered) -> None:
    answer, _, page = answered
    html = page.read_text()
    for of in answer["classes"]:
        assert f"up to {of['up_to']:g}" in html and f'value="{of["cost"]["per_request"]}"' in html
    assert "simulated on the trace" in html and "drawn independently" in html


def test_predict_and_simulate_take_a_mix(sized: str, trace: str, document_of: Document) -> None:
    told = ("--profile", sized, "--memory", "1769", "--sizes", trace, "--size-column", "tokens")
    predicted = document_of("predict", "--poisson", "50", *told, "-b", "8", "-t", "0.1")
    run = document_of("simulate", "--poisson", "50", *told, "--policy", "size-or-timeout:8,0.1", "--requests", "100000")
    simulated = run["policies"]["size-or-timeout:8,0.1"]
    assert simulated["latency"]["p95"]["value"] == pytest.approx(predicted["latency"]["p95"], rel=0.01)
    assert simulated["cost"]["per_request"] == pytest.approx(predicted["cost"]["per_request"], rel=0.01)


def test_predict_bills_what_simulate_runs_each_request_with_its_own_size(sized: str, trace: str, document_of: Document) -> None:
    told = ("--poisson", "50", "--profile", sized, "--memory", "1769", "--size-column", "tokens", "--trace", trace)
    predicted = document_of("predict", *told, "-b", "8", "-t", "0.1")
    (run,) = document_of("simulate", *told, "--policy", "size-or-timeout:8,0.1")["policies"].values()
    assert predicted["cost"]["per_request"] == pytest.approx(run["cost"]["per_request"], rel=1e-12)
    assert predicted["recorded"]["n_requests"] == 4000 and predicted["fitted_cost"] != predicted["cost"]


def test_of_a_record_without_sizes_each_request_has_one_that_is_drawn_from_the_mix(
    sized: str, trace: str, tmp_path: Path, document_of: Document, shown_by: Shown
) -> None:
    gaps, fit, out = tmp_path / "gaps.csv", str(tmp_path / "fit.json"), str(tmp_path / "plan.json")
    gaps.write_text("gap\n" + "\n".join(f"{gap:.6f}" for gap in np.random.default_rng(3).exponential(0.02, 3000)))
    shown_by("fit", str(gaps), "--model", "poisson", "--out", fit)
    mix = ("--arrivals", fit, "--profile", sized, "--sizes", trace, "--size-column", "tokens", "--slo", "0.3")
    ask = ("recommend", *mix, "--size-classes", "2")
    answer, said = document_of(*ask, "--out", out), " ".join(shown_by(*ask).split())
    assert answer["recorded"]["n_requests"] == 3001 and "Costs are those of a run over the 3001 arrivals recorded" in said
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("\n".join(line.rpartition(",")[2] for line in Path(trace).read_text().splitlines()))
    gaps_too = ("--arrivals", fit, "--profile", sized, "--sizes", str(sizes), "--slo", "0.3", "--trace", str(gaps))
    (run,) = document_of("simulate", *gaps_too, "--policy", out)["policies"].values()
    assert answer["cost"]["per_request"] == pytest.approx(run["cost"]["per_request"], rel=1e-6)


def test_the_way_through_the_buffer_is_added_to_every_latency_and_to_no_bill(sized: str, trace: str, document_of: Document) -> None:
    ask = ("predict", "--poisson", "50", "--profile", sized, "--memory", "1769", "--sizes", trace, "--size-column", "tokens")
    near, far = (document_of(*ask, "-b", "8", "-t", "0.1", "--buffer-overhead", seconds) for seconds in ("0", "0.02"))
    for name, seconds in near["latency"].items():
        assert far["latency"][name] == pytest.approx(seconds + 0.02, abs=2e-5)
    assert far["cost"] == near["cost"]


def test_what_a_buffer_cannot_take_is_refused(ask: tuple[str, ...], trace: str, exit_of: Run) -> None:
    code, _, err = exit_of(*ask, "--sizes", trace, "--size-column", "tokens", "--buffer-overhead", "-1")
    assert code == 2 and "--buffer-overhead: -1.0 is not allowed; allowed: a number of seconds >= 0" in err


@pytest.fixture(scope="module")
def plan(sized: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two classes, in tables of the same function and of workers."""
    path = tmp_path_factory.mktemp("sized") / "plan.json"
    batched, alone = (PolicyDocument.of(policies.size_or_timeout(b, t)) for b, t in ((8, 0.15), (2, 0.05)))
    routes = [Route("size-1", "encoder-1769:live", batched, 0.7, up_to=60), Route("size-2", "encoder-1769:live", alone, 0.3)]
    path.write_bytes(write(Plan(model="encoder", routes=routes, size=RequestSize("header"))))
    return str(path)


def test_a_plan_of_size_classes_is_run_by_class_and_in_all(
    sized: str, trace: str, plan: str, document_of: Document, shown_by: Shown
) -> None:
    ask = ("simulate", "--poisson", "50", "--profile", sized, "--sizes", trace, "--size-column", "tokens", "--slo", "0.2")
    run = document_of(*ask, "--requests", "5000", "--policy", plan, "--policy", "size-or-timeout:8,0.15", "--memory", "1769")
    whole, one = run["policies"].values()
    assert [of["up_to"] for of in whole["classes"]] == [60, None]
    assert sum(of["n_requests"] for of in whole["classes"]) == whole["answered"] == 5000
    weighted = sum(of["answered"] * of["cost"]["per_request"] for of in whole["classes"]) / 5000
    assert whole["cost"]["per_request"] == pytest.approx(weighted) and whole["memory_mb"] == one["memory_mb"] == 1769
    assert whole["cold_starts"] == sum(of["cold_starts"] for of in whole["classes"]) > 0
    assert sum(of["batches"] for of in whole["classes"]) == whole["batches"]
    shown = shown_by(*ask, "--requests", "5000", "--policy", plan, "--energy", "1,0.5")
    assert "  up to 60 " in shown and "  larger " in shown


def test_one_queue_for_all_sizes_is_not_all_that_may_be_recommended(sized: str, trace: str, document_of: Document) -> None:
    mix = ("--sizes", trace, "--size-column", "tokens", "--slo", "0.3", "--requests", "100")
    run = document_of("simulate", "--poisson", "50", "--profile", sized, "--memory", "1769", *mix, "--policy", "recommended")
    [said] = run["notes"].values()
    assert said.startswith("one queue for all sizes; `sluice recommend` may give classes of sizes their own")


@pytest.mark.full
def test_what_recommend_runs_on_a_trace_is_what_simulate_runs(
    sized: str, trace: str, answered: Answered, document_of: Document
) -> None:
    """The same arrivals and sizes, by the same code."""
    answer, plan, _ = answered
    confirmed, out, told = answer["simulated"], str(plan), ("--trace", trace, "--size-column", "tokens")
    run = document_of("simulate", "--poisson", "50", "--profile", sized, *told, "--policy", out, "--slo", "0.3")["policies"][out]
    assert (run["latency"]["p95"], run["cost"]["per_request"]) == (confirmed["latency"]["p95"], confirmed["cost_per_request"])
    assert (run["violation_ratios"], run["cold_starts"]) == (confirmed["late"], confirmed["cold_starts"])


def test_a_plan_of_workers_by_size_class_is_run_with_the_worker_that_is_told(
    sized: str, trace: str, tmp_path: Path, document_of: Document, exit_of: Run
) -> None:
    """Recommend says to, where workers are to compete beside sizes."""
    sizes = ("--sizes", trace, "--size-column", "tokens")
    code, _, err = exit_of("recommend", "--poisson", "50", "--profile", sized, "--slo", "1", *sizes, "--worker", f"{sized}:1")
    assert code == 2 and "sluice simulate --policy PLAN --worker PROFILE:MACHINE --sizes FILE" in " ".join(err.split())
    path, greedy = tmp_path / "workers.json", PolicyDocument.of(policies.greedy(8, servers=2))
    routes = [Route("short", "http://a:1", greedy, 0.7, up_to=60), Route("long", "http://b:1", greedy, 0.3)]
    path.write_bytes(write(Plan(model="encoder", routes=routes, size=RequestSize("header"))))
    ask = ("simulate", "--poisson", "50", "--profile", sized, "--memory", "1769", *sizes, "--requests", "5000", "--slo", "0.2")
    run = document_of(*ask, "--policy", str(path), "--worker", f"{sized}:0.5")["policies"][str(path)]
    assert run["mean_servers"] == pytest.approx(4) and run["cold_starts"] == 0 and run["cost"]["terms"]["compute"] == 0
    seconds = 4 * 0.5 / 3600
    assert run["cost"]["terms"]["machines"] == pytest.approx(seconds / 50, rel=0.05)
    assert [of["mean_servers"] for of in run["classes"]] == pytest.approx([2, 2])


def test_a_plan_of_size_classes_needs_the_sizes_of_requests(profile: str, sized: str, trace: str, plan: str, exit_of: Run) -> None:
    run = ("simulate", "--poisson", "50", "--policy", plan, "--memory", "1769")
    code, _, err = exit_of(*run, "--profile", sized)
    assert code == 2 and "sizes: none was given; needed: those of the requests (--sizes, --size-column)" in " ".join(err.split())
    code, _, err = exit_of(*run, "--profile", profile, "--sizes", trace, "--size-column", "tokens")
    assert code == 2 and "one that tells sizes apart" in err


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ([], "sizes: none was given; needed: how large requests are (--sizes, --size-column), as the profile tells them apart"),
        (["--size-column", "tokens"], "sizes: none was given; needed: the file, or the trace, whose column --size-column is"),
        (["--sizes", "TRACE", "--size-column", "length"], "allowed: one of the columns of"),
        (["--trace", "TRACE", "--sizes", "TRACE"], "size_column: none was given; needed: the column of the trace"),
        (
            ["--sizes", "TRACE", "--size-column", "tokens", "--provisioned"],
            "--provisioned: True is not allowed; allowed: none beside sizes",
        ),
        (["--sizes", "nowhere.csv"], "--sizes: 'nowhere.csv' is not allowed; allowed: a file that exists"),
        (["--sizes", "TRACE", "--size-column", "tokens", "--size-classes", "0"], "size_classes: 0 is not allowed"),
        (
            ["--sizes", "TRACE", "--size-column", "tokens", "--size-by", "cookie"],
            "--size-by: 'cookie' is not allowed; allowed: by: header, bytes",
        ),
        (
            ["--sizes", "TRACE", "--size-column", "tokens", "--size-by", "json"],
            "--size-by: 'json' is not allowed; allowed: name: a path",
        ),
        (
            ["--sizes", "TRACE", "--size-column", "tokens", "--worker", "w:1"],
            "--worker: 'w:1' is not allowed; allowed: none beside",
        ),
        (
            ["--sizes", "TRACE", "--size-column", "tokens", "--objective", "latency", "--max-cost", "1e-6"],
            "cost, where requests have",
        ),
    ],
)
def test_what_does_not_go_together_is_named(ask: tuple[str, ...], trace: str, told: list[str], message: str, exit_of: Run) -> None:
    code, out, err = exit_of(*ask, *(trace if word == "TRACE" else word for word in told))
    assert (code, out) == (2, "") and message in " ".join(err.split())


def test_a_worker_whose_profile_tells_sizes_apart_is_refused_for_what_it_is(profile: str, sized: str, exit_of: Run) -> None:
    code, _, err = exit_of("recommend", "--poisson", "5", "--profile", profile, "--slo", "1", "--worker", f"{sized}:1")
    assert code == 2 and f"--worker: '{sized}' is not allowed; allowed: a profile of requests of one size" in err


@pytest.mark.parametrize("told", [("--size-classes", "4"), ("--size-by", "bytes")])
def test_what_says_how_sizes_are_told_is_refused_where_there_are_none(profile: str, told: tuple[str, str], exit_of: Run) -> None:
    code, _, err = exit_of("recommend", "--poisson", "5", "--profile", profile, "--slo", "1", *told)
    asked = "only where requests have sizes: a profile that tells them apart (sluice profile --payload SIZE=FILE; "
    shown = " ".join(err.split())
    assert code == 2 and f"{told[0]}: " in shown and asked in shown and "how large requests are (--sizes, --size-column)" in shown


def test_a_mix_for_a_profile_without_sizes_is_refused(profile: str, trace: str, exit_of: Run) -> None:
    code, _, err = exit_of(
        "recommend", "--poisson", "5", "--profile", profile, "--slo", "1", "--sizes", trace, "--size-column", "tokens"
    )
    assert code == 2 and "one that tells sizes apart" in err
