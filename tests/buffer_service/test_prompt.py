"""Coroutines that go on at once: what they wait for, how they end, and how they are cancelled."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from sluice.buffer_service.prompt import GivenUp, Promised, Prompt
from tests.buffer_service.virtual_time import in_virtual_time

NAME: ContextVar[str] = ContextVar("name", default="")


class Running:
    """A coroutine that has begun, and how it ended."""

    def __init__(self, coroutine):
        self.ends = []
        self.prompt = Prompt(coroutine, self.ends.append)
        self.prompt.go_on()


@in_virtual_time
async def test_it_goes_on_before_who_settles_what_it_waits_for():
    first, second, seen = Promised(), Promised(), []

    async def work():
        seen.append(await first)
        seen.append(await second)

    running = Running(work())
    first.set_result(1)
    assert seen == [1] and running.ends == []
    second.set_result(2)
    assert seen == [1, 2] and running.ends == [None]


@in_virtual_time
async def test_an_error_is_raised_where_it_waits_and_what_it_ends_with_is_told():
    promised = Promised()

    async def work():
        with pytest.raises(ValueError):
            await promised
        raise KeyError("x")

    running = Running(work())
    promised.set_exception(ValueError())
    assert [type(error) for error in running.ends] == [KeyError]


@in_virtual_time
async def test_it_waits_for_futures_tasks_and_rounds_of_the_loop_in_a_context_of_its_own():
    loop, seen = asyncio.get_running_loop(), []

    async def inside():
        async with asyncio.timeout(1.0):
            await asyncio.sleep(0.1)
        return NAME.get()

    async def work():
        NAME.set("mine")
        await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        seen.append(await loop.create_task(inside()))

    running = Running(work())
    await asyncio.sleep(0.3)
    assert running.ends == [None] and seen == ["mine"] and NAME.get() == ""


@in_virtual_time
async def test_a_task_waits_for_what_is_promised_as_for_any_future():
    promised = Promised()

    async def work():
        return await promised

    task = asyncio.get_running_loop().create_task(work())
    await asyncio.sleep(0)
    promised.set_result(3)
    assert not task.done() and await task == 3


@pytest.mark.parametrize("waits_for", ["promised", "a task", "a round"])
@in_virtual_time
async def test_it_is_cancelled_at_once_with_what_it_waits_for(waits_for):
    loop, promised = asyncio.get_running_loop(), Promised()
    task = loop.create_task(asyncio.sleep(60.0))
    ended = []

    async def work():
        try:
            await (promised if waits_for == "promised" else task if waits_for == "a task" else asyncio.sleep(0))
        except asyncio.CancelledError:
            ended.append(True)
            raise

    running = Running(work())
    running.prompt.cancel()
    assert ended == [True] and [type(error) for error in running.ends] == [GivenUp]
    await asyncio.sleep(0.1)
    assert (promised.cancelled(), task.cancelled()) == (waits_for == "promised", waits_for == "a task")
    assert len(running.ends) == 1
    task.cancel()


@in_virtual_time
async def test_what_has_come_when_it_is_cancelled_and_it_has_not_heard_of_does_not_go_on_with_it():
    loop = asyncio.get_running_loop()
    first, second, seen = loop.create_future(), Promised(), []

    async def work():
        try:
            await first
        except asyncio.CancelledError:
            seen.append(await second)

    first.add_done_callback(lambda _: running.prompt.cancel())
    running = Running(work())
    first.set_result(1)
    await asyncio.sleep(0.1)
    assert seen == [] and running.ends == []
    second.set_result(2)
    assert seen == [2] and running.ends == [None]


@in_virtual_time
async def test_what_is_promised_may_be_cancelled_by_others_and_is_waited_for_by_one():
    promised = Promised()

    async def work():
        await promised

    running = Running(work())
    with pytest.raises(AssertionError, match="another waits"):
        Running(work())
    promised.cancel()
    assert [type(error) for error in running.ends] == [asyncio.CancelledError]


@in_virtual_time
async def test_it_goes_on_after_it_was_cancelled_where_it_does_not_end_with_that():
    first, second, seen = Promised(), Promised(), []

    async def work():
        try:
            await first
        except asyncio.CancelledError:
            seen.append(await second)

    running = Running(work())
    running.prompt.cancel()
    second.set_result(2)
    assert seen == [2] and running.ends == [None]
