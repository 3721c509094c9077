"""What comes through to a Lambda function that takes only so many batches at once, when three times as much comes.

A stand-in for Lambda's Invoke API that answers 429 beyond ``--slots``; a real buffer process, clients over HTTP. The capacity is
what a closed loop gets that fills the slots. Then 5 s at half of it, ``--seconds`` at ``--multiple`` times it, 10 s at half again.
With ``--until`` the stand-in takes whatever comes so many seconds after the load has grown. The rows are those of
``benchmarks/overload.py``.

``python -m benchmarks throttling [--slots 2] [--multiple 3] [--patience 2,60] [--seconds 20] [--until S]``
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from aiohttp import web

from benchmarks.buffer_throughput import wait_for
from benchmarks.overload import (
    BATCH_SIZE,
    CALM,
    INTERCEPT,
    SLOPE,
    arrivals,
    child,
    closed_loop,
    each_second,
    row,
)
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.policy import size_or_timeout
from sluice.lambda_fn.contract import Answer, decode_batch, encode_answers, encode_metadata
from sluice.local.ports import chosen_port
from sluice.local.replay import replay, run

SERVICE_TIME = INTERCEPT + SLOPE * BATCH_SIZE  # s
CLOSED_LOOP = 6.0  # s that starting and measuring the capacity take, about


def main() -> None:
    """Print a row for each patience."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=count, default=usually(2, smoke=1))
    parser.add_argument("--multiple", type=positive, default=3.0)
    parser.add_argument("--patience", default=usually("2,60", smoke="2"))
    parser.add_argument("--seconds", type=positive, default=usually(20.0, smoke=0.3))
    parser.add_argument("--until", type=float, default=float("inf"))
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the stand-in")
    options = parser.parse_args()
    if options.serve is not None:
        web.run_app(stand_in(options.slots, options.until), port=options.serve, print=None)
        return
    print(f"{options.slots} batches at once of up to {BATCH_SIZE} requests, {SERVICE_TIME:g} s")
    print("capacity  times  patience  goodput  refused  p50, p99 of that  p95 before, under, in 1st, 2nd, later s after")
    for patience in map(float, options.patience.split(",")):
        with serving(options.slots, options.until) as url:
            capacity = closed_loop(url, options.slots * BATCH_SIZE)
            times = arrivals(capacity, options.multiple, options.seconds)
            result = run(replay(times, url, body=b"1", timeout=patience))
        statuses = {int(status): int((result.status == status).sum()) for status in sorted(set(result.status))}
        print(
            f"{capacity:6.0f}/s  {options.multiple:5g}  {patience:6g} s  {row(result, capacity, options.seconds)}  {statuses}",
            flush=True,
        )
        print(each_second(result, capacity), flush=True)


def stand_in(slots: int, until: float) -> web.Application:
    """Lambda's Invoke API before a function that echoes; throttled from its start on for so long."""
    at_work = 0
    ends = time.monotonic() + CLOSED_LOOP + CALM + until

    async def invoke(request: web.Request) -> web.Response:
        nonlocal at_work
        batch = decode_batch(await request.read())
        if batch.describe:
            return web.Response(body=encode_metadata({"name": batch.model, "inputs": [], "outputs": []}))
        if at_work >= slots and time.monotonic() < ends:
            kind = {"x-amzn-ErrorType": "TooManyRequestsException"}
            return web.json_response({"message": "Rate Exceeded."}, status=429, headers=kind)
        at_work += 1
        try:
            await asyncio.sleep(INTERCEPT + SLOPE * len(batch.items))
        finally:
            at_work -= 1
        return web.Response(body=encode_answers([Answer(item.id, 200, item.content_type, item.body) for item in batch.items]))

    app = web.Application(client_max_size=8 * 1024 * 1024)
    app.router.add_post("/2015-03-31/functions/{name}/invocations", invoke)
    return app


@contextmanager
def serving(slots: int, until: float) -> Iterator[str]:
    """The stand-in and the buffer; where the model is asked."""
    stand_in_port, port = chosen_port(), chosen_port()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        table = PolicyDocument.of(size_or_timeout(BATCH_SIZE, 0.02))
        (directory / "plan.json").write_bytes(write(Plan(model="throttled", function="throttled", policy=table)))
        limits = ["--slots", str(slots), "--until", str(until)]
        stack.enter_context(child([sys.executable, "-m", "benchmarks.throttling", "--serve", str(stand_in_port), *limits], {}))
        wait_for(stand_in_port)
        keys = {"AWS_ACCESS_KEY_ID": "none", "AWS_SECRET_ACCESS_KEY": "none", "AWS_DEFAULT_REGION": "eu-central-1"}
        here = {"AWS_ENDPOINT_URL_LAMBDA": f"http://127.0.0.1:{stand_in_port}"}
        buffer = [sys.executable, "-m", "sluice.cli.main", "serve", "--port", str(port), "--log-level", "error"]
        stack.enter_context(child([*buffer, "--redis-url", "memory://", "--plans", f"file:{directory}"], keys | here))
        wait_for(port)
        yield f"http://127.0.0.1:{port}/models/throttled"


if __name__ == "__main__":
    main()
