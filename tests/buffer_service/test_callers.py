"""Who waits gets one answer, the first; or an error, when its time is over."""

import asyncio

import pytest

from sluice.batching.errors import DeadlinePassed, StoreUnavailable
from sluice.buffer_service.callers import Callers, new_process_name
from sluice.buffer_service.store import ID_LENGTH, PROCESS_LENGTH
from sluice.lambda_fn.contract import Answer, Item
from tests.buffer_service.virtual_time import in_virtual_time

PATIENCE = 60.0  # s: nothing here takes so long, however busy the machine


def clock():
    return asyncio.get_running_loop().time()


def item(callers):
    return Item(callers.new_id(), "application/json", b"1")


def answer(request, body=b"2"):
    return Answer(request.id, 200, "application/json", body)


def test_ids_are_unique_and_16_characters_and_begin_with_their_process():
    first, second = (
        Callers(new_process_name(), PATIENCE, clock),
        Callers(new_process_name(), PATIENCE, clock),
    )
    ids = [callers.new_id() for callers in (first, second) for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert {len(request_id) for request_id in ids} == {16} == {ID_LENGTH}
    assert not {request_id[PROCESS_LENGTH:] for request_id in ids[:10]} & {f"{n:08x}" for n in range(10)}, "no serial from 0 on"
    assert {request_id[:PROCESS_LENGTH] for request_id in ids} == {first.process, second.process}


@in_virtual_time
async def test_the_first_answer_is_the_one_that_counts():
    callers = Callers("pppppppp", PATIENCE, clock)
    request = item(callers)
    answered = callers.add("m", request, callers.clock()).answered
    callers.answer(answer(request, b"first"))
    callers.answer(answer(request, b"second"))
    callers.fail(request.id, StoreUnavailable("too late as well"))
    assert (await answered).body == b"first"
    assert callers.waiting == {}


@in_virtual_time
async def test_an_answer_goes_to_the_one_who_asked():
    callers = Callers("pppppppp", PATIENCE, clock)
    requests = [item(callers) for _ in range(3)]
    answered = [callers.add("m", request, callers.clock()).answered for request in requests]
    for request in reversed(requests):
        callers.answer(answer(request, request.id.encode()))
    assert [got.body.decode() for got in await asyncio.gather(*answered)] == [request.id for request in requests]


@in_virtual_time
async def test_an_answer_for_nobody_is_dropped():
    callers = Callers("pppppppp", PATIENCE, clock)
    request = item(callers)
    answered = callers.add("m", request, callers.clock()).answered
    callers.answer(answer(item(callers)))
    assert list(callers.waiting) == [request.id] and not answered.done()


@in_virtual_time
async def test_a_failure_reaches_the_caller_and_no_answer_after_it():
    callers = Callers("pppppppp", PATIENCE, clock)
    request = item(callers)
    answered = callers.add("m", request, callers.clock()).answered
    callers.fail(request.id, StoreUnavailable("Redis does not answer"))
    callers.answer(answer(request))
    with pytest.raises(StoreUnavailable, match="Redis does not answer"):
        await answered


@in_virtual_time
async def test_what_is_to_be_done_at_the_end_is_done_at_once_in_order_and_a_defect_of_one_keeps_nothing_from_the_others(caplog):
    callers, done = Callers("pppppppp", 60.0, clock), []
    waiting = callers.add("m", request := item(callers), callers.clock())

    def defect(_):
        raise ValueError("a defect")

    for told in (lambda it: done.append(it.answer.body), defect, lambda it: done.append(it is waiting)):
        waiting.then(told)
    callers.answer(answer(request, b"first"))
    callers.answer(answer(request, b"second"))
    waiting.end()
    assert done == [b"first", True] and "a defect" in caplog.text and request.id in caplog.text
    waiting.then(lambda it: done.append("late"))
    assert len(done) == 2
    await asyncio.sleep(0)
    assert done[2:] == ["late"] and (await waiting.answered).body == b"first"


async def test_who_has_gone_has_neither_an_answer_nor_an_error_and_his_future_is_cancelled():
    callers, done = Callers("pppppppp", 60.0, clock), []
    by_future, by_himself = (callers.add("m", item(callers), callers.clock()) for _ in range(2))
    for waiting in (by_future, by_himself):
        waiting.then(lambda it: done.append((it.answer, it.error, it.over)))
    futures = by_future.answered, by_himself.answered
    assert by_himself.answered is futures[1]
    futures[0].cancel()
    by_himself.end()
    await asyncio.sleep(0)
    assert done == [(None, None, True)] * 2 and all(future.cancelled() for future in futures)


async def test_who_is_gone_or_cancelled_is_answered_no_more():
    callers = Callers("pppppppp", PATIENCE, clock)
    gone, cancelled = item(callers), item(callers)
    futures = [callers.add("m", waiting, callers.clock()).answered for waiting in (gone, cancelled)]
    callers.forget(gone.id)
    callers.forget(gone.id)
    futures[1].cancel()
    callers.answer(answer(gone))
    callers.answer(answer(cancelled))
    assert not futures[0].done() and futures[1].cancelled()
    assert callers.waiting == {}


@in_virtual_time
async def test_a_deadline_that_passes_fails_its_caller_and_names_the_time():
    answered = (callers := Callers("pppppppp", 0.02, clock)).add("m", item(callers), callers.clock()).answered
    with pytest.raises(DeadlinePassed, match=r"no answer within 0\.02 s"):
        async with asyncio.timeout(PATIENCE):
            await answered
    assert callers.waiting == {}


@in_virtual_time
async def test_deadlines_pass_in_the_order_of_arrival_and_not_before_their_time():
    loop = asyncio.get_running_loop()
    callers, order = Callers("pppppppp", 0.05, clock), []
    started = loop.time()
    futures = [callers.add("m", item(callers), callers.clock()).answered for _ in range(5)]
    for i, future in enumerate(futures):
        future.add_done_callback(lambda _, i=i: order.append((i, loop.time() - started)))
    async with asyncio.timeout(PATIENCE):
        failures = await asyncio.gather(*futures, return_exceptions=True)
    assert [i for i, _ in order] == [0, 1, 2, 3, 4]
    assert min(seconds for _, seconds in order) >= 0.05
    assert {type(failure) for failure in failures} == {DeadlinePassed}


@in_virtual_time
async def test_who_comes_after_a_deadline_passed_has_a_deadline_too():
    callers = Callers("pppppppp", 0.01, clock)
    for _ in range(2):
        with pytest.raises(DeadlinePassed):
            async with asyncio.timeout(PATIENCE):
                await callers.add("m", item(callers), callers.clock()).answered
