"""Classes of requests, from a column of a trace."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.traces.trace import read_trace

TIMES = np.cumsum(np.random.default_rng(0).exponential(0.1, 200))
NAMES = np.random.default_rng(1).choice(["quick", "report"], 200)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("time,kind\n" + "\n".join(f"{t:.9f},{name}" for t, name in zip(TIMES, NAMES, strict=True)) + "\n")
    return path


def test_the_classes_of_a_column_belong_to_the_arrivals_of_their_rows(file: Path, tmp_path: Path) -> None:
    trace = read_trace(file, class_column="kind")
    assert trace.classes is not None and trace.classes.tolist() == NAMES.tolist()
    assert read_trace(file).classes is None
    parquet = tmp_path / "trace.parquet"
    pa.parquet.write_table(pa.table({"time": TIMES, "kind": NAMES.tolist()}), parquet)
    read = read_trace(parquet, class_column="kind").classes
    assert read is not None and read.tolist() == NAMES.tolist()


def test_parts_of_a_trace_keep_their_classes(file: Path) -> None:
    trace = read_trace(file, class_column="kind")
    assert (trace.sped_up(2).classes == NAMES).all()
    for part in (trace.between(2.0, 15.0), trace.last(12.0)):
        first = len(trace) - len(part) if part.source.endswith("last 12 s") else int(np.searchsorted(trace.times, 2.0))
        assert part.classes is not None and part.classes.tolist() == NAMES[first : first + len(part)].tolist()


def test_classes_that_are_none_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    rows = [f"{t:.6f},{'' if i == 3 else 'a'}" for i, t in enumerate(TIMES)]
    path.write_text("time,kind\n" + "\n".join(rows) + "\n")
    with pytest.raises(InvalidInput, match=r"trace.csv, line 5: '' .* the name of a class"):
        read_trace(path, class_column="kind")
    with pytest.raises(InvalidInput, match="column: 'sort' .* one of the columns of .*trace.csv: time, kind"):
        read_trace(path, class_column="sort")
    parquet = tmp_path / "trace.parquet"
    pa.parquet.write_table(pa.table({"time": TIMES, "kind": [None, *NAMES[1:].tolist()]}), parquet)
    with pytest.raises(InvalidInput, match=r"trace.parquet, row 1: '' .* the name of a class"):
        read_trace(parquet, class_column="kind")


def test_files_without_names_have_no_classes(tmp_path: Path) -> None:
    array = tmp_path / "trace.npy"
    np.save(array, TIMES)
    with pytest.raises(InvalidInput, match="class_column: 'kind' .* of a CSV or Parquet file"):
        read_trace(array, class_column="kind", kind="timestamps")
    gaps = tmp_path / "gaps.csv"
    gaps.write_text("gap,kind\n" + "\n".join(f"{gap:.6f},a" for gap in np.diff(TIMES)) + "\n")
    with pytest.raises(InvalidInput, match="kind: .* times of a trace that has classes: a row for each arrival"):
        read_trace(gaps, kind="interarrivals", class_column="kind")
