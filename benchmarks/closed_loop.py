"""A closed-loop load generator: so many keep-alive connections, each sending its next request when its answer has come.

Run as a process of its own, so that the server under test and the load share the machine as client and server would:
``python -m benchmarks.closed_loop URL --connections 64 --seconds 10`` prints one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import time
from typing import cast
from urllib.parse import urlsplit

import numpy as np
import uvloop

BODY = json.dumps({"inputs": [round(i * 0.37 % 1, 3) for i in range(64)]}).encode()  # JSON of 64 floats
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, body: bytes, latencies: list[float], failures: list[bytes]) -> None:
        self._request, self._body = request, body
        self._latencies, self._failures = latencies, failures
        self._buffer = b""
        self.stopping = False
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclasses
        self._send()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(self._buffer, 0, head)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < end:
            return
        self._latencies.append(time.perf_counter() - self._sent)
        if not self._buffer.startswith(b"HTTP/1.1 200") or self._buffer[head + 4 : end] != self._body:
            self._failures.append(self._buffer[:200])
        self._buffer = b""
        if self.stopping:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


async def load(url: str, connections: int, seconds: float) -> dict[str, float | int | str]:
    """Echo requests to ``url`` for so long; an answer that is not its own body counts as a failure."""
    where = urlsplit(url)
    assert where.hostname is not None and where.port is not None
    latencies: list[float] = []
    failures: list[bytes] = []
    loop = asyncio.get_running_loop()
    protocols = []
    for i in range(connections):
        body = BODY[:-1] + b', "connection": %d}' % i
        head = f"POST {where.path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: application/json\r\n"
        request = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        _, protocol = await loop.create_connection(
            lambda request=request, body=body: _Connection(request, body, latencies, failures),  # type: ignore[misc]
            where.hostname,
            where.port,
        )
        protocols.append(protocol)
    await asyncio.sleep(min(1.0, seconds / 5))  # warm
    latencies.clear()
    started, cpu = time.perf_counter(), _cpu()
    await asyncio.sleep(seconds)
    count, elapsed, cpu = len(latencies), time.perf_counter() - started, _cpu() - cpu
    for protocol in protocols:
        protocol.stopping = True
    await asyncio.wait([protocol.closed for protocol in protocols], timeout=10)
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
