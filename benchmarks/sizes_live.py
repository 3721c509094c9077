"""Requests of different size before two workers that pad: one queue, and a queue for each class, simulated and live.

The workers are sleepers, whose law of service times is known: a batch of b requests, the largest of size s, takes ``INTERCEPT +
(SLOPE + SIZE_SLOPE * s) * b`` seconds, long against what the buffer and the way to it take. Sizes are 1 to ``BOUND`` with
probability ``SHORT``, else up to ``LARGEST``; arrivals are Poisson. Every table takes up to ``BATCH_SIZE`` as soon as a worker is
free: one queue before both workers, or the requests up to ``BOUND`` before one and the others before the other. The same arrivals
and sizes are simulated by the law alone, and replayed to a real buffer and real workers over HTTP. The last line has the p95 of all
requests with a class before each worker. Two runs of 300 requests take under two minutes.

``python -m benchmarks.sizes_live [--requests 300] [--rate 6]``
"""

from __future__ import annotations

import argparse
import heapq
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.buffer_throughput import wait_for
from benchmarks.overload import child
from benchmarks.verdict import verdict
from sluice.batching.documents import Plan, PolicyDocument, RequestSize, Route, write
from sluice.batching.policy import greedy
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, replay, run

Array = npt.NDArray[np.float64]

INTERCEPT, SLOPE, SIZE_SLOPE = 0.04, 0.01, 0.001  # s, s a request, s a request and unit of size
BATCH_SIZE = 8
SHORT, BOUND, LARGEST = 0.7, 64, 256
SEED = 5
WORKER_PORTS, PORT = (18580, 18581), 18582
LAW = Sleeper("ruler", INTERCEPT, SLOPE, SIZE_SLOPE)


def main() -> None:
    """Print p95 of all requests, of the short and of the long, of both plans, simulated and measured; a line of the last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rate", type=float, default=6.0)
    options = parser.parse_args()
    rng = np.random.default_rng(SEED)
    times = np.cumsum(rng.exponential(1 / options.rate, options.requests))
    short = rng.random(options.requests) < SHORT
    sizes = np.where(short, rng.integers(1, BOUND + 1, len(short)), rng.integers(BOUND + 1, LARGEST + 1, len(short))).astype(float)
    print("p95, ms      all             short           long            (simulated, measured)")
    for name, plan in plans().items():
        live = measured(plan, times, sizes)
        assert live.answered.all(), live.messages
        predicted = simulated(plan, times, sizes)
        pairs = [(p95(predicted[of]), p95(live.latency[of])) for of in (short | ~short, short, ~short)]
        print(f"{name:11s}  " + "  ".join(f"{a * 1000:6.0f}, {b * 1000:6.0f}" for a, b in pairs), flush=True)
    print(verdict(f"p95 with {name}", *pairs[0]))


def p95(latency: Array) -> float:
    """s."""
    return float(np.percentile(latency, 95, method="inverted_cdf"))


def plans() -> dict[str, Plan]:
    """One queue before both workers, and a class before each."""
    one, other = (f"http://127.0.0.1:{port}" for port in WORKER_PORTS)
    both, alone = (PolicyDocument.of(greedy(BATCH_SIZE, servers=servers)) for servers in (2, 1))
    told = RequestSize("header")
    classes = [Route("short", one, alone, SHORT, up_to=BOUND), Route("long", other, alone, 1 - SHORT)]
    return {
        "one queue": Plan(model="ruler", function=f"{one},{other}", policy=both, size=told),
        "two classes": Plan(model="ruler", routes=classes, size=told),
    }


def simulated(plan: Plan, times: Array, sizes: Array) -> Array:
    """The latency of each request by the law, s: a batch leaves as soon as a worker is free, and takes who is there."""
    latency = np.empty(len(times))
    ends = [np.inf if route.up_to is None else route.up_to for route in plan.all_routes]
    class_of = np.searchsorted(ends, sizes)
    for place, route in enumerate(plan.all_routes):
        here = np.flatnonzero(class_of == place)
        free = [0.0] * (route.policy.servers or 1)
        first = 0
        while first < len(here):
            start = max(heapq.heappop(free), times[here[first]])
            last = min(first + BATCH_SIZE, int(np.searchsorted(times[here], start, side="right")))
            batch = here[first:last]
            end = start + LAW.service_time(len(batch), float(sizes[batch].max()))
            latency[batch] = end - times[batch]
            heapq.heappush(free, end)
            first = last
    return latency


def measured(plan: Plan, times: Array, sizes: Array) -> Replay:
    """The same requests, replayed."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "plan.json").write_bytes(write(plan))
        law = zip(("INTERCEPT", "SLOPE", "SIZE_SLOPE"), (INTERCEPT, SLOPE, SIZE_SLOPE), strict=True)
        model = {"SLUICE_MODEL_NAME": "ruler"} | {f"SLUICE_SLEEPER_{name}": str(seconds) for name, seconds in law}
        for port in WORKER_PORTS:
            stack.enter_context(child([sys.executable, "-m", "sluice.lambda_fn.worker", "--port", str(port)], model))
        for port in WORKER_PORTS:
            wait_for(port)
        redis = stack.enter_context(RedisServer())
        buffer = [sys.executable, "-m", "sluice.cli.main", "serve", "--port", str(PORT), "--log-level", "warning"]
        stack.enter_context(child([*buffer, "--redis-url", redis.url, "--plans", f"file:{directory}"], {}))
        wait_for(PORT)
        bodies = [b"%d" % size for size in sizes]
        return run(replay(times, f"http://127.0.0.1:{PORT}/models/ruler", body=bodies.__getitem__, sizes=sizes))


if __name__ == "__main__":
    main()
