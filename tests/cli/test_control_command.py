"""`sluice control`: what it needs, and the journal read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime, write
from sluice.batching.errors import InvalidInput
from sluice.cli import control
from sluice.cli.arrival_options import WAY
from sluice.optimizer.tuning.setup import TuningSettings
from tests.cli.conftest import Run

LAW = LinearServiceTime(0.01, 0.001)


def test_explain_reads_a_journal_as_sentences_and_leaves_out_what_is_none(tmp_path: Path, exit_of: Run) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"at": "2026-11-23T02:00:00", "model": "m", "words": "half the hold"}\n[]\n{"at": "cut off')
    assert exit_of("control", "--explain", str(path)) == (0, "2026-11-23T02:00:00  m: half the hold\n", "")
    code, _, said = exit_of("control", "--explain", str(tmp_path / "none"))
    assert (code, "sluice control --journal" in said) == (2, True)


def test_an_empty_journal_has_nothing_to_explain(tmp_path: Path, exit_of: Run) -> None:
    path = tmp_path / "journal.jsonl"
    path.touch()
    assert exit_of("control", "--explain", str(path)) == (0, "", "")


def test_explain_tells_what_a_request_will_cost_by_rate_where_an_entry_has_it(tmp_path: Path, exit_of: Run) -> None:
    path = tmp_path / "journal.jsonl"
    known = '{"at": "2026-11-23T02:00:00", "model": "m", "words": "half the hold", "cost_by_rate": '
    path.write_text(f"{known}[[0.5, 0.4, 0.3, 0.5], [1, 0.25, 0.2, 0.3]]}}\n{known}[[0.5, 0.4]]}}\n{known}7}}\n")
    code, said, _ = exit_of("control", "--explain", str(path))
    first, cost, *others = said.splitlines()
    assert code == 0 and first == "2026-11-23T02:00:00  m: half the hold"
    assert cost == "    USD per million requests (in 95 % of windows): 0.4 (0.3 to 0.5) at 0.5/s, 0.25 (0.2 to 0.3) at 1/s"
    assert others == [first, first]


def test_what_it_follows_and_where_is_asked_for(exit_of: Run, tmp_path: Path) -> None:
    for arguments, named in (
        (["--profile", str(tmp_path / "none.json")], "--profile"),
        (["--fleet", "fleet.yaml", "--profile", "profile.json"], "--profile"),
        (["--period", "0"], "period"),
        (["--window", "119s"], "--window: 119.0 is not allowed; allowed: from 2min to 12h"),
        (["--window", "13h"], "--window: 46800.0 is not allowed; allowed: from 2min to 12h"),
        (["--window", "30"], "--window"),
        (["--fleet", "fleet.yaml", "--window", "30min"], "--window: 1800.0 is not allowed; allowed: none beside --fleet"),
        (["--kept-in", "0.5"], "--kept-in: 0.5 is not allowed; allowed: from 1s to 1h"),
        (["--kept-in", "2h"], "--kept-in: 7200.0 is not allowed; allowed: from 1s to 1h"),
        (["--fleet", "fleet.yaml", "--kept-in", "4s"], "--kept-in: 4.0 is not allowed; allowed: none beside --fleet"),
        (["--slo", "fast"], "slo"),
        (["--declared", "s3://plans"], "--declared: 's3://plans' is not allowed; allowed: file:PATH or ssm:/path/"),
    ):
        code, _, said = exit_of("control", *arguments)
        assert (code, named in said) == (2, True)
    for arguments, named in ((["--redis-url", "memory://"], "--redis-url"), (["--lease", "0.1"], "--lease")):
        code, _, said = exit_of("control", "--fleet", str(tmp_path / "fleet.yaml"), *arguments)
        assert (code, named in said) == (2, True)


def test_a_file_that_declares_no_plan_is_named_at_once(exit_of: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0.1\n0.2\n")
    code, _, said = exit_of("control", "--declared", f"file:{trace}", "--redis-url", "redis://127.0.0.1:1/0")
    assert code == 2
    allowed = "a plan, as `sluice recommend --out` writes it; this is no JSON document"
    assert said == f"sluice: --declared: '{trace}' is not allowed; allowed: {allowed}"


def test_a_profile_whose_way_nobody_measured_is_planned_with_behind_the_way_that_all_commands_take(
    exit_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, float | None] = {}

    def setups(profiles: dict[str, ServiceProfile], *_: object) -> None:
        told.update({name: profile.way and profile.way.mean for name, profile in profiles.items()})
        raise InvalidInput("this", "far", "what is looked at")

    monkeypatch.setattr(control, "ModelSetups", setups)
    points = [ProfilePoint(1769, 1, ServiceTime(0.01), 0.01)]
    measured = {"way": ServiceTime(0.002)}
    for name, what in (("a", {"points": points}), ("b", {"points": points} | measured), ("c", {"service_time": LAW})):
        (tmp_path / f"{name}.json").write_bytes(write(ServiceProfile(function=name, **what)))
    assert "this" in exit_of("control", "--profile", str(tmp_path), "--redis-url", "redis://127.0.0.1:1/0")[2]
    assert told == {"a": WAY, "b": 0.002, "c": None}


@pytest.mark.parametrize(
    ("told", "asked_for"),
    [
        ((), {}),
        (("--window", "2min"), {"memory": 120.0}),
        (("--window", "12h"), {"memory": 43_200.0}),
        (("--kept-in", "4s"), {"kept_in": 4.0}),
    ],
)
def test_plans_are_rehearsed_on_as_much_of_the_past_and_for_as_much_of_the_future_as_is_asked_for(
    told: tuple[str, ...], asked_for: dict[str, float], exit_of: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[TuningSettings] = []

    def setups(*arguments: object) -> None:
        found.extend(each for each in arguments if isinstance(each, TuningSettings))
        raise InvalidInput("this", "far", "what is looked at")

    monkeypatch.setattr(control, "ModelSetups", setups)
    assert "this" in exit_of("control", *told, "--redis-url", "redis://127.0.0.1:1/0")[2]
    assert found == [TuningSettings(**asked_for)]


def test_workers_are_offered_to_the_model_of_their_profile_as_many_as_there_are(
    exit_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    def setups(*arguments: object) -> None:
        told.extend(arguments[-2:])
        raise InvalidInput("this", "far", "what is looked at")

    monkeypatch.setattr(control, "ModelSetups", setups)
    path = tmp_path / "worker.json"
    path.write_bytes(write(ServiceProfile(function="http://w:8500", model="m", service_time=LAW, max_batch_size=8)))
    asked = ["control", "--worker", f"{path}:0.5", "--redis-url", "redis://127.0.0.1:1/0"]
    assert "--servers: none was given; needed: how many there are of each --worker" in exit_of(*asked)[2]
    assert "this" in exit_of(*asked, "--servers", "3")[2]
    fixed, offers = told
    assert fixed is None and isinstance(offers, dict)
    [offer] = offers["m"]
    assert (offer.function, offer.price_per_hour, offer.max_workers) == ("http://w:8500", 0.5, 3)
