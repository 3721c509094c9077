"""Bodies on their way to the processes that asked for them: who waits for whom, what is bounded, and what then goes nowhere."""

import asyncio
import logging
from collections import defaultdict

import pytest

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service import lending as lending_module
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.bodies import LENT_BYTES
from sluice.buffer_service.callers import Callers
from sluice.buffer_service.lending import Lending
from sluice.buffer_service.members import Ask, Lent, decode_message, encode_answers, encode_ask
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.settings import Settings
from sluice.lambda_fn.contract import Answer, Item
from tests.buffer_service.virtual_time import in_virtual_time

HERE, ONE, TWO = "phere000", "pone0000", "ptwo0000"
AWAY = 1.0  # seconds until a server counts as gone


def item(serial, body=b"body"):
    return Item(f"{HERE}{serial:08x}", "text/plain", body, {"a": "b"})


class Post:
    """What was sent to whom; to those ``away`` nothing arrives, which is learnt after ``AWAY`` s, to the ``held`` when let go."""

    def __init__(self, away=()):
        self.away, self.sent, self.held = set(away), [], defaultdict(lambda: None)

    async def __call__(self, process, message):
        if process in self.away:
            await asyncio.sleep(AWAY)
            raise StoreUnavailable("Redis does not answer: no answer in time")
        self.sent.append((process, [lent.id for lent in decode_message(message)]))
        if self.held[process] is not None:
            await self.held[process].wait()

    def hold(self, process):
        self.held[process] = asyncio.Event()
        return self.held[process]


def lending(post, *items):
    return Lending(post, {one.id: one for one in items}.get)


@in_virtual_time
async def test_a_process_whose_mail_goes_nowhere_keeps_nobody_from_his_answer_and_no_other_from_his_bodies():
    backend, post = MemoryBackend(), Post(away=[ONE])

    class Store(MemoryStore):
        async def send(self, process, message):
            await post(process, message)

    store = Store(backend, HERE)
    callers = Callers(HERE, 60.0, asyncio.get_running_loop().time)
    asked = callers.add("m", item(1), 0.0).item.id
    answers = [callers.add("m", item(serial), 0.0).answered for serial in (2, 3)]
    for message in (
        encode_ask(Ask(ONE, [asked])),
        encode_answers([Answer(item(2).id, 200, "", b"1")]),
        encode_ask(Ask(TWO, [asked])),
        encode_answers([Answer(item(3).id, 200, "", b"1")]),
    ):
        backend.mailboxes[HERE].put_nowait(message)
    service = BufferService(Settings(redis_url="memory://"), store=store)
    receiving = asyncio.create_task(service._receive(store, callers, lends := Lending(store.send, callers.lendable)))
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*answers)
    while not post.sent:
        await asyncio.sleep(0)
    assert asyncio.get_running_loop().time() == began
    assert post.sent == [(TWO, [asked])]
    receiving.cancel()
    await lends.close()
    assert not lends._sending


@in_virtual_time
async def test_to_one_process_one_message_is_on_its_way_and_what_is_asked_for_meanwhile_goes_once_and_together():
    post, items = Post(), [item(serial, b"x" * LENT_BYTES) for serial in range(2)] + [item(serial) for serial in range(2, 6)]
    lends, arrived = lending(post, *items), post.hold(ONE)
    ids = [one.id for one in items]
    lends.asked(Ask(ONE, ids[:2]))
    await asyncio.sleep(1)
    lends.asked(Ask(ONE, ids[2:4]))
    lends.asked(Ask(ONE, [*ids[3:5], "gone"]))
    lends.asked(Ask(ONE, []))
    await asyncio.sleep(1)
    assert post.sent == [(ONE, ids[:1])]
    arrived.set()
    await asyncio.sleep(1)
    assert post.sent == [(ONE, ids[:1]), (ONE, ids[1:2]), (ONE, [*ids[2:5], "gone"])]
    assert (lends._requests, lends._bytes, lends._asked, lends._sending) == (0, 0, {}, {})


@in_virtual_time
async def test_of_more_requests_than_may_wait_the_last_that_are_asked_for_are_passed_over_and_that_is_said(monkeypatch, caplog):
    monkeypatch.setattr(lending_module, "MOST_ASKED", 5)
    items = [item(serial) for serial in range(6)]
    post = Post()
    lends, arrived = lending(post, *items), post.hold(ONE)
    ids = [one.id for one in items]
    lends.asked(Ask(ONE, ids[:3]))
    await asyncio.sleep(1)
    lends.asked(Ask(TWO, ids[:3]))
    lends.asked(Ask(ONE, ids[3:5]))
    assert caplog.messages == [f"bodies of 3 requests are not sent to process {TWO}: 3 are still to be sent; allowed: 5"]
    lends.asked(Ask(ONE, ids[3:5]))  # once more, and in no more room
    lends.asked(Ask(ONE, ids[5:]))
    assert len(caplog.messages) == 1  # of the same kind, one line is enough
    arrived.set()
    await asyncio.sleep(1)
    assert post.sent == [(ONE, ids[:3]), (ONE, ids[3:5])]
    lends.asked(Ask(TWO, ids[:5]))  # there is room again
    await asyncio.sleep(1)
    assert post.sent[2:] == [(TWO, ids[:5])]


@in_virtual_time
async def test_no_more_bytes_than_so_many_are_on_their_way_beside_the_last_message(monkeypatch):
    monkeypatch.setattr(lending_module, "MOST_BYTES", 1500)
    items = [item(serial, b"x" * 1000) for serial in range(4)]
    post, processes = Post(), [f"pother{i:02}" for i in range(4)]
    lends, arrived = lending(post, *items), [post.hold(process) for process in processes]
    for process, one in zip(processes, items, strict=True):
        lends.asked(Ask(process, [one.id]))
    await asyncio.sleep(1)
    assert [process for process, _ in post.sent] == processes[:2]
    for i in range(4):
        arrived[i].set()
        await asyncio.sleep(1)
        assert [process for process, _ in post.sent] == processes[: min(3 + i, 4)]
    assert lends._bytes == 0


@in_virtual_time
async def test_who_cannot_be_reached_is_sent_nothing_of_what_he_asked_for_until_then_and_asks_again(caplog):
    items = [item(serial) for serial in range(3)]
    post, ids = Post(away=[ONE]), [one.id for one in items]
    lends = lending(post, *items)
    lends.asked(Ask(ONE, ids[:1]))
    await asyncio.sleep(AWAY / 2)
    lends.asked(Ask(ONE, ids[1:]))
    await asyncio.sleep(AWAY)
    assert caplog.messages == [f"bodies of 3 requests did not reach process {ONE}: Redis does not answer: no answer in time"]
    assert (lends._requests, lends._bytes, lends._asked, lends._sending) == (0, 0, {}, {})
    post.away.clear()
    lends.asked(Ask(ONE, ids))
    await asyncio.sleep(AWAY)
    assert post.sent == [(ONE, ids)]


@in_virtual_time
async def test_a_defect_while_bodies_are_sent_is_written_down_and_others_get_theirs(caplog):
    def find(request):
        if request == "broken":
            raise ValueError("a defect")
        return item(1)

    post = Post()
    lends = Lending(post, find)
    lends.asked(Ask(ONE, ["broken"]))
    lends.asked(Ask(TWO, [item(1).id]))
    await asyncio.sleep(1)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, f"bodies of 1 requests did not reach process {ONE}: a defect")
    ]
    assert caplog.records[0].exc_info is not None
    assert post.sent == [(TWO, [item(1).id])]
    assert (lends._requests, lends._bytes, lends._sending) == (0, 0, {})


@pytest.mark.parametrize("request_id", ["gone", item(1).id])
@in_virtual_time
async def test_who_is_asked_for_and_has_gone_is_told_of(request_id):
    told = []

    async def post(process, message):
        told.append((process, decode_message(message)))

    lending(post, item(1)).asked(Ask(ONE, [request_id]))
    await asyncio.sleep(1)
    assert told == [(ONE, [Lent.of(request_id, item(1) if request_id != "gone" else None)])]
