"""Bodies of any size, and that the buffer reads the size that was asked for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sluice.batching.documents import RequestSize
from sluice.batching.errors import InvalidInput
from sluice.buffer_service.request_size import size_reader
from sluice.local.sized_body import KEPT, bodies_of_sizes


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"tokens": [3, 17, 9]}, "tokens"),
        ({"inputs": [{"text": "abc", "other": 1}]}, "inputs.0.text"),
        ({"size": 5, "list": [1]}, "size"),
        ([[1, 2], 3], "0"),
    ],
)
def test_the_size_that_a_plan_reads_is_the_one_asked_for(template: Any, path: str) -> None:
    body_of, read = bodies_of_sizes(msgspec.json.encode(template), path), size_reader(RequestSize("json", path))
    for size in (0, 1, 3, 4, 250):
        assert read((), {}, body_of(size)) == size


def test_nothing_else_is_changed_and_entries_come_again_and_again() -> None:
    body_of = bodies_of_sizes(b'{"a": {"tokens": [1, 2]}, "b": "x"}', "a.tokens")
    assert msgspec.json.decode(body_of(5)) == {"a": {"tokens": [1, 2, 1, 2, 1]}, "b": "x"}
    assert bodies_of_sizes(b'{"size": 1}', "size")(0.5) == b'{"size":0.5}'


def test_a_length_is_whole_and_few_bodies_are_kept() -> None:
    body_of = bodies_of_sizes(b'{"text": "ab"}', "text")
    with pytest.raises(InvalidInput, match="size: 2.5 is not allowed; allowed: an integer >= 0, as there is a length at text"):
        body_of(2.5)
    for size in range(KEPT + 5):
        body_of(size)
    assert body_of.cache_info().currsize == KEPT  # type: ignore[attr-defined]


@pytest.mark.parametrize("template", [b"{", b"{}", b'{"text": ""}', b'{"text": true}', b'{"text": null}', b"[1]"])
def test_what_has_no_size_is_refused(template: bytes) -> None:
    with pytest.raises(InvalidInput, match="body"):
        bodies_of_sizes(template, "text")
