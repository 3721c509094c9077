"""Batches that exhaust the memory are halved, and the size that fits is remembered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sluice.lambda_fn.contract import Answer, Item
from sluice.lambda_fn.models.memory import TRY_AFTER, WithinMemory, exhausts_memory
from sluice.lambda_fn.models.sleeper import Sleeper


class Small(Sleeper):
    """Has room for so many requests; ``asked`` for batches of these sizes."""

    def __init__(self, room: int) -> None:
        super().__init__("small")
        self.room = room
        self.asked: list[int] = []

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        self.asked.append(len(items))
        if len(items) > self.room:
            raise MemoryError("no room")
        return super().answer(items)


def items(number: int) -> list[Item]:
    return [Item(f"r{i}", "application/json", str(i).encode()) for i in range(number)]


def test_a_batch_too_large_is_halved_until_it_fits_and_every_request_gets_its_own_answer() -> None:
    small = Small(3)
    model = WithinMemory(small)
    answers = model.answer(items(8))
    assert [(a.id, a.status, a.body) for a in answers] == [(f"r{i}", 200, str(i).encode()) for i in range(8)]
    assert small.asked == [8, 4, 2, 2, 2, 2]
    assert model.metadata()["parameters"] == {"largest_batch": 2}
    small.asked.clear()
    model.answer(items(5))
    assert small.asked == [2, 2, 1]


def test_a_request_that_exhausts_the_memory_alone_fails_alone() -> None:
    answers = WithinMemory(Small(0)).answer(items(2))
    assert [a.status for a in answers] == [500, 500]
    assert b"the request exhausts the memory: MemoryError: no room" in answers[0].body


def test_a_larger_batch_is_tried_again_after_a_while() -> None:
    small = Small(2)
    model = WithinMemory(small)
    model.answer(items(4))
    small.room = 4
    for _ in range(TRY_AFTER + 1):
        model.answer(items(4))
    assert small.asked[-1] == 4
    assert model.largest == 4


def test_other_errors_are_raised() -> None:
    class Broken(Sleeper):
        def answer(self, items: Sequence[Item]) -> list[Answer]:
            raise RuntimeError("out of order")

    with pytest.raises(RuntimeError, match="out of order"):
        WithinMemory(Broken("broken")).answer(items(4))


@pytest.mark.parametrize(
    ("error", "of_memory"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("a GPU"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_lack_of_memory(error: Exception, of_memory: bool) -> None:
    assert exhausts_memory(error) is of_memory
