"""`sluice predict` as its users meet it: documents, tables, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.batching.documents import LinearServiceTime, ServiceProfile, read, write
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.billing.cost import BatchCost
from tests.cli.conftest import Document, Run

SETTING = ("--memory", "1769", "-b", "4", "-t", "0.05")


@pytest.mark.parametrize("method", ["exact", "batch-paper"])
def test_it_prints_one_document(profile: str, method: str, document_of: Document) -> None:
    answer = document_of(
        *("predict", "--poisson", "100", "--profile", profile, *SETTING),
        *("--percentile", "90", "--percentile", "99.9", "--percentile", "90", "--method", method),
    )
    assert list(answer["latency"]) == ["p90", "p99.9"]
    assert sum(answer["batch_size_pmf"]) == pytest.approx(1) and answer["cdf"][-1][1] == pytest.approx(1)


def test_the_table_shows_what_people_need(profile: str, shown_by: Callable[..., str]) -> None:
    shown = shown_by("predict", "--mmpp2", "100,10,1,2", "--profile", profile, *SETTING)
    for name in ("latency p95", "mean batch size", "invocations/s", "compute", "request fee", "fixed, per month", "prices:"):
        assert name in shown


def test_all_that_starts_cold_is_a_hundred_percent(profile: str, shown_by: Callable[..., str]) -> None:
    shown = shown_by("predict", "--poisson", "0.001", "--profile", profile, *SETTING, "--cold-start-probability", "1")
    assert "100 % of the invocations" in shown


def test_every_term_of_the_cost_is_in_the_document_and_they_sum_up(profile: str, document_of: Document) -> None:
    answer = document_of("predict", "--poisson", "100", "--profile", profile, *SETTING, "--cold-start-probability", "0.01")
    cost = answer["cost"]
    assert cost["terms"].keys() == BatchCost().terms().keys()
    assert sum(cost["terms"].values()) == pytest.approx(cost["by_request"])
    assert sum(cost["fixed_terms"].values()) == pytest.approx(cost["fixed_per_month"])
    assert cost["in_all"] > cost["by_request"]


def test_rare_invocations_start_cold_and_snapshots_are_priced(profile: str, document_of: Document) -> None:
    often, seldom = (document_of("predict", "--poisson", r, "--profile", profile, *SETTING) for r in ("100", "0.001"))
    assert often["cold_starts"] < 0.01 < 0.5 < seldom["cold_starts"] < 1
    cold = ("--cold-start-probability", "0.01", "--snap-start")
    cost = document_of("predict", "--poisson", "100", "--profile", profile, *SETTING, *cold)["cost"]
    assert cost["terms"]["restore"] > 0 and cost["fixed_terms"]["snapshot"] > 0


def test_of_bursts_more_requests_start_cold_than_batches(profile: str, document_of: Document, shown_by: Callable[..., str]) -> None:
    setting = ("--memory", "1769", "-b", "8", "-t", "0.05", "--keep-alive", "60s")
    ask = ("predict", "--mmpp2", "300,1,1,0.05", "--profile", profile, *setting)
    told = document_of(*ask)
    assert told["cold_requests"] > 1.2 * told["cold_starts"] > 1e-3
    assert " % of the invocations, with " in shown_by(*ask)


def test_a_cold_start_is_billed_the_inits_of_the_profile(profile: str, tmp_path: Path, document_of: Document) -> None:
    ask = ("predict", "--poisson", "100", *SETTING, "--cold-start-probability", "0.01")
    with_init = document_of(*ask, "--profile", profile)
    gb_second = with_init["cost"]["terms"]["compute"] / (0.006 + 0.001 * 4) / 1769 * 1024 * 4  # were every batch full
    assert 0.01 * 0.4 * gb_second * 1769 / 1024 / 4 < with_init["cost"]["terms"]["init"] < 0.01 * 0.4 * gb_second * 1769 / 1024
    without = tmp_path / "without.json"
    measured = read(ServiceProfile, Path(profile).read_bytes())
    without.write_bytes(write(ServiceProfile(function=measured.function, points=measured.points)))
    assert document_of(*ask, "--profile", str(without))["cost"]["terms"]["init"] == 0


def test_no_batching_needs_no_buffer(profile: str, document_of: Document) -> None:
    answer = document_of("predict", "--poisson", "100", "--profile", profile, "--memory", "512", "-b", "1", "-t", "0")
    assert answer["cost"]["fixed_per_month"] == 0 and answer["mean_batch_size"] == 1


def test_prices_laid_over_the_dated_ones_change_the_bill(profile: str, tmp_path: Path, document_of: Document) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps({"region": "moon-1", "lambda": {"request": 4e-7}}))
    ask = ("predict", "--poisson", "100", "--profile", profile, *SETTING)
    dated, own = document_of(*ask), document_of(*ask, "--prices", str(prices))
    assert own["cost"]["terms"]["requests"] == pytest.approx(2 * dated["cost"]["terms"]["requests"])
    assert own["prices"]["region"] == "moon-1" and own["prices"]["as_dated"][0] == "lambda.gb_second"
    assert "as_dated" not in dated["prices"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-b 4 -t 0.1 --memory 1024 --poisson 9", "memory_mb: 1024 is not allowed; allowed: one of the profile's"),
        ("-b 64 -t 0.1 --memory 512 --poisson 9", "batch_size: 64 is not allowed; allowed: 1 to 8"),
        ("-b 4 -t -1 --memory 512 --poisson 9", "timeout: -1.0"),
        ("-b 4 -t 0.1 --memory 512 --poisson 0", "--poisson: 0.0"),
        ("-b 4 -t 0.1 --memory 512 --mmpp2 1,2,3", "mmpp2: '1,2,3' is not allowed; allowed: four numbers"),
        ("-b 4 -t 0.1 --memory 512 --mmpp2 1,2,3,x", "mmpp2: '1,2,3,x' is not allowed; allowed: four numbers"),
        ("-b 4 -t 0.1 --memory 512", "exactly one of --arrivals, --poisson and --mmpp2"),
        ("-b 4 -t 0.1 --memory 512 --poisson 9 --mmpp2 1,2,3,4", "exactly one of --arrivals, --poisson and --mmpp2"),
        (
            "-b 4 -t 0.1 --memory 512 --arrivals /nowhere.json",
            "--arrivals: '/nowhere.json' is not allowed; allowed: a file that exists",
        ),
        ("-b 4 -t 0.1 --memory 512 --poisson 9 --percentile 100", "percentile: 100.0 is not allowed"),
        ("-b 4 -t 0.1 --memory 512 --poisson 9 --granularity 0", "granularity: 0.0 is not allowed"),
        ("-b 4 -t 0.1 --memory 512 --poisson 9 --architecture z80", "architecture: 'z80' is not allowed; allowed: one of x86_64"),
        ("-b 4 -t 0.1 --memory 512 --poisson 9 --cold-start-probability 2", "cold_start_probability: 2.0 is not allowed"),
    ],
)
def test_misuse_exits_2_and_names_the_field(arguments: str, message: str, profile: str, exit_of: Run) -> None:
    code, out, err = exit_of("predict", *arguments.split(), "--profile", profile)
    assert (code, out) == (2, "") and message in err


def test_a_document_of_another_kind_is_named_by_what_it_is(profile: str, tmp_path: Path, exit_of: Run) -> None:
    setting = ("-b", "4", "-t", "0.1", "--memory", "512")
    _, _, err = exit_of("predict", *setting, "--profile", profile, "--arrivals", profile)
    assert f"--arrivals: '{profile}' is not allowed; allowed: an arrivals document, as `sluice fit --out` writes it; " in err
    assert err.endswith("this is a service profile (--profile)")
    arrivals = tmp_path / "arrivals.json"
    arrivals.write_bytes(write(poisson(3.0).document()))
    _, _, err = exit_of("predict", *setting, "--profile", str(arrivals), "--poisson", "3")
    assert err.endswith("a service profile, as `sluice profile --out` writes it; this is an arrivals document (--arrivals)")


def test_arrivals_that_were_not_given_are_not_shown_as_a_value(profile: str, exit_of: Run) -> None:
    _, _, err = exit_of("predict", "-b", "4", "-t", "0.1", "--memory", "512", "--profile", profile)
    assert err == "sluice: arrivals: none was given; needed: exactly one of --arrivals, --poisson and --mmpp2"


@pytest.mark.full
def test_what_the_exact_law_would_take_too_long_for_is_simulated_and_said(profile: str, exit_of: Run) -> None:
    ask = ("predict", "--mmpp2", "20000,1,100,1", "--profile", profile, "--memory", "1769", "-b", "8", "-t", "60s")
    code, out, _ = exit_of(*ask)
    assert code == 0 and "(simulated)" in out and "Simulated, with 95 % intervals" in out
    document = json.loads(exit_of(*ask, "--json")[1])
    low, high = document["intervals"]["p95"]
    assert document["method"] == "simulated" and document["confidence"] == 0.95 and low < document["latency"]["p95"] < high
    assert "intervals" not in json.loads(exit_of(*ask[:-1], "0.001", "--json")[1])


def test_a_batch_beyond_what_is_predicted_is_refused_also_where_a_profile_has_no_end(tmp_path: Path, exit_of: Run) -> None:
    endless = tmp_path / "endless.json"
    endless.write_text('{"function": "f", "service_time": {"intercept": 0.01, "slope": 0.001}}')
    ask = ("predict", "--poisson", "9", "--profile", str(endless), "--memory", "1769", "-t", "0.1", "-b", "1000000000")
    code, _, err = exit_of(*ask)
    assert code == 2 and "batch_size: 1000000000 is not allowed; allowed: an integer from 1 to 1024" in err


def test_what_is_provisioned_is_paid_by_the_hour_and_leaves_next_to_nothing_cold(profile: str, document_of: Document) -> None:
    ask = ("predict", "--poisson", "0.002", "--profile", profile, "--memory", "1769", "-b", "1", "-t", "0")
    cold, warm = document_of(*ask), document_of(*ask, "--provisioned", "1")
    assert cold["cold_starts"] > 0.5 and warm["cold_starts"] < 1e-3
    often = ("predict", "--mmpp2", "100,1,1,0.05", "--profile", profile, "--memory", "1769", "-b", "8", "-t", "0.05")
    none, one = document_of(*often), document_of(*often, "--provisioned", "1")
    assert one["cold_starts"] <= none["cold_starts"] and one["cold_requests"] <= none["cold_requests"]
    assert cold["latency"]["p95"] > 0.4 > 0.05 > warm["latency"]["p95"]
    assert warm["cost"]["terms"]["machines"] > 0 == warm["cost"]["terms"]["pings"]


@pytest.mark.full
def test_a_ping_keeps_one_environment_as_recommend_says(profile: str, document_of: Document) -> None:
    ask = ("--poisson", "0.002", "--profile", profile, "--memory", "1769")
    warm = document_of("predict", *ask, "-b", "1", "-t", "0", "--pinged-every", "240")
    recommended = document_of("recommend", *ask, "--slo", "0.2")
    assert recommended["plan"]["warm"] == {"pinged_every": 240.0} and recommended["kept_warm"]["pinged_every"] == 240
    for name, usd in recommended["kept_warm"]["cost"]["terms"].items():
        assert usd == pytest.approx(warm["cost"]["terms"][name])
    assert warm["latency"] == pytest.approx(recommended["kept_warm"]["latency"])


def test_a_number_of_environments_that_cannot_be_estimated_is_refused(profile: str, exit_of: Run) -> None:
    ask = ("predict", "--poisson", "100", "--profile", profile, *SETTING, "--provisioned")
    assert "provisioned: 0 is not allowed; allowed: an integer >= 1" in exit_of(*ask, "0")[2]
    assert "none beside what is kept warm" in exit_of(*ask, "1", "--cold-start-probability", "0.1")[2]
    assert "--pinged-every: 9.0 is not allowed; allowed: none beside --provisioned" in exit_of(*ask, "1", "--pinged-every", "9s")[2]
    late = exit_of(*ask[:-1], "--pinged-every", "400")[2]
    assert "pinged_every: 400.0 is not allowed" in late and "up to 300, for which an unused environment is kept" in late
    many = ("predict", "--poisson", "40000", "--profile", profile, "--memory", "1769", "-b", "1", "-t", "0", "--provisioned", "3")
    assert "as more than 100 batches may be under way" in exit_of(*many)[2]


def test_a_machine_taken_for_a_function_and_a_trace_of_another_rate_are_warned_of(tmp_path: Path, exit_of: Run) -> None:
    (tmp_path / "gpu.json").write_bytes(
        write(ServiceProfile(function="http://gpu:8500", service_time=LinearServiceTime(0.01, 0.001), max_batch_size=8))
    )
    (tmp_path / "trace.csv").write_text("time\n" + "".join(f"{i / 20}\n" for i in range(200)))
    where = "--profile", str(tmp_path / "gpu.json"), "--memory", "1769"
    machine = "warning: http://gpu:8500 is a machine; as --profile it is taken for a function"
    for rate, told in (("20", False), ("90", True)):
        _, _, err = exit_of("predict", "--poisson", rate, *where, *SETTING[2:], "--trace", str(tmp_path / "trace.csv"))
        assert machine in err
        assert ("latencies are at 90 requests/s, costs those of the trace, with 20 a second" in err) == told
    asked = "simulate", "--poisson", "20", "--requests", "500", *where, "--policy", "no-batching"
    assert machine in exit_of(*asked)[2]
    assert machine not in exit_of(*asked, "--worker", f"{tmp_path / 'gpu.json'}:1", "--servers", "2")[2]
