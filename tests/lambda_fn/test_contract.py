"""The wire format is a round trip, keeps bodies untouched and names what is wrong with a document."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.lambda_fn.contract import (
    JSON,
    MAX_DIGITS,
    MAX_NESTING,
    Answer,
    Batch,
    Item,
    WireError,
    check_json,
    decode_answers,
    decode_batch,
    decode_event,
    decode_metadata,
    encode_answers,
    encode_batch,
    encode_metadata,
    failed,
    for_runtime,
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
# With the spaces that json.dumps puts: a body must come out as it went in, not as it would be written anew.
json_bodies = st.tuples(st.sampled_from(["application/json", "application/json; charset=utf-8", "application/x+json"]), values).map(
    lambda pair: (pair[0], json.dumps(pair[1]).encode())
)
other_bodies = st.tuples(st.sampled_from(["application/octet-stream", "text/plain", ""]), st.binary(max_size=30))
bodies = json_bodies | other_bodies
headers = st.dictionaries(text, text, max_size=2)
items = st.builds(lambda i, body, h: Item(i, body[0], body[1], h), text, bodies, headers)
statuses = st.integers(200, 599)
sendable = st.dictionaries(
    st.from_regex(r"x-[a-z0-9-]{1,8}", fullmatch=True), st.from_regex(r"[ -~]{0,12}", fullmatch=True), max_size=2
)


@given(st.builds(Batch, text, st.lists(items, max_size=4), st.booleans()))
def test_a_batch_survives_the_round_trip_byte_by_byte(batch: Batch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(st.lists(st.tuples(items, statuses, sendable), max_size=4))
def test_answers_survive_the_round_trip_byte_by_byte(asked: list[tuple[Item, int, dict[str, str]]]) -> None:
    answers = [Answer(item.id, status, item.content_type, item.body, headers) for item, status, headers in asked]
    assert decode_answers(encode_answers(answers), Batch("m", [item for item, _, _ in asked])) == answers


@given(st.builds(Batch, text, st.lists(items, max_size=4)))
def test_a_batch_that_the_runtime_parsed_is_the_same_batch(batch: Batch) -> None:
    parsed = decode_event(json.loads(encode_batch(batch)))
    assert [(item.id, item.content_type, item.headers) for item in parsed.items] == [
        (item.id, item.content_type, item.headers) for item in batch.items
    ]
    for got, sent in zip(parsed.items, batch.items, strict=True):
        if "json" in sent.content_type:
            assert json.loads(got.body) == json.loads(sent.body)
        else:
            assert got.body == sent.body


def test_metadata_survives_the_round_trip() -> None:
    assert decode_metadata(encode_metadata({"name": "m", "inputs": []})) == {"name": "m", "inputs": []}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"{", "not a batch: Input data was truncated"),
        (b"[]", "not a batch: Expected `object`, got `array`"),
        (b'{"version": 1}', "missing required field `model`"),
        (b'{"version": 2, "model": "m"}', "version: 2 is not allowed; allowed: 1"),
        (b'{"version": 1, "model": "m", "requests": [{"body": 1}]}', "missing required field `id` - at `$.requests[0]`"),
        (b'{"version": 1, "model": "m", "requests": [{"id": "a", "body_base64": "?"}]}', "body_base64 of 'a': "),
    ],
)
def test_a_document_that_is_no_batch_is_refused_by_name(document: bytes, message: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_batch(document)
    assert message in str(caught.value)


def test_an_event_that_is_no_batch_is_refused_by_name() -> None:
    with pytest.raises(WireError, match="not a batch: Expected `object`, got `str`"):
        decode_event("hello")


@pytest.mark.parametrize("ids", [[], ["b"], ["a", "b"]])
def test_answers_to_other_requests_are_refused(ids: list[str]) -> None:
    document = encode_answers([Answer(i, 200, "text/plain", b"") for i in ids])
    with pytest.raises(WireError, match=f"responses: {len(ids)} answers do not match the 1 requests"):
        decode_answers(document, Batch("m", [Item("a", "text/plain", b"")]))


def test_answers_without_metadata_are_no_description() -> None:
    with pytest.raises(WireError, match="metadata: null is not allowed"):
        decode_metadata(encode_answers([]))


def test_awslambdaric_gets_bytes_and_other_hosts_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "awslambdaric", raising=False)
    assert for_runtime(b'{"version":1}') == {"version": 1}
    monkeypatch.setitem(sys.modules, "awslambdaric", sys)
    assert for_runtime(b'{"version":1}') == b'{"version":1}'


@pytest.mark.parametrize("body", [b"null", b" [1, 2] ", b'{"a": {"b": "\\u00e9"}}', '"\u00e9"'.encode()])
def test_json_is_taken_as_it_is(body):
    check_json(body)


@pytest.mark.parametrize("body", [b"", b"1}, {", b'{"a": tru}', b'"\xff"', b"[" * 100_000 + b"]" * 100_000])
def test_what_is_not_one_json_document_is_refused(body):
    with pytest.raises(WireError, match="not one JSON document"):
        check_json(body)


@pytest.mark.parametrize("end", [b"", b".5", b"e3"])
@pytest.mark.parametrize("digits", [MAX_DIGITS, 4300, 4301, 9_000])
def test_an_integer_that_python_does_not_read_is_refused_and_a_long_fraction_is_not(digits, end):
    body = b'{"a": [' + b"7" * digits + end + b', "' + b"7" * 9_000 + b'"]}'
    if digits <= 4300 or end:
        check_json(body)
        json.loads(body)
    else:
        with pytest.raises(WireError, match="not one JSON document that Python reads: Exceeds the limit"):
            check_json(body)


@pytest.mark.parametrize(("start", "end"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_brackets_within_brackets_are_taken_as_far_as_whoever_reads_the_batch_can_follow(start, end):
    def nested(levels):
        return start * levels + b"1" + end * levels

    check_json(nested(MAX_NESTING))
    check_json(b"[" + b",".join([nested(4)] * 10_000) + b"]")
    deepest = 0
    for levels in range(MAX_NESTING, 2_000):
        try:
            check_json(nested(levels))
        except WireError:
            break
        deepest = levels
    batch = encode_batch(Batch("m", [Item("a", "application/json", nested(deepest))]))

    def read_from_deeper(frames):
        return read_from_deeper(frames - 1) if frames else (json.loads(batch), decode_batch(batch))

    assert read_from_deeper(150)
    with pytest.raises(WireError, match="not one JSON document: maximum recursion depth"):
        check_json(nested(deepest + 1))


def test_what_closes_the_room_that_is_left_around_it_is_no_document():
    with pytest.raises(WireError, match="not one JSON document"):
        check_json(b"1]," + b"[1]," * MAX_NESTING + b"[1")


def test_an_error_whose_text_is_no_utf_8_is_told() -> None:
    """As that of a file is, whose name has other bytes."""
    answer = failed("a", 500, "Model failed", "no such file: 'model-\udcff'")
    assert b"no such file: 'model-\\\\udcff'" in answer.body
    assert decode_answers(encode_answers([answer]), Batch("m", [Item("a", JSON, b"1")])) == [answer]
