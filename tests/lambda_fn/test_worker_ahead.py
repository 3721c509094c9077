"""The full batch that is sent before another has ended: when it is, what that changes, and what becomes of it when things fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching.policy import INF, Policy, greedy, size_or_timeout, smdp, static
from sluice.lambda_fn.contract import Answer, Item
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.worker import execution, program
from sluice.lambda_fn.worker.execution import Asked, Outcome
from sluice.lambda_fn.worker.http_server import Failure
from sluice.lambda_fn.worker.link import Loaded, Source
from sluice.lambda_fn.worker.served_model import AHEAD, Life, ServedModel, Serving
from sluice.lambda_fn.worker.turns import Turns, Work
from tests.lambda_fn.worker_sockets import in_thread

TABLES = [
    greedy(1),
    greedy(3),
    static(2),
    size_or_timeout(3, 2.0),
    smdp([0, 0, 2, 3, 3, 2, 4]),
    Policy([INF, INF, 3.0, 1.0], [0, 0, 1, 3]),
]
EVENTS = st.lists(st.sampled_from(["single", "single", "single", "batch", "ended", "later"]), max_size=60)


def work(size: int = 1, single: bool = True) -> Work:
    return Work([Item(str(i), "application/json", b"1") for i in range(size)], single, lambda _: None)


def began(policy: Policy, executions: int, events: Sequence[str], ahead: bool) -> list[tuple[float, list[int]]]:
    """When which requests began, by number."""
    turns, now, log = Turns(policy, executions, limit=8), 0.0, []
    numbers: dict[int, int] = {}
    works = []

    def note(batch: tuple[Work, ...]) -> None:
        log.append((now, [numbers[id(one)] for one in batch]))

    for event in events:
        if event == "later":
            now += 1.0
        elif event != "ended":
            works.append(work() if event == "single" else work(2, single=False))
            numbers[id(works[-1])] = len(works)
            turns.came(now, works[-1])
        elif turns.running and (batch := turns.ended()):
            note(batch)
        while batch := turns.next(now).batch:
            note(batch)
        if ahead:
            turns.hand_ahead(now)
    return log


@given(st.sampled_from(TABLES), st.integers(1, 3), EVENTS)
def test_the_same_batches_begin_at_the_same_times_whether_or_not_they_are_handed_ahead(
    policy: Policy, executions: int, events: list[str]
) -> None:
    assert began(policy, executions, events, ahead=True) == began(policy, executions, events, ahead=False)


def full(policy: Policy, number: int, now: float = 0.0) -> Turns:
    """One execution that is busy, and so many who came at 0 and wait."""
    turns = Turns(policy, executions=1, limit=100)
    turns.came(0.0, work(single=False))
    assert turns.next(now).batch
    for _ in range(number):
        turns.came(0.0, work())
    return turns


@pytest.mark.parametrize(("policy", "number", "now", "ahead"), [
    (greedy(3), 2, 0.0, 0),  # another may come
    (greedy(3), 3, 0.0, 3),
    (greedy(3), 7, 0.0, 3),
    (smdp([0, 1, 2, 2, 4]), 3, 0.0, 0),  # four take another batch
    (smdp([0, 1, 2, 2, 4]), 4, 0.0, 4),
    (Policy([INF, INF, 1.0], [0, 0, 2]), 2, 0.5, 0),  # the hold has not ended
    (Policy([INF, INF, 1.0], [0, 0, 2]), 2, 1.0, 2),
])  # fmt: skip
def test_only_what_the_last_row_of_the_table_releases_is_handed_ahead(policy: Policy, number: int, now: float, ahead: int) -> None:
    assert len(full(policy, number).hand_ahead(now)) == ahead


def test_one_batch_is_ahead_and_none_while_an_execution_is_free_or_something_else_comes_before() -> None:
    turns = full(greedy(2), 6)
    assert turns.hand_ahead(0.0)
    assert not turns.hand_ahead(0.0)
    turns = full(greedy(2), 2)
    turns.lost([])
    assert not turns.hand_ahead(0.0)  # ``next`` has it
    turns = full(greedy(2), 0)
    turns.came(0.0, work(single=False))
    for _ in range(2):
        turns.came(1.0, work())
    assert not turns.hand_ahead(1.0)  # the batch came first
    turns = full(greedy(2), 4)
    turns.lost([work(), work()])
    assert turns.next(0.0).batch
    assert not turns.hand_ahead(0.0)  # one is to be computed once more before


def test_what_is_ahead_counts_as_waiting_until_it_begins() -> None:
    turns = Turns(greedy(2), executions=1, limit=3)
    for _ in range(3):
        turns.came(0.0, work())
        turns.next(0.0)
    ahead = turns.hand_ahead(0.0)
    assert (turns.waiting, turns.running) == (2, 1)
    assert turns.came(0.0, work())
    assert not turns.came(0.0, work())
    assert turns.ended() == ahead
    assert (turns.waiting, turns.running) == (1, 1)


def test_what_was_ahead_waits_again_before_the_others_but_for_those_who_have_gone() -> None:
    turns = full(greedy(3), 5)
    first, second, third = turns.hand_ahead(0.0)
    second.waits = False
    turns.lost([])
    turns.recall()
    assert (turns.waiting, turns.ahead) == (4, ())
    assert turns.next(0.0).batch[:2] == (first, third)
    assert not first.again


# -- the model that is served


class FakeLoaded:
    """A model that ends a batch when it is told to; ``batches`` that were begun, by the bodies of their requests."""

    measures_energy = False
    broken = ""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []
        self.on_lost: Callable[[str], None] = lambda cause: None
        self._done: list[Callable[[Outcome], None]] = []

    def begin(self, callers: Sequence[Asked], measured: bool, done: Callable[[Outcome], None]) -> None:
        self.batches.append([caller.items[0].body for caller in callers])
        self._done.append(done)

    def end(self) -> None:
        """The oldest batch that is begun."""
        size = len(self.batches[-len(self._done)])
        results: list[Any] = [(200, "text/plain", b"", {}, 0.001)] * size
        self._done.pop(0)(Outcome(results, {200: size}, size, 0.001, 0.0, None, "", None))

    async def unload(self) -> None:
        """Nothing of it stays."""


class FakeSource:
    """Loads a model anew each time."""

    def __init__(self) -> None:
        self.loaded: list[FakeLoaded] = []

    async def load(self, executions: int) -> Loaded:
        self.loaded.append(FakeLoaded())
        return cast(Loaded, self.loaded[-1])


class Bench:
    """A model whose batches are of two at most, virtual time, and what became of every request that was put to it."""

    def __init__(self, seconds: float = 0.001, **serving: Any) -> None:
        self.source = FakeSource()
        self.now = 0.0
        self.model = ServedModel("m", cast(Source, self.source), Serving(greedy(2), **serving), clock=lambda: self.now)
        self.model.measurements.add(2, seconds, 0.0)
        self.said: dict[bytes, Any] = {}

    async def put(self, *bodies: bytes) -> list[Work]:
        """These come at once."""
        works = []
        for body in bodies:
            answered = cast(Any, lambda result, body=body: self.said.__setitem__(body, result))
            works.append(self.model.submit([Item("", "text/plain", body)], True, answered))
        await self.turn()
        assert None not in works
        return cast(list[Work], works)

    async def turn(self) -> None:
        """What is due in the loop is done."""
        for _ in range(5):
            await asyncio.sleep(0)

    @property
    def loaded(self) -> FakeLoaded:
        return self.source.loaded[-1]

    def statuses(self) -> dict[bytes, int]:
        return {body: said.status if isinstance(said, Failure) else said[0] for body, said in self.said.items()}


async def bench(*bodies: bytes, **settings: Any) -> Bench:
    """A model that is loaded, and these that came one after another."""
    made = Bench(**settings)
    await made.model.load()
    for body in bodies:
        await made.put(body)
    return made


async def test_a_full_batch_goes_to_the_model_before_the_one_that_it_computes_has_ended_and_no_other_does() -> None:
    b = await bench(b"1", b"2")
    assert b.loaded.batches == [[b"1"]]
    await b.put(b"3", b"4", b"5")
    assert b.loaded.batches == [[b"1"], [b"2", b"3"]]
    assert (b.model.waiting, b.model.running) == (4, 1)
    b.loaded.end()
    await b.turn()
    assert b.loaded.batches == [[b"1"], [b"2", b"3"], [b"4", b"5"]]
    assert (b.model.waiting, b.model.running) == (2, 1)


async def test_batches_that_take_long_or_were_never_measured_are_not_sent_ahead() -> None:
    b = await bench(b"1", b"2", b"3", seconds=1.01 * AHEAD)
    assert b.loaded.batches == [[b"1"]]
    b.model.measurements.by_size.clear()
    await b.put(b"4")
    assert b.loaded.batches == [[b"1"]]


async def test_each_execution_has_its_batch_and_one_for_all_is_ahead() -> None:
    b = await bench(b"1", b"2", b"3", b"4", b"5", b"6", b"7", executions=2)
    assert b.loaded.batches == [[b"1"], [b"2"], [b"3", b"4"]]
    b.loaded.end()
    b.loaded.end()
    await b.turn()
    assert b.loaded.batches == [[b"1"], [b"2"], [b"3", b"4"], [b"5", b"6"]]
    assert (b.model.waiting, b.model.running) == (1, 2)


async def test_where_the_process_dies_what_was_computed_goes_alone_once_more_and_what_was_ahead_goes_as_before() -> None:
    b = await bench(b"1")
    await b.put(b"2", b"3", b"4", b"5", b"6")
    b.loaded.end()
    await b.turn()
    assert b.loaded.batches == [[b"1"], [b"2", b"3"], [b"4", b"5"]]
    b.loaded.on_lost("killed")
    assert (b.model.waiting, b.model.running) == (5, 0)
    await b.turn()
    assert b.model.life is Life.READY
    assert b.loaded.batches == [[b"2"]]
    b.loaded.end()
    await b.turn()
    assert b.loaded.batches == [[b"2"], [b"3"], [b"4", b"5"]]
    b.loaded.on_lost("killed")  # 3 for the second time, 4 and 5 were ahead both times
    await b.turn()
    assert b.loaded.batches == [[b"4", b"5"]]
    b.loaded.end()
    await b.turn()
    b.loaded.end()
    assert b.statuses() == {b"1": 200, b"2": 200, b"3": 500, b"4": 200, b"5": 200, b"6": 200}
    assert not b.model.busy


async def test_who_comes_while_a_model_is_loaded_again_is_told_to_ask_when_it_took_so_long_before() -> None:
    now, begins, source, answered = [0.0], asyncio.Event(), FakeSource(), list[Any]()

    class HeldSource:
        async def load(self, executions: int) -> Loaded:
            await begins.wait()
            return await source.load(executions)

    def told() -> float:
        assert model.submit([Item("a", "text/plain", b"x")], True, answered.append) is None
        return float(answered[-1].retry_after)

    model = ServedModel("m", cast(Source, HeldSource()), Serving(greedy(2)), clock=lambda: now[0])
    loading = asyncio.create_task(model.load())
    await asyncio.sleep(0)
    assert told() == 1.0  # nobody knows yet
    now[0] = 12.0
    begins.set()
    await loading
    begins.clear()
    source.loaded[-1].on_lost("killed")
    waits = []
    for now[0] in (12.0, 14.5, 23.5, 30.0):
        waits.append(told())
    assert waits == [12.0, 9.5, 1.0, 1.0]
    begins.set()
    await model.load()


async def test_who_goes_while_his_batch_is_ahead_is_not_answered_and_the_others_are() -> None:
    b = await bench(b"1")
    gone, _ = await b.put(b"2", b"3")
    b.model.withdraw(gone)
    b.loaded.end()
    b.loaded.end()
    assert b.statuses() == {b"1": 200, b"3": 200}
    assert not b.model.busy


async def test_who_waits_too_long_ahead_gets_504_and_what_runs_too_long_is_told() -> None:
    b = await bench(b"1", timeout=2.0)
    await b.put(b"2", b"3")
    b.now = 2.5
    b.model.look()
    assert b.said[b"2"].detail == "it waited for 2 s and was not begun"
    assert b.statuses() == {b"1": 504, b"2": 504, b"3": 504}
    assert b.model.dead
    b.loaded.end()
    assert not b.model.dead  # what was ahead has just begun
    assert b.model.running == 1


async def test_a_drain_ends_with_what_is_ahead_and_where_it_is_over_who_is_ahead_is_told() -> None:
    b = await bench(b"1")
    await b.put(b"2", b"3")
    draining = asyncio.ensure_future(b.model.drained())
    b.loaded.end()
    await b.turn()
    assert not draining.done()
    b.loaded.end()
    await draining
    await b.put(b"4")
    await b.put(b"5", b"6")
    b.model.give_up_all("over")
    assert {body: b.statuses()[body] for body in (b"4", b"5", b"6")} == {b"4": 503, b"5": 503, b"6": 503}


class Slow(Sleeper):
    """Takes as many seconds as its first request says, by a clock that it sets itself."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.now = 0.0

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        self.now += float(items[0].body)
        return super().answer(items)


async def test_the_service_time_of_a_batch_that_was_ahead_is_its_computation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(execution, "time", SimpleNamespace(perf_counter=lambda: slow.now))
    model = ServedModel("slow", in_thread(lambda: slow), Serving(greedy(2)))
    model.measurements.add(2, 0.0, 0.0)
    await model.load()
    answered: list[Any] = []
    for body in (b"5", b"1", b"1", b"3", b"3"):
        model.submit([Item("", "text/plain", body)], True, answered.append)
        if body == b"5":
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while len(answered) < 5:
            await asyncio.sleep(0.001)
    await model.unload()
    model.link.close()
    assert [seconds for *_, seconds in answered] == [5.0, 1.0, 1.0, 3.0, 3.0]


MODEL = """
import os, time

class Held:
    def predict(self, inputs: list[bytes]):
        if inputs == [b"held"] and not os.path.exists("held"):
            open("held", "w").close()
            time.sleep(60)
        return [str(os.getpid()) for _ in inputs]
"""


async def test_a_process_that_is_killed_with_a_batch_ahead_is_followed_by_one_that_computes_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    named, settings = [program.Named.parse("m=held.py:Held")], program.WorkerSettings(batch_size=2)
    link = program.open_link(named, settings)
    try:
        (model,) = program.open_models(named, settings, link)
        model.measurements.add(2, 0.0, 0.0)
        await model.load()
        answered: dict[bytes, Any] = {}
        for body in (b"held", b"1", b"2", b"3"):
            model.submit([Item("", "text/plain", body)], True, cast(Any, lambda said, body=body: answered.update({body: said})))
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            while not (tmp_path / "held").exists():
                await asyncio.sleep(0.01)
            assert (model.waiting, model.running, len(model._turns.ahead)) == (3, 1, 2)
            process = link._computer.process  # type: ignore[union-attr]
            process.kill()
            while len(answered) < 4:
                await asyncio.sleep(0.01)
        of = {body: (said[0], int(said[2])) for body, said in answered.items()}
        assert of == dict.fromkeys((b"held", b"1", b"2", b"3"), (200, link._computer.process.pid))  # type: ignore[union-attr]
        assert process.pid != link._computer.process.pid  # type: ignore[union-attr]
        assert [model.measurements.by_size[size].count for size in (1, 2)] == [2, 2]
        assert model.tallies.failures == {"ProcessDied": 1}
    finally:
        await link.end()
