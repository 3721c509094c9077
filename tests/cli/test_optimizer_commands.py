"""`sluice fit`, `predict` and `recommend` as their users meet them: documents, tables, exit codes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from batching.documents import ArrivalDocument, LinearServiceTime, Plan, ProfilePoint, ServiceProfile, ServiceTime, read, write
from cli.main import main, sluice


@pytest.fixture
def profile(tmp_path: Path) -> str:
    points = [
        ProfilePoint(m, b, ServiceTime((0.006 + 0.001 * b) * 1769 / m), (0.006 + 0.001 * b) * 1769 / m)
        for m in (512, 1769)
        for b in (1, 4, 8)
    ]
    path = tmp_path / "profile.json"
    path.write_bytes(write(ServiceProfile(function="mlp-{memory_mb}", points=points)))
    return str(path)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    gaps = np.random.default_rng(0).exponential(0.01, 2000)
    path = tmp_path / "trace.csv"
    path.write_text("gap\n" + "\n".join(map(str, gaps)))
    return str(path)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(sluice, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def exit_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["sluice", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    streams = capsys.readouterr()
    return int(caught.value.code or 0), streams.out, streams.err


def test_fit_then_recommend_writes_a_plan_the_buffer_can_read(trace: str, profile: str, tmp_path: Path) -> None:
    arrivals, plan = str(tmp_path / "arrivals.json"), str(tmp_path / "plan.json")
    fitted = read(ArrivalDocument, run("fit", trace, "--model", "poisson", "--out", arrivals, "--json"))
    assert fitted.arrival_rate == pytest.approx(100, rel=0.1)
    assert read(ArrivalDocument, Path(arrivals).read_bytes()) == fitted
    answer = json.loads(
        run("recommend", "--arrivals", arrivals, "--profile", profile, "--slo", "0.1", "--model", "mlp", "--out", plan, "--json")
    )
    written = read(Plan, Path(plan).read_bytes())
    assert written.model == "mlp" and written.function == f"mlp-{written.memory_mb}"
    assert answer["plan"]["policy"]["parameters"]["batch_size"] == answer["best"]["batch_size"]
    assert answer["best"]["cost"]["per_request"] < answer["no_batching"]["cost"]["per_request"]


def test_documents_are_written_into_a_directory_that_may_be_new(trace: str, profile: str, tmp_path: Path) -> None:
    arrivals, plan = tmp_path / "fitted" / "arrivals.json", tmp_path / "plans" / "today" / "mlp.json"
    run("fit", trace, "--model", "poisson", "--out", str(arrivals), "--json")
    run("recommend", "--arrivals", str(arrivals), "--profile", profile, "--slo", "0.1", "--out", str(plan), "--json")
    assert read(Plan, plan.read_bytes()).memory_mb


def test_a_path_that_cannot_be_written_exits_2(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    below_a_file = f"{trace}/arrivals.json"
    code, _, err = exit_of(monkeypatch, capsys, "fit", trace, "--model", "poisson", "--out", below_a_file)
    assert code == 2 and "is not allowed; allowed: a writable path" in " ".join(err.split())


def test_fit_says_what_it_took_the_trace_for(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "read 2001 arrivals as inter-arrival times in s (by the column's name, gap)"
    assumed = CliRunner().invoke(sluice, ["fit", trace, "--model", "poisson", "--json"], catch_exceptions=False)
    assert said in assumed.stderr and json.loads(assumed.stdout)
    asked = CliRunner().invoke(sluice, ["fit", trace, "--model", "poisson", "--kind", "interarrivals"], catch_exceptions=False)
    assert "arrivals as" not in asked.stderr
    shuffled = tmp_path / "shuffled.csv"
    shuffled.write_text("\n".join(map(str, np.random.default_rng(0).permutation(300))))
    code, out, err = exit_of(monkeypatch, capsys, "fit", str(shuffled))
    assert code == 2 and out == "" and "timestamps or interarrivals (--kind)" in err


def test_the_tables_show_what_people_need(trace: str, profile: str) -> None:
    assert "arrival rate" in run("fit", trace, "--model", "mmpp2")
    shown = run("recommend", "--poisson", "100", "--profile", profile, "--slo", "0.1")
    assert "recommended" in shown and "no batching" in shown and "USD" in shown and "per month" in shown
    shown = run("predict", "--mmpp2", "100,10,1,2", "--profile", profile, "--memory", "1769", "-b", "4", "-t", "0.05")
    assert "latency p95" in shown and "mean batch size" in shown


@pytest.mark.parametrize("method", ["exact", "batch-paper"])
def test_predict_prints_one_document(profile: str, method: str) -> None:
    answer = json.loads(
        run(
            *("predict", "--poisson", "100", "--profile", profile, "--memory", "1769", "-b", "4", "-t", "0.05"),
            *("--percentile", "90", "--percentile", "99.9", "--method", method, "--json"),
        )
    )
    assert list(answer["latency"]) == ["p90", "p99.9"]
    assert sum(answer["batch_size_pmf"]) == pytest.approx(1) and answer["cdf"][-1][1] == pytest.approx(1)


def test_a_percentile_of_100_is_misuse(profile: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = exit_of(
        monkeypatch, capsys, *("recommend", "--poisson", "9", "--profile", profile, "--slo", "0.1", "--percentile", "100")
    )
    assert code == 2 and "slo.percentile: 100.0 is not allowed" in err


def test_an_infeasible_slo_exits_1_with_the_best_on_stdout(
    profile: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = exit_of(monkeypatch, capsys, "recommend", "--poisson", "9", "--profile", profile, "--slo", "0.001", "--json")
    assert code == 1 and "the best reachable is 0.007 s at 1769 MB" in err
    assert '"memory_mb": 1769' in out and '"latency": 0.007' in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["predict", "-b", "4", "-t", "0.1", "--memory", "1024", "--poisson", "9"],
            "memory_mb: 1024 is not allowed; allowed: one of the profile's",
        ),
        (["predict", "-b", "64", "-t", "0.1", "--memory", "512", "--poisson", "9"], "batch_size: 64"),
        (["predict", "-b", "4", "-t", "-1", "--memory", "512", "--poisson", "9"], "timeout: -1.0"),
        (["predict", "-b", "4", "-t", "0.1", "--memory", "512", "--poisson", "0"], "arrival_rate: 0.0"),
        (
            ["predict", "-b", "4", "-t", "0.1", "--memory", "512", "--mmpp2", "1,2,3"],
            "mmpp2: '1,2,3' is not allowed; allowed: four numbers",
        ),
        (["predict", "-b", "4", "-t", "0.1", "--memory", "512"], "exactly one of --arrivals, --poisson and --mmpp2"),
        (["recommend", "--poisson", "9", "--slo", "0"], "slo.latency: 0.0"),
        (["recommend", "--poisson", "9", "--slo", "1", "--prices", "/nowhere.json"], "file: '/nowhere.json'"),
    ],
)
def test_misuse_exits_2_and_names_the_field(
    arguments: list[str],
    message: str,
    profile: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = exit_of(monkeypatch, capsys, *arguments, "--profile", profile)
    assert code == 2 and message in err


def test_a_bad_trace_exits_2_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("gap\n" + "0.5\n" * 200 + "oops\n")
    code, _, err = exit_of(monkeypatch, capsys, "fit", str(path))
    assert code == 2 and "bad.csv, line 202: 'oops' is not allowed" in err


def test_a_linear_profile_is_recommended_at_a_stated_memory(tmp_path: Path) -> None:
    path = tmp_path / "linear.json"
    path.write_bytes(write(ServiceProfile(function="f", service_time=LinearServiceTime(0.001, 0.0003), max_batch_size=16)))
    answer = json.loads(run("recommend", "--poisson", "100", "--profile", str(path), "--slo", "0.05", "--memory", "1024", "--json"))
    assert answer["plan"]["memory_mb"] == 1024
