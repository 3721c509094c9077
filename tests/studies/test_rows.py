"""Records kept as rows of CSV come back as they were, to the digits that are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.rows import read_rows, write_rows


@dataclass(frozen=True)
class Kept:
    """Of every type that the studies keep."""

    name: str
    count: int
    value: float
    limit: int | None
    other: float | None


KEPT = st.builds(
    Kept,
    st.text("abc ,\"'μ:0.1", min_size=1),
    st.integers(-(10**9), 10**9),
    st.floats(allow_nan=False),
    st.none() | st.integers(0, 99),
    st.none() | st.floats(allow_nan=False),
)


@given(st.lists(KEPT, max_size=5))
def test_what_is_written_with_all_digits_is_read_again(tmp_path_factory: pytest.TempPathFactory, rows: list[Kept]) -> None:
    path = tmp_path_factory.mktemp("rows") / "kept.csv"
    write_rows(path, Kept, rows, digits=17)
    assert read_rows(path, Kept) == rows


def test_numbers_are_kept_to_so_many_digits_and_counts_whole(tmp_path: Path) -> None:
    write_rows(tmp_path / "kept.csv", Kept, [Kept("a", 123456789, 1 / 3, None, 1e9)], digits=3)
    assert (tmp_path / "kept.csv").read_text(encoding="utf-8") == "name,count,value,limit,other\na,123456789,0.333,,1e+09\n"


def test_what_cannot_be_had_and_what_never_comes_is_kept(tmp_path: Path) -> None:
    write_rows(tmp_path / "kept.csv", Kept, [Kept("a", 1, math.nan, 2, math.inf)], digits=5)
    (row,) = read_rows(tmp_path / "kept.csv", Kept)
    assert math.isnan(row.value) and row.other == math.inf


def test_a_cell_that_is_no_number_is_refused_with_its_field(tmp_path: Path) -> None:
    (tmp_path / "kept.csv").write_text("name,count,value,limit,other\na,1,many,,\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"float.*value"):
        read_rows(tmp_path / "kept.csv", Kept)
