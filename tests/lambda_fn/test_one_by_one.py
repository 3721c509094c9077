"""How a worker goes through single items that it was given together."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from sluice.lambda_fn.pipeline.marks import Marks, memory_for_marks
from sluice.lambda_fn.pipeline.one_by_one import OneByOne
from tests.waiting import eventually

SOON = 60.0  # s


class Worker:
    """One in a thread of this process; a number is passed on, an event is waited for."""

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.returned: list[str | int] = []
        self.seconds: list[float] = []
        self.skipped: list[int] = []
        self.one_by_one: OneByOne[int | threading.Event, str | int] = OneByOne(
            marks, self.make, self.give_back, self.skip, "results of a test"
        )

    def make(self, item: int | threading.Event) -> str | int:
        if isinstance(item, threading.Event):
            assert item.wait(SOON)
            return "held"
        return item

    def give_back(self, made: list[str | int], seconds: float) -> None:
        self.returned += made
        self.seconds.append(seconds)

    def skip(self, places: Sequence[int]) -> None:
        self.skipped += places

    @contextmanager
    def running(self, items: Sequence[int | threading.Event]) -> Iterator[None]:
        """While it goes through them."""
        thread = threading.Thread(target=self.one_by_one.run, args=(items,))
        thread.start()
        yield
        thread.join(SOON)
        assert not thread.is_alive()


@pytest.fixture(params=["of a thread", "of a process"])
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    memory = memory_for_marks() if request.param == "of a process" else None
    marks = Marks(memory.fd if memory is not None else None)
    worker = Worker(marks)
    yield worker
    worker.one_by_one.close()
    marks.close()
    eventually(lambda: all(thread.name != "results of a test" for thread in threading.enumerate()))


def test_what_is_made_is_returned_beside_an_item_that_takes_long_each_time_anew(worker: Worker) -> None:
    for nobody_looks in (False, False, True, False):
        worker.returned.clear()
        held = threading.Event()
        with worker.running([1, 2, held, 3]):
            eventually(lambda: worker.returned == [1, 2])
            held.set()
        assert worker.returned == [1, 2, "held", 3]
        if nobody_looks:
            eventually(lambda: not worker.one_by_one._watched)
    assert min(worker.seconds) >= 0


def test_what_it_is_stopped_before_is_skipped_and_what_comes_later_is_not(worker: Worker) -> None:
    held = threading.Event()
    with worker.running([0, held, 2, 3]):
        eventually(lambda: worker.marks.begun == 2)
        worker.marks.stop(4)
        held.set()
    assert (worker.returned, worker.skipped) == ([0, "held"], [2, 3])
    worker.one_by_one.run([4, 5])
    assert (worker.returned, worker.skipped, worker.marks.begun) == ([0, "held", 4, 5], [2, 3], 6)
