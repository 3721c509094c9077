"""What callers may make a process hold is bounded in bytes; who goes beyond it is refused or cut off, and nobody else is."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tracemalloc
from contextlib import suppress

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import write
from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.routes import REQUEST_BYTES
from sluice.http.connection import MAX_HEADER_BYTES
from sluice.lambda_fn.contract import Answer
from sluice.local.ports import chosen_port
from tests.buffer_service.conftest import NO_BATCHING, plan, serving
from tests.waiting import until

PATIENCE = 60.0  # s: nothing here takes so long, however busy the machine
POST = b"POST /models/m HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n"
MB = 1_000_000


async def connect(buffer, receive_buffer=0):
    """A connection by hand; with a small receive buffer, a client that leaves its answers where they are."""
    client = socket.socket()
    if receive_buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", int(buffer.url.rpartition(":")[2])))
    return await asyncio.open_connection(sock=client, limit=1024)


def gated(function):
    """Have the function answer when the gate is opened."""
    gate = asyncio.Event()

    async def answer(batch):
        await gate.wait()
        return await function.echo(batch)

    function.answer = answer
    return gate


def answering(function, size):
    """Have the function answer so many bytes."""

    async def large(batch):
        return [Answer(item.id, 200, "text/plain", b"x" * size) for item in batch.items]

    function.answer = large


# --- answers of functions


async def test_what_a_function_answered_counts_until_its_batch_has_ended(function):
    gate = asyncio.Event()

    async def answer(batch):
        if len(batch.items) > 1:
            raise FunctionFailed("too many")
        if batch.items[0].body == b"last":
            await gate.wait()
        return [Answer(batch.items[0].id, 200, "text/plain", b"x" * 100_000)]

    function.answer = answer
    async with serving(function, constructors.size_or_timeout(2, 1.0)) as buffer:
        asked = [asyncio.create_task(buffer.post("/models/m", body, "text/plain")) for body in (b"first", b"last")]
        await until(lambda: buffer.service.answers.taken > 100_000)
        assert 'sluice_held_bytes{what="answers"} 1' in (await buffer.get("/metrics"))[2].decode()
        gate.set()
        assert [(await task)[0] for task in asked] == [200, 200]
        await until(lambda: buffer.service.answers.taken == 0)


# --- requests


async def test_a_body_beyond_what_may_wait_is_refused_at_once_and_taken_when_there_is_room_again(function):
    gate = gated(function)
    async with serving(function, NO_BATCHING, max_waiting_bytes=2 * (60_000 + REQUEST_BYTES)) as buffer:
        body = b"x" * 60_000
        first = [asyncio.create_task(buffer.post("/models/m", body, "text/plain")) for _ in range(2)]
        await until(lambda: len(function.batches) == 2)
        status, headers, text = await buffer.post("/models/m", body, "text/plain")
        assert (status, headers["retry-after"]) == (503, "1")
        assert b"no room for another request" in text
        assert not any(task.done() for task in first)  # nobody had to leave for it
        samples = (await buffer.get("/metrics"))[2].decode()
        assert 'sluice_refusals_total{error="NoRoom",model="m"} 1.0' in samples
        assert f'sluice_held_bytes{{what="waiting"}} {float(2 * (60_000 + REQUEST_BYTES))}' in samples
        gate.set()
        assert [status for status, _, _ in await asyncio.gather(*first)] == [200, 200]
        assert (await buffer.post("/models/m", body, "text/plain"))[0] == 200
        assert buffer.service.waiting.taken == 0


CHUNKED = b"POST /models/m HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "request_",
    [POST % MB + b"x" * MB, CHUNKED + (b"2000\r\n" + b"x" * 0x2000 + b"\r\n") * 122 + b"0\r\n\r\n"],
    ids=["at once", "midway"],
)
async def test_a_connection_whose_body_found_no_room_is_heard_again(function, request_):
    gate = gated(function)
    async with serving(function, NO_BATCHING, max_waiting_bytes=4 * REQUEST_BYTES) as buffer:
        reader, writer = await connect(buffer)
        writer.write(request_)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
        gate.set()
        writer.write(POST % 1 + b"x")
        async with asyncio.timeout(PATIENCE):
            while b"HTTP/1.1 200 " not in await reader.readline():  # behind the body of the first answer
                pass
        writer.close()


async def test_half_a_body_counts_until_its_client_goes(function):
    async with serving(function, NO_BATCHING, max_waiting_bytes=400_000) as buffer:
        _, writer = await connect(buffer)
        writer.write(POST % 350_000 + b"x" * 340_000)
        await until(lambda: buffer.service.waiting.taken >= 340_000)
        assert (await buffer.post("/models/m", b"x" * 50_000, "text/plain"))[0] == 503
        writer.close()
        await until(lambda: buffer.service.waiting.taken == 0)
        assert (await buffer.post("/models/m", b"x" * 50_000, "text/plain"))[0] == 200


async def test_half_a_body_in_very_small_chunks_takes_no_more_than_is_counted(function):
    chunks, n = b"2\r\nab\r\n", 20_000
    async with serving(function, NO_BATCHING) as buffer:
        _, writer = await connect(buffer)
        writer.write(b"POST /models/m HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        await until(lambda: buffer.service.waiting.taken == REQUEST_BYTES)
        tracemalloc.start()
        try:
            writer.write(chunks * n)
            await until(lambda: buffer.service.waiting.taken == REQUEST_BYTES + 2 * n)
            assert tracemalloc.get_traced_memory()[0] < 4 * 2 * n
        finally:
            tracemalloc.stop()
        writer.close()


async def test_what_was_read_behind_a_request_that_waits_counts_and_without_room_costs_its_own_connection_alone(function):
    gate = gated(function)
    async with serving(function, NO_BATCHING, max_waiting_bytes=REQUEST_BYTES + 30_000) as buffer:
        patient, greedy = await connect(buffer), await connect(buffer)
        patient[1].write((POST % 1 + b"1") * 20)
        await until(lambda: len(function.batches) == 1)
        assert 0 < buffer.service.waiting.taken - REQUEST_BYTES - 1 < 4_000
        greedy[1].write(b"GET /v2 HTTP/1.1\r\nhost: x\r\n\r\n" + (POST % 1 + b"1") * 2_000)
        assert (await greedy[0].readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        assert buffer.service.waiting.taken <= REQUEST_BYTES + 30_000
        gate.set()
        answers = b""
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):  # what it had not sent yet meets a closed connection
                assert (await greedy[0].read()).count(b"HTTP/1.1 ") == 1
            while answers.count(b"HTTP/1.1 200 ") < 20:
                answers += await patient[0].read(1024)
        patient[1].close()
        await until(lambda: buffer.service.waiting.taken == 0)


async def test_half_sent_headers_count_until_they_are_given_up(function):
    async with serving(function, NO_BATCHING, max_waiting_bytes=300_000, header_timeout=0.3) as buffer:
        clients = [await connect(buffer) for _ in range(10)]
        for _, writer in clients:
            writer.write(b"GET /v2 HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 50_000)
        await until(lambda: buffer.service.waiting.taken > 200_000)
        refused = await asyncio.gather(*(reader.read() for reader, _ in clients), return_exceptions=True)
        assert buffer.service.waiting.taken == 0
        texts = [text for text in refused if isinstance(text, bytes)]
        assert any(text.startswith(b"HTTP/1.1 503 ") for text in texts)
        assert 3 <= sum(text.startswith(b"HTTP/1.1 408 ") for text in texts) <= 5
        assert (await buffer.get("/v2/health/live"))[0] == 200


async def test_trailers_without_end_are_cut_off(function):
    async with serving(function, NO_BATCHING) as buffer:
        reader, writer = await connect(buffer)
        writer.write(b"POST /models/m HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\ny: ")
        end = asyncio.create_task(reader.read())
        sent = 0
        while not end.done():
            assert sent < 20 * MAX_HEADER_BYTES
            writer.write(b"y" * 8192)
            sent += 8192
            await asyncio.wait([end], timeout=0.005)
        assert isinstance(end.exception(), ConnectionResetError) or end.result().startswith(b"HTTP/1.1 431 ")


# --- answers


async def test_a_client_that_does_not_take_its_answer_is_cut_off_and_costs_nothing_any_more(function):
    answering(function, 20 * MB)
    async with serving(function, NO_BATCHING, body_timeout=0.3) as buffer:
        reader, writer = await connect(buffer, receive_buffer=4096)
        writer.write(POST % 1 + b"1")
        await until(lambda: buffer.service.untaken.taken > 10 * MB)
        await until(lambda: buffer.service.untaken.taken == 0)
        taken = 0
        with suppress(ConnectionResetError, asyncio.IncompleteReadError):
            while chunk := await reader.read(MB):
                taken += len(chunk)
        assert taken < 20 * MB
        writer.close()


async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(function):
    answering(function, 8 * MB)
    async with serving(function, NO_BATCHING, body_timeout=0.2) as buffer:
        reader, writer = await connect(buffer, receive_buffer=65536)
        writer.write(POST % 1 + b"1")
        await reader.readuntil(b"\r\n\r\n")
        taken = 0
        while taken < 8 * MB:
            chunk = await reader.read(200_000)
            assert chunk
            taken += len(chunk)
            if taken < 6 * MB:
                await asyncio.sleep(0.001)
        assert (taken, buffer.service.untaken.taken) == (8 * MB, 0)
        writer.close()


async def test_of_many_who_leave_their_answers_the_longest_are_cut_off_where_there_is_no_room(function):
    answering(function, 20 * MB)
    async with serving(function, NO_BATCHING, max_waiting_bytes=40 * MB) as buffer:
        clients = [await connect(buffer, receive_buffer=4096) for _ in range(4)]
        for _, writer in clients:
            writer.write(POST % 1 + b"1")
            await asyncio.sleep(0.1)
            assert buffer.service.untaken.taken <= 40 * MB
        assert len(function.batches) == 4
        assert buffer.service.untaken.taken > 10 * MB
        answered = (await buffer.get("/v2/health/live"))[0]
        assert answered == 200
        for _, writer in clients:
            writer.close()
        await until(lambda: buffer.service.untaken.taken == 0)


async def test_the_next_request_of_a_connection_waits_until_the_answer_before_it_was_taken(function):
    answering(function, 10 * MB)
    async with serving(function, NO_BATCHING) as buffer:
        reader, writer = await connect(buffer, receive_buffer=4096)
        writer.write((POST % 1 + b"1") * 2)
        await until(lambda: buffer.service.untaken.taken > 2 * MB)
        await asyncio.sleep(0.1)
        assert len(function.batches) == 1
        taken = 0
        async with asyncio.timeout(PATIENCE):
            while taken < 20 * MB:
                taken += len(await reader.read(MB))
        assert len(function.batches) == 2
        writer.close()


# --- a process


def resident(process):
    """MB of a process."""
    with open(f"/proc/{process.pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


async def alive(port):
    """A request is answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_28_mb_of_pipelined_requests_whose_answers_nobody_reads_cost_no_memory_and_hold_up_nobody(tmp_path):
    (tmp_path / "plan.json").write_bytes(write(plan(constructors.no_batching(), function="http://127.0.0.1:1")))
    port = chosen_port()
    settings = {"REDIS_URL": "memory://", "PLANS": f"file:{tmp_path}", "PORT": str(port), "LOG_LEVEL": "error"}
    environment = os.environ | {f"SLUICE_{name}": value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "sluice.cli.main", "serve", env=environment)
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await alive(port)
                    break
                except OSError:
                    await asyncio.sleep(0.02)
            before = resident(process)
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
            writer.transport.pause_reading()
            writer.write(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n" * (28 * MB // 41))
            for _ in range(50):
                await alive(port)
            assert resident(process) < before + 20
            assert not writer.is_closing()  # all that was while they were there
            writer.transport.abort()
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("size", [0, 100, 5_000, 300_000])
async def test_requests_of_any_size_that_come_together_are_answered_each_with_its_own(function, size):
    async with serving(function, NO_BATCHING) as buffer:
        reader, writer = await connect(buffer)
        bodies = [(b"%06d" % i) * (size // 6 + 1) for i in range(12)]
        writer.write(b"".join(POST % len(body) + body for body in bodies))
        for body in bodies:
            async with asyncio.timeout(PATIENCE):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(len(body)) == body
        writer.close()
