"""Batches in frames are a round trip, keep bodies untouched, and what is wrong with a document is named."""

from __future__ import annotations

import random
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.lambda_fn import contract
from sluice.lambda_fn.batch_frames import (
    MAGIC,
    MEDIA_TYPE,
    TAKES,
    Sealed,
    decode_batch,
    decode_measured_answers,
    encode_answers,
    encode_batch,
    is_framed,
    open_sealed,
    takes_frames,
)
from sluice.lambda_fn.contract import JSON, NOTHING_MEASURED, Answer, Batch, Item, Measured, WireError

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
headers = st.dictionaries(text, text, max_size=2)
items = st.builds(Item, text, st.sampled_from([JSON, "text/plain", ""]), st.binary(max_size=40), headers)
sendable = st.dictionaries(
    st.from_regex(r"x-[a-z0-9-]{1,8}", fullmatch=True), st.from_regex(r"[ -~]{0,12}", fullmatch=True), max_size=2
)
times = st.none() | st.floats(0, 1000)

BATCH = Batch("m", [Item("a", JSON, b'{"x": 1}'), Item("b", "image/png", b"\x00\xff" * 50, {"n": "1"})])
ANSWERS = [Answer(item.id, 200, item.content_type, item.body) for item in BATCH.items]


def document(head: object, bodies: bytes = b"") -> bytes:
    packed = msgspec.msgpack.encode(head)
    return MAGIC + struct.pack("<I", len(packed)) + packed + bodies


@given(st.builds(Batch, text, st.lists(items, max_size=4)))
def test_a_batch_survives_the_round_trip_byte_by_byte_and_its_bodies_are_not_copied(batch: Batch) -> None:
    pieces = encode_batch(batch)
    assert all(piece is item.body for piece, item in zip(pieces[1:], batch.items, strict=True))
    assert is_framed(b"".join(pieces))
    assert decode_batch(b"".join(pieces)) == batch


@given(
    st.lists(st.tuples(items, st.integers(200, 599), sendable), max_size=4),
    st.builds(Measured, service=times, billed=times, cold=st.booleans()),
)
def test_answers_survive_the_round_trip(asked: list[tuple[Item, int, dict[str, str]]], measured: Measured) -> None:
    answers = [Answer(item.id, status, item.content_type, item.body, told) for item, status, told in asked]
    data = b"".join(encode_answers(answers, measured))
    assert decode_measured_answers(data, Batch("m", [item for item, _, _ in asked])) == (answers, measured)


@given(st.builds(Batch, text, st.lists(items, max_size=4)), st.lists(st.integers(1, 300), max_size=4))
def test_a_batch_that_nobody_has_opened_is_the_same_however_it_was_cut(batch: Batch, cuts: list[int]) -> None:
    whole = b"".join(encode_batch(batch))
    ends = sorted({min(cut, len(whole)) for cut in cuts} | {len(whole)})
    sealed = Sealed([whole[start:end] for start, end in zip([0, *ends], ends, strict=False)])
    assert (sealed.model, sealed.ids, len(sealed)) == (batch.model, [item.id for item in batch.items], len(batch.items))
    bodies = b"".join(sealed.bodies)
    assert sealed.size == len(bodies) and sealed.head + bodies == whole
    assert open_sealed(sealed.head, lambda size, at: bodies[at : at + size]) == batch.items


def test_a_document_in_json_is_read_as_such() -> None:
    assert decode_batch(contract.encode_batch(BATCH)) == BATCH
    assert decode_measured_answers(contract.encode_answers(ANSWERS), BATCH) == (ANSWERS, NOTHING_MEASURED)
    with pytest.raises(WireError, match="not a batch: Input data was truncated"):
        decode_batch(b"{")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (MAGIC, "not a batch: it ends within its first 8 bytes"),
        (MAGIC + b"\xff\xff\xff\xff" + b"x" * 9, "not a batch: a head of 4294967295 bytes, of which 9 are there"),
        (document({}), "not a batch: Expected `array`, got `object`"),
        (document(["m"]), "not a batch: Expected `array` of at least length 2, got 1"),
        (document(["m", [["a", JSON, -1, {}]]]), "not a batch: Expected `int` >= 0"),
        (document(["m", [["a", JSON, 3, {}]]], b"12"), "bodies: 2 bytes are there; the head tells of 3"),
        (document(["m", [["a", JSON, 3, {}]]], b"1234"), "bodies: 4 bytes are there; the head tells of 3"),
        (document(["m", []]) + b"x", "bodies: 1 bytes are there; the head tells of 0"),
        (MAGIC + struct.pack("<I", 4) + b"\x92\xa1m\x90" + b"", ""),
        (MAGIC + struct.pack("<I", 100_000) + b"\x91" * 100_000, "not a batch: "),
    ],
)
def test_a_document_that_is_no_batch_is_refused_by_name(data: bytes, message: str) -> None:
    if not message:
        assert decode_batch(data) == Batch("m", [])
        return
    with pytest.raises(WireError) as caught:
        decode_batch(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("head", "bodies", "message"),
    [
        ([[["a", 200, JSON, 1, {}]], None], b"1", "responses: 1 answers do not match the 2 requests"),
        ([[["b", 200, JSON, 1, {}], ["a", 200, JSON, 1, {}]], None], b"12", "responses: 2 answers do not match the 2 requests"),
        ([[["a", 99, JSON, 1, {}], ["b", 200, JSON, 1, {}]], None], b"12", "status of 'a': 99 is not allowed"),
        ([[["a", 200, JSON, 1, {"x": "1\r\n"}], ["b", 200, JSON, 1, {}]], None], b"12", "headers of 'a': 'x'"),
        ([[["a", 200, JSON, 1, {}], ["b", 200, JSON, 1, {}]], None], b"1", "bodies: 1 bytes are there; the head tells of 2"),
        ([7, None], b"", "not an answer: Expected `array`, got `int`"),
    ],
)
def test_answers_that_are_not_those_asked_for_are_refused_by_name(head: object, bodies: bytes, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_measured_answers(document(head, bodies), BATCH)
    assert message in str(caught.value)


@pytest.mark.parametrize("told", [None, 7, {"service": -1.0}, {"service": 1e9}, {"service": "x"}, [1]])
def test_nobodys_answer_hangs_on_what_a_function_tells_of_itself(told: object) -> None:
    head = [[["a", 200, JSON, 1, {}], ["b", 200, JSON, 0, {}]], told]
    answers, measured = decode_measured_answers(document(head, b"1"), BATCH)
    assert ([answer.body for answer in answers], measured) == ([b"1", b""], NOTHING_MEASURED)


@pytest.mark.parametrize("seed", range(3))
def test_of_bytes_that_were_tampered_with_nothing_comes_but_a_batch_or_why_it_is_none(seed: int) -> None:
    rng = random.Random(seed)
    whole, refused = b"".join(encode_batch(BATCH)), 0
    for _ in range(2000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(4, 60)] = rng.randrange(256)
        try:
            batch = decode_batch(bytes(data[: rng.choice((len(data), rng.randrange(5, len(data))))]))
        except WireError:
            refused += 1
        else:
            assert sum(len(item.body) for item in batch.items) <= len(whole)
    assert 1000 < refused < 2000


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (TAKES, True),
        ("application/json , application/vnd.sluice.batch+frames ; Version=2", True),
        (MEDIA_TYPE.replace("2", "3"), False),
        ("application/vnd.sluice.batch+frames", False),
        ("application/json", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_who_takes_frames_says_in_which_version(accept: str, takes: bool) -> None:
    assert takes_frames(accept) is takes
