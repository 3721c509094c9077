"""A load generator for any server of one request each: closed loop, or open loop with Poisson arrivals.

``python -m benchmarks.request_load URL --body FILE --seconds 5 [--rate R] [--connections 64] [--header H]`` prints one JSON
document. Without a rate every connection sends its next request when its answer has come. With one, requests come whether or not
others are answered, and a latency counts from when its request came, so that a server that lags is not spared.
How late the generator itself was to send (``late_p95_ms``) is told beside them: a latency holds that too. So is how much of a core
it used (``client_busy``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import uvloop

from benchmarks.http_connection import Connection, connect, request
from benchmarks.smoke import usually

JSON = "content-type: application/json"
WARM = usually(1.0, smoke=0.05)  # seconds


class _Load:
    """What all connections share."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._began: dict[Connection, float] = {}  # when the request came that it has
        self.idle: list[Connection] = []
        self.came: deque[float] = deque()  # requests that no connection was free for
        self.latencies: list[float] = []
        self.lateness: list[float] = []  # of the generator, in an open loop; s
        self.failures: list[bytes] = []
        self.closed = False  # the next request follows the answer

    def send(self, connection: Connection, came: float) -> None:
        self._began[connection] = came
        connection.send(self._request)

    def arrive(self, due: float) -> None:
        self.lateness.append(time.perf_counter() - due)
        if self.idle:
            self.send(self.idle.pop(), due)
        else:
            self.came.append(due)

    def answered(self, connection: Connection, head: bytes, body: bytes) -> None:
        self.latencies.append(time.perf_counter() - self._began[connection])
        if not head.startswith(b"HTTP/1.1 200"):
            self.failures.append((head + body)[:300])
        if self.closed:
            self.send(connection, time.perf_counter())
        elif self.came:
            self.send(connection, self.came.popleft())
        else:
            self.idle.append(connection)


async def run(
    url: str, body: bytes, seconds: float, rate: float | None, connections: int, headers: Sequence[str]
) -> dict[str, float | int | str]:
    """The load, after a second of it to warm up."""
    where = urlsplit(url)
    load = _Load(request(where, body, headers))
    for _ in range(connections):
        load.idle.append(await connect(where, load.answered))
    every = list(load.idle)
    started, spent = time.perf_counter(), time.process_time()
    if rate is None:
        load.closed = True
        load.idle.clear()
        for connection in every:
            load.send(connection, time.perf_counter())
        await asyncio.sleep(WARM)
        load.latencies.clear()
        begun = time.perf_counter()
        await asyncio.sleep(seconds)
    else:
        begun = await _poisson(load, rate, seconds)
    latencies, elapsed = list(load.latencies), time.perf_counter() - begun
    busy = (time.process_time() - spent) / (time.perf_counter() - started)
    for connection in every:
        connection.transport.abort()
    quantiles = np.quantile(latencies, [0.5, 0.95, 0.99]) * 1e3
    return {
        "requests_per_second": len(latencies) / elapsed,
        **{name: float(value) for name, value in zip(("p50_ms", "p95_ms", "p99_ms"), quantiles, strict=True)},
        "late_p95_ms": float(np.quantile(load.lateness or [0.0], 0.95)) * 1e3,
        "client_busy": busy,
        "failures": len(load.failures),
        "first_failure": load.failures[0].decode("latin-1") if load.failures else "",
    }


async def _poisson(load: _Load, rate: float, seconds: float) -> float:
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / rate, int(rate * (WARM + seconds))))
    start = time.perf_counter()
    begun = start + WARM
    counting = False
    for offset in arrivals:
        due = start + float(offset)
        while (now := time.perf_counter()) < due:
            # Timers of the loop go by milliseconds, so that requests come in clumps; to spin instead would cost the server a core.
            await asyncio.sleep(due - now)
        if due >= begun and not counting:
            counting = True
            load.latencies.clear()
            load.lateness.clear()
        load.arrive(due)
    ended = time.perf_counter()
    while load.came and time.perf_counter() < ended + seconds:
        await asyncio.sleep(0.01)
    return begun


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--body", required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--header", action="append", help="NAME: VALUE; JSON without any")
    given = parser.parse_args()
    body = Path(given.body).read_bytes()
    print(json.dumps(uvloop.run(run(given.url, body, given.seconds, given.rate, given.connections, given.header or [JSON]))))
