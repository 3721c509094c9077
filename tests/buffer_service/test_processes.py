"""Real processes of `sluice serve` on one Redis, in front of a worker that remembers what it was sent."""

import asyncio
import json
import os
import re
import signal
import statistics
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.buffer_service.arrival_stream import read_arrivals
from sluice.buffer_service.redis_servers import COMMAND_TIMEOUT
from sluice.lambda_fn.contract import Answer, decode_batch, encode_answers, encode_metadata
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer
from sluice.optimizer.traces.trace import Trace
from tests.buffer_service.moving_address import moving_address
from tests.buffer_service.test_failover import AT_ONCE, replica_of
from tests.waiting import until

pytestmark = pytest.mark.full

REQUESTS = 800


class Worker:
    """An HTTP worker that echoes, after ``delay`` seconds, and keeps the ids of every batch."""

    def __init__(self):
        self.batches = []
        self.delay = 0.0

    async def answer(self, request):
        batch = decode_batch(await request.read())
        if batch.describe:
            return web.Response(body=encode_metadata({"name": batch.model}))
        self.batches.append([item.id for item in batch.items])
        await asyncio.sleep(self.delay)
        return web.Response(body=encode_answers([Answer(i.id, 200, i.content_type, i.body) for i in batch.items]))


@pytest.fixture
async def worker():
    worker = Worker()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/", worker.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)  # it may be at work for somebody who is gone
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    worker.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/"
    yield worker
    await runner.cleanup()


@asynccontextmanager
async def buffers(count, redis_url, tmp_path, worker, policy):
    """So many `sluice serve`, ready; killed in the end."""
    model = tmp_path.name[:100]
    plan = Plan(model=model, function=worker.url, policy=PolicyDocument.of(policy))
    (tmp_path / "plan.json").write_bytes(write(plan))
    processes, urls = [], []
    try:
        for _ in range(count):
            port = chosen_port()
            environment = os.environ | {
                "SLUICE_REDIS_URL": redis_url,
                "SLUICE_PLANS": f"file:{tmp_path / 'plan.json'}",
                "SLUICE_PORT": str(port),
                "SLUICE_LOG_LEVEL": "warning",
            }
            command = [sys.executable, "-m", "sluice.cli.main", "serve"]
            processes.append(await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.DEVNULL))
            urls.append(f"http://127.0.0.1:{port}")
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=300)) as http:  # a user may open 1024 files
            for process, url in zip(processes, urls, strict=True):
                await ready(http, process, url)
            yield http, processes, [f"{url}/models/{model}" for url in urls]
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def ready(http, process, url):
    while process.returncode is None:
        try:
            async with http.get(url + "/v2/health/ready") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientConnectionError:
            pass
        await asyncio.sleep(0.01)
    raise AssertionError(f"sluice serve ended with {process.returncode}")


async def ask(http, url, i):
    """The answer to request ``i``, or ``None`` where the connection broke."""
    try:
        async with http.post(url, json={"request": i}) as response:
            return response.status, await response.json(content_type=None)
    except aiohttp.ClientError:
        return None


async def test_two_buffers_on_one_redis_answer_each_request_with_its_own(redis_server, tmp_path, worker):
    async with buffers(2, redis_server.url, tmp_path, worker, constructors.size_or_timeout(32, 0.02)) as (http, _, urls):
        answers = await asyncio.gather(*(ask(http, urls[i % 2], i) for i in range(REQUESTS)))
    assert answers == [(200, {"request": i}) for i in range(REQUESTS)]
    served = [request_id for batch in worker.batches for request_id in batch]
    assert len(served) == len(set(served)) == REQUESTS
    assert any(len({request_id[:8] for request_id in batch}) == 2 for batch in worker.batches)
    assert max(len(batch) for batch in worker.batches) <= 32


async def test_the_arrivals_of_two_buffers_are_read_back_as_one_trace(redis_server, tmp_path, worker):
    sent, answered = [], []
    rng = np.random.default_rng(1)

    async def arrive(http, url, i):
        sent.append(time.time())
        assert (await ask(http, url, i))[0] == 200
        answered.append(time.time())

    async with buffers(2, redis_server.url, tmp_path, worker, constructors.size_or_timeout(32, 0.02)) as (http, _, urls):
        arriving = []
        for i, gap in enumerate(rng.exponential(0.003, 300)):
            await asyncio.sleep(gap)
            arriving.append(asyncio.create_task(arrive(http, urls[i % 2], i)))
        await asyncio.gather(*arriving)
    times = np.asarray(read_arrivals(redis_server.url, tmp_path.name[:100]))
    assert len(times) == 300
    # Each came after it was sent and before it was answered, by the one clock of this machine; then so did the k-th, for every k.
    assert np.max(np.sort(sent) - times) <= 0
    assert np.max(times - np.sort(answered)) <= 0
    trace = Trace(np.diff(times), "redis")
    assert len(trace) == 300
    assert trace.duration == pytest.approx(times[-1] - times[0])


async def test_killing_one_buffer_loses_no_request_of_the_other(redis_server, tmp_path, worker):
    worker.delay = 0.05  # so that batches are in flight when the process dies
    async with buffers(2, redis_server.url, tmp_path, worker, constructors.size_or_timeout(32, 0.02)) as (http, processes, urls):
        answers = [asyncio.create_task(ask(http, urls[i % 2], i)) for i in range(REQUESTS)]
        while len(worker.batches) < 8:
            await asyncio.sleep(0.001)
        processes[0].kill()
        results = await asyncio.gather(*answers)
    assert [results[i] for i in range(1, REQUESTS, 2)] == [(200, {"request": i}) for i in range(1, REQUESTS, 2)]
    assert any(result is None for result in results), "the killed process had answered everything already"


async def test_a_killed_process_holds_the_only_server_no_longer_than_its_lease(redis_server, tmp_path, worker):
    worker.delay = 3600.0
    async with buffers(2, redis_server.url, tmp_path, worker, constructors.greedy(8, servers=1)) as (http, processes, urls):
        lost = asyncio.create_task(ask(http, urls[0], 0))
        while not worker.batches:
            await asyncio.sleep(0.001)
        waits = asyncio.create_task(ask(http, urls[1], 1))
        await asyncio.sleep(0.2)
        assert len(worker.batches) == 1
        worker.delay = 0.0
        processes[0].kill()
        assert await waits == (200, {"request": 1})  # what the worker still computes for the other never ends
        assert await lost is None


async def test_two_buffers_survive_their_redis_primary_as_its_replica_takes_over_the_address(tmp_path, worker):
    asked, unready, table = [], [[], []], constructors.size_or_timeout(8, 0.01)

    async def load(http, urls):
        """Requests to both in turn, and whether both are ready, until cancelled."""
        asking = set()
        try:
            for i in count():
                task = asyncio.create_task(timed(http, urls[i % 2], i))
                asking.add(task)
                task.add_done_callback(asking.discard)
                await asyncio.sleep(0.005)
        finally:
            await asyncio.gather(*asking)

    async def timed(http, url, i):
        came = time.monotonic()
        async with http.post(url, json={"request": i}) as response:
            asked.append((came, response.status, await response.read(), time.monotonic() - came, i))

    async def watch(http, url, seen):
        while True:
            async with http.get(url.partition("/models")[0] + "/v2/health/ready") as response:
                seen.append((time.monotonic(), response.status, await response.read()))
            await asyncio.sleep(0.02)

    def served_by_both(since):
        return {i % 2 for came, status, _, _, i in asked if status == 200 and came > since} == {0, 1}

    with RedisServer(port=0, options=AT_ONCE) as primary, replica_of(primary) as (replica, client):
        async with moving_address(primary.port) as address, AsyncExitStack() as stack:
            redis_url = f"redis://127.0.0.1:{address.port}/0"
            http, _, urls = await stack.enter_async_context(buffers(2, redis_url, tmp_path, worker, table))
            began = time.monotonic()
            tasks = [asyncio.create_task(load(http, urls))]
            tasks += [asyncio.create_task(watch(http, url, seen)) for url, seen in zip(urls, unready, strict=True)]
            await until(lambda: served_by_both(began))
            primary.kill()
            killed = time.monotonic()
            await until(lambda: sum(status == 503 and came > killed for came, status, *_ in asked) >= 50)
            await until(lambda: all(seen[-1][1] == 503 for seen in unready))
            client.replicaof("NO", "ONE")
            address.target = replica.port
            promoted = time.monotonic()
            await until(lambda: served_by_both(promoted))
            served = time.monotonic()
            await until(lambda: all(seen[-1][1] == 200 for seen in unready) and served_by_both(served))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    answered = [(json.loads(body), i) for _, status, body, _, i in asked if status == 200]
    assert all(body == {"request": i} for body, i in answered)
    refused = [(came, body, took) for came, status, body, took, _ in asked if status != 200]
    assert {status for _, status, _, _, _ in asked} == {200, 503}
    assert all(b"Redis does not answer" in body for _, body, _ in refused)
    away = [took for came, _, took in refused if killed < came and came + took < promoted]
    assert statistics.median(away) < COMMAND_TIMEOUT  # they were told while nobody took writes, and waited for no time to be over
    # Who came before the kill was answered, or is told; from when both serve again nobody is refused.
    assert max(came for came, _, _ in refused) < served
    for seen in unready:
        said_not = [(at, body) for at, status, body in seen if status == 503]
        assert all(killed < at and b"Redis does not answer" in body for at, body in said_not)
        assert any(at < promoted for at, _ in said_not)
        assert seen[0][1] == seen[-1][1] == 200


async def test_sigterm_drains_who_waits_is_answered_and_the_process_ends_well(redis_server, tmp_path, worker):
    policy = constructors.size_or_timeout(1000, 5.0)
    async with buffers(1, redis_server.url, tmp_path, worker, policy) as (http, [process], [url]):
        answers = [asyncio.create_task(ask(http, url, i)) for i in range(50)]
        await waiting(http, url, 50)
        assert worker.batches == []
        process.send_signal(signal.SIGTERM)
        assert await asyncio.gather(*answers) == [(200, {"request": i}) for i in range(50)]
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def waiting(http, url, n):
    """Waits until so many wait in the queue."""
    while True:
        async with http.get(url.partition("/models")[0] + "/metrics") as response:
            if re.search(rf"^sluice_queue_length{{.*}} {n}\.0$", await response.text(), re.M):
                return
        await asyncio.sleep(0.01)
