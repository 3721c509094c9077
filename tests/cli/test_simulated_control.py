"""`sluice simulate --policy control`, as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from tests.cli.conftest import Document, Run


@pytest.fixture
def asked(profile: str) -> tuple[str, ...]:
    return ("simulate", "--poisson", "50", "--profile", profile, "--requests", "10000", "--slo", "0.1")


def test_a_change_of_service_times_is_noticed_and_the_promise_kept(document_of: Document, asked: tuple[str, ...]) -> None:
    found = document_of(*asked, "--policy", "control", "--memory", "1769", "--service-change", "100:1.5")["control"]
    assert "service" in [decision["trigger"]["kind"] for decision in found["decisions"]]
    assert found["violations"][0] < 0.05 and found["n_requests"] == 10_000
    assert found["windows"] == {"seconds": 300.0, "n": 1, "kept": 1}


def test_what_control_costs_has_the_bytes_moved_in_it_as_other_policies_have(
    document_of: Document, profile: str, tmp_path: Path
) -> None:
    moving, points = json.loads(Path(profile).read_text()), tmp_path / "moving.json"
    points.write_text(json.dumps(moving | {"request_bytes": 20_000, "answer_bytes": 1000}))
    asked = "simulate", "--poisson", "50", "--profile", str(points), "--requests", "10000", "--slo", "0.1", "--memory", "1769"
    answer = document_of(*asked, "--policy", "control", "--policy", "size-or-timeout:8,0.05")
    control, (other,) = answer["control"], answer["policies"].values()
    assert control["by_request"] - control["cost_per_request"] == pytest.approx(other["cost"]["moving"])


def test_a_trace_that_is_decided_about_more_than_once_is_told_in_a_document(
    document_of: Document, profile: str, tmp_path: Path
) -> None:
    rng, trace = np.random.default_rng(1), tmp_path / "trace.csv"
    gaps = np.r_[rng.exponential(0.1, 2500), rng.exponential(0.4, 600)]
    trace.write_text("gap\n" + "\n".join(map(str, gaps.tolist())))
    asked = "simulate", "--trace", str(trace), "--past", "0.2", "--profile", profile, "--slo", "0.1", "--memory", "1769"
    found = document_of(*asked, "--policy", "control")["control"]
    assert len(found["decisions"]) > 1 and 1e-8 < found["cost_per_request"] < 1e-6


def test_control_needs_no_past_and_runs_a_whole_trace_where_it_is_told_to(
    document_of: Document, exit_of: Run, profile: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("gap\n" + "\n".join(map(str, np.random.default_rng(1).exponential(0.1, 500).tolist())))
    asked = "simulate", "--trace", str(trace), "--past", "0", "--profile", profile, "--slo", "0.1", "--memory", "1769"
    assert document_of(*asked, "--policy", "control")["control"]["n_requests"] == 501
    code, _, said = exit_of(*asked, "--policy", "control", "--policy", "recommended", "--policy", "headroom")
    assert code == 2 and "past: 0.0 is not allowed; allowed: more than 0, as recommended, headroom is made from the past" in said


def test_the_table_of_fixed_servers_is_tuned_and_nothing_else_serves(document_of: Document, tmp_path: Path) -> None:
    points = [ProfilePoint(1, b, ServiceTime(0.1 + 0.03 * b), 1.0, energy=2.0 + 0.5 * b) for b in (1, 8)]
    path = tmp_path / "gpu.json"
    path.write_bytes(msgspec.json.encode(ServiceProfile(function="http://gpu:8500", points=points, max_batch_size=8)))
    workers = "--worker", f"{path}:0.5", "--servers", "1", "--policy", "control"
    asked = "simulate", "--poisson", "6", "--profile", str(path), "--requests", "3000", "--slo", "1", "--max-batch-size", "8"
    found = document_of(*asked, *workers)["control"]
    considered = [one["name"] for decision in found["decisions"] for one in decision["considered"]]
    assert considered and all("1 × gpu:0.5" in name for name in considered)
    assert any("optimal at" in name for name in considered) and any(decision["changed"] for decision in found["decisions"])
    assert 0 < found["energy_per_request"] < 2.5 and found["violations"][0] < 0.05


def test_control_stands_beside_other_policies(exit_of: Run, asked: tuple[str, ...]) -> None:
    code, out, _ = exit_of(*asked, "--policy", "no-batching", "--policy", "control", "--memory", "1769")
    assert code == 0
    assert (
        "no-batching" in out and "it begins with every load, 1769 MB" in out.replace("\n", " ") and "windows of 300 s kept" in out
    )


def test_windows_are_as_long_as_a_promise_is_to_be_kept_in(document_of: Document, asked: tuple[str, ...]) -> None:
    found = document_of(*asked, "--policy", "control", "--memory", "1769", "--kept-in", "20s")["control"]
    assert found["windows"]["seconds"] == 20.0 and found["windows"]["n"] == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "control", "--service-change", "100"), "--service-change: '100' is not allowed; allowed: AT:FACTOR"),
        (("--policy", "control", "--service-change", "1:0"), "service_change.factor: 0.0"),
        (
            ("--policy", "control", "--service-change", "9:2", "--service-change", "9:3"),
            "--service-change: '9:3' is not allowed; allowed: one change at a time, where another is at 9 s too",
        ),
        (
            ("--policy", "control", "--service-change", "100000:1.5"),
            "--service-change: '100000:1.5' is not allowed; allowed: a change while requests come, which they do for ",
        ),
        (
            ("--policy", "no-batching", "--service-change", "1:2"),
            "--service-change: '1:2' is not allowed; allowed: only with --policy",
        ),
        (("--policy", "no-batching", "--kept-in", "4s"), "--kept-in: 4.0 is not allowed; allowed: only with --policy control"),
        (
            ("--policy", "control", "--servers", "2"),
            "--servers: 2 is not allowed; allowed: of policy control only with the workers that",
        ),
        (("--policy", "control", "--bins", "3"), "--bins: 3 is not allowed; allowed: none with --policy control alone"),
    ],
)
def test_what_control_cannot_do_is_said(exit_of: Run, asked: tuple[str, ...], options: tuple[str, ...], said: str) -> None:
    code, _, err = exit_of(*asked, "--memory", "1769", *options)
    assert code != 0 and said in err


def test_without_a_promise_there_is_nothing_to_go_by(exit_of: Run, profile: str) -> None:
    code, _, err = exit_of("simulate", "--poisson", "5", "--profile", profile, "--memory", "1769", "--policy", "control")
    assert code != 0 and "slo: none was given" in err
