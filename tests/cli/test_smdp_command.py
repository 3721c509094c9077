"""`sluice smdp` as its users meet it: documents, tables, exit codes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sluice.batching.documents import Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo, read, write
from sluice.optimizer.arrivals import mmpp2
from sluice.optimizer.smdp import read_phase_tables
from tests.cli.conftest import Document, Run

GOOGLENET = ("smdp", "--unit", "ms", "--service", "1.0524,0.3051", "--energy", "19.603,19.899", "--batch-max", "32")
SMALL = ("smdp", "--service", "0.001,0.0005", "--energy", "1,0.1", "--batch-max", "4")


def test_the_basic_scenario_of_the_papers(document_of: Document) -> None:
    answer = document_of(*GOOGLENET, "--rho", "0.9")
    assert answer["gain"] == pytest.approx(66.1307, abs=6e-5) and answer["converged"] and answer["load"] == pytest.approx(0.9)
    (policy,) = answer["policies"]
    assert policy["take"][:9] == [0, 0, 0, 0, 0, 0, 0, 7, 8] and policy["hold"][:8] == [None] * 7 + [0.0] and policy["servers"] == 1
    assert answer["optimal"]["cost"] < min(other["cost"] for other in answer["compared"].values())
    assert answer["latency"]["optimal"]["p95"] > answer["optimal"]["mean_latency"] and answer["latency_is_exact"]


def test_without_energies_no_efficiency_is_told(document_of: Document) -> None:
    answer = document_of("smdp", "--service", "0.001,0.0005", "--batch-max", "4", "--rho", "0.5")
    assert answer["optimal"]["power"] == 0 and answer["optimal"]["energy_efficiency"] is None


def test_units_do_not_change_the_answer(document_of: Document) -> None:
    in_ms = document_of(*GOOGLENET, "--rate", "1.5")
    in_s = document_of(
        *("smdp", "--service", "0.0010524,0.0003051", "--energy", "0.019603,0.019899", "--batch-max", "32"),
        *("--rate", "1500", "--w1", "1000"),
    )
    assert in_ms["gain"] == pytest.approx(in_s["gain"]) and in_ms["policies"] == in_s["policies"]


def test_the_largest_weight_that_keeps_an_slo(document_of: Document, shown_by: Callable[..., str]) -> None:
    answer = document_of(*GOOGLENET, "--rho", "0.7", "--slo", "0.01", "--percentile", "95")
    low, high = answer["power_weights"]
    assert low < answer["power_weight"] < high and answer["latency"]["optimal"]["p95"] <= 0.01
    assert 1.6 < high < 2.2  # the paper finds p95 9.96 ms at 1.6 and 11.24 ms at 2.2
    assert "keeps the SLO with the least power" in shown_by(*SMALL, "--rho", "0.5", "--slo", "0.02")


def test_the_way_through_the_buffer_is_kept_free_of_a_plans_promise(tmp_path: Path, document_of: Document, exit_of: Run) -> None:
    points = [ProfilePoint(1, b, ServiceTime(0.001 + 0.0005 * b), 0.001 + 0.0005 * b) for b in (1, 2, 4)]
    profile, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    address = ("--model", "m", "--function", "http://core:8500", "--out", str(plan))

    def answer(*options: str, way: float | None = None) -> dict[str, Any]:
        measured = None if way is None else ServiceTime(way)
        profile.write_bytes(write(ServiceProfile(function="http://core:8500", points=points, way=measured)))
        return document_of("smdp", "--profile", str(profile), "--rate", "800", "--slo", "0.02", *options)

    alone, assumed, told, known = answer(), answer(*address), answer("--buffer-overhead", "8ms"), answer(way=0.002)
    assert [each["way"] for each in (alone, assumed, told, known)] == [0.0, 0.005, 0.008, 0.002]
    for each in (alone, assumed, told, known):
        assert each["slos"][0]["latency"] == 0.02
        assert each["latency"]["optimal"]["p95"] <= 0.02 - each["way"] + 1e-9
    assert read(Plan, plan.read_bytes()).slo == Slo(0.02)
    as_known = answer("--buffer-overhead", "2ms")  # which keeps no server busy, measured or not
    assert all(as_known[part] == known[part] for part in ("load", "policies", "latency", "optimal"))
    out = exit_of("smdp", "--profile", str(profile), "--rho", "0.5", "--slo", "0.02", "--buffer-overhead", "8ms")[1]
    assert "8 ms of it are kept free for the way through buffer and network" in " ".join(out.split())


def test_an_slo_out_of_reach_exits_with_one(exit_of: Run) -> None:
    code, _, stderr = exit_of(*SMALL, "--rho", "0.7", "--slo", "0.002")
    assert code == 1 and "no weight keeps p95 within 0.002 s" in stderr


def test_the_frontier_runs_from_least_latency_to_least_power(document_of: Document, shown_by: Callable[..., str]) -> None:
    corners = document_of(*GOOGLENET, "--rho", "0.7", "--frontier")["frontier"]
    assert corners[0]["power_weights"][0] == 0 and corners[-1]["power_weights"][1] is None
    assert corners[-1]["policy"]["take"][-1] == 32
    latencies = [corner["mean_latency"] for corner in corners]
    assert latencies == sorted(latencies) and len(latencies) > 10
    assert "what the weights can buy" in shown_by(*SMALL, "--rho", "0.7", "--frontier")


@pytest.mark.full
@pytest.mark.parametrize("method", ["value-iteration", "linear-program"])
def test_the_other_methods_agree(method: str, document_of: Document) -> None:
    best = document_of(*SMALL, "--rho", "0.5", "--w1", "1000")
    other = document_of(*SMALL, "--rho", "0.5", "--w1", "1000", "--method", method, "--max-state", "60")
    assert other["method"] == method and other["gain"] == pytest.approx(best["gain"], rel=1e-4)
    assert other["policies"][0]["take"][:8] == best["policies"][0]["take"][:8]


@pytest.mark.full
@pytest.mark.parametrize("law", ["erlang:2", "exponential", "hyperexponential", "gamma:0.7"])
def test_every_distribution_is_understood(law: str, document_of: Document) -> None:
    answer = document_of(*SMALL, "--rho", "0.5", "--distribution", law)
    assert answer["latency_is_exact"] is (law != "gamma:0.7")
    assert answer["gain"] > document_of(*SMALL, "--rho", "0.5")["gain"]  # variance costs latency


def test_lists_from_files(tmp_path: Path, document_of: Document) -> None:
    (tmp_path / "service.json").write_text(json.dumps([0.0015, 0.002, 0.0025, 0.003]))
    (tmp_path / "energy.json").write_text(json.dumps([1.1, 1.2, 1.3, 1.4]))
    files = ("--service", f"@{tmp_path}/service.json", "--energy", f"@{tmp_path}/energy.json")
    assert document_of("smdp", *files, "--rho", "0.5")["gain"] == pytest.approx(document_of(*SMALL, "--rho", "0.5")["gain"])


def test_measured_service_times(profile: str, document_of: Document) -> None:
    answer = document_of("smdp", "--profile", profile, "--memory", "1769", "--energy", "1,0.1", "--batch-max", "4", "--rho", "0.4")
    assert answer["load"] == pytest.approx(0.4) and len(answer["policies"]) == 1


def test_what_is_weighed_is_told_measured_or_the_time_that_a_server_is_busy(
    tmp_path: Path, profile: str, document_of: Document, exit_of: Run
) -> None:
    ask = ("smdp", "--memory", "1769", "--batch-max", "4", "--rho", "0.4", "--slo", "0.2")
    code, out, err = exit_of(*ask, "--profile", profile, "--json")
    busy = json.loads(out)
    assert code == 0 and "note: no energy is known (--energy): the time that a server is busy is weighed" in err
    known = read(ServiceProfile, Path(profile).read_bytes())
    points = [replace(point, energy=2.0 + point.batch_size) for point in known.points]
    (tmp_path / "joules.json").write_bytes(write(replace(known, points=points)))
    measured, told = (
        document_of(*ask, "--profile", path, *energy)
        for path, energy in ((str(tmp_path / "joules.json"), ()), (profile, ("--energy", "2,1")))
    )
    assert measured == told and measured["optimal"]["power"] > busy["optimal"]["power"]
    assert 0 < busy["optimal"]["power"] < 1
    code, _, err = exit_of(*ask, "--profile", profile, "--energy", "0,0")
    assert code == 2 and "energy: [0.0, 0.0, 0.0, 0.0] is not allowed; allowed: more than 0 for some batch size" in err


@pytest.mark.parametrize("arrivals", [("--rho", "0.5"), ("--class", "a:200:5", "--class", "b:200:1")], ids=["one", "classes"])
def test_a_weight_without_energies_weighs_the_time_that_a_server_is_busy(arrivals: tuple[str, ...], exit_of: Run) -> None:
    ask = ("smdp", "--service", "0.005,0.001", "--max-batch-size", "8", *arrivals, "--json")
    answers = {}
    for w2 in (("--w2", "100"), ("--w2", "100", "--energy", "0.005,0.001"), ("--w2", "0"), ()):
        code, out, err = exit_of(*ask, *w2)
        assert code == 0 and ("the time that a server is busy is weighed" in err) is (w2 == ("--w2", "100"))
        answers[w2] = json.loads(out)
    busy, told, nothing, unsaid = (answer.get("tables", answer)["optimal"] for answer in answers.values())
    assert busy == told and 0 < busy["power"] < 1 and busy["mean_batch_size"] > nothing["mean_batch_size"]
    assert nothing == unsaid and nothing["power"] == 0


@pytest.mark.full
def test_arrivals_with_phases_get_a_table_each(document_of: Document, tmp_path: Path) -> None:
    answer = document_of(*GOOGLENET, "--mmpp2", "900,200,5,5")
    assert len(answer["policies"]) == 2
    arrivals = tmp_path / "arrivals.json"
    arrivals.write_bytes(write(mmpp2(900, 200, 5, 5).document()))
    assert document_of(*GOOGLENET, "--arrivals", str(arrivals))["policies"] == answer["policies"]
    assert answer["optimal"]["cost"] < answer["filtered"]["cost"] < answer["one_table"]["cost"]
    low, high = answer["filtered"]["mean_latency_interval"]
    assert low < answer["filtered"]["mean_latency"] < high
    assert set(answer["latency"]) == {"filtered", "one table"} and not answer["latency_is_exact"]


def test_the_tables_of_phases_are_written_with_what_the_filter_needs(tmp_path: Path, document_of: Document) -> None:
    out = tmp_path / "tables.json"
    answer = document_of(*SMALL, "--mmpp2", "900,200,5,5", "--w1", "1000", "--out", str(out))
    tables = read_phase_tables(out.read_bytes())
    assert [PolicyDocument.of(table) for table in tables.tables] == [PolicyDocument(**policy) for policy in answer["policies"]]
    assert tables.arrivals.D1.tolist() == [[900, 0], [0, 200]]


def test_what_was_written_is_simulated_as_was_predicted(tmp_path: Path, profile: str, document_of: Document) -> None:
    tables, plan = tmp_path / "tables.json", tmp_path / "plan.json"
    arrivals, measured = ("--mmpp2", "300,40,2,2"), ("--profile", profile, "--memory", "1769")
    asked = ("smdp", *measured, *arrivals, "--energy", "0.5,0.05", "--batch-max", "8", "--w1", "1000")
    answer = document_of(*asked, "--out", str(tables))
    document_of(*asked, "--out", str(plan), "--model", "mlp", "--function", "http://127.0.0.1:8500")
    assert read(Plan, plan.read_bytes()).policy == PolicyDocument(**answer["one_table"]["policy"])
    files = ("--policy", str(tables), "--policy", str(plan))
    runs = document_of("simulate", *arrivals, *measured, *files, "--servers", "1", "--buffer-overhead", "0")
    for path, name in ((tables, "filtered"), (plan, "one_table")):
        run = runs["policies"][str(path)]
        low, high = run["mean_latency"]["low"], run["mean_latency"]["high"]
        assert abs(run["mean_latency"]["value"] - answer[name]["mean_latency"]) < 1.5 * (high - low)
        assert run["mean_batch_size"] == pytest.approx(answer[name]["mean_batch_size"], rel=0.03)


def test_the_commands_of_the_page_on_phases_do_what_it_says(
    tmp_path: Path, profile: str, shown_by: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/modulated-arrivals.md").read_text(encoding="utf-8").replace("\\\n", "")
    monkeypatch.chdir(Path(profile).parent)
    shown = [shown_by(*shlex.split(line)[1:]) for line in re.findall(r"^sluice .*$", page, re.MULTILINE)]
    assert len(shown) == 3 and "tables.json" in shown[1] and "greedy:8" in shown[1]
    schedule = read_phase_tables(Path("tables.json").read_bytes()).schedule(np.array([0.0, 0.01, 5.0]))
    assert len(schedule.tables) == 2 and read(Plan, Path("plan.json").read_bytes()).model == "mlp"


def test_the_one_table_is_named_with_its_cost_beside_the_filtered_ones(shown_by: Callable[..., str]) -> None:
    shown = " ".join(shown_by(*SMALL, "--mmpp2", "900,200,5,5", "--w1", "1000").split())
    assert "phase 1 -- " in shown and "phase 2 -- " in shown and "one table for all phases -- " in shown
    assert re.search(r"the cheapest of those tried: .+\. It costs [\d.e-]+ % more than if the phase were seen", shown)
    for row in ("phase seen", "filtered", "one table"):
        assert f"│ {row} │" in shown


def test_several_workers_share_a_queue(document_of: Document, shown_by: Callable[..., str]) -> None:
    answer = document_of(*GOOGLENET, "--rho", "0.5", "--servers", "3")
    assert answer["policies"][0]["servers"] == 3 and answer["arrival_rate"] == pytest.approx(3 * 0.5 * 2958.69, rel=1e-5)
    low, high = answer["optimal"]["mean_latency_interval"]
    assert low < answer["optimal"]["mean_latency"] < high
    assert "3 workers" in shown_by(*SMALL, "--rho", "0.5", "--servers", "3")


def test_a_policy_and_a_plan_are_written(tmp_path: Path, exit_of: Run) -> None:
    policy, plan = tmp_path / "policy.json", tmp_path / "plan.json"
    assert exit_of(*SMALL, "--rho", "0.7", "--out", str(policy))[0] == 0
    table = json.loads(policy.read_bytes())
    assert PolicyDocument(**table).policy().servers == 1
    address = ("--model", "googlenet", "--function", "http://127.0.0.1:8500")
    assert exit_of(*SMALL, "--rho", "0.7", "--slo", "p95=0.03", "--slo", "p99=0.06", "--out", str(plan), *address)[0] == 0
    written = read(Plan, plan.read_bytes())
    assert written.model == "googlenet" and written.slo is not None and len(written.other_slos) == 1
    code, _, stderr = exit_of(*SMALL, "--rho", "0.7", "--out", str(plan), "--model", "googlenet")
    assert code == 2 and "--function: none was given; needed: one beside --model, for a plan; a policy has neither" in stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rho", "1.2"), "rho: 1.2 is not allowed; allowed: a number from 1e-15, and below 1$"),
        (("--rho", "70"), "rho: 70.0 is not allowed; allowed: a number from 1e-15, and below 1; did you mean 0.7?"),
        (("--rho", "1"), "rho: 1.0 is not allowed"),
        (("--rho", "0"), "rho: 0.0 is not allowed"),
        (("--rho", "1e-300"), "rho: 1e-300 is not allowed; allowed: a number from 1e-15, and below 1"),
        (("--rate", "1e-300"), "is not allowed; allowed: at least 1e-15, less is as good as none"),
        ((), "exactly one of --rho, --rate, --arrivals and --mmpp2"),
        (("--rho", "0.5", "--rate", "3"), "exactly one of --rho, --rate, --arrivals and --mmpp2"),
        (("--rho", "0.5", "--profile", "x.json"), "exactly one of --service and --profile"),
        (("--rho", "0.5", "--distribution", "pareto:1.5"), "distribution: 'pareto:1.5' is not allowed"),
        (("--rho", "0.5", "--distribution", "erlang"), "erlang with its shape, as in erlang:2"),
        (("--rho", "0.5", "--distribution", "erlang:nan"), "erlang with a whole number of stages"),
        (("--rho", "0.5", "--distribution", "erlang:inf"), "erlang with a whole number of stages"),
        (("--rho", "0.5", "--distribution", "gamma:nan"), "shape: nan is not allowed"),
        (("--rho", "0.5", "--distribution", "gamma:1e-6"), "service: .* next to impossible"),
        (("--rho", "0.5", "--distribution", "erlang:1.5"), "erlang with a whole number of stages"),
        (("--rho", "0.5", "--energy", "1"), "energy: '1' is not allowed; allowed: two numbers, intercept and slope, or @FILE"),
        (("--rho", "0.5", "--energy", "-1,2"), "batching never pays|number >= 0"),
        (
            ("--rho", "0.5", "--buffer-overhead", "1ms"),
            "--buffer-overhead: 0.001 is not allowed; allowed: only with --slo, of which",
        ),
        (
            ("--rho", "0.5", "--slo", "0.02", "--buffer-overhead", "20ms"),
            "--buffer-overhead: 0.02 is not allowed; allowed: seconds, less than",
        ),
        (("--rho", "0.5", "--w2", "1", "--slo", "0.1"), "w2: 1.0 is not allowed; allowed: only without --slo"),
        (("--rho", "0.5", "--servers", "0"), "servers: 0 is not allowed"),
        (("--rho", "0.5", "--servers", "2", "--frontier"), "servers: 2 is not allowed; allowed: 1, with --slo and --frontier"),
        (
            ("--rho", "0.5", "--slo", "0.1", "--method", "value-iteration"),
            "method: 'value-iteration' is not allowed; allowed: policy-it",
        ),
        (("--rho", "0.5", "--percentile", "95"), "percentile: 95.0 is not allowed; allowed: only beside --slo DURATION"),
        (("--rho", "0.5", "--epsilon", "0.1"), "epsilon: 0.1 is not allowed; allowed: none with policy-iteration"),
        (
            ("--rho", "0.5", "--model", "m", "--function", "f"),
            "--model: 'm' is not allowed; allowed: only with --out",
        ),
        (("--rho", "0.5", "--memory", "512"), "memory: 512 is not allowed; allowed: only with --profile"),
        (("--rho", "0.5", "--batch-max", "0"), "batch_max: 0 is not allowed; allowed: an integer from 1 to 4096"),
        (("--rho", "0.5", "--batch-max", "-2"), "batch_max: -2 is not allowed; allowed: an integer from 1 to 4096"),
        (("--rho", "0.5", "--w1", "nan"), "w1: nan is not allowed; allowed: a number > 0"),
        (("--rho", "0.5", "--w2", "-1"), "w2: -1.0 is not allowed; allowed: a number >= 0"),
        (("--rate", "0"), "rate: 0.0 is not allowed; allowed: requests per unit of time > 0"),
        (
            ("--mmpp2", "900,200,5,5", "--servers", "2"),
            "arrivals.n_phases: 2 is not allowed; allowed: 1, Poisson arrivals",
        ),
        (
            ("--mmpp2", "900,200,5,5", "--slo", "0.1"),
            "arrivals.n_phases: 2 is not allowed; allowed: 1, Poisson arrivals",
        ),
        (("--mmpp2", "900,200,5,5", "--epsilon", "0.1"), "epsilon: 0.1 is not allowed; allowed: none with policy-iteration"),
        (("--mmpp2", "900,200,0,5"), r"switch_1: 0.0 is not allowed; allowed: a rate \(1/s\) > 0"),
        (("--rho", "0.5", "--batch-min", "9"), "min_batch_size: 9 is not allowed; allowed: an integer from 1 to 4"),
    ],
)
def test_misuse_is_named(options: tuple[str, ...], message: str, exit_of: Run) -> None:
    code, stdout, stderr = exit_of(*SMALL, *options)
    assert code == 2 and not stdout
    assert re.search(message, stderr), stderr


@pytest.mark.parametrize("content", ["[1, 2", '[1, "2", 3, 4]', "[1, true, 3, 4]", '{"1": 2}', "[[1, 2]]", "", "[1, 2]"])
def test_a_file_that_holds_no_list_of_numbers_is_refused(content: str, tmp_path: Path, exit_of: Run) -> None:
    path = tmp_path / "service.json"
    path.write_text(content)
    code, _, stderr = exit_of("smdp", "--service", f"@{path}", "--energy", "1,0.1", "--batch-max", "4", "--rho", "0.5")
    assert code == 2 and re.search("a file with a JSON list of numbers|a list of at least 4 numbers", stderr)


def test_a_file_that_is_not_there_is_named(exit_of: Run) -> None:
    code, _, stderr = exit_of("smdp", "--service", "@/no/such/file", "--batch-max", "4", "--rho", "0.5")
    assert code == 2 and "--service: '/no/such/file' is not allowed; allowed: a file that exists" in stderr


def test_a_list_is_cut_by_a_largest_batch_and_not_by_a_negative_one(tmp_path: Path, document_of: Document, exit_of: Run) -> None:
    (tmp_path / "service.json").write_text(json.dumps([0.0015, 0.002, 0.0025, 0.003]))
    ask = ("smdp", "--service", f"@{tmp_path}/service.json", "--energy", "1,0.1", "--rho", "0.5")
    assert max(document_of(*ask, "--batch-max", "3")["policies"][0]["take"]) == 3
    code, _, stderr = exit_of(*ask, "--batch-max", "-1")
    assert code == 2 and "batch_max: -1 is not allowed; allowed: an integer from 1 to 4096" in stderr


def test_options_that_a_profile_answers_are_refused_beside_it(profile: str, exit_of: Run) -> None:
    ask = ("smdp", "--profile", profile, "--memory", "1769", "--energy", "1,0.1", "--rho", "0.4")
    code, _, stderr = exit_of(*ask, "--batch-max", "0")
    assert code == 2 and "batch_max: 0 is not allowed; allowed: an integer from 1 to 4096" in stderr
    code, _, stderr = exit_of(*ask, "--distribution", "exponential")
    assert code == 2 and "distribution: 'exponential' is not allowed; allowed: none with --profile, which has its own" in stderr


def test_a_line_needs_an_end(exit_of: Run) -> None:
    code, _, stderr = exit_of("smdp", "--service", "0.001,0.0005", "--rho", "0.5")
    assert code == 2 and "--max-batch-size: none was given; needed: the largest batch, as a line has no end" in stderr


def test_a_profile_whose_means_are_out_of_order_by_noise_is_smoothed_and_a_note_says_so(tmp_path: Path, exit_of: Run) -> None:
    path = tmp_path / "profile.json"
    measured = ((1, 0.0066, 0.0012), (2, 0.0068, 0.00083), (8, 0.01, 0.001))  # service time and overhead, s
    points = [ProfilePoint(885, b, ServiceTime(seconds), seconds, overhead) for b, seconds, overhead in measured]
    path.write_bytes(write(ServiceProfile(function="f", points=points)))
    code, out, err = exit_of("smdp", "--profile", str(path), "--energy", "1,0.1", "--rho", "0.5", "--json")
    assert code == 0, err
    assert "note: the profile's means (service time and overhead) are out of order by their error" in err
    assert "7.713 ms for a batch of 2 (measured 7.63 ms ± 3 %)" in err and json.loads(out)


@pytest.mark.full
def test_no_step_is_begun_when_the_time_is_up_and_what_takes_long_is_said_before(exit_of: Run) -> None:
    ask = (
        "smdp",
        "--rho",
        "0.7",
        "--service",
        "0.01,0.001",
        "--energy",
        "1,0.1",
        "--batch-max",
        "256",
        "--distribution",
        "gamma:2",
    )
    code, out, err = exit_of(*ask, "--max-seconds", "1e-9")
    assert code == 0 and "was stopped after 1 iterations" in out and "and none less than" in out
    assert "note: batches of up to 256: tables of 513 rows and more" in err and "(--max-seconds)" in err


@pytest.mark.parametrize("seconds", ["0", "-1"])
def test_a_time_that_is_none_is_refused(seconds: str, exit_of: Run) -> None:
    ask = ("smdp", "--rho", "0.7", "--service", "0.01,0.001", "--batch-max", "4", "--max-seconds", seconds)
    code, _, err = exit_of(*ask)
    assert code == 2 and f"max_seconds: {float(seconds)} is not allowed; allowed: a number of seconds > 0" in err


def test_a_batch_whose_table_is_beyond_memory_is_refused(exit_of: Run) -> None:
    code, _, err = exit_of("smdp", "--rho", "0.7", "--service", "0.01,0.001", "--batch-max", "1000000000")
    assert code == 2 and "batch_max: 1000000000 is not allowed; allowed: an integer from 1 to 4096" in err


def test_a_cut_beyond_what_a_policy_has_rows_for_is_refused(exit_of: Run) -> None:
    ask = ("smdp", "--rho", "0.7", "--service", "0.01,0.001", "--batch-max", "4", "--method", "value-iteration")
    code, _, err = exit_of(*ask, "--max-state", "1000000000")
    assert code == 2 and "max_state: 1000000000 is not allowed; allowed: an integer from 1 to 65536" in err


TWO = (*SMALL, "--class", "quick:300:5", "--class", "slow:700:1")


def test_two_classes_have_a_table_over_both_and_what_it_saves(document_of: Document, shown_by: Callable[..., str]) -> None:
    answer = document_of(*TWO)
    assert answer["converged"] and answer["policy"]["columns"] > 1 and answer["monotone"]
    assert [each["name"] for each in answer["classes"]] == ["quick", "slow"] and answer["arrival_rate"] == pytest.approx(1000)
    assert all(other["cost"] >= answer["tables"]["optimal"]["cost"] * (1 - 1e-7) for other in answer["tables"].values())
    shown = shown_by(*TWO)
    assert "a batch leaves from so many of quick on" in shown and "it saves" in shown and "converged" in shown


def test_classes_of_one_weight_save_nothing_and_it_says_so(shown_by: Callable[..., str]) -> None:
    shown = shown_by(*SMALL, "--class", "one:300:2", "--class", "other:700:2")
    assert "it saves nothing beside one queue, in order of arrival" in shown and "e-" not in shown.partition("it saves")[2][:60]


def test_a_plan_of_two_classes_has_their_names_and_a_slack_for_the_patient_one(
    tmp_path: Path, shown_by: Callable[..., str]
) -> None:
    file = tmp_path / "plan.json"
    shown_by(*TWO, "--out", str(file), "--model", "m", "--function", "http://localhost:8500")
    plan = read(Plan, file.read_bytes())
    assert [(each.name, each.slack) for each in plan.classes] == [("quick", 0.0), ("slow", 50.0)]
    assert plan.policy is not None and plan.policy.policy().columns > 1
    shown_by(*TWO, "--out", str(file), "--model", "m", "--function", "http://localhost:8500", "--slack", "5")
    assert read(Plan, file.read_bytes()).classes[1].slack == 5.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--class", "a:1:1"), "classes: 1 is not allowed; allowed: two"),
        (("--class", "a:1:1", "--class", "b:1:1", "--class", "c:1:1"), "put into one those whose weights are nearest"),
        (("--class", "a:1"), "NAME:RATE:WEIGHT"),
        (("--class", "a:x:1"), "NAME:RATE:WEIGHT"),
        (("--class", "a:1:1", "--class", "b:1:1", "--rho", "0.5"), "--rho: 0.5 is not allowed; allowed: none with --class"),
        (("--class", "a:1:1", "--class", "b:1:1", "--slo", "0.2"), "--slo: '0.2' is not allowed; allowed: none with --class"),
        (("--class", "a:1:1", "--class", "b:1:1", "--servers", "2"), "--servers: 2 is not allowed; allowed: none with --class"),
        (("--class", "a:1:1", "--class", "b:1:1", "--frontier"), "--frontier: True is not allowed; allowed: none with --class"),
        (("--class", "a:1:1", "--class", "b:1:1", "--method", "linear-program"), "--method: 'linear-program' is not allowed"),
        (("--rho", "0.5", "--slack", "5"), "slack: 5.0"),
        (("--class", "a:1:1", "--class", "b:5000:1"), "load"),
    ],
)
def test_what_two_classes_do_not_have_is_refused(exit_of: Run, options: tuple[str, ...], said: str) -> None:
    code, _, stderr = exit_of(*SMALL, *options)
    assert code == 2 and said in stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--slack", "-1", "--function", "http://w:1"), "slack: -1"),
        (("--class", "the quick:1:9", "--function", "http://w:1"), "classes[0].name: 'the quick'"),
        ((), "--function: none was given; needed: one beside --model, for a plan"),
    ],
)
def test_what_a_plan_of_two_classes_does_not_allow_is_refused_before_anything_is_solved(
    tmp_path: Path, exit_of: Run, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    def solved(*_: object) -> None:
        raise AssertionError("solved")

    monkeypatch.setattr("sluice.cli.smdp.answer_classes", solved)
    classes = ("--class", "slow:700:1", *(() if "--class" in options else ("--class", "quick:300:5")))
    code, _, stderr = exit_of(*SMALL, *classes, *options, "--model", "m", "--out", str(tmp_path / "plan.json"))
    assert code == 2 and said in stderr


def test_a_grid_that_was_never_doubled_is_told_so(shown_by: Callable[..., str]) -> None:
    shown = " ".join(shown_by(*TWO, "--max-seconds", "1e-9").split())
    assert "the grid was never doubled, and what it misses is not known" in shown
