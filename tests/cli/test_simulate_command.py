"""`sluice simulate` as its users meet it: policies by name and by file, tables, figures, errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import (
    Beside,
    Plan,
    PolicyDocument,
    ProfilePoint,
    Route,
    ServiceProfile,
    ServiceTime,
    WarmEnvironments,
    write,
)
from sluice.optimizer.baselines import NAMES, all_names
from tests.cli.conftest import Document, Run


@pytest.fixture
def asked(profile: str) -> tuple[str, ...]:
    return ("simulate", "--poisson", "50", "--profile", profile, "--requests", "5000", "--buffer-overhead", "0")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file: 1200 Poisson arrivals at 20/s."""
    path = tmp_path / "trace.csv"
    times = np.cumsum(np.random.default_rng(0).exponential(0.05, 1200))
    path.write_text("timestamp\n" + "\n".join(f"{time:.6f}" for time in times) + "\n")
    return str(path)


@pytest.mark.full
def test_every_policy_meets_the_same_arrivals(document_of: Document, asked: tuple[str, ...]) -> None:
    answer = document_of(*asked, "--policy", "all", "--slo", "0.2", "--memory", "1769", "--seed", "1")
    assert list(answer["policies"]) == all_names() and answer["refused"] == {}
    assert {name.partition(":")[0] for name in answer["policies"]} == set(NAMES)
    for run in answer["policies"].values():
        assert run["answered"] + run["dropped"] + run["unanswered"] == answer["n_requests"] == 5000
        assert run["latency"]["p95"]["low"] <= run["latency"]["p95"]["value"] <= run["latency"]["p95"]["high"]
        assert run["keeps_slos"] is (run["violation_ratios"][0] <= 0.05)
    cost = {name: run["cost"]["per_request"] for name, run in answer["policies"].items()}
    keeping = [name for name, run in answer["policies"].items() if run["surely_keeps_slos"]]
    assert answer["winner"] == min(keeping, key=lambda name: cost[name])
    assert cost["recommended"] < cost["size-or-timeout:8,0.05"] < cost["no-batching"]


def test_without_batching_a_request_takes_its_service_time(document_of: Document, asked: tuple[str, ...]) -> None:
    run = document_of(*asked, "--policy", "no-batching", "--memory", "1769", "--init", "0")["policies"]["no-batching"]
    assert run["latency"]["p50"]["value"] == pytest.approx(0.007, rel=2e-3) and run["mean_batch_size"] == 1
    assert run["cost"]["per_request"] == pytest.approx(0.007 * 1769 / 1024 * 1.33334e-5 + 2e-7, rel=1e-6)


def test_the_answer_is_the_seeds(document_of: Document, asked: tuple[str, ...]) -> None:
    ask = (*asked, "--policy", "size-or-timeout:4,0.05", "--memory", "512")
    assert document_of(*ask, "--seed", "3") == document_of(*ask, "--seed", "3")
    assert document_of(*ask, "--seed", "3")["policies"] != document_of(*ask, "--seed", "4")["policies"]


def test_a_table_is_shown_with_the_cheapest_that_keeps_the_slo(
    shown_by: Callable[..., str], asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ("--policy", "no-batching", "--policy", "size-or-timeout:4,0.05", "--policy", "greedy:4", "--energy", "1,0.5")
    shown = shown_by(*asked, *named, "--slo", "p95=0.2", "--slo", "p99=0.5", "--servers", "1")
    assert "Cheapest that surely keeps the SLO: size-or-timeout:4,0.05" in shown
    assert "5000 requests" in shown and "prices: us-east-1" in shown
    assert "None of these keeps the SLO." in shown_by(*asked, "--policy", "no-batching", "--slo", "0.001", "--memory", "512")


def test_a_policy_that_may_be_too_late_is_not_the_cheapest_that_keeps_the_slo(
    shown_by: Callable[..., str], document_of: Document, asked: tuple[str, ...]
) -> None:
    ask = (*asked, "--memory", "1769", "--init", "0", "--slo", "p62=0.05")
    bold, safe = (f"size-or-timeout:8,{seconds}" for seconds in ("0.0445", "0.03"))
    answer = document_of(*ask, "--policy", bold, "--policy", safe)
    runs = answer["policies"]
    assert runs[bold]["cost"]["per_request"] < runs[safe]["cost"]["per_request"]
    assert runs[bold]["violations"][0]["low"] < 0.38 < runs[bold]["violations"][0]["high"]
    assert (answer["winner"], answer["perhaps"]) == (safe, bold)
    shown = " ".join(shown_by(*ask, "--policy", bold, "--policy", safe).split())
    assert f"Cheapest that surely keeps the SLO: {safe}" in shown and f"Might keep it: {bold}" in shown
    alone = " ".join(shown_by(*ask, "--policy", bold).split())
    assert f"None of these surely keeps the SLO. Might keep it: {bold}" in alone


def test_energies_are_a_line_or_a_list(document_of: Document, asked: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "joules.json").write_text("[1.5, 2, 2.5, 3]")
    named = (*asked, "--policy", "greedy:4", "--servers", "1", "--memory", "512", "--energy")
    of_line, of_list = (document_of(*named, text)["policies"] for text in ("1,0.5", f"@{tmp_path}/joules.json"))
    assert of_line == of_list and of_line["greedy:4"]["energy_per_request"] > 0


@pytest.mark.full
def test_policies_plan_on_the_first_part_of_a_trace_and_run_on_the_rest(document_of: Document, profile: str, trace: str) -> None:
    ask = ("simulate", "--trace", trace, "--profile", profile, "--slo", "0.3", "--policy", "recommended", "--policy", "overflow")
    answer = document_of(*ask)
    assert 500 < answer["n_requests"] < 700
    assert answer["planned_rate"] == pytest.approx(20, rel=0.1) and answer["arrival_rate"] == pytest.approx(20, rel=0.1)
    assert document_of(*ask, "--past", "0.25")["n_requests"] > 800
    whole = document_of(*ask, "--poisson", "20", "--speed", "2")  # made for a model, run on all of it
    assert whole["n_requests"] == 1200 and whole["planned_rate"] == 20 and whole["arrival_rate"] == pytest.approx(40, rel=0.1)


def test_policies_and_plans_come_from_files(tmp_path: Path, document_of: Document, exit_of: Run, asked: tuple[str, ...]) -> None:
    elastic, servers, plan = (str(tmp_path / f"{name}.json") for name in ("elastic", "servers", "plan"))
    Path(elastic).write_bytes(write(PolicyDocument.of(policies.size_or_timeout(4, 0.05))))
    Path(servers).write_bytes(write(PolicyDocument.of(policies.greedy(8, 2))))
    document = PolicyDocument.of(policies.size_or_timeout(8, 0.1))
    Path(plan).write_bytes(write(Plan(model="m", function="f", policy=document, memory_mb=512)))
    ask = (*asked, "--memory", "1769", *(word for path in (elastic, servers, plan) for word in ("--policy", path)))
    runs = document_of(*ask, "--policy", "size-or-timeout:4,0.05")["policies"]
    assert runs[elastic]["latency"] == runs["size-or-timeout:4,0.05"]["latency"]
    assert runs[servers]["mean_servers"] == pytest.approx(2) and runs[plan]["memory_mb"] == 512
    routed = Plan(model="m", routes=[Route("r", "f", document, 1.0)])
    code, _, stderr = exit_of(*asked, "--memory", "1769", "--policy", plan)
    assert code == 0 and f"note: {plan}: runs with 512 MB, as the plan has it, and not with 1769" in stderr
    full = PolicyDocument(hold=[None, None, 0.0], take=[0, 0, 2])
    both = Plan(
        model="m", function="mlp-1769", policy=PolicyDocument(hold=[None, 0.1], take=[0, 1]), beside=[Beside("mlp-512", full)]
    )
    Path(plan).write_bytes(write(both))
    code, _, stderr = exit_of(*asked, "--memory", "1769", "--policy", plan)
    assert code == 0 and f"note: {plan}: runs with 512 MB, as the plan has it, and not with 1769" in stderr
    Path(plan).write_bytes(write(routed))
    code, _, stderr = exit_of(*asked, "--memory", "512", "--policy", plan)
    assert code == 2 and "routes: 1 is not allowed; allowed: none: a plan of one queue" in stderr
    Path(plan).write_text('{"hold": [null, 1], "take": [0, 2]}')
    code, _, stderr = exit_of(*asked, "--memory", "512", "--policy", plan)
    assert code == 2 and "take[1]" in stderr and "an integer from 0 to 1" in stderr
    Path(plan).write_text("hold")
    assert "a JSON document, policy or plan" in exit_of(*asked, "--memory", "512", "--policy", plan)[2]


def test_what_is_started_and_kept_of_functions_beside_one_another_is_there(
    tmp_path: Path, document_of: Document, asked: tuple[str, ...]
) -> None:
    alone, full = PolicyDocument.of(policies.no_batching()), PolicyDocument(hold=[None, 0.1, 0.0], take=[0, 1, 2])
    plan = Plan(model="m", function="mlp-1769", policy=full, beside=[Beside("mlp-512", alone)], memory_mb=1769)
    kept = msgspec.structs.replace(plan, warm=WarmEnvironments(pinged_every=200.0, pinged=40), digest="")
    plans = {"plain": plan, "started": msgspec.structs.replace(plan, started=40), "kept": kept}
    for name, each in plans.items():
        (tmp_path / f"{name}.json").write_bytes(write(each))
    paths = [str(tmp_path / f"{name}.json") for name in plans]
    runs = document_of(*asked, "--init", "1s", "--keep-alive", "300s", *(word for path in paths for word in ("--policy", path)))
    plain, started, pinged = (runs["policies"][path] for path in paths)
    assert plain["cold_starts"] > 0 == started["cold_starts"] == pinged["cold_starts"]
    assert pinged["cost"]["terms"]["pings"] > 0 == started["cost"]["terms"]["pings"]


def test_functions_beside_one_another_are_run_and_told_apart(
    tmp_path: Path, document_of: Document, shown_by: Callable[..., str], exit_of: Run, asked: tuple[str, ...]
) -> None:
    worker, other, plan = (str(tmp_path / f"{name}.json") for name in ("worker", "other", "plan"))
    for path, function in ((worker, "http://a:1"), (other, "big-{memory_mb}")):
        law = {"intercept": 0.05, "slope": 0.001}
        Path(path).write_text(json.dumps({"function": function, "service_time": law, "max_batch_size": 8}))
    greedy, alone, late = (
        PolicyDocument.of(table) for table in (policies.greedy(1), policies.no_batching(), policies.size_or_timeout(4, 0.05))
    )
    beside = [Beside("mlp-512", alone), Beside("big-3008", late)]
    Path(plan).write_bytes(write(Plan(model="m", function="http://a:1", policy=greedy, beside=beside)))
    ask = (*asked, "--concurrency", "1", "--worker", f"{worker}:0.04", "--policy", plan, "--slo", "0.5")
    run = document_of(*ask, "--profile", other)["policies"][plan]
    workers, small, big = run["functions"]
    assert [side["function"] for side in run["functions"]] == ["http://a:1", "mlp-512", "big-3008"]
    assert [side["memory_mb"] for side in run["functions"]] == [None, 512, 3008]
    assert sum(side["requests"] for side in run["functions"]) == run["answered"] == 5000
    assert min(side["share"] for side in run["functions"]) > 0.01 and small["mean_batch_size"] == 1 < big["mean_batch_size"]
    assert workers["utilisation"] == run["utilisation"] and workers["cost"]["terms"]["machines"] > 0 == workers["cold_starts"]
    assert sum(side["cost"]["per_request"] for side in run["functions"]) == pytest.approx(run["cost"]["per_request"])
    shown = shown_by(*ask, "--profile", other)
    assert all(f" % {name}" in shown for name in ("http://a:1", "mlp-512", "big-3008"))
    code, _, stderr = exit_of(*ask)
    assert code == 2 and "beside[1].function: 'big-3008' is not allowed; allowed: a function whose profile is given" in stderr
    code, _, stderr = exit_of(*asked, "--profile", other, "--policy", "no-batching", "--memory", "512")
    assert code == 2 and "--profile: 'big-{memory_mb}' is not allowed; allowed: a function that a plan" in stderr


def test_cold_starts_are_the_functions(document_of: Document, asked: tuple[str, ...]) -> None:
    ask = (*asked, "--policy", "no-batching", "--memory", "1769")
    warm, short = (document_of(*ask, "--keep-alive", seconds)["policies"]["no-batching"] for seconds in ("1000", "50ms"))
    assert warm["cold_starts"] < 30 < short["cold_starts"] and short["cost"]["terms"]["init"] > warm["cost"]["terms"]["init"]
    one = document_of(*ask, "--concurrency", "1")["policies"]["no-batching"]
    assert one["cold_starts"] == 1
    assert short["latency"]["p99"]["value"] == pytest.approx(0.407, rel=2e-3)  # INIT of the profile


@pytest.mark.full
def test_workers_of_ones_own(tmp_path: Path, document_of: Document, asked: tuple[str, ...]) -> None:
    worker = tmp_path / "gpu.json"
    worker.write_text(json.dumps({"function": "http://gpu:1", "service_time": {"intercept": 0.001, "slope": 0.0002}}))
    ask = (*asked, "--policy", "greedy:8", "--policy", "recommended", "--slo", "0.2")
    runs = document_of(*ask, "--worker", f"{worker}:g4dn.xlarge")["policies"]
    hours = 0.526 / 3600 / 50 * 1e6
    assert runs["greedy:8"]["cost"]["per_request"] * 1e6 == pytest.approx(hours, rel=0.05)
    assert runs["greedy:8"]["mean_servers"] == pytest.approx(1) and runs["recommended"]["by_function"] == 1
    assert document_of(*ask, "--worker", f"{worker}:0.0001")["policies"]["recommended"]["by_function"] == 0


def test_what_stands_before_workers_is_billed_as_recommended(
    tmp_path: Path, document_of: Document, asked: tuple[str, ...], profile: str
) -> None:
    """A function, its provisioned environments and workers are behind one buffer; invocations leave the network."""
    worker = tmp_path / "gpu.json"
    worker.write_text(json.dumps({"function": "http://gpu:1", "service_time": {"intercept": 0.001, "slope": 0.0002}}))
    Path(profile).write_text(json.dumps(json.loads(Path(profile).read_text()) | {"request_bytes": 2000, "answer_bytes": 500}))
    ask = (*asked, "--memory", "1769")
    provisioned = document_of(*ask, "--policy", "greedy:8", "--policy", "size-or-timeout:4,0.02", "--servers", "2")["policies"]
    of_worker = document_of(*ask, "--policy", "greedy:8", "--servers", "2", "--worker", f"{worker}:0.5")["policies"]["greedy:8"]
    costs = [provisioned["greedy:8"]["cost"], provisioned["size-or-timeout:4,0.02"]["cost"], of_worker["cost"]]
    moved = [[cost["terms"][part] for part in ("load_balancer", "network")] for cost in costs]
    assert moved[0] == pytest.approx(moved[1]) and min(moved[0]) > 0
    assert moved[2] == pytest.approx([moved[0][0], 0.0])
    assert costs[0]["fixed_per_month"] == costs[1]["fixed_per_month"] == costs[2]["fixed_per_month"] > 0


def test_nothing_stands_before_a_function_without_batching_that_is_kept_warm(
    tmp_path: Path, document_of: Document, asked: tuple[str, ...], profile: str
) -> None:
    Path(profile).write_text(json.dumps(json.loads(Path(profile).read_text()) | {"request_bytes": 2000, "answer_bytes": 500}))
    fixed, moved = {}, {}
    for name, table, warm in (
        ("provisioned", policies.no_batching(), {"warm": WarmEnvironments(2)}),
        ("pinged", policies.no_batching(), {"warm": WarmEnvironments(pinged_every=240)}),
        ("batches", policies.size_or_timeout(4, 0.02), {"warm": WarmEnvironments(2)}),
        ("queue", policies.greedy(1, 2), {}),
    ):
        plan = Plan(model="m", function="mlp-1769", policy=PolicyDocument.of(table), memory_mb=1769, **warm)
        (tmp_path / "plan.json").write_bytes(write(plan))
        (run,) = document_of(*asked, "--memory", "1769", "--policy", str(tmp_path / "plan.json"))["policies"].values()
        fixed[name], moved[name] = run["cost"]["fixed_per_month"], run["cost"]["terms"]["load_balancer"]
    assert fixed["provisioned"] == fixed["pinged"] == moved["provisioned"] == moved["pinged"] == 0
    assert fixed["batches"] == fixed["queue"] > 0 and moved["batches"] == pytest.approx(moved["queue"]) and moved["queue"] > 0


def test_workers_are_as_many_as_are_there(tmp_path: Path, document_of: Document, asked: tuple[str, ...]) -> None:
    worker = tmp_path / "gpu.json"
    worker.write_text(json.dumps({"function": "http://gpu:1", "service_time": {"intercept": 0.001, "slope": 0.0002}}))
    ask = (*asked, "--policy", "workers", "--slo", "0.2", "--worker", f"{worker}:0.5")
    alone, three = (document_of(*ask, *servers)["policies"]["workers"] for servers in ((), ("--servers", "3")))
    assert alone["mean_servers"] == pytest.approx(1) and three["mean_servers"] == pytest.approx(3)


def test_workers_are_said_to_be_without_the_way_through_the_buffer(tmp_path: Path, exit_of: Run, asked: tuple[str, ...]) -> None:
    worker = tmp_path / "gpu.json"
    worker.write_text(json.dumps({"function": "http://gpu:1", "service_time": {"intercept": 0.001, "slope": 0.0002}}))
    ask = (*asked, "--memory", "1769", "--servers", "1", "--policy", "greedy:8", "--buffer-overhead", "20ms")
    said = "note: greedy:8: the latencies of workers are without the 20 ms of the way through buffer and network"
    assert said in exit_of(*ask, "--worker", f"{worker}:0.5")[2]
    assert said not in exit_of(*ask)[2]  # environments of the function, whose times are behind it
    elastic, held = (PolicyDocument.of(table) for table in (policies.size_or_timeout(4, 0.02), policies.greedy(8, 1)))
    beside = Plan(model="m", function="mlp-1769", policy=elastic, beside=[Beside("http://gpu:1", held)], memory_mb=1769)
    (tmp_path / "beside.json").write_bytes(write(beside))
    _, _, err = exit_of(*asked, "--policy", str(tmp_path / "beside.json"), "--worker", f"{worker}:0.5", "--buffer-overhead", "20ms")
    assert "the latencies of workers are without the 20 ms" in err


def test_times_that_were_moved_to_plan_the_smdps_table_are_said(
    tmp_path: Path, document_of: Document, exit_of: Run, asked: tuple[str, ...]
) -> None:
    def answered(of_8: float) -> tuple[dict[str, str], str]:
        times = {1: 0.006, 4: 0.01, 8: of_8}
        points = [ProfilePoint(1769, b, ServiceTime(seconds), seconds) for b, seconds in times.items()]
        worker = tmp_path / "worker.json"
        worker.write_bytes(write(ServiceProfile(function="http://worker:1", points=points)))
        ask = (*asked, "--worker", f"{worker}:1", "--servers", "1", "--slo", "0.2", "--policy", "smdp", "--policy", "greedy:8")
        return document_of(*ask)["notes"], exit_of(*ask)[2]

    notes, stderr = answered(0.0203)  # 394 requests/s, where batches of 4 are 400
    assert list(notes) == ["smdp"] and "means (service time and overhead) are out of order by their error" in notes["smdp"]
    assert "note: smdp: the profile's means" in stderr
    assert answered(0.0197) == ({}, "")


def test_how_it_went_over_time(tmp_path: Path, document_of: Document, exit_of: Run, asked: tuple[str, ...]) -> None:
    ask = (*asked, "--policy", "no-batching", "--memory", "1769", "--slo", "0.2")
    series = document_of(*ask, "--bins", "10")["policies"]["no-batching"]["series"]
    assert sum(series["arrivals"]) == 5000 and len(series["edges"]) == 11 and len(series["mean_latency"]) == 10
    figure = tmp_path / "figure.svg"
    code, _, stderr = exit_of(*ask, "--plot", str(figure))
    assert code == 0 and "wrote" in stderr and "mean latency, ms" in figure.read_text()
    assert "series" not in document_of(*ask)["policies"]["no-batching"]


def test_what_all_cannot_have_is_left_out_and_said(
    exit_of: Run, asked: tuple[str, ...], document_of: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.optimizer.baselines.names.all_names", lambda: ["no-batching", "early-drop"])
    ask = (*asked, "--memory", "512", "--slo", "0.03")  # a request alone takes 0.024 s
    answer = document_of(*ask, "--policy", "all")
    assert "at least twice the service time of one request" in answer["refused"]["early-drop"]
    code, _, stderr = exit_of(*ask, "--policy", "early-drop")
    assert code == 2 and "at least twice the service time" in stderr


def test_an_slo_out_of_reach_exits_with_one(exit_of: Run, asked: tuple[str, ...]) -> None:
    code, _, stderr = exit_of(*asked, "--policy", "recommended", "--slo", "0.001")
    assert code == 1 and "0.001" in stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--policy", "clever"), "policy: 'clever' is not allowed; allowed: all, control, a file, or one of no-batching"),
        (("--policy", "gredy"), "overflow[:LAG]; did you mean greedy[:B]?"),
        (("--policy", "No_Batching"), "overflow[:LAG]; did you mean no-batching?"),
        (("--policy", "contol"), "overflow[:LAG]; did you mean control?"),
        (("--policy", "Clipper"), "overflow[:LAG]; did you mean aimd?"),
        (("--policy", "nexus"), "overflow[:LAG]; did you mean early-drop?"),
        (("--policy", "proteus"), "overflow[:LAG]; did you mean deadline?"),
        (("--policy", "size-or-timeout:8"), "policy: 'size-or-timeout:8' is not allowed; allowed: size-or-timeout:B,TIMEOUT"),
        (("--policy", "static:many"), "policy: 'static:many' is not allowed; allowed: static:B"),
        (("--policy", "static:2.5", "--servers", "1"), "b: 2.5 is not allowed; allowed: an integer from 1 to 65536"),
        (("--policy", "static:2"), "servers: none was given; needed: their number, as no SLO says what is enough"),
        (("--policy", "deadline"), "slo: none was given; needed: an SLO, by which policy deadline goes"),
        (("--policy", "no-batching:1"), "policy: 'no-batching:1' is not allowed; allowed: no-batching"),
        (("--policy", "/nowhere/policy.json"), "--policy: '/nowhere/policy.json' is not allowed"),
        (("--policy", "greedy:99", "--servers", "1"), "batch_size: 99 is not allowed; allowed: 1 to 8, as the profile measured"),
        (("--policy", "no-batching", "--requests", "0"), "requests: 0 is not allowed; allowed: an integer from 66 to 100000000"),
        (("--policy", "no-batching", "--requests", "1000000000"), "requests: 1000000000 is not allowed"),
        (("--policy", "no-batching", "--bins", "1000000000"), "bins: 1000000000 is not allowed; allowed: an integer from 1 to"),
        (("--policy", "no-batching", "--requests", "20"), "requests: 20 is not allowed; allowed: an integer from 66 to 100000000"),
        (("--policy", "no-batching", "--past", "0.5"), "past: 0.5 is not allowed; allowed: only with --trace"),
        (("--policy", "no-batching", "--speed", "2"), "speed: 2.0 is not allowed; allowed: only with --trace"),
        (("--policy", "no-batching", "--memory", "999"), "memory_mb: 999 is not allowed; allowed: one of the profile's: 512, 1769"),
        (("--policy", "no-batching", "--init", "-1"), "init: -1.0 is not allowed"),
        (("--policy", "no-batching", "--keep-alive", "-1"), "keep_alive: -1.0 is not allowed"),
        (
            ("--policy", "no-batching", "--keep-alive", "5"),
            "'5' is not allowed; allowed: 5min if minutes are meant, 5s if seconds are",
        ),
        (("--policy", "no-batching", "--energy", "1"), "energy: '1' is not allowed; allowed: two numbers"),
        (("--policy", "no-batching", "--energy", "1,-2"), "energy at batch size 1: -1.0 is not allowed; allowed: a number >= 0"),
        (("--policy", "no-batching", "--architecture", "riscv"), "architecture: 'riscv' is not allowed"),
        (("--policy", "no-batching", "--plot", "a.txt"), "plot: 'a.txt' is not allowed"),
        (
            ("--policy", "no-batching", "--servers", "2"),
            "--servers: 2 is not allowed; allowed: only with a file, control, or a policy",
        ),
        (("--policy", "greedy", "--servers", "0"), "servers: 0 is not allowed; allowed: an integer from 1 to 1000000"),
        (("--policy", "no-batching", "--mmpp2", "1,2,3,4"), "exactly one of --arrivals, --poisson and --mmpp2"),
    ],
)
def test_misuse_says_what_is_allowed(options: tuple[str, ...], message: str, exit_of: Run, asked: tuple[str, ...]) -> None:
    memory = () if "--memory" in options else ("--memory", "1769")
    code, _, stderr = exit_of(*asked, *memory, *options)
    assert code == 2 and message in stderr


def test_workers_that_no_policy_takes_are_refused(tmp_path: Path, exit_of: Run, asked: tuple[str, ...]) -> None:
    worker = tmp_path / "gpu.json"
    worker.write_text(json.dumps({"function": "http://gpu:1", "service_time": {"intercept": 0.001, "slope": 0.0002}}))
    code, _, stderr = exit_of(*asked, "--policy", "no-batching", "--policy", "size-or-timeout:4,0.05", "--worker", f"{worker}:0.5")
    assert code == 2 and "--worker: 'gpu:0.5' is not allowed; allowed: only with a policy that workers serve (all" in stderr


def test_arrivals_must_be_told(profile: str, trace: str, exit_of: Run) -> None:
    ask = ("simulate", "--profile", profile, "--policy", "no-batching", "--memory", "512")
    assert "arrivals: none was given; needed: one of --arrivals, --poisson, --mmpp2, --trace and --class" in exit_of(*ask)[2]
    code, _, stderr = exit_of(*ask, "--trace", trace, "--requests", "100")
    assert code == 2 and "requests: 100 is not allowed; allowed: only without --trace" in stderr
    for past, allowed in (
        ("1", "1.0 is not allowed; allowed: a part of the trace, from 0 to less than 1, as 0.5 is half of it"),
        ("50", "50.0 is not allowed; allowed: a part of the trace, from 0 to less than 1"),
        ("-0.1", "-0.1 is not allowed; allowed: a part of the trace, from 0 to less than 1"),
        ("0.999", "0.999 is not allowed; allowed: what leaves at least 66 requests to run, for confidence intervals; it leaves 4"),
    ):
        code, _, stderr = exit_of(*ask, "--trace", trace, "--past", past)
        assert code == 2 and f"past: {allowed}" in stderr


def test_a_fixed_setting_of_a_memory_size_learns_nothing_of_a_trace_and_runs_on_all_of_it(
    document_of: Document, exit_of: Run, profile: str, trace: str, tmp_path: Path
) -> None:
    fixed = [word for name in ("no-batching", "size-or-timeout:4,0.05") for word in ("--policy", name)]
    ask = "simulate", "--trace", trace, "--profile", profile, "--slo", "0.3", "--past", "0", *fixed
    assert document_of(*ask, "--memory", "1769")["n_requests"] == 1200
    code, _, stderr = exit_of(*ask)
    assert code == 2 and "past: 0.0 is not allowed; allowed: more than 0 without --memory MB, as the memory size of no-b" in stderr
    (tmp_path / "one.json").write_bytes(
        write(ServiceProfile(function="f", points=[ProfilePoint(1769, 1, ServiceTime(0.02), 0.02)]))
    )
    assert document_of(*ask[:4], str(tmp_path / "one.json"), *ask[5:7], "--past", "0", *fixed[:2])["n_requests"] == 1200
    code, _, stderr = exit_of(*ask, "--memory", "1769", "--policy", "greedy")
    told = "allowed: more than 0, as greedy is made from the past; not greedy with --servers K"
    assert code == 2 and f"past: 0.0 is not allowed; {told}" in stderr
    on_two = document_of(*ask, "--memory", "1769", "--servers", "2", "--policy", "greedy", "--policy", "static:4")
    assert on_two["n_requests"] == 1200 and {"greedy", "static:4"} < set(on_two["policies"])
    code, _, stderr = exit_of(*ask, "--memory", "1769", "--servers", "2", "--policy", "greedy", "--policy", "smdp")
    assert code == 2 and "more than 0, as smdp is made from the past" in stderr
    code, _, stderr = exit_of(*ask, "--servers", "2", "--policy", "greedy")
    assert code == 2 and "4,0.05, greedy is chosen by the past" in stderr
    code, _, stderr = exit_of(*ask, "--policy", "gredy")
    assert code == 2 and "policy: 'gredy' is not allowed" in stderr and "did you mean greedy[:B]?" in stderr


def test_the_rate_of_a_run_is_that_of_its_arrivals_whatever_backlog_is_left(
    document_of: Document, shown_by: Callable[..., str], profile: str
) -> None:
    ask = "simulate", "--poisson", "90", "--requests", "5000", "--profile", profile, "--memory", "512", "--policy", "no-batching"
    one = document_of(*ask, "--concurrency", "1")
    assert one["arrival_rate"] == pytest.approx(90, abs=4 * 90 / 5000**0.5) and one["planned_rate"] == 90
    assert one["policies"]["no-batching"]["latency"]["p95"]["value"] > 50
    assert f"5000 requests, {one['arrival_rate']:.4g}/s" in shown_by(*ask, "--concurrency", "1")


def test_a_table_that_needs_more_columns_than_the_terminal_has_is_printed_whole(
    exit_of: Run, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    slos = [word for slo in ("p95=0.2", "p99=0.4", "p90=0.1") for word in ("--slo", slo)]
    asked = "simulate", "--poisson", "20", "--requests", "5000", "--profile", profile, "--memory", "1769", *slos
    code, out, _ = exit_of(*asked, "--policy", "no-batching", "--policy", "greedy")
    table = [line for line in out.splitlines() if line.startswith("│")]
    assert code == 0 and "…" not in out and [row.split()[0] for row in table[:2]] == ["│no-batching", "│greedy"], out
    assert len({len(row) for row in table}) == 1 and len(table[0]) > 80


def test_a_plan_by_itself_learns_nothing_of_a_trace_and_runs_on_all_of_it(
    document_of: Document, profile: str, tmp_path: Path
) -> None:
    trace, policy = tmp_path / "trace.csv", tmp_path / "policy.json"
    gaps = np.random.default_rng(1).exponential(0.05, 1999)
    trace.write_text("gap\n" + "\n".join(map(str, gaps.tolist())))
    policy.write_bytes(write(PolicyDocument.of(policies.size_or_timeout(4, 0.05))))
    asked = "simulate", "--trace", str(trace), "--profile", profile, "--memory", "1769", "--slo", "0.2", "--policy", str(policy)
    assert document_of(*asked)["n_requests"] == 2000
    assert document_of(*asked, "--policy", "greedy")["n_requests"] < 1100
    assert document_of(*asked, "--past", "0.9")["n_requests"] < 300
