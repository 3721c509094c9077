"""Bodies that stay with the process of their caller: tickets, who asks for what, and what there is where nobody answers."""

import asyncio
import uuid

import msgspec
import pytest
import redis.asyncio as redis

from sluice.batching import policy as constructors
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service import bodies as bodies_module
from sluice.buffer_service.bodies import FIRST, LENT_BYTES, Bodies, lend
from sluice.buffer_service.callers import Callers, new_process_name
from sluice.buffer_service.mail import hand_out
from sluice.buffer_service.members import (
    Ask,
    Lent,
    Unreadable,
    decode_member,
    decode_message,
    encode_answers,
    encode_ask,
    encode_lent,
    encode_ticket,
    is_ticket,
    member_size,
    member_slack,
    member_told,
    ticket_length,
)
from sluice.buffer_service.memory_store import MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits, lends
from sluice.buffer_service.told import Told
from sluice.lambda_fn.contract import Answer, Item
from tests.buffer_service.conftest import Plans, memory, plan, serving
from tests.buffer_service.virtual_time import in_virtual_time

HERE, ONE, TWO, DEAD = "phere000", "pone0000", "ptwo0000", "pdead000"
WITHIN = 0.6
LARGE = b"[" + b"1," * 50_000 + b"1]"


def item(process, serial=1, body=b"body"):
    return Item(f"{process}{serial:08x}", "text/plain", body, {"a": "b"})


class Posts:
    """What was sent, and to whom; some of it gets lost."""

    def __init__(self, lost=0):
        self.sent, self.lost = [], lost

    async def __call__(self, process, message):
        self.sent.append((process, decode_message(message)))
        if len(self.sent) <= self.lost:
            raise StoreUnavailable("lost")


# --- tickets


@pytest.mark.parametrize(
    "told", [Told(), Told(size=7.0), Told(slack=-0.5), Told(size=3.0, slack=0.25, name="patient"), Told(name="own")]
)
def test_a_ticket_tells_what_its_request_told_and_how_long_its_body_is(told):
    ticket = encode_ticket(item(ONE, body=b"x" * 70_000), told)
    assert is_ticket(ticket) and len(ticket) < 64
    assert (member_told(ticket), member_size(ticket), member_slack(ticket)) == (told, told.size, told.slack)
    assert ticket_length(ticket) == 70_000


def test_a_ticket_that_cannot_be_read_and_one_that_is_read_as_a_body_say_what_they_are():
    ticket = encode_ticket(item(ONE))
    with pytest.raises(Unreadable, match=f"the request {ONE}00000001: 3 bytes, b.* cannot be read"):
        ticket_length(ticket[:35] + b"\xff\xff\xff")
    with pytest.raises(Unreadable, match="cannot be read"):
        decode_member(ticket)


def test_names_say_who_lends_bodies():
    assert lends(new_process_name()) and not lends("0123abcd") and not lends("abcdef01")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            b"\x02" + msgspec.msgpack.encode(["a name too long", []]),
            "'a name too long' asks for .* the name of no process",
        ),
        (b"\x02\xc1", "2 bytes, .* cannot be read"),
        (b"\x03" + msgspec.msgpack.encode([[7]]), "cannot be read"),
        (b"\x04", "version 4 is not known here; known: 1 to 3"),
    ],
)
def test_a_message_about_bodies_that_cannot_be_read_says_why(message, why):
    with pytest.raises(Unreadable, match=why):
        decode_message(message)


# --- asking


@in_virtual_time
async def test_each_process_is_asked_once_for_all_that_it_has_and_who_has_gone_is_told_apart():
    bodies, send = Bodies(HERE), Posts()
    wanted = {ONE: [item(ONE, 1).id, item(ONE, 2).id], TWO: [item(TWO).id]}
    fetching = asyncio.create_task(bodies.fetch(send, wanted, WITHIN))
    await asyncio.sleep(0.01)
    assert send.sent == [(ONE, Ask(HERE, wanted[ONE])), (TWO, Ask(HERE, wanted[TWO]))]
    bodies.came([Lent.of(item(ONE, 1).id, item(ONE, 1)), Lent.of(item(ONE, 2).id, None), Lent.of("another000000001", item(ONE))])
    await asyncio.sleep(0.01)
    assert not fetching.done()
    bodies.came([Lent.of(item(TWO).id, item(TWO))])
    assert await fetching == {item(ONE, 1).id: item(ONE, 1), item(ONE, 2).id: None, item(TWO).id: item(TWO)}
    assert not bodies._fetches


@in_virtual_time
async def test_who_does_not_answer_is_asked_twice_and_from_then_on_waited_for_a_part_of_the_time_until_he_is_heard_of():
    loop, bodies, send = asyncio.get_running_loop(), Bodies(HERE), Posts(lost=1)

    async def seconds():
        began = loop.time()
        assert await bodies.fetch(send, {ONE: [item(ONE).id]}, WITHIN) == {}
        return loop.time() - began

    assert await seconds() == pytest.approx(WITHIN) and len(send.sent) == 2
    assert await seconds() == pytest.approx(FIRST * WITHIN) and len(send.sent) == 3
    bodies.came([Lent.of(item(ONE).id, item(ONE))])  # too late for any
    assert await seconds() == pytest.approx(WITHIN)
    assert not bodies._fetches


@in_virtual_time
async def test_where_the_mailbox_of_one_process_is_away_the_others_are_asked_and_nobody_is_waited_for_longer():
    loop, bodies, asked = asyncio.get_running_loop(), Bodies(HERE), []

    async def send(process, message):
        asked.append((loop.time(), process))
        if process == ONE:
            await asyncio.sleep(1.0)
            raise StoreUnavailable("no answer in time")

    fetching = asyncio.create_task(bodies.fetch(send, {ONE: [item(ONE).id], TWO: [item(TWO).id]}, WITHIN))
    await asyncio.sleep(0.01)
    bodies.came([Lent.of(item(TWO).id, item(TWO))])
    assert await fetching == {item(TWO).id: item(TWO)}
    assert asked == [(0.0, ONE), (0.0, TWO), (FIRST * WITHIN, ONE)]
    assert loop.time() == pytest.approx(WITHIN)
    await asyncio.sleep(2.0)
    assert not bodies._asking


@in_virtual_time
async def test_of_no_more_silent_processes_than_so_many_is_it_known(monkeypatch):
    monkeypatch.setattr(bodies_module, "SILENT_KNOWN", 3)
    bodies = Bodies(HERE)
    for i in range(5):
        await bodies.fetch(Posts(), {f"p{i:07}": [f"p{i:07}00000001"]}, WITHIN)
    assert list(bodies._silent) == [f"p{i:07}" for i in (2, 3, 4)]


def test_what_is_lent_goes_in_messages_of_so_many_bytes_beside_the_first_body():
    items = {
        one.id: one
        for one in (item(ONE, i, b"x" * size) for i, size in enumerate((3 * LENT_BYTES, LENT_BYTES // 2, LENT_BYTES // 2, 1)))
    }
    messages = [decode_message(message) for message in lend(Ask(HERE, [*items, "gone"]), items.get)]
    assert [[len(lent.body) if lent.body is not None else None for lent in message] for message in messages] == [
        [3 * LENT_BYTES],
        [LENT_BYTES // 2, LENT_BYTES // 2],
        [1, None],
    ]
    assert [lent.item() for message in messages for lent in message] == [*items.values(), None]


@in_virtual_time
async def test_mail_hands_out_answers_and_what_is_asked_for_and_sets_aside_the_rest():
    callers, asked, aside = Callers(HERE, 60.0, asyncio.get_running_loop().time), [], []
    waiting = callers.add("m", item(HERE), 0.0)
    told, ask = Answer(waiting.item.id, 200, "", b"1"), Ask(ONE, [waiting.item.id])
    mail = [encode_ask(ask), b"\xff", encode_answers([told]), encode_lent([Lent("nobody asked")])]
    hand_out(mail, callers, asked.append, lambda what, why: aside.append((what, why)))
    assert waiting.answer == told
    assert asked == [ask]
    assert [what for what, _ in aside] == ["message"]


# --- through the buffer


async def test_two_processes_lend_each_other_bodies_and_redis_keeps_tickets(redis_server, function):
    model, table = uuid.uuid4().hex, constructors.static(4)
    plans, (one, two) = Plans(plan(table, model)), (RedisStore(redis_server.url, new_process_name()) for _ in range(2))
    async with (
        serving(function, table, one, plans) as first,
        serving(function, table, two, plans) as second,
        redis.Redis.from_url(redis_server.url) as client,
    ):
        async with asyncio.timeout(20):
            for buffer in (first, second):  # what each hears with its sweeps
                while not all(route._state._facts.all_lend for route in buffer.service._models[model]._dispatchers.values()):
                    await asyncio.sleep(0.005)
            waiting = [asyncio.create_task(buffer.post(f"/models/{model}", LARGE)) for buffer in (first, second, first)]
            while await client.llen(key := f"sluice:{{{model}}}:members") < 3:
                await asyncio.sleep(0.001)
            assert all(len(member) < 64 for member in await client.lrange(key, 0, -1))
            last = await second.post(f"/models/{model}", LARGE)
            answers = [*await asyncio.gather(*waiting), last]
    assert [(status, body == LARGE) for status, _, body in answers] == [(200, True)] * 4
    assert [len(batch.items) for batch in function.batches] == [4]


@in_virtual_time
async def test_bodies_go_through_the_queue_while_a_process_is_there_that_does_not_lend(function):
    table, backend = constructors.static(2), memory()
    async with serving(function, table, MemoryStore(backend, HERE), lease=0.6) as buffer:
        old = MemoryStore(backend, "0123abcd").queue("m", Limits())
        await asyncio.sleep(0.1)
        await old.advance(Events(serving=[], leaving=False))
        await asyncio.sleep(1.5)
        waiting = asyncio.create_task(buffer.post("/models/m", LARGE))
        await asyncio.sleep(0.1)
        [batch] = (await old.advance(Events([b"0123abcd00000001\x93\xa0\x80\xc4\x01x"]))).batches
        assert decode_member(batch.members[0]).body == LARGE
        waiting.cancel()


async def _with_a_dead_process(function, backend, model="m", **settings):
    """One request, and a ticket of a process that is no more in its batch."""
    table = constructors.static(2)
    async with serving(function, table, MemoryStore(backend, HERE), lease=WITHIN, **settings) as buffer:
        await asyncio.sleep(0.1)
        dead = MemoryStore(backend, DEAD)
        await dead.queue("m", Limits()).advance(Events([encode_ticket(item(DEAD, body=LARGE))], leaving=True))
        began = asyncio.get_running_loop().time()
        status, _, body = await buffer.post("/models/m", b"1")
        took = asyncio.get_running_loop().time() - began
        [*asked, told] = [decode_message(backend.mailboxes[DEAD].get_nowait()) for _ in range(backend.mailboxes[DEAD].qsize())]
        assert (status, body) == (200, b"1")
        assert [len(batch.items) for batch in function.batches] == [1]
        assert buffer.service.answers.taken == 0
        return asked, told, took


@in_virtual_time
async def test_a_body_whose_process_is_dead_holds_its_batch_for_a_lease_and_is_refused(function):
    asked, [told], took = await _with_a_dead_process(function, memory())
    assert asked == [Ask(HERE, [f"{DEAD}00000001"])] * 2
    assert (told.id, told.status) == (f"{DEAD}00000001", 503)
    assert b"the process that has the body did not send it within 0.6 s" in told.body
    assert took == pytest.approx(WITHIN, abs=0.05)


@in_virtual_time
async def test_for_bodies_beyond_what_may_be_held_nobody_is_asked(function):
    asked, [told], took = await _with_a_dead_process(function, memory(), max_waiting_bytes=60_000)
    assert asked == [] and (told.id, told.status) == (f"{DEAD}00000001", 503)
    assert b"those that wait here hold 60000 bytes, which is all they may" in told.body
    assert took < 0.05
