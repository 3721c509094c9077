"""A closed-loop load generator: so many keep-alive connections, each sending its next request when its answer has come.

Run as a process of its own, so that the server under test and the load share the machine as client and server would:
``python -m benchmarks.closed_loop URL --connections 64 --seconds 10`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from urllib.parse import urlsplit

import numpy as np
import uvloop

from benchmarks.http_connection import Connection, connect, json_request

BODY = json.dumps({"inputs": [round(i * 0.37 % 1, 3) for i in range(64)]}).encode()  # JSON of 64 floats


class _Echo:
    """What one connection sends, and what came of it."""

    def __init__(self, request: bytes, body: bytes, latencies: list[float], failures: list[bytes]) -> None:
        self._request, self._body = request, body
        self._latencies, self._failures = latencies, failures
        self.stopping = False

    def send(self, connection: Connection) -> None:
        self._sent = time.perf_counter()
        connection.send(self._request)

    def answered(self, connection: Connection, head: bytes, body: bytes) -> None:
        self._latencies.append(time.perf_counter() - self._sent)
        if not head.startswith(b"HTTP/1.1 200") or body != self._body:
            self._failures.append((head + body)[:200])
        if self.stopping:
            connection.transport.close()
        else:
            self.send(connection)


async def load(url: str, connections: int, seconds: float) -> dict[str, float | int | str]:
    """Echo requests to ``url`` for so long; an answer that is not its own body counts as a failure."""
    where = urlsplit(url)
    latencies: list[float] = []
    failures: list[bytes] = []
    echoes, opened = [], []
    for i in range(connections):
        body = BODY[:-1] + b', "connection": %d}' % i
        echo = _Echo(json_request(where, body), body, latencies, failures)
        connection = await connect(where, echo.answered)
        echo.send(connection)
        echoes.append(echo)
        opened.append(connection)
    await asyncio.sleep(min(1.0, seconds / 5))  # warm
    latencies.clear()
    started, cpu = time.perf_counter(), _cpu()
    await asyncio.sleep(seconds)
    count, elapsed, cpu = len(latencies), time.perf_counter() - started, _cpu() - cpu
    for echo in echoes:
        echo.stopping = True
    await asyncio.wait([connection.closed for connection in opened], timeout=10)
    quantiles = np.quantile(latencies, [0.5, 0.99])
    return {
        "requests_per_second": count / elapsed,
        "p50_ms": 1e3 * float(quantiles[0]),
        "p99_ms": 1e3 * float(quantiles[1]),
        "failures": len(failures),
        "first_failure": failures[0].decode("latin-1") if failures else "",
        "client_cpu_us_per_request": 1e6 * cpu / max(1, count),
    }


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    arguments = parser.parse_args()
    print(json.dumps(uvloop.run(load(arguments.url, arguments.connections, arguments.seconds))))
