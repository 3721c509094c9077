"""Sizes of requests, from a column of a trace."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.traces.trace import Trace, read_sizes, read_trace

TIMES = np.cumsum(np.random.default_rng(0).exponential(0.1, 200))
SIZES = np.random.default_rng(1).integers(1, 500, 200)


def csv(folder: Path, rows: list[str]) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return csv(tmp_path, ["time,tokens", *(f"{t:.9f},{s}" for t, s in zip(TIMES, SIZES, strict=True))])


def test_the_sizes_of_a_column_belong_to_the_arrivals_of_their_rows(file: Path, tmp_path: Path) -> None:
    trace = read_trace(file, size_column="tokens")
    assert trace.sizes is not None and trace.sizes.tolist() == SIZES.tolist() == read_sizes(file, "tokens").tolist()
    assert read_trace(file).sizes is None
    parquet = tmp_path / "trace.parquet"
    pa.parquet.write_table(pa.table({"time": TIMES, "tokens": SIZES}), parquet)
    assert (read_trace(parquet, size_column="tokens").sizes == SIZES).all()


def test_parts_of_a_trace_keep_their_sizes(file: Path) -> None:
    trace = read_trace(file, size_column="tokens")
    assert (trace.sped_up(2).sizes == SIZES).all()
    for part in (trace.between(2.0, 15.0), trace.last(12.0), trace.last(12.0).between(0.5, 11.8)):
        assert part.sizes is not None and len(part.sizes) == len(part)
        first = int(np.flatnonzero(np.isclose(np.diff(trace.times), part.interarrivals[0]))[0])
        assert (part.sizes == SIZES[first : first + len(part)]).all()


def test_sizes_drawn_independently_are_uncorrelated_and_sorted_ones_are_not(file: Path) -> None:
    trace = read_trace(file, size_column="tokens")
    found = trace.size_correlations()
    assert found is not None and max(map(abs, found)) < 4 / np.sqrt(len(trace))
    rising = Trace(trace.interarrivals, sizes=np.sort(SIZES)).size_correlations()
    assert rising is not None and rising[0] > 0.9
    by_gap = Trace(trace.interarrivals, sizes=np.append(1.0, trace.interarrivals)).size_correlations()
    assert by_gap is not None and by_gap[1] > 0.9
    assert read_trace(file).size_correlations() is None


def test_a_column_that_numbers_the_rows_is_not_taken_for_the_sizes(tmp_path: Path) -> None:
    path = csv(tmp_path, ["id,tokens", *(f"{i},{s}" for i, s in enumerate(SIZES))])
    wanted = (
        "column: none was given; needed: --size-column with the name of the sizes among id, tokens, as the first column numbers"
    )
    with pytest.raises(InvalidInput, match=wanted):
        read_sizes(path)
    assert read_sizes(path, "tokens").tolist() == SIZES.tolist()


def test_sizes_that_are_none_are_named_with_their_line(tmp_path: Path) -> None:
    rows = [f"{t:.9f},{s}" for t, s in zip(TIMES, SIZES, strict=True)]
    with pytest.raises(InvalidInput, match=r"trace.csv, line 4: '-5' is not allowed; allowed: a size >= 0"):
        read_sizes(csv(tmp_path, ["time,tokens", *rows[:2], "0.5,-5", *rows[2:]]), "tokens")
    with pytest.raises(InvalidInput, match=r"trace.csv, line 3: 'many' is not allowed; allowed: a number of column tokens"):
        read_sizes(csv(tmp_path, ["time,tokens", rows[0], "0.5,many", *rows[2:]]), "tokens")
    with pytest.raises(InvalidInput, match=r"column: 'length' is not allowed; allowed: one of the columns of .*: time, tokens"):
        read_sizes(csv(tmp_path, ["time,tokens", *rows]), "length")
    stamps = csv(tmp_path, ["time", *(f"2026-01-01 00:00:{i % 60:02d}" for i in range(3))])
    with pytest.raises(
        InvalidInput,
        match=r"column: none was given; needed: one of numbers, the sizes of requests \(--size-column NAME\), not times",
    ):
        read_sizes(stamps)


def test_gaps_have_no_sizes_as_their_first_arrival_has_no_row(tmp_path: Path) -> None:
    gaps = csv(tmp_path, ["gap,tokens", *(f"{g:.6f},{s}" for g, s in zip(np.diff(TIMES), SIZES, strict=False))])
    with pytest.raises(InvalidInput, match=r"allowed: times of a trace that has sizes: a row for each arrival"):
        read_trace(gaps, size_column="tokens")
    with pytest.raises(InvalidInput, match=r"sizes: 3 is not allowed; allowed: one for each of 200 arrivals"):
        Trace(np.diff(TIMES), sizes=np.ones(3))
