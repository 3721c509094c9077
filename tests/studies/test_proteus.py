"""The study of Proteus: its readers, and the whole of it on a fleet and a demand made up here in the published formats."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from studies.proteus.__main__ import main
from studies.proteus.bound import bound
from studies.proteus.computation import Options, compute
from studies.proteus.drawings import draw
from studies.proteus.drawn import FRESH, HELD_OUT, drawn_again
from studies.proteus.page import page
from studies.proteus.readers import Demand, profile_of, published_fleet, read_demand, read_profiles, unprofiled
from studies.proteus.results import Run, Study, read, write
from studies.proteus.systems import SYSTEMS, additive_increase, deadline_in_sizes
from tests.studies.published import assert_published, shown_in

pytestmark = pytest.mark.full

ACCELERATORS = {"onnxruntime_cpu": 4.0, "onnxruntime_gpu_ampere": 1.0, "onnxruntime_gpu_pascal": 2.0}
VARIANTS = {"apple": {"apple/small": 70.0, "apple-large": 100.0}, "plum": {"plum-small": 80.0, "plum-large": 100.0}}
MILLISECONDS = {"apple/small": 4.0, "apple-large": 20.0, "plum-small": 3.0, "plum-large": 16.0}
N_REQUESTS = 600
HEADER = "Model,Accel,Trials,batchsize,50th_pct,90th_pct,avg_latency(ms),Min,Max,Accuracy,Normalized_Accuracy"


def written(folder: Path) -> Path:
    """A folder in the published formats: two families, of which one variant is too slow for CPUs and was not profiled there."""
    rows = [HEADER]
    for accelerator, slowness in ACCELERATORS.items():
        for variant, milliseconds in MILLISECONDS.items():
            if (variant, accelerator) != ("plum-large", "onnxruntime_cpu"):
                for size in (1, 2, 4):
                    median = milliseconds * slowness * (0.5 + 0.5 * size)
                    rows.append(f"{variant},{accelerator},,{size},{median},,,,,1,1")
    rows.append("other,tensorrt,,1,1,,,,,1,1")
    (folder / "profile.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "model_variants").mkdir(parents=True)
    for family, accuracies in VARIANTS.items():
        lines = [f"{variant},{accuracy}" for variant, accuracy in accuracies.items()]
        (folder / "model_variants" / family).write_text("\n".join(lines), encoding="utf-8")
    rng = np.random.default_rng(1)
    for experiment, gaps in (("day", rng.exponential(8.0, N_REQUESTS)), ("zipf_flat_uniform", np.full(300, 15.0))):
        times = np.cumsum(gaps).astype(int)
        for number, family in enumerate(VARIANTS):
            text = "".join(f"{time},1,120\n" for time in times[number::2])
            place = folder / "traces" / experiment / "120"
            place.mkdir(parents=True, exist_ok=True)
            if number:
                (place / f"{family}.txt").write_text(text, encoding="utf-8")
            else:
                (place / f"{family}.txt.gz").write_bytes(gzip.compress(text.encode()))
    deadlines = {"1x": {"apple": 60, "plum": 50}, "2x": {"apple": 120, "plum": 100}, "30": {"apple": 6, "plum": 6}}
    (folder / "deadlines_ms.json").write_text(json.dumps(deadlines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("published"))


# --- readers


def test_a_trace_is_read_in_seconds_packed_or_not(folder: Path) -> None:
    demand = read_demand(folder, "day", "120")
    assert list(demand.arrivals) == ["apple", "plum"]
    assert [len(times) for times in demand.arrivals.values()] == [N_REQUESTS // 2] * 2
    assert demand.deadlines == {"apple": 0.12, "plum": 0.12}
    assert demand.duration == pytest.approx(4.8, rel=0.1)


def test_of_two_rows_for_one_setting_the_last_counts(folder: Path, tmp_path: Path) -> None:
    text = (folder / "profile.csv").read_text(encoding="utf-8") + "apple-large,onnxruntime_cpu,,2,77,,,,,1,1\n"
    (tmp_path / "profile.csv").write_text(text, encoding="utf-8")
    profiles = read_profiles(tmp_path / "profile.csv")
    assert profiles["CPU", "apple-large"] == {1: 0.08, 2: pytest.approx(0.077), 4: 0.2}


def test_times_between_profiled_sizes_are_interpolated_and_below_the_least_those_of_the_least() -> None:
    profile = profile_of({2: 0.02, 4: 0.04, 8: 0.05}, (2, 4))
    assert profile.measured == (2, 4)
    assert profile.service.mean_response == pytest.approx([0.02, 0.02, 0.03, 0.04])


def test_a_fleet_has_what_was_profiled_and_cannot_run_what_was_not(folder: Path) -> None:
    fleet = published_fleet(folder, {"apple": 0.12, "plum": 0.12}, {"CPU": 2, "AMPERE": 1})
    assert fleet.family_names == ("apple", "plum")
    assert [variant.accuracy for variant in fleet.variants] == [70, 100, 80, 100]
    throughput = fleet.problem("largest").throughput
    assert throughput[0, 3] == 0  # not profiled
    assert throughput[0, 1] == 0  # 80 ms are more than half the deadline
    assert throughput[1] == pytest.approx([400, 4 / 0.05, 4 / 0.0075, 4 / 0.04])


def test_variants_without_a_profile_are_left_out_and_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "published") if (tmp_path / "published").mkdir() is None else tmp_path
    with (folder / "model_variants" / "plum").open("a", encoding="utf-8") as file:
        file.write("\nplum-huge,99\n")
    assert unprofiled(folder, ["plum"]) == ["plum: plum-huge"]
    assert len(published_fleet(folder, {"plum": 0.12}).variants) == 2


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("model_variants/plum", "grape,100", "family plum.*a variant with a row in profile.csv"),
        ("model_variants/plum", "plum-large,-3", "model_variants/plum, line 1.*0 to 100 %"),
        ("model_variants/plum", "plum-large", "model_variants/plum, line 1.*variant,accuracy"),
        ("profile.csv", "Model,Accel\n", "profile.csv.*a column batchsize"),
        ("profile.csv", HEADER + "\nplum-large,onnxruntime_cpu,,1,quick,,,,,1,1\n", "line 2: plum-large.*a number"),
        ("profile.csv", HEADER + "\nplum-large,onnxruntime_cpu,,1,-1,,,,,1,1\n", "line 2: plum-large.*milliseconds > 0"),
        ("traces/day/120/plum.txt", "0,1\n", "plum.txt.*three numbers a line"),
        ("traces/day/120/plum.txt", "5,1,120\n2,1,120\n", "plum.txt.*ascending"),
        ("traces/day/120/pear.txt", "5,1,120\n", "family: 'pear'.*one with a file in model_variants: apple, plum"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    folder = written(tmp_path)
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=says):
        published_fleet(folder, read_demand(folder, "day", "120").deadlines)


def test_an_experiment_that_is_not_there_is_refused_with_those_that_are(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="night/120.*one of day/120, zipf_flat_uniform/120"):
        read_demand(folder, "night", "120")


# --- tables


def test_proteus_takes_profiled_sizes_alone_and_waits_for_the_next_as_long_as_it_would_be_in_time() -> None:
    table = deadline_in_sizes(0.1, np.array([0.01, 0.02, 0.03, 0.04]), 4, (1, 2, 4))
    assert table.take == (0, 1, 2, 2, 4)
    assert table.hold == (np.inf, pytest.approx(0.08), pytest.approx(0.06), pytest.approx(0.06), 0.0)
    assert table.drop_after == pytest.approx(0.09)


def test_clippers_limit_grows_by_one_up_to_what_was_profiled_and_shrinks_by_a_tenth() -> None:
    found = additive_increase(0.1, np.full(12, 0.05), 4, (1, 2, 4))
    assert [table.max_batch_size for table in found.tables] == list(range(1, 13))
    assert found.adaptation.latency == 0.1
    assert (found.adaptation.up + 1).tolist() == [*range(2, 13), 12]
    assert (found.adaptation.down + 1).tolist() == [1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10]


# --- the page in docs/


def test_the_page_in_docs_is_made_of_what_is_kept() -> None:
    kept = read()
    assert_published("proteus", page(kept), draw(kept), 150_000)


# --- the whole, on what was made up


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    """All parts, each as small as can be."""
    small = Options(
        "day",
        "120",
        [{"CPU": 1, "AMPERE": 1}],
        headrooms=(1.2,),
        seeds=(1,),
        guesses=(1.0,),
        fresh=FRESH[1:3],
        held_out=HELD_OUT[1:2],
        fresh_seconds=10.0,
        stressed=((1.1,),),
        load_times=(0.0,),
        burst=(10.0, 20.0, 30.0, 4.0),
        loads=(0.5,),
        requests=500,
    )
    return compute(folder, small)


def run_of(study: Study, system: str) -> Run:
    """A run of the main comparison."""
    run = study.run("systems", "2 devices", system)
    assert run is not None
    return run


@pytest.mark.proof
def test_the_page_and_its_figures_are_made_of_what_is_kept(study: Study, tmp_path: Path) -> None:
    write(study, tmp_path)
    kept = read(tmp_path)
    text = page(kept)
    assert sorted(shown_in(text)) == sorted(draw(kept))
    write(kept, tmp_path)
    assert page(read(tmp_path)) == text


@pytest.mark.proof
def test_every_system_is_counted_over_all_requests_and_none_passes_the_bound(study: Study) -> None:
    limit = run_of(study, "bound")
    for system in SYSTEMS:
        run = run_of(study, system)
        assert run.requests == N_REQUESTS
        assert run.violations >= limit.violations - 1e-6
        assert run.unanswered <= run.violations
        if run.violations <= limit.violations + 1e-6:
            assert run.accuracy <= limit.accuracy + 1e-6
        windows = study.series("2 devices", system)
        missed = sum(window.violations * window.demand for window in windows) / sum(window.demand for window in windows)
        assert run.violations == pytest.approx(missed, abs=1e-5)


def test_the_bound_lets_a_device_change_variants_within_a_window(folder: Path) -> None:
    """Each family comes for half of a window, at most of what the one device serves of it; no placement could serve both."""
    apples = np.arange(0.0, 20.0, 0.004)
    arrivals = {"apple": apples[apples % 10 < 5], "plum": apples[apples % 10 >= 5]}
    fleet = published_fleet(folder, {"apple": 0.12, "plum": 0.12}, {"AMPERE": 1})
    windows = list(bound(fleet, Demand(arrivals, {"apple": 0.12, "plum": 0.12}), 10.0))
    assert [window.violations for window in windows] == [0.0, 0.0]
    assert all(75.0 < window.accuracy < 100.0 for window in windows)


@pytest.mark.proof
def test_what_hangs_on_the_machine_is_kept_apart_from_the_runs(study: Study, tmp_path: Path) -> None:
    """The planners' seconds are in the facts alone, under ``measured``."""
    assert study.facts.measured.decisions["ours, 2 devices"][1] > 0
    assert "2 devices" in study.facts.measured.real_time
    write(study, tmp_path)
    assert "seconds" not in (tmp_path / "proteus-runs.csv").read_text(encoding="utf-8").partition("\n")[0]


def test_demand_drawn_again_keeps_the_counts_of_every_second(folder: Path) -> None:
    demand = read_demand(folder, "day", "120")
    for factor in (1.0, 3.5):
        again = drawn_again(demand, 7, factor)
        for name, times in demand.arrivals.items():
            counts, drawn = (np.bincount(moments.astype(int), minlength=6) for moments in (times, again.arrivals[name]))
            assert np.abs(drawn - factor * counts).max() < 1
            assert (np.diff(again.arrivals[name]) >= 0).all()


@pytest.mark.proof
def test_a_family_that_no_device_serves_in_time_is_all_violations(study: Study) -> None:
    for run in study.of("deadlines", "30"):
        assert run.violations >= 0.5


def test_the_study_says_what_it_needs_without_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path)])
    assert ended.value.code == 2
    assert "needs the folder of the published data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("{out}",), "a folder with profile.csv, model_variants/ and traces/ is needed"),
        (("{folder}", "--experiment", "night", "--out", "{out}"), "night/300"),
        (("{folder}", "--devices", "CPU:3"), "TYPE=COUNT"),
    ],
)
def test_the_study_names_what_is_wrong_with_a_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    given = [argument.format(folder=folder, out=tmp_path) for argument in arguments]
    with pytest.raises(SystemExit) as ended:
        main(given)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.proof
def test_quick_prints_the_comparison_and_writes_where_it_is_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ["--quick", "--experiment", "day", "--slo", "120", "--devices", "CPU=1,AMPERE=1"]
    main([str(folder), *chosen, "--out", str(tmp_path)])
    assert "| Clipper-HA |" in capsys.readouterr().out
    text = (tmp_path / "proteus.md").read_text(encoding="utf-8")
    (tmp_path / "proteus.md").unlink()
    main(["--out", str(tmp_path)])
    assert (tmp_path / "proteus.md").read_text(encoding="utf-8") == text
    assert all((tmp_path / "figures" / figure).stat().st_size > 0 for figure in shown_in(text))
