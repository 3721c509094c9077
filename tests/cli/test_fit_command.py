"""`sluice fit`: what it reads and says of it, what it writes, its warning and its misuse."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import redis

from sluice.batching.documents import ArrivalDocument, read
from sluice.buffer_service.arrival_stream import stream_key
from sluice.cli.trace_options import TraceOptions
from sluice.local.redis_server import RedisServer
from sluice.optimizer.arrivals.poisson import poisson
from tests.cli.conftest import Document, Run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A file of 2001 Poisson arrivals, 100 a second."""
    gaps = np.random.default_rng(0).exponential(0.01, 2000)
    path = tmp_path / "trace.csv"
    path.write_text("gap\n" + "\n".join(map(str, gaps)))
    return str(path)


@pytest.fixture
def drifting(tmp_path: Path) -> str:
    """A file of Poisson arrivals whose rate doubles for the last third of its 3000 s."""
    rng = np.random.default_rng(1)
    times = np.concatenate([np.cumsum(poisson(5).sample(10_000, rng)), 2000 + np.cumsum(poisson(10).sample(10_000, rng))])
    path = tmp_path / "drifting.csv"
    path.write_text("time\n" + "\n".join(map(str, np.sort(times))))
    return str(path)


def test_a_document_written_and_one_printed_are_the_same(trace: str, shown_by: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "arrivals.json"
    printed = read(ArrivalDocument, shown_by("fit", trace, "--model", "poisson", "--out", str(out), "--json"))
    assert read(ArrivalDocument, out.read_bytes()) == printed
    assert printed.arrival_rate == pytest.approx(100, rel=0.1)


def test_the_document_tells_of_its_trace(trace: str, document_of: Document) -> None:
    fitted_from = document_of("fit", trace, "--model", "poisson")["fitted_from"]
    assert fitted_from["reading"] == "inter-arrival times in s (by the column's name, gap)"
    assert fitted_from["stationarity"]["stationary"] is True
    assert [lag for lag, _ in fitted_from["autocorrelation"]] == [1, 2, 5, 10, 20, 50, 100, 200]
    assert all(0.5 < dispersion < 2 for _, dispersion in fitted_from["dispersion"])


def test_what_was_assumed_is_said_and_what_was_asked_is_not(trace: str, exit_of: Run, tmp_path: Path) -> None:
    said = "read 2001 arrivals as inter-arrival times in s (by the column's name, gap)"
    code, out, err = exit_of("fit", trace, "--model", "poisson", "--json")
    assert code == 0 and said in err and json.loads(out)
    assert "arrivals as" not in exit_of("fit", trace, "--model", "poisson", "--kind", "interarrivals")[2]
    shuffled = tmp_path / "shuffled.csv"
    shuffled.write_text("\n".join(map(str, np.random.default_rng(0).permutation(300))))
    code, out, err = exit_of("fit", str(shuffled))
    assert code == 2 and out == "" and "timestamps or interarrivals (--kind)" in err


def test_the_tables_show_the_trace_beside_the_fit_and_what_was_tried(trace: str, shown_by: Callable[..., str]) -> None:
    shown = shown_by("fit", trace, "--model", "mmpp2")
    for row in ("arrival rate", "SCV", "skewness", "autocorrelation, lag 1", "dispersion of counts", "tried", "→"):
        assert row in shown


def test_a_drift_is_warned_of_and_the_window_it_names_quells_the_warning(drifting: str, exit_of: Run) -> None:
    code, out, err = exit_of("fit", drifting, "--model", "poisson", "--json")
    verdict = json.loads(out)["fitted_from"]["stationarity"]
    assert code == 0 and verdict["stationary"] is False
    assert f"warning: {verdict['note']}" in err and f"--window {verdict['window']:.4g}" in err
    _, out, err = exit_of("fit", drifting, "--model", "poisson", "--json", "--window", f"{verdict['window']:.4g}")
    document = json.loads(out)
    assert "warning" not in err and document["fitted_from"]["stationarity"]["stationary"] is True
    assert document["arrival_rate"] == pytest.approx(10, rel=0.05)
    assert document["fitted_from"]["source"].endswith(f"last {verdict['window']:.4g} s")


def test_a_clock_that_is_coarser_than_the_gaps_is_said_and_no_cycle(tmp_path: Path, exit_of: Run) -> None:
    seconds = np.floor(np.cumsum(np.random.default_rng(3).exponential(0.05, 2000)))
    log = tmp_path / "seconds.csv"
    log.write_text("\n".join(["time", *(f"{t:.0f}" for t in seconds)]))
    code, _, err = exit_of("fit", str(log), "--model", "poisson")
    assert code == 0 and "cycle" not in err
    assert "warning: all times lie whole multiples of 1 s apart, and requests come every 0.0" in err
    assert "the gaps inside 1 s are not known; give finer times, or how many came in each (sluice fit --kind counts --bin 1)" in err


def test_a_part_of_the_trace_is_fitted(drifting: str, document_of: Document) -> None:
    early = document_of("fit", drifting, "--model", "poisson", "--from", "500", "--to", "1500")
    assert early["arrival_rate"] == pytest.approx(5, rel=0.06)
    assert early["fitted_from"]["source"].endswith("from 500 s to 1500 s")
    late = document_of("fit", drifting, "--model", "poisson", "--from", "2100", "--window", "300")
    assert late["arrival_rate"] == pytest.approx(10, rel=0.08) and late["fitted_from"]["duration"] <= 300


def test_counts_and_other_formats_are_fitted(tmp_path: Path, document_of: Document) -> None:
    rng = np.random.default_rng(2)
    counts = tmp_path / "counts.csv.gz"
    counts.write_bytes(
        gzip.compress("\n".join(["minute,requests", *(f"{i},{n}" for i, n in enumerate(rng.poisson(60, 100)))]).encode())
    )
    document = document_of("fit", str(counts), "--model", "poisson", "--kind", "counts", "--bin", "60", "--column", "requests")
    assert document["arrival_rate"] == pytest.approx(1, rel=0.06)
    np.save(tmp_path / "gaps.npy", rng.integers(1, 2_000_000_000, 500))
    document = document_of("fit", str(tmp_path / "gaps.npy"), "--model", "poisson", "--kind", "interarrivals", "--unit", "ns")
    assert document["arrival_rate"] == pytest.approx(1, rel=0.15)


def test_the_plot_is_drawn(trace: str, exit_of: Run, tmp_path: Path) -> None:
    plot = tmp_path / "figures" / "trace.svg"
    code, _, err = exit_of("fit", trace, "--model", "poisson", "--plot", str(plot))
    assert code == 0 and "wrote" in err
    assert "Index of dispersion for counts" in plot.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plot", "trace.gif"], "plot: 'trace.gif' is not allowed; allowed: a file name that ends in .svg, .png, .pdf"),
        (["--bin", "1", "--kind", "timestamps"], "bin: 1.0 is not allowed; allowed: none but for counts"),
        (["--kind", "counts"], "is not allowed; allowed: a count: a whole number >= 0"),
        (["--window", "0"], "window: 0.0 is not allowed; allowed: a number of seconds > 0"),
        (["--window", "0.1"], "at least 100"),
        (["--from", "7", "--to", "6"], "from, to: (7.0, 6.0) is not allowed"),
        (["--from", "nan"], "'nan' is not allowed; allowed: a number of seconds, or one with its unit"),
        (["--column", "when"], "column: 'when' is not allowed; allowed: one of the columns of"),
        (["--unit", "h"], "Invalid value for '--unit': 'h' is not one of"),
        (["--model", "map:9"], "model: 'map:9' is not allowed; allowed: map:N with N from 1 to 8"),
        (["--model", "poisson", "--out", ""], "--out: '' is not allowed; allowed: a file; this is a folder"),
        (["--model", "poisson", "--out", "{trace}/arrivals.json"], "is not allowed; allowed: a file in a folder; "),
    ],
)
def test_misuse_exits_2_and_names_the_option(trace: str, exit_of: Run, arguments: list[str], message: str) -> None:
    code, out, err = exit_of("fit", trace, *(argument.format(trace=trace) for argument in arguments))
    assert (code, out) == (2, "") and message in err


def test_a_model_that_there_is_not_is_refused_before_the_trace_is_read(exit_of: Run) -> None:
    code, _, err = exit_of("fit", "/no/such/trace", "--model", "gamma")
    assert code == 2 and "model: 'gamma' is not allowed; allowed: one of auto, poisson, mmpp2, map:N" in err


def test_a_bad_trace_exits_2_with_its_line(tmp_path: Path, exit_of: Run) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("gap\n" + "0.5\n" * 200 + "oops\n")
    code, _, err = exit_of("fit", str(path))
    assert code == 2 and "bad.csv, line 202: 'oops' is not allowed" in err


def test_the_arrivals_that_the_buffer_recorded_are_fitted(redis_server: RedisServer, document_of: Document) -> None:
    times = 1.7e9 + np.cumsum(np.random.default_rng(3).exponential(0.02, 500))
    with redis.Redis.from_url(redis_server.url) as client:
        for i, time in enumerate(times, 1):
            client.xadd(stream_key("fitted"), {"call": np.array([time]).tobytes() + np.zeros(1, np.float32).tobytes()}, id=f"{i}-0")
    joint = "&" if "?" in redis_server.url else "?"
    document = document_of("fit", f"{redis_server.url}{joint}model=fitted", "--model", "poisson")
    assert document["arrival_rate"] == pytest.approx(499 / (times[-1] - times[0]), rel=1e-3)
    assert document["fitted_from"]["source"] == "arrival stream of model fitted"


@pytest.mark.parametrize(("told", "said"), [(500, ""), (499, "; sizes are not read, as 1 of 500 requests did not tell theirs")])
def test_the_sizes_that_the_buffer_recorded_come_with_its_arrivals(redis_server: RedisServer, told: int, said: str) -> None:
    model, sizes = f"sized-{told}", np.arange(500.0)
    sizes[told:] = np.nan
    with redis.Redis.from_url(redis_server.url) as client:
        for i, size in enumerate(sizes, 1):
            call = np.array([1e9 + i]).tobytes() + bytes(4)
            client.xadd(stream_key(model), {"call": call, "sizes": np.array([size], np.float32).tobytes()}, id=f"{i}-0")
    joint = "&" if "?" in redis_server.url else "?"
    options = TraceOptions(f"{redis_server.url}{joint}model={model}", None, "auto", None, "s", 100.0, None, None, None)
    trace = options.read()
    assert trace.reading == "timestamps (the buffer's own)" + said
    if told == 500:
        assert trace.sizes is not None and trace.sizes.tolist() == sizes[100:].tolist()
    else:
        assert trace.sizes is None


def test_a_stream_that_is_not_there_or_is_asked_for_a_column_is_refused(redis_server: RedisServer, exit_of: Run) -> None:
    joint = "&" if "?" in redis_server.url else "?"
    url = f"{redis_server.url}{joint}model=nobody"
    code, _, err = exit_of("fit", url)
    assert code == 2 and "no arrivals seen yet for model 'nobody'" in err
    code, _, err = exit_of("fit", redis_server.url)
    assert code == 2 and "names one model" in err
    for option in (("--column", "time"), ("--unit", "ms")):
        code, _, err = exit_of("fit", url, *option)
        assert code == 2 and "a file where --column, --kind, --bin or --unit is given" in err
    code, _, err = exit_of("fit", "redis://127.0.0.1:1/0?model=m")
    assert code == 1 and "Redis does not answer" in err and "; at redis://127.0.0.1:1/0 (TRACE)" in err


def test_a_document_is_no_trace_and_a_missing_file_is_told_from_one_that_cannot_be_read(tmp_path: Path, exit_of: Run) -> None:
    (tmp_path / "profile.json").write_text('{"version": 1}')
    _, _, err = exit_of("fit", str(tmp_path / "profile.json"))
    assert (
        "is not allowed; allowed: CSV, Parquet, NPY or a load balancer's log, plain or gzip; this is JSON, which is no trace" in err
    )
    _, _, err = exit_of("fit", "nope.csv")
    assert "trace: 'nope.csv' is not allowed; allowed: a file that exists" in err
