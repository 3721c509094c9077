"""Traces in Parquet, NPY, access logs and counts: the same arrivals from each, and each refused where it is not what it says."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.traces.columns import read_csv_column
from sluice.optimizer.traces.counts import spread_counts
from sluice.optimizer.traces.kind import named_unit
from sluice.optimizer.traces.trace import Trace, read_trace

GAPS_NS = np.random.default_rng(0).integers(1, 10**9, 200)
STAMPS_NS = 1_700_000_000 * 10**9 + np.concatenate([[0], np.cumsum(GAPS_NS)])
GAPS = GAPS_NS * 1e-9


def parquet(folder: Path, columns: dict[str, Any], name: str = "trace.parquet") -> Path:
    path = folder / name
    pa.parquet.write_table(pa.table(columns), path)
    return path


def npy(folder: Path, values: Any, name: str = "trace.npy") -> Path:
    path = folder / name
    np.save(path, values, allow_pickle=True)
    return path


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_parquet_timestamps_of_any_unit_are_arrivals(tmp_path: Path, unit: str, zone: str | None) -> None:
    per_unit = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}[unit]
    stamps = STAMPS_NS // per_unit
    path = parquet(tmp_path, {"id": ["a"] * 201, "at": pa.array(stamps, pa.timestamp(unit, zone))})
    trace = read_trace(path, "at")
    assert trace.interarrivals == pytest.approx(np.diff(stamps) * per_unit * 1e-9, rel=1e-12)
    assert trace.reading.startswith("timestamps of column at (by their type, timestamp[")


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (pa.array(GAPS), {"kind": "interarrivals"}),
        (pa.array(GAPS_NS, pa.uint64()), {"kind": "interarrivals", "unit": "ns"}),
        (pa.array(GAPS_NS, pa.duration("ns")), {}),
        (pa.array(STAMPS_NS), {"unit": "ns"}),
        (pa.array([f"{gap:.9f}" for gap in GAPS]).cast(pa.decimal128(12, 9)), {"kind": "interarrivals"}),
    ],
)
def test_parquet_numbers_and_durations_are_arrivals(tmp_path: Path, values: pa.Array, options: dict[str, Any]) -> None:
    assert read_trace(parquet(tmp_path, {"x": values}), **options).interarrivals == pytest.approx(GAPS, rel=1e-9)


@pytest.mark.parametrize(
    ("values", "options"),
    [
        (GAPS, {"kind": "interarrivals"}),
        (GAPS_NS.astype(np.uint32), {"kind": "interarrivals", "unit": "ns"}),
        (GAPS_NS.astype("timedelta64[ns]"), {}),
        (STAMPS_NS.astype("datetime64[ns]"), {}),
        (STAMPS_NS, {"unit": "ns"}),
        (np.rec.fromarrays([np.zeros(200), GAPS], names="size,gap"), {"column": "gap"}),
    ],
)
def test_npy_arrays_are_arrivals(tmp_path: Path, values: Any, options: dict[str, Any]) -> None:
    trace = read_trace(npy(tmp_path, values), **options)
    assert trace.interarrivals == pytest.approx(GAPS, rel=1e-9)


def test_a_file_is_known_by_its_content_not_its_name(tmp_path: Path) -> None:
    for path in (parquet(tmp_path, {"gap": GAPS}, "a.dat"), npy(tmp_path, GAPS, "b.npy")):
        data = path.read_bytes()
        for name, content in (("plain", data), ("packed", gzip.compress(data))):
            (tmp_path / name).write_bytes(content)
            trace = read_trace(tmp_path / name, kind="interarrivals")
            assert trace.interarrivals == pytest.approx(GAPS)


def of_bytes(data: bytes, name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return write


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (of_bytes(b"PAR1" + b"x" * 500, "t.parquet"), {}, "t.parquet' is not allowed; allowed: a readable Parquet file "),
        (of_bytes(b"1\n2\n", "t.parquet"), {}, "allowed: a readable Parquet file "),
        (of_bytes(gzip.compress(b"PAR1 torn"), "t.gz"), {}, "allowed: a readable Parquet file "),
        (lambda f: parquet(f, {"a": GAPS, "b": GAPS}), {"column": "c"}, "column: 'c' .* one of the columns of .*: a, b"),
        (lambda f: parquet(f, {"a": ["x"] * 200}), {}, "type of column a: 'string' .* numbers, timestamps or durations"),
        (lambda f: parquet(f, {"a": [0.1, None] * 100}), {}, "row 2: none was given; needed: a value in column a"),
        (
            lambda f: parquet(f, {"gap": [0.1] * 150 + [float("nan")]}),
            {},
            "row 151: 'nan' is not allowed; allowed: a finite number",
        ),
        (lambda f: parquet(f, {"gap": [0.1] * 150 + [-0.1]}), {}, "row 151: '-0.1' is not allowed; allowed: an inter-arrival time"),
        (lambda f: parquet(f, {"time": [*range(150), 7]}), {}, r"row 151: '7' .* a time not before the one above it \(149\)"),
        (lambda f: parquet(f, {}), {}, "trace: .* is not allowed; allowed: a Parquet file with a column"),
        (
            lambda f: parquet(f, {"a": pa.array(STAMPS_NS, pa.timestamp("ns"))}),
            {"kind": "interarrivals"},
            "row 1: '2023-.* a number, as it is read as interarrivals",
        ),
        (lambda f: npy(f, np.array([{}] * 200)), {}, "allowed: a readable NPY file without pickled objects"),
        (of_bytes(b"\x93NUMPY\x01\x00torn", "t.npy"), {}, "allowed: a readable NPY file"),
        (of_bytes(b"1\n2\n", "t.npy"), {}, "allowed: a readable NPY file"),
        (lambda f: npy(f, GAPS.reshape(2, 100)), {}, r"shape: \(2, 100\) is not allowed; allowed: one dimension"),
        (lambda f: npy(f, np.array(["a"] * 200)), {}, "type: '<U1' is not allowed; allowed: numbers, datetime64 or timedelta64"),
        (lambda f: npy(f, np.array(["2024", "2025"], "M8[Y]")), {}, r"type: 'datetime64\[Y\]' .* a unit of s, ms, us, ns"),
        (lambda f: npy(f, np.array(["2024-01-01", "NaT"], "M8[s]")), {}, "row 2: 'NaT' is not allowed; allowed: a time"),
        (lambda f: npy(f, np.append(GAPS, np.inf)), {}, "row 201: 'inf' is not allowed; allowed: a finite number"),
        (lambda f: npy(f, GAPS), {"column": "gap"}, "column: 'gap' is not allowed"),
        (lambda f: npy(f, GAPS[:50]), {}, "arrivals: 50 is not allowed; allowed: at least 100"),
        (
            of_bytes(b"PK\x03\x04\x00\x00" * 50, "t.npz"),
            {},
            "t.npz' is not allowed; allowed: CSV, Parquet, NPY .* other binary file",
        ),
        (of_bytes(b"t\n" + b"\xff\xfe\n" * 200, "t.csv"), {}, "t.csv' is not allowed; allowed: a file of text in UTF-8"),
        (of_bytes(gzip.compress(b"1\n" * 5000)[:-12], "t.gz"), {}, "allowed: a readable file of CSV, Parquet, NPY .*end-of-stream"),
        (of_bytes(b"\x1f\x8bnot gzip", "t.gz"), {}, "allowed: a readable file of CSV, Parquet, NPY"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    tmp_path: Path, write: Callable[[Path], Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_trace(write(tmp_path), **options)


NOTHING: dict[str, Callable[[Path], Path]] = {
    "CSV": of_bytes(b"", "t.csv"),
    "CSV of blank lines": of_bytes(b"\n \n", "t.csv"),
    "CSV of a header": of_bytes(b"time\n", "t.csv"),
    "CSV of a header without an end": of_bytes(b"time,size", "t.csv"),
    "CSV of a header and blank lines": of_bytes(b"time\r\n\r\n", "t.csv"),
    "gzip": of_bytes(gzip.compress(b""), "t.csv.gz"),
    "NPY": lambda f: npy(f, np.empty(0)),
    "NPY of times": lambda f: npy(f, np.empty(0, "M8[ms]")),
    "NPY of spans": lambda f: npy(f, np.empty(0, "m8[ms]")),
    "NPY of records": lambda f: npy(f, np.empty(0, [("time", float)])),
    "Parquet": lambda f: parquet(f, {"time": pa.array([], pa.float64())}),
    "Parquet of times": lambda f: parquet(f, {"time": pa.array([], pa.timestamp("us"))}),
    "access log": of_bytes(b"", "t.log"),
}


@pytest.mark.parametrize("kind", ["auto", "timestamps", "interarrivals", "counts"])
@pytest.mark.parametrize("name", NOTHING)
def test_a_file_of_nothing_holds_no_arrivals_whatever_it_was_to_hold(tmp_path: Path, name: str, kind: Any) -> None:
    with pytest.raises(InvalidInput, match=r"arrivals: 0 is not allowed; allowed: at least 100"):
        read_trace(NOTHING[name](tmp_path), kind=kind)


def test_a_folder_of_empty_access_logs_holds_no_arrivals(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"")
    with pytest.raises(InvalidInput, match="arrivals: 0 is not allowed; allowed: at least 100"):
        read_trace(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([5.0], "arrivals: 1 is not allowed"),
        ([*np.cumsum(GAPS), np.nan], "(line|row) 20.: 'nan' is not allowed; allowed: a finite number"),
        ([-1.0, *np.cumsum(GAPS)], "(line|row) .: '-1.0' is not allowed; allowed: a time >= 0"),
        ([*np.cumsum(GAPS), 1.0], "(line|row) 20.: '1.0' is not allowed; allowed: a time not before the one above it"),
        (
            [*(1.7e12 + 1000 * np.cumsum(GAPS)).round()],
            "unit: 's' is not allowed; allowed: a smaller one for times such as .*: --unit ms",
        ),
    ],
    ids=["one", "nan", "negative", "unsorted", "milliseconds"],
)
@pytest.mark.parametrize("form", ["csv", "npy", "parquet"])
def test_times_that_are_none_are_refused_in_every_kind_of_file(
    tmp_path: Path, form: str, values: list[float], message: str
) -> None:
    if form == "csv":
        path = of_bytes("\n".join(["time", *map(str, values)]).encode(), "t.csv")(tmp_path)
    else:
        path = npy(tmp_path, np.array(values)) if form == "npy" else parquet(tmp_path, {"time": values})
    with pytest.raises(InvalidInput, match=message):
        read_trace(path, kind="timestamps")


@pytest.mark.parametrize(
    ("name", "unit"), [("sent_ms", "ms"), ("time (µs)", "us"), ("ns", "ns"), ("gap_millis", "ms"), ("usec", "us")]
)
def test_a_column_named_by_a_unit_is_not_read_as_seconds(tmp_path: Path, name: str, unit: str) -> None:
    path = parquet(tmp_path, {name: 1000 * np.cumsum(GAPS)})
    with pytest.raises(InvalidInput, match=f"unit: 's' is not allowed; allowed: --unit {unit}, as column "):
        read_trace(path, kind="timestamps")
    assert len(read_trace(path, kind="timestamps", unit=unit)) == len(GAPS)


@pytest.mark.parametrize("name", ["times", "arrivals", "items", "seconds", "bus", "sent_at", "columns"])
def test_other_names_name_no_unit(name: str) -> None:
    assert named_unit(name) == "s"


def log_line(created_ns: int, agent: str = "curl/7.46.0", scheme: str = "https") -> str:
    created = str(np.datetime64(created_ns // 1000, "us")) + "Z"
    answered = str(np.datetime64(created_ns // 1000 + 80_000, "us")) + "Z"
    return (
        f"{scheme} {answered} app/balancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048 0.037 200 200 0 57 "
        f'"POST https://www.example.com:443/models/mlp HTTP/1.1" "{agent}" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 '
        "arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/buffer/73e2d6bc24d8a067 "
        '"Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-1:123456789012:certificate/1" '
        f'1 {created} "forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_1234'
    )


LOG_NS = STAMPS_NS // 1000 * 1000
LOG_GAPS = np.diff(LOG_NS) * 1e-9


def test_arrivals_in_an_access_log_are_when_requests_were_made_whatever_the_order_of_the_answers(tmp_path: Path) -> None:
    agents = ["curl/7.46.0", "Mozilla/5.0 (X11; Linux) Gecko", r"a \"quoted\" one", "-"]
    schemes = ["http", "https", "h2", "grpcs", "ws", "wss"]
    rng = np.random.default_rng(1)
    lines = [log_line(int(LOG_NS[i]), agents[i % 4], schemes[i % 6]) for i in rng.permutation(len(LOG_NS))]
    path = tmp_path / "balancer.log"
    path.write_text("\n".join(lines) + "\n\n")
    trace = read_trace(path)
    assert trace.interarrivals == pytest.approx(LOG_GAPS, abs=1e-12)
    assert trace.reading == "request_creation_time in an access log of a load balancer"


def test_the_logs_of_a_folder_are_one_trace(tmp_path: Path) -> None:
    below = tmp_path / "AWSLogs" / "2024" / "03"
    below.mkdir(parents=True)
    nodes = [LOG_NS[0::3], LOG_NS[1::3], LOG_NS[2::3]]
    for i, stamps in enumerate(nodes):
        text = "\n".join(log_line(int(stamp)) for stamp in stamps).encode()
        (below / f"node{i}.log").write_bytes(text) if i else (below / "node0.log.gz").write_bytes(gzip.compress(text))
    (below / "conn_log.1.log").write_text("of another kind\n")
    (tmp_path / "ELBAccessLogTestFile").write_text("Enable AccessLog\n")
    trace = read_trace(tmp_path)
    assert trace.interarrivals == pytest.approx(LOG_GAPS, abs=1e-12)
    assert trace.reading == "request_creation_time in 3 access logs of a load balancer"


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["nonsense"], {}, "balancer.log, line 202: 'nonsense' is not allowed; allowed: a record with its request_creation_time"),
        ([log_line(0).replace("1970-01-01T00:00:00.000000Z", "-")], {}, "line 202: '-' is not allowed; allowed: a record"),
        (
            [log_line(0).replace("1970-01-01T00:00:00.000000Z", "1970-02-31T00:00:00.0Z")],
            {},
            "whose request_creation_times are dates",
        ),
        ([], {"column": "time"}, "column: 'time' is not allowed; allowed: none for an access log"),
        ([], {"kind": "counts"}, "kind: 'counts' is not allowed; allowed: none for an access log"),
    ],
)
def test_a_bad_access_log_names_line_and_value(tmp_path: Path, lines: list[str], options: dict[str, Any], message: str) -> None:
    path = tmp_path / "balancer.log"
    path.write_text("\n".join([*(log_line(int(stamp)) for stamp in LOG_NS), *lines]))
    with pytest.raises(InvalidInput, match=message):
        read_trace(path, **options)


def test_a_folder_without_logs_and_a_torn_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a folder with access logs of a load balancer"):
        read_trace(tmp_path)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(b"x" * 1000)[:-10])
    with pytest.raises(InvalidInput, match="a.log.gz' is not allowed; allowed: a readable access log"):
        read_trace(tmp_path)


def counts_file(folder: Path, counts: Any) -> Path:
    path = folder / "counts.csv"
    path.write_text("requests\n" + "\n".join(map(str, counts)) + "\n")
    return path


def test_counted_arrivals_stay_in_their_bins_and_are_the_same_each_time(tmp_path: Path) -> None:
    counts = np.random.default_rng(2).poisson(3, 400)
    path = counts_file(tmp_path, counts)
    times = spread_counts(read_csv_column(path.read_bytes(), None, "here"), 60, "here", np.random.default_rng(0))
    assert np.array_equal(np.bincount((times / 60).astype(int), minlength=400), counts)
    trace = read_trace(path, kind="counts", bin_width=60)
    assert trace.interarrivals == pytest.approx(np.diff(times))
    assert trace.reading == "counts per 60 s, placed in their bins at random"
    other = read_trace(path, bin_width=60, rng=np.random.default_rng(9))
    assert len(other) == len(trace) and not np.array_equal(trace.interarrivals, other.interarrivals)


def test_counts_of_poisson_are_poisson_again_and_those_of_bursts_keep_their_dispersion(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    again = read_trace(counts_file(tmp_path, rng.poisson(5, 20_000)), kind="counts")
    assert again.statistics().scv == pytest.approx(1, abs=4 * np.sqrt(8 / 100_000))
    assert again.autocorrelation([1])[0] == pytest.approx(0, abs=4 / np.sqrt(100_000))
    source = Trace(mmpp2(50, 5, 0.1, 0.2).sample(50_000, rng))
    bins = np.bincount(source.times.astype(int))
    counted = read_trace(counts_file(tmp_path, bins), kind="counts")
    assert counted.dispersion(20) == pytest.approx(source.dispersion(20), rel=0.05)
    assert counted.arrival_rate == pytest.approx(source.arrival_rate, rel=0.01)


@pytest.mark.parametrize(
    ("counts", "options", "message"),
    [
        ([5] * 50 + [-1], {"kind": "counts"}, "line 52: '-1' is not allowed; allowed: a count: a whole number >= 0"),
        ([5] * 50 + [2.5], {"kind": "counts"}, "line 52: '2.5' is not allowed; allowed: a count: a whole number >= 0"),
        ([5] * 50 + ["few"], {"kind": "counts"}, "line 52: 'few' is not allowed; allowed: a number"),
        ([5] * 50 + ["nan"], {"kind": "counts"}, "line 52: 'nan' is not allowed; allowed: a finite number"),
        ([5] * 10, {"kind": "counts"}, "arrivals: 50 is not allowed; allowed: at least 100"),
        ([0] * 10, {"kind": "counts"}, "arrivals: 0 is not allowed; allowed: at least 100"),
        ([], {"kind": "counts"}, "arrivals: 0 is not allowed; allowed: at least 100"),
        ([10**9], {"kind": "counts"}, r"arrivals: '1e\+09' is not allowed; allowed: at most 200000000: take fewer bins"),
        ([5] * 50, {"kind": "counts", "bin_width": 0}, "bin: 0 is not allowed; allowed: a number of seconds > 0"),
        ([5] * 150, {}, "kind: 'auto' is not allowed; allowed: counts --bin SECONDS"),
    ],
)
def test_counts_that_are_none_are_refused(tmp_path: Path, counts: list[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_trace(counts_file(tmp_path, counts), **options)


def test_of_several_columns_the_one_with_the_counts_must_be_named(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("minute,requests\n" + "\n".join(f"{i},5" for i in range(100)))
    with pytest.raises(InvalidInput, match="column: none was given; needed: the name of the counts among minute, requests"):
        read_trace(path, kind="counts")
    assert len(read_trace(path, "requests", bin_width=60)) == 500


MINUTE = ["2024-03-01T{0:02}:{1:02}", "{2}.5"]  # by hour and minute, and as seconds


def bins_file(folder: Path, header: str, time: str, rows: Any, width: int = 60) -> Path:
    path = folder / "bins.csv"
    times = [time.format(*divmod(i, 60), width * i) for i in rows]
    path.write_text("\n".join([header, *(f"{at},{5 + i % 7}" for i, at in enumerate(times))]) + "\n")
    return path


@pytest.mark.parametrize("time", MINUTE)
@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        (
            "time,requests",
            range(150),
            "--kind counts --bin 60 --column requests; or --kind timestamps where each row is a request",
        ),
        ("time,requests", range(60), "--kind counts --bin 60 --column requests; or"),
        ("time,n hits", range(150), "--kind counts --bin 60 --column 'n hits'; or --kind timestamps"),
        ("time,RequestCount", range(150), "--column RequestCount; or .* rows are 60 s apart, and column RequestCount is named as"),
        ("time,requests", [*range(70), *range(75, 150)], "--column requests; or"),
        ("time,rps", range(150), "--column rps, with the rates of rps times 60, which are counts; or"),
        ("time,req_per_min", range(150), "--column req_per_min; or"),
        ("time,requests_per_second", range(150), "--column requests_per_second, with the rates of requests_per_second times 60, "),
        ("time,perMinuteInvocations", range(150), "--column perMinuteInvocations; or"),
        ("time,RequestCount", range(150), "--column RequestCount; or"),
        ("time,value", range(150), "--column value; or .* rows are 60 s apart, and value may be counts"),
        ("time,Sum", [*range(70), *range(72, 150)], "--column Sum; or"),
    ],
)
def test_one_request_a_bin_is_not_assumed_where_a_column_has_counts(
    tmp_path: Path, time: str, header: str, rows: Any, message: str
) -> None:
    path = bins_file(tmp_path, header, time, rows)
    with pytest.raises(InvalidInput, match=f"bins.csv: kind: 'auto' is not allowed; allowed: .*{message}"):
        read_trace(path)
    assert len(read_trace(path, header.partition(",")[2], bin_width=60)) == sum(5 + i % 7 for i in range(len(rows)))
    if len(rows) >= 100:
        assert len(read_trace(path, kind="timestamps")) == len(read_trace(path, "time")) == len(rows)


@pytest.mark.parametrize(
    "name",
    [
        "size",
        "country",
        "account_id",
        "county",
        "encounter_id",
        "token_count",
        "retry_count",
        "person",
        "discount",
        "requested_by",
        "permit",
    ],
)
def test_times_that_are_evenly_spaced_are_arrivals_beside_what_has_no_counts(tmp_path: Path, name: str) -> None:
    assert len(read_trace(bins_file(tmp_path, f"time,{name}", "{2}.5", range(150)))) == 150


@pytest.mark.parametrize("time", [*MINUTE, "{2}000"])
@pytest.mark.parametrize("rows", [[*range(70), *range(75, 150)], [0, 1, *range(3, 400, 3)]])
@pytest.mark.parametrize("name", ["time", "minute", "window_start"])
def test_bins_that_a_column_of_times_leaves_out_are_empty(tmp_path: Path, time: str, rows: list[int], name: str) -> None:
    trace = read_trace(bins_file(tmp_path, f"{name},requests", time, rows), "requests", bin_width=60)
    assert len(trace) == sum(5 + i % 7 for i in range(len(rows)))
    assert trace.reading.endswith(f"at random; none in the {rows[-1] + 1 - len(rows)} that column {name} leaves out")
    assert trace.interarrivals.sum() == pytest.approx((rows[-1] + 1) * 60, abs=120)


@pytest.mark.parametrize(
    ("header", "time", "rows"),
    [
        ("gap,requests", "{2}", np.r_[np.arange(70), np.arange(75, 150)]),
        ("id,requests", "{0}7{1:02}", np.arange(150)),  # as 0700 to 0759, and then 1700
        ("when,requests", "{2}", np.cumsum([0, 1, 2, 0] * 40)),
    ],
)
def test_bins_are_one_after_the_other_where_no_times_tell_otherwise(tmp_path: Path, header: str, time: str, rows: Any) -> None:
    trace = read_trace(bins_file(tmp_path, header, time, rows), "requests", bin_width=60)
    assert trace.reading == "counts per 60 s, placed in their bins at random"
    assert trace.interarrivals.sum() < 60 * len(rows)


def test_bins_that_are_told_to_be_shorter_than_their_times_are_apart_are_one_after_the_other(tmp_path: Path) -> None:
    trace = read_trace(bins_file(tmp_path, "time,requests", "{2}", range(150)), "requests", bin_width=1)
    assert trace.reading.endswith("at random; by column time they are 60 s apart, which is not heeded")
    assert trace.interarrivals.sum() < 150


@pytest.mark.parametrize("name", ["n_tokens", "total_bytes", "number_of_words"])
def test_what_one_request_has_many_of_is_no_count_of_requests(tmp_path: Path, name: str) -> None:
    assert len(read_trace(bins_file(tmp_path, f"time,{name}", "{2}", range(150)))) == 150


def test_one_request_a_bin_is_not_assumed_where_columns_have_no_names(tmp_path: Path) -> None:
    path, rows = tmp_path / "bins.csv", [f"{60 * i},{5 + i % 7}" for i in range(150)]
    path.write_text("\n".join(rows))
    needed = "--kind counts --bin 60 --column NAME, with a first line that names the columns; or --kind timestamps .* column 2 may"
    with pytest.raises(InvalidInput, match=needed):
        read_trace(path)
    with pytest.raises(InvalidInput, match="column: none was given; needed: a first line that names the columns"):
        read_trace(path, kind="counts", bin_width=60)
    assert len(read_trace(path, kind="timestamps")) == 150
    path.write_text("\n".join(["at,n", *rows]))
    assert len(read_trace(path, "n", "counts", bin_width=60)) == sum(5 + i % 7 for i in range(150))


@pytest.mark.parametrize("rows", [np.cumsum([0, 1, 2, 0] * 40), np.cumsum([0.3, 1.0, 0.45, 2.2] * 40)])
def test_times_that_are_not_evenly_spaced_are_arrivals_beside_a_column_of_counts(tmp_path: Path, rows: Any) -> None:
    assert len(read_trace(bins_file(tmp_path, "time,requests", "{2}", rows, width=1))) == 160


def test_a_column_of_sizes_that_is_named_as_counts_are_has_none(tmp_path: Path) -> None:
    trace = read_trace(bins_file(tmp_path, "time,token_count", "{2}.5", range(150)), size_column="token_count")
    assert trace.sizes is not None and trace.sizes[:3].tolist() == [5, 6, 7]
