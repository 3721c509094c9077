"""What commands write replaces a file of its own kind, and no other."""

from __future__ import annotations

import codecs
import json
import os
from importlib.resources import files
from pathlib import Path

import msgspec
import pytest
from matplotlib.figure import Figure

from sluice.batching.documents import ArrivalDocument, Plan, PolicyDocument, write
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import no_batching
from sluice.cli.file_kinds import ARRIVALS, DEMO, FIGURE, FLEET, JOURNAL, PAGE, PLAN, POLICY, PROFILE, REPLAYED, kind_of
from sluice.cli.file_kinds import require_replaceable as require
from sluice.optimizer.report.trace_plot import write_figure

from .conftest import Run

POLICY_OF_ONE = PolicyDocument.of(no_batching())
FILES = {
    ARRIVALS: write(ArrivalDocument(model="poisson", arrival_rate=1.0, D0=[[-1.0]], D1=[[1.0]])),
    PLAN: write(Plan(model="m", function="f", policy=POLICY_OF_ONE)),
    POLICY: write(POLICY_OF_ONE),
    JOURNAL: b'{"at":"2026-11-01T10:00:00.000","model":"m","words":"nothing"}\n{"at":"2026-',
    PAGE: b'\n<!DOCTYPE html>\n<html>\n<meta name="generator" content="sluice recommend">',
    FIGURE: b'<?xml version="1.0"?>\n<svg><dc:title>Matplotlib v3',
}
ALL = (ARRIVALS, DEMO, FIGURE, FLEET, JOURNAL, PAGE, PLAN, POLICY, PROFILE, REPLAYED)
WRITTEN = {  # by command line: the only kind that its file may be
    "fit trace.csv --out": (ARRIVALS,),
    "fit trace.csv --plot": (FIGURE,),
    "recommend --poisson 60 --profile p.json --slo 0.2 --out": (PLAN,),
    "recommend --poisson 60 --profile p.json --slo 0.2 --report": (PAGE,),
    "simulate --poisson 60 --profile p.json --memory 1769 --slo 0.2 --policy greedy --plot": (FIGURE,),
    "smdp --rho 0.5 --profile p.json --memory 1769 --out": (POLICY, PLAN),
    "profile mlp --memory 512 --out": (PROFILE,),
    "fleet fleet.yaml --out": (FLEET,),
    "replay trace.csv --url http://127.0.0.1:1/ --out": (REPLAYED,),
    "demo --out": (DEMO,),
    "control --profile p.json --journal": (JOURNAL,),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_known_by_what_is_in_it(kind: str) -> None:
    assert kind_of(FILES[kind]) == kind


@pytest.mark.parametrize("data", [b"", b"time\n0.1\n", b"[1, 2]", b"\xff\xfe", b"[" * 5000, b'{"mine": 1}'])
def test_of_other_files_no_kind_is_known(data: bytes) -> None:
    assert kind_of(data) is None


@pytest.mark.parametrize("line", WRITTEN)
def test_no_command_writes_over_a_file_of_another_kind(line: str, exit_of: Run, tmp_path: Path) -> None:
    for kind, data in {**FILES, "something else": b"time\n0.1\n0.2\n"}.items():
        if kind in WRITTEN[line]:
            continue
        file = tmp_path / "there"
        file.write_bytes(data)
        code, out, err = exit_of(*line.split(), str(file))
        allowed = f"a new file, or {' or '.join(WRITTEN[line])} to replace; this is {kind}"
        said = f"'{file}' is not allowed; allowed: {allowed}, to be removed"
        assert (code, out) == (2, "") and f"{line.split()[-1]}: {said}" in err, err
        assert file.read_bytes() == data


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_the_same_kind_is_replaced_and_so_is_an_empty_one(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "there"
    for data in (FILES[kind], codecs.BOM_UTF8 + FILES[kind], b"", b"\n"):
        file.write_bytes(data)
        require(str(file), "--out", kind)
    require(str(tmp_path / "new" / "file"), "--out", kind)
    require(os.devnull, "--out", kind)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--out: .* is not allowed; allowed: a file; this is a folder"):
        require(str(tmp_path), "--out", PLAN)


def test_a_profile_stays_where_a_plan_would_be_written_over_it(exit_of: Run, profile: str) -> None:
    before = Path(profile).read_bytes()
    code, _, err = exit_of("recommend", "--poisson", "60", "--profile", profile, "--slo", "0.2", "--out", profile)
    assert code == 2 and f"or {PLAN} to replace; this is {PROFILE}" in err and Path(profile).read_bytes() == before


def test_what_the_profile_command_writes_unless_told_is_not_written_over_something_else(
    exit_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("profile.json").write_text('{"mine": 1}')
    code, _, err = exit_of("profile", "mlp", "--memory", "512", "--batch-size", "1", "--payload", __file__, "--yes")
    assert (
        code == 2 and "--out: 'profile.json' is not allowed" in err and json.loads(Path("profile.json").read_text()) == {"mine": 1}
    )


def test_a_plan_that_is_a_profile_is_refused_by_what_it_is(exit_of: Run, profile: str) -> None:
    code, _, err = exit_of("plans", "push", profile)
    assert code == 2 and f"a plan, as `sluice recommend --out` writes it; this is {PROFILE}" in err


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_a_figure_and_a_page_are_known_as_they_are_written_and_those_of_others_are_not(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"drawn.{suffix}"
    write_figure(Figure(), path)
    drawn = path.read_bytes()
    assert kind_of(drawn) == FIGURE and kind_of(drawn.replace(b"Matplotlib", b"Inkscape")) is None
    page = files("sluice.optimizer.report").joinpath("template.html").read_bytes()
    page = page[page.index(b"<!DOCTYPE") :]
    assert kind_of(page) == PAGE and kind_of(page.replace(b"sluice recommend", b"another")) is None


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (REPLAYED, {"summary": {}}),
        (FLEET, {"placement": {}}),
        (DEMO, {"break_even_arrival_rate": None}),
    ],
)
def test_an_answer_is_known_by_its_fields(kind: str, fields: dict[str, object]) -> None:
    assert kind_of(msgspec.json.encode(fields)) == kind
