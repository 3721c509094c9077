"""More comes than can be served, and callers give up: goodput, refusals, and how soon all is well again; in virtual time.

And over sockets: whose client has gone is in no batch.
"""

import asyncio
import contextlib

import numpy as np
import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Slo
from sluice.buffer_service.invokers import FunctionBusy
from sluice.buffer_service.memory_store import MemoryStore
from tests.buffer_service.conftest import Function, Plans, memory, serving
from tests.buffer_service.virtual_time import in_virtual_time

BATCH, SERVICE_TIME = 16, 0.08  # requests, s
CAPACITY = BATCH / SERVICE_TIME  # requests/s
BEFORE, UNDER, AFTER = 2.0, 8.0, 4.0  # s


class Worker(Function):
    """One server: a batch after the other, each in a known time."""

    def __init__(self):
        super().__init__()
        self.free = asyncio.Lock()
        self.worked_for = []
        self.answer = self.work

    async def work(self, batch):
        async with self.free:
            await asyncio.sleep(0.02 + 0.00375 * len(batch.items))
        self.worked_for += [item.body for item in batch.items]
        return await self.echo(batch)


SLOTS = 3  # batches that a throttled function takes at once


class Throttled(Function):
    """An elastic function that refuses what is more than its slots: ``slots`` until ``until`` (s), ``SLOTS`` from then on."""

    def __init__(self, slots=SLOTS, until=0.0):
        super().__init__()
        self.slots, self.until = slots, until
        self.at_work = self.refused = 0
        self.worked_for = []
        self.answer = self.work

    async def work(self, batch):
        if self.at_work >= (self.slots if asyncio.get_running_loop().time() < self.until else SLOTS):
            self.refused += 1
            raise FunctionBusy("HTTP 429 Rate Exceeded.")
        self.at_work += 1
        try:
            await asyncio.sleep(0.02 + 0.00375 * len(batch.items))
        finally:
            self.at_work -= 1
        self.worked_for += [item.body for item in batch.items]
        return await self.echo(batch)


async def ask(buffers, times, patience):
    """A request at each of these times, at the buffers in turn: when each came, how long it took, and its status (0: gave up)."""
    loop = asyncio.get_running_loop()
    records = []

    async def one(buffer, number, when):
        status = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                status, _, _ = await buffer.post("/models/m", b"%d" % number)
        records.append((when, loop.time() - when, status))

    tasks = []
    for number, when in enumerate(times):
        await asyncio.sleep(max(0.0, when - loop.time()))
        tasks.append(asyncio.create_task(one(buffers[number % len(buffers)], number, when)))
    await asyncio.gather(*tasks)
    return np.array(records).T


def arrivals(multiple, capacity=CAPACITY, under=UNDER):
    rng = np.random.default_rng(5)
    spans = ((0.0, BEFORE, 0.5), (BEFORE, under, multiple), (BEFORE + under, AFTER, 0.5))
    return np.concatenate([start + np.sort(rng.uniform(0, span, rng.poisson(capacity * n * span))) for start, span, n in spans])


@pytest.mark.parametrize(
    ("multiple", "patience", "processes", "slo"),
    [
        (3, 2.0, 1, None),
        (3, 60.0, 2, None),
        (3, 0.4, 1, None),
        (3, 60.0, 1, 0.25),
        pytest.param(10, 2.0, 2, None, marks=pytest.mark.proof),
        pytest.param(10, 60.0, 1, None, marks=pytest.mark.full),
    ],
)
def test_goodput_stays_at_the_capacity_refusals_are_at_once_and_all_is_well_a_second_later(multiple, patience, processes, slo):
    @in_virtual_time
    async def run():
        worker, backend = Worker(), memory()
        table = PolicyDocument.of(constructors.greedy(BATCH))
        plans = Plans(Plan(model="m", function="f", policy=table, slo=None if slo is None else Slo(slo)))
        async with contextlib.AsyncExitStack() as stack:
            stores = [MemoryStore(backend, f"process{i}") for i in range(processes)]
            buffers = [await stack.enter_async_context(serving(worker, table, store, plans)) for store in stores]
            came, took, status = await ask(buffers, arrivals(multiple), patience)
        ended, end = came + took, BEFORE + UNDER
        under = (status == 200) & (ended >= BEFORE) & (ended < end)
        assert under.sum() >= 0.95 * CAPACITY * UNDER
        assert set(status) <= {0, 200, 429}
        assert np.quantile(took[status == 429], 0.99) <= 0.01
        assert (status[came < BEFORE] == 200).all()
        calm = (came >= end + 1.0) & (came < end + AFTER)
        assert (status[calm] == 200).all() and np.quantile(took[calm], 0.95) <= 2.5 * SERVICE_TIME
        assert len(worker.worked_for) <= 1.1 * (status == 200).sum()  # hardly anybody was served who had left
        if slo is not None:
            promised = (status == 200) & (came > BEFORE + 1.0) & (came < end)
            assert np.quantile(took[promised], 0.95) <= slo

    run()


@pytest.mark.parametrize(
    ("multiple", "patience", "processes", "goodput"),
    [
        pytest.param(3, 2.0, 1, 0.95, marks=pytest.mark.full),
        pytest.param(10, 2.0, 1, 0.95, marks=pytest.mark.proof),
        # What callers at the other process have left is not known here, and some of it is computed.
        pytest.param(3, 2.0, 2, 0.85, marks=pytest.mark.proof),
    ],
)
def test_before_a_function_that_is_throttled_for_long_goodput_stays_at_what_it_takes(multiple, patience, processes, goodput):
    @in_virtual_time
    async def run():
        function, backend, under, capacity = Throttled(), memory(), 6.0, SLOTS * CAPACITY
        table = PolicyDocument.of(constructors.size_or_timeout(BATCH, 0.02))
        plans = Plans(Plan(model="m", function="f", policy=table))
        async with contextlib.AsyncExitStack() as stack:
            stores = [MemoryStore(backend, f"process{i}") for i in range(processes)]
            buffers = [await stack.enter_async_context(serving(function, table, store, plans)) for store in stores]
            came, took, status = await ask(buffers, arrivals(multiple, capacity, under), patience)
        ended, end = came + took, BEFORE + under
        assert ((status == 200) & (ended >= BEFORE) & (ended < end)).sum() >= goodput * capacity * under
        assert set(status) <= {0, 200, 429}
        assert np.quantile(took[status == 429], 0.99) <= 0.01
        assert (status[came < BEFORE] == 200).all()
        if processes == 1:
            late = (came >= end - 2.0) & (came < end)  # when it is known that callers leave, and who came before has left
            assert not (status[late] == 0).any() and np.quantile(took[late & (status == 200)], 0.95) <= 0.6
            calm = came >= end + 1.0
            assert (status[calm] == 200).all() and np.quantile(took[calm], 0.95) <= 2.5 * SERVICE_TIME
            assert len(function.worked_for) <= 1.1 * (status == 200).sum()
            assert function.refused <= 4 * (status == 200).sum() / BATCH  # no storm of calls

    run()


@pytest.mark.parametrize("slots", [0, pytest.param(1, marks=pytest.mark.proof)])
def test_a_function_that_is_throttled_for_three_seconds_costs_no_request(slots):
    @in_virtual_time
    async def run():
        function = Throttled(slots, until=3.0)
        async with serving(function, constructors.size_or_timeout(BATCH, 0.02), request_timeout=60.0) as buffer:
            rng = np.random.default_rng(5)
            _, took, status = await ask([buffer], np.sort(rng.uniform(0.0, 5.0, 2000)), 60.0)
        assert (status == 200).all() and took.max() < 8.0

    run()


def test_a_function_that_refuses_everything_for_half_of_the_time_that_callers_have_is_waited_for_no_longer():
    @in_virtual_time
    async def run():
        function = Throttled(0, until=12.0)
        async with serving(function, constructors.size_or_timeout(BATCH, 0.02), request_timeout=10.0) as buffer:
            came, took, status = await ask([buffer], np.arange(0.0, 14.0, 0.05), 60.0)
        assert (status[came < 2.0] == 503).all()  # it was promised in vain
        at_once = (came > 5.5) & (came < 11.5)
        assert (status[at_once] == 429).mean() > 0.8 and took[status == 429].max() <= 0.01
        assert (status[came > 12.5] == 200).all() and took[came > 12.5].max() < 0.5

    run()


@pytest.mark.parametrize("pipelined", [(), (1,), (1, 1), (1, 200, 200)])
async def test_clients_who_have_gone_are_in_no_batch_and_counted_as_gone(function, pipelined):
    held = asyncio.Event()

    async def answer(batch):
        await held.wait()
        return await function.echo(batch)

    function.answer = answer
    async with serving(function, constructors.greedy(8)) as buffer:
        first = asyncio.create_task(buffer.post("/models/m", b"0"))
        host, port = buffer.url.removeprefix("http://").split(":")
        head = b"POST /models/m HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n1"
        async with asyncio.timeout(60):
            while not function.batches:
                await asyncio.sleep(0.01)
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(100)]
        for _, writer in connections:
            writer.write(head)
        for requests in pipelined:  # behind, in so many pieces, for which there is no turn yet
            await asyncio.sleep(0.05)
            for _, writer in connections:
                writer.write(head * requests)
        await asyncio.sleep(0.2)
        stays = asyncio.create_task(buffer.post("/models/m", b"2"))
        for _, writer in connections:
            writer.close()
        await asyncio.sleep(0.2)
        held.set()
        assert [(await task)[0] for task in (first, stays)] == [200, 200]
        _, _, metrics = await buffer.get("/metrics")
    assert [[item.body for item in batch.items] for batch in function.batches] == [[b"0"], [b"2"]]
    assert b'sluice_refusals_total{error="ClientLeft",model="m"} 100.0' in metrics
    assert b'sluice_requests_total{model="m",status="200"} 2.0' in metrics
