"""Traces: every format, every thing that can be wrong in one, statistics, and what is made of counts."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.traces.trace import Trace, read_sizes, read_trace

EXCERPT = Path(__file__).parents[2] / "examples/traces/azure_llm_code_excerpt.csv.gz"


def test_the_excerpt_is_read_to_its_last_digit() -> None:
    trace = read_trace(EXCERPT)
    assert len(trace) == 3240
    assert trace.arrival_rate == pytest.approx(3.61, abs=0.01)
    first = gzip.decompress(EXCERPT.read_bytes()).decode().split()[1:5]
    assert first[0] == "2023-11-16"
    assert trace.interarrivals[0] == pytest.approx(float(first[3][6:]) - float(first[1][6:]), abs=1e-9)


def write_trace(folder: Path, lines: list[str], name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_timestamps_gaps_units_and_columns_are_one_trace(tmp_path: Path) -> None:
    gaps = np.random.default_rng(0).integers(1, 500, 150)
    times = np.concatenate([[0], np.cumsum(gaps)])
    by_time = read_trace(write_trace(tmp_path, ["id,arrival_ms", *(f"x,{t}" for t in times)]), column="arrival_ms", unit="ms")
    by_gap = read_trace(write_trace(tmp_path, ["interarrival_s", *(f"{g / 1000}" for g in gaps)]))
    assert by_time.interarrivals == pytest.approx(by_gap.interarrivals)
    statistics = by_time.statistics()
    assert statistics.arrival_rate == pytest.approx(1000 / gaps.mean())
    assert statistics.scv == pytest.approx(gaps.var() / gaps.mean() ** 2)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["t", *map(str, range(150)), "soon"], {}, "trace.csv, line 152: 'soon' is not allowed; allowed: a number"),
        (["gap", *["1.5"] * 150, "-2.0"], {}, "trace.csv, line 152: '-2.0' is not allowed; allowed: an inter-arrival time >= 0"),
        (
            ["t", *map(str, range(150)), "7"],
            {},
            r"line 152: '7' is not allowed; allowed: a time not before the one above it \(149\): sort the file by it",
        ),
        (["t", *map(str, range(50))], {}, "arrivals: 50 is not allowed; allowed: at least 100"),
        (["t", *["3"] * 150], {}, "times: 'all equal' is not allowed"),
        (["t", *map(str, range(150))], {"column": "when"}, "column: 'when' is not allowed; allowed: one of the columns of .*: t"),
        (["t", *map(str, range(150))], {"unit": "h"}, "unit: 'h' is not allowed; allowed: one of s, ms, us, ns"),
        (
            ["t", *(str(1_700_000_000_000 + i) for i in range(150))],
            {},
            r"unit: 's' is not allowed; allowed: a smaller one for times such as 1\.7e\+12: --unit ms",
        ),
        (["2023-11-16 18:17:03.5"] * 120, {"unit": "ms"}, "unit: 'ms' is not allowed; allowed: none for"),
        (["t", *map(str, range(150))], {"kind": "gaps"}, "kind: 'gaps' is not allowed; allowed: one of auto, timestamps,"),
        (
            ["t", *map(str, range(150))],
            {"kind": "timestamps", "bin_width": 1.0},
            "bin: 1.0 is not allowed; allowed: none but for counts",
        ),
        (["requests", *map(str, range(150))], {}, "kind: 'auto' is not allowed; allowed: counts --bin SECONDS, or else"),
        (["t", *["1"] * 150, "1_0"], {}, "line 152: '1_0' is not allowed; allowed: a number"),
        (["t,id", *["1,x"] * 150, "1"], {"column": "id"}, "line 152: '1' is not allowed; allowed: at least 2 columns"),
        (
            ["time", "0", "0,007215", *(f"{i},5" for i in range(150))],
            {},
            "line 3: '0,007215' is not allowed; allowed: 1 cell, as the header has, where this has 2: .* with decimal points",
        ),
        (["time;size", *(f"{i},5;7" for i in range(150)), "1.200,5;7"], {}, "152: '1.200,5' is not allowed; allowed: a number of"),
        (
            ["time;size", *(f"{i};7" for i in range(150)), "150,5"],
            {"column": "size"},
            "line 152: '150,5' is not allowed; allowed: at least 2 columns",
        ),
        (["0", *(f"{i},5" for i in range(150))], {}, "line 2: '0,5' is not allowed; allowed: 1 cell, as the first line has"),
        (
            [f"{i // 9},0{i}" for i in range(150)],
            {},
            "line 1: '0,00' is not allowed; allowed: columns that commas part and numbers",
        ),
        (
            [f"2024-03-01 12:00:{i // 9:02},{i:03}" for i in range(150)],
            {},
            "line 1: '2024-03-01 12:00:00,000' is not allowed; allowed: columns that commas part and numbers with decimal points",
        ),
        (["t", *["1"] * 150, "x" * 200_000], {}, r"line 15\d: '' is not allowed; allowed: CSV .field larger than field limit"),
        ([], {}, "arrivals: 0 is not allowed"),
        (["2023-11-16 18:17:03.5"] * 120 + ["yesterday"], {}, "line 121: 'yesterday' is not allowed; allowed: an ISO 8601 time"),
        (["t", *["nan"] * 120], {}, "line 2: 'nan' is not allowed; allowed: a finite number"),
        (["t", *map(str, range(-5, 150))], {}, "line 2: '-5' is not allowed; allowed: a time >= 0"),
        ([*map(str, range(150)), "-7"], {"kind": "timestamps"}, "line 151: '-7' is not allowed; allowed: a time >= 0"),
        ([*map(str, range(-5, 150))], {}, "line 1: '-5' is not allowed; allowed: a time >= 0"),
        (
            [*map(str, range(150))],
            {"kind": "interarrivals"},
            "trace.csv: kind: 'interarrivals' is not allowed; allowed: timestamps .--kind timestamps.: taken for gaps as asked, ",
        ),
        (["delta", *map(str, range(150))], {}, "taken for gaps by the column's name, delta, these never fall, as arrival times do"),
        (["t", *map(str, range(150)), "7"], {}, "if these are gaps, say --kind interarrivals"),
        (
            ["3.5"] * 150,
            {},
            "trace.csv: kind: 'auto' is not allowed; allowed: timestamps or interarrivals .--kind.: with 0 rises and 0",
        ),
    ],
)
def test_a_bad_trace_names_line_and_value(tmp_path: Path, lines: list[str], options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_trace(write_trace(tmp_path, lines), **options)


@pytest.mark.parametrize(
    ("first", "line"),
    [
        (["time;size"], "{0},{1};7"),
        (["time;size"], "{0}.{1};7"),
        ([], "{0},{1};7"),
        (["id;time"], "7;{0},{1}"),
        (["time\tsize"], "{0}.{1}\t7"),
        ([], "{0},{1}\t7"),
        (["time;size"], "1970-01-01 00:0{0}:00,{1};7"),
    ],
)
def test_semicolons_or_tabs_may_part_the_cells_and_numbers_have_decimal_commas_then(
    tmp_path: Path, first: list[str], line: str
) -> None:
    lines = [line.format(i // 100, f"{i % 100:02}") for i in range(150)]
    options = {"column": "time"} if first == ["id;time"] else {}
    expected = np.arange(150) / 100
    if "1970" in line:
        expected = np.arange(150) // 100 * 60 + np.arange(150) % 100 / 100
    trace = read_trace(write_trace(tmp_path, [*first, *lines]), **options)
    np.testing.assert_allclose(trace.interarrivals, np.diff(expected), atol=1e-9)


@pytest.mark.parametrize("line", ["{0}.{1},200;ok", "{0}.{1},200\tok", "\t{0}.{1}", "1970-01-01T00:0{0}:00.{1},7;ok"])
def test_commas_part_the_cells_where_what_is_before_them_is_whole(tmp_path: Path, line: str) -> None:
    trace = read_trace(write_trace(tmp_path, [line.format(i // 100, f"{i % 100:02}") for i in range(150)]))
    expected = np.arange(150) // 100 * (60 if "T" in line else 1) + np.arange(150) % 100 / 100
    np.testing.assert_allclose(trace.interarrivals, np.diff(expected), atol=1e-9)


def test_a_header_with_a_semicolon_alone_is_a_name(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path, ["time (s; since start)", *(f"{i / 10}" for i in range(150))]))
    assert len(trace.interarrivals) == 149


def test_sizes_are_read_between_semicolons(tmp_path: Path) -> None:
    path = write_trace(tmp_path, ["time;size", *(f"{i},5;{i}" for i in range(150))])
    assert read_sizes(path, "size").tolist() == list(range(150))


DISORDER = {
    "shuffled": lambda times, rng: rng.permutation(times),
    "backwards": lambda times, rng: times[::-1],
    "two logs one after the other": lambda times, rng: np.concatenate([times[::2], times[1::2]]),
    "a few late": lambda times, rng: times[np.argsort(np.arange(len(times)) + rng.uniform(0, 3, len(times)))],
    "two logs by turns": lambda times, rng: times.reshape(2, -1).T.ravel(),
}


@pytest.mark.parametrize("start", [0.0, 1.7e9])
@pytest.mark.parametrize("disorder", DISORDER)
@pytest.mark.parametrize(
    ("header", "message"), [(["time_s"], "a time not before the one above it"), (["x"], "--kind"), ([], "--kind")]
)
def test_timestamps_in_disorder_are_never_taken_for_gaps(
    tmp_path: Path, disorder: str, start: float, header: list[str], message: str
) -> None:
    rng = np.random.default_rng(8)
    times = start + np.cumsum(mmpp2(50, 5, 1, 2).sample(300, rng))
    path = write_trace(tmp_path, [*header, *(f"{t:.6f}" for t in DISORDER[disorder](times, rng))])
    with pytest.raises(InvalidInput, match=message):
        read_trace(path)


@pytest.mark.parametrize(
    ("header", "rising", "reading"),
    [
        (["interarrival_s"], False, "inter-arrival times in s (by the column's name, interarrival_s)"),
        (["Inter-arrival time"], False, "inter-arrival times in s (by the column's name, Inter-arrival time)"),
        (["time_delta"], False, "inter-arrival times in s (by the column's name, time_delta)"),
        (["arrival_time"], True, "timestamps in s (by the column's name, arrival_time)"),
        (["initiated_at"], True, "timestamps in s (by the column's name, initiated_at)"),
        (["seconds"], True, "timestamps in s (as they never fall)"),
        ([], True, "timestamps in s (as they never fall)"),
        ([], False, "inter-arrival times in s (as they rise and fall, and few are large)"),
    ],
)
def test_a_trace_says_how_it_was_read(tmp_path: Path, header: list[str], rising: bool, reading: str) -> None:
    gaps = mmpp2(50, 5, 1, 2).sample(300, np.random.default_rng(8))
    values = np.cumsum(gaps) if rising else gaps
    trace = read_trace(write_trace(tmp_path, [*header, *map(str, values)]))
    assert trace.reading == trace.sped_up(2).reading == reading


@pytest.mark.parametrize(
    ("header", "options", "reading"),
    [
        ("when,size", {}, "timestamps in s (by the column's name, when)"),
        ("seconds,size", {}, "timestamps of column seconds in s (as they never fall)"),
        ("seconds,size", {"kind": "timestamps"}, "timestamps of column seconds in s (as asked)"),
        ("", {}, "timestamps of column 1 in s (as they never fall)"),
    ],
)
def test_of_several_columns_the_one_that_was_read_is_named(
    tmp_path: Path, header: str, options: dict[str, Any], reading: str
) -> None:
    rows = [f"{i}.5,7" for i in range(150)]
    assert read_trace(write_trace(tmp_path, [header, *rows]), **options).reading == reading
    iso = write_trace(tmp_path, ["t,size", *(f"2026-01-01 00:{i // 60:02}:{i % 60:02},7" for i in range(150))])
    assert read_trace(iso).reading == "timestamps of column t (ISO 8601)"


@pytest.mark.parametrize("numbers", ["00042", "042"])
def test_a_number_with_a_point_has_its_fraction_and_the_next_cell_is_another(tmp_path: Path, numbers: str) -> None:
    lines = [f"{0.25 * i:.2f},{numbers}" for i in range(150)]
    assert read_trace(write_trace(tmp_path, lines)).interarrivals.tolist() == [0.25] * 149


@pytest.mark.parametrize(
    ("header", "first", "message"),
    [
        ("id,time,size", 0, "column: none was given; needed: --column with .* among id, time, size, as the first column numbers"),
        (",time,size", 0, "column: none was given; needed: --column with .* among time, size, as the first column numbers"),
        ("row,time,size", 1, "column: none was given; needed: --column with .* among row, time, size, as"),
        (
            "",
            7,
            "column: none was given; needed: --column with .*, as the first column numbers the rows: name the columns in a first",
        ),
    ],
)
def test_a_column_that_numbers_the_rows_is_not_taken_for_the_times(tmp_path: Path, header: str, first: int, message: str) -> None:
    path = write_trace(tmp_path, [header, *(f"{first + i},{i * 0.25},7" for i in range(150))])
    for kind in ("auto", "timestamps", "interarrivals"):
        with pytest.raises(InvalidInput, match=message):
            read_trace(path, kind=kind)
    if "time" in header:
        assert read_trace(path, "time").interarrivals.tolist() == [0.25] * 149


def test_whole_numbers_that_are_named_as_times_or_stand_alone_are_times(tmp_path: Path) -> None:
    heartbeat = [f"{1_700_000_000 + i},7" for i in range(150)]
    for lines in (
        ["time,size", *(f"{i},7" for i in range(150))],
        ["sec,size", *(f"{i},7" for i in range(150))],
        ["x", *map(str, range(150))],
        heartbeat,
        ["x,size", *heartbeat],
    ):
        assert read_trace(write_trace(tmp_path, lines)).interarrivals.tolist() == [1.0] * 149


def test_what_the_caller_says_goes_before_the_name(tmp_path: Path) -> None:
    path = write_trace(tmp_path, ["time", *map(str, range(399, 199, -1))])
    asked = read_trace(path, kind="interarrivals", unit="ms")
    assert asked.interarrivals[-1] == 0.2 and asked.reading == "inter-arrival times in ms (as asked)"
    assert read_trace(EXCERPT).reading == "timestamps (ISO 8601)"


def test_a_missing_or_torn_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"trace: .*none.csv' is not allowed; allowed: a file that exists"):
        read_trace(tmp_path / "none.csv")
    torn = tmp_path / "torn.gz"
    torn.write_bytes(gzip.compress(b"1\n" * 500)[:20])
    with pytest.raises(InvalidInput, match="torn.gz' is not allowed; allowed: a readable file of CSV, .* plain or gzip"):
        read_trace(torn)


def test_quantised_stamps_are_spread_over_their_tick() -> None:
    ticks = np.random.default_rng(0).integers(0, 4, 500) * 0.01
    spread = Trace(ticks).dithered(np.random.default_rng(1))
    assert spread.min() > 0 and len(np.unique(spread)) == 500
    assert spread.sum() == pytest.approx(ticks.sum(), abs=0.02)


def test_a_large_whole_number_keeps_every_digit(tmp_path: Path) -> None:
    stamps = 1_700_000_000_000_000_000 + np.cumsum(np.arange(1, 201))
    assert read_trace(write_trace(tmp_path, ["time_ns", *map(str, stamps)]), unit="ns").interarrivals == pytest.approx(
        np.arange(2, 201) * 1e-9, rel=1e-12
    )


@pytest.mark.parametrize(
    "lines",
    [
        ["t", "", *[f"{t}" for t in range(200)], ""],
        ["t", *[f" {t} " for t in range(200)]],
        ["t", *[f"+{t}" for t in range(200)]],
        ["id,t", *[f"x,{t}," for t in range(200)]],
        ["id,t,note", *[f"x,{t}" for t in range(200)]],
        ['"id","t"', *[f'"a, b","{t}"' for t in range(200)]],
    ],
)
def test_lines_that_are_not_plain_are_read_as_well(tmp_path: Path, lines: list[str]) -> None:
    assert read_trace(write_trace(tmp_path, lines), column="t").interarrivals.tolist() == [1.0] * 199


@pytest.mark.parametrize(
    ("shape", "reading"),
    [("{0}T{1}Z", 1.0), ("{0} {1}", 1.0), ("{0}T{1}+02:00", 1.0), ("{0} {1}.123456789012", 1.0)],
)
def test_iso_times_of_every_shape_are_read(tmp_path: Path, shape: str, reading: float) -> None:
    lines = [shape.format("2024-03-01", f"12:{second // 60:02}:{second % 60:02}") for second in range(200)]
    trace = read_trace(write_trace(tmp_path, lines))
    assert trace.interarrivals.tolist() == [reading] * 199 and trace.reading == "timestamps (ISO 8601)"


def test_iso_times_in_minutes_are_read_from_the_first_line_on(tmp_path: Path) -> None:
    minutes = [f"2024-03-01 {12 + i // 60}:{i % 60:02}" for i in range(200)]
    for lines in (minutes, ["t", *minutes], [f"{minute}Z" for minute in minutes]):
        assert read_trace(write_trace(tmp_path, lines)).interarrivals == pytest.approx([60.0] * 199, rel=1e-12)
    with pytest.raises(InvalidInput, match="line 201: '2024-03-01 15:20.5' is not allowed; allowed: an ISO 8601 time"):
        read_trace(write_trace(tmp_path, [*minutes, "2024-03-01 15:20.5"]))


def test_a_part_of_a_trace_is_the_trace_of_its_arrivals() -> None:
    trace = Trace(np.full(1000, 0.5), "here", "so")
    part = trace.between(100, 200)
    assert (len(part), part.duration) == (201, 100.0)
    assert (part.source, part.reading) == ("here from 100 s to 200 s", "so")
    last = trace.last(100)
    assert (len(last), last.source) == (201, "here, last 100 s")
    assert len(trace.between(0, np.inf)) == len(trace.last(1e9)) == len(trace)


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda trace: trace.between(5, 5), r"from, to: \(5, 5\) is not allowed; allowed: seconds since the first arrival"),
        (lambda trace: trace.between(-1, 5), "from, to"),
        (lambda trace: trace.last(0), "window: 0 is not allowed; allowed: a number of seconds > 0"),
        (lambda trace: trace.last(10), "here, last 10 s: arrivals: 21 is not allowed; allowed: at least 100"),
        (lambda trace: trace.between(1000, 2000), "here from 1000 s to 2000 s: arrivals: 1 is not allowed"),
    ],
)
def test_a_part_that_is_none_or_too_small_is_refused(cut: Callable[[Trace], Trace], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cut(Trace(np.full(1000, 0.5), "here"))


def test_statistics_of_a_poisson_trace_are_those_of_poisson() -> None:
    statistics = Trace(np.random.default_rng(5).exponential(0.1, 100_000)).statistics()
    error = 1 / np.sqrt(100_000)
    assert statistics.scv == pytest.approx(1, abs=4 * np.sqrt(8) * error)
    assert statistics.skewness == pytest.approx(2, abs=0.3)
    assert list(statistics.autocorrelation) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert max(map(abs, statistics.autocorrelation.values())) < 4 * error
    assert list(statistics.dispersion) == pytest.approx([statistics.mean * 10**k for k in range(5)], rel=1e-5)
    for window, dispersion in statistics.dispersion.items():
        assert dispersion == pytest.approx(1, abs=4 * np.sqrt(2 * window / statistics.duration))


def test_a_short_trace_has_fewer_lags_and_windows() -> None:
    statistics = Trace(np.random.default_rng(6).exponential(1, 150)).statistics()
    assert list(statistics.autocorrelation) == [1, 2, 5, 10] and len(statistics.dispersion) == 2


def test_gaps_that_are_all_equal_stay_so_when_dithered() -> None:
    assert Trace(np.full(200, 0.1)).dithered(np.random.default_rng(0)) == pytest.approx(np.full(200, 0.1))


def test_autocorrelation_is_that_of_its_definition_at_every_lag() -> None:
    gaps = np.random.default_rng(5).exponential(1, 300) ** 2
    centred = gaps - gaps.mean()
    defined = [float((centred[:-lag] * centred[lag:]).sum() / (centred**2).sum()) for lag in (1, 7, 299)]
    assert Trace(gaps).autocorrelation([1, 7, 299]) == pytest.approx(defined, abs=1e-12)
