"""Workers with a function beside them, in virtual time, at three times what they serve: while it is well, and while it is not."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Beside, Plan, PolicyDocument, Slo
from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.circuit import UNAVAILABLE_LIMIT
from sluice.buffer_service.invokers import FunctionBusy, FunctionUnavailable
from sluice.buffer_service.route_batches import FUNCTION_HEADER
from sluice.lambda_fn.contract import decode_batch, encode_answers, encode_metadata
from tests.buffer_service.conftest import Plans, serving
from tests.buffer_service.test_route_state import answers
from tests.buffer_service.virtual_time import in_virtual_time

WORKERS, SIZE, SERVICE = 2, 4, 0.1  # a worker serves so many together in so many seconds
RATE, SECONDS = 240.0, 6.0  # requests/s: three times what the workers serve
SERVED = WORKERS * SIZE / SERVICE * SECONDS
ERRORS = {"away": FunctionUnavailable("away"), "broken": FunctionFailed("broken"), "throttled": FunctionBusy("throttled")}


class Functions:
    """Two workers, each of which serves one batch after another, and a function that ``is`` well, or fails in one way."""

    def __init__(self, state):
        self.state, self.free, self.most, self.at_workers = state, [0.0] * WORKERS, 0, 0

    async def invoke(self, function, payload, avoid=""):
        batch, loop = decode_batch(payload), asyncio.get_running_loop()
        if batch.describe:
            return encode_metadata({"name": "m"})
        if function == "g":
            await asyncio.sleep(SERVICE / 2)
            if self.state in ERRORS:
                raise ERRORS[self.state]
        else:
            worker = min(range(WORKERS), key=self.free.__getitem__)
            self.free[worker] = max(loop.time(), self.free[worker]) + SERVICE
            self.at_workers += 1
            self.most = max(self.most, self.at_workers)
            await asyncio.sleep(self.free[worker] - loop.time())
            self.at_workers -= 1
        return encode_answers(answers([item.id for item in batch.items]))

    async def close(self):
        pass


async def load(state):
    """Requests as a Poisson process; how many ended with which status, by whom they were answered; and the functions."""
    functions, loop = Functions(state), asyncio.get_running_loop()
    overflow = Beside("g", PolicyDocument.of(constructors.size_or_timeout(8, 0.2)))
    plan = Plan(
        model="m",
        function="http://f:1",
        policy=PolicyDocument.of(constructors.greedy(SIZE, servers=WORKERS)),
        beside=[overflow] if state != "not there" else [],
        slo=Slo(0.5),
    )
    rng, asking, until = random.Random(1), [], loop.time() + SECONDS
    async with serving(None, None, plans=Plans(plan), invoker=functions, request_timeout=3.0) as buffer:
        while loop.time() < until:
            asking.append(asyncio.ensure_future(buffer.post("/models/m", b"1")))
            await asyncio.sleep(rng.expovariate(RATE))
        ended = await asyncio.gather(*asking)
    return Counter((status, headers.get(FUNCTION_HEADER)) for status, headers, _ in ended), functions


@in_virtual_time
async def test_nobody_is_refused_while_the_function_is_well_and_no_worker_has_more_than_it_serves():
    ended, functions = await load("well")
    assert set(ended) == {(200, "0"), (200, "1")}
    assert ended[200, "0"] > 0.6 * SERVED and functions.most == WORKERS


@pytest.mark.parametrize("state", ERRORS)
def test_while_the_function_takes_nothing_the_workers_serve_what_they_can_and_the_others_are_refused_at_once(state):
    @in_virtual_time
    async def run():
        alone, _ = await load("not there")
        ended, functions = await load(state)
        assert ended[200, "0"] > 0.9 * alone[200, None] > 0.8 * SERVED
        late = sum(count for (status, _), count in ended.items() if status not in (200, 429))
        assert late < 0.05 * ended.total()  # what the function is tried with, and whom it failed before it was known
        assert functions.most < 5 * WORKERS  # with batches that it left without an answer

    run()


@in_virtual_time
async def test_while_the_function_is_away_nobody_waits_for_it_whom_the_table_of_idle_workers_would_never_release():
    """The workers' table waits for four; who comes alone is the function's, and a worker's in its place."""
    overflow = Beside("g", PolicyDocument.of(constructors.size_or_timeout(8, 0.2)))
    table = PolicyDocument.of(constructors.static(SIZE, servers=WORKERS))
    plan = Plan(model="m", function="http://f:1", policy=table, beside=[overflow])
    loop, waited = asyncio.get_running_loop(), []
    async with serving(None, None, plans=Plans(plan), invoker=Functions("away"), request_timeout=30.0) as buffer:
        for _ in range(3 * UNAVAILABLE_LIMIT):
            came = loop.time()
            status, headers, _ = await buffer.post("/models/m", b"1")
            assert (status, headers[FUNCTION_HEADER]) == (200, "0")
            waited.append(loop.time() - came)
    assert max(waited) < 0.2 + SERVICE / 2 + SERVICE + 0.05
