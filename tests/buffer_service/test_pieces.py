"""A body that comes in pieces is their bytes, and costs little more than them."""

import sys

from hypothesis import given
from hypothesis import strategies as st

from sluice.http.pieces import SMALL, Pieces


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"x" * SMALL, b"y" * (2 * SMALL)]), max_size=12))
def test_the_bytes_come_out_as_they_went_in_once(parts):
    pieces = Pieces()
    for part in parts:
        pieces.add(part)
    assert pieces.take() == b"".join(parts)
    assert pieces.take() == b""
    for part in parts:
        pieces.add(part)
    assert b"".join(pieces.take_all()) == b"".join(parts)
    assert pieces.take_all() == []


def test_one_piece_is_not_copied():
    whole = b"x" * 10_000
    pieces = Pieces()
    pieces.add(whole)
    assert pieces.take() is whole


def test_pieces_of_two_bytes_do_not_take_many_times_their_bytes():
    pieces = Pieces()
    for _ in range(50_000):
        pieces.add(b"ab")
    assert sum(map(sys.getsizeof, pieces._pieces)) < 150_000
