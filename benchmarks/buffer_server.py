"""The server under test, in a process of its own: the buffer with a no-op function in-process, or its HTTP server without a buffer.

``python -m benchmarks.buffer_server bare|memory|unmeasured|redis PORT [REDIS_URL]``; ``unmeasured`` keeps no record of batches.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import uvloop

from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.policy import size_or_timeout
from sluice.buffer_service.app import BufferService, run
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.settings import Settings
from sluice.http.connection import Head, Patience
from sluice.http.room import Connections, Room
from sluice.http.server import Client, HttpServer
from sluice.lambda_fn.contract import Answer, decode_batch, encode_answers, encode_metadata

PLAN = Plan(model="noop", function="noop", policy=PolicyDocument.of(size_or_timeout(32, 0.005)))


class OnePlan:
    """A plan source for one plan."""

    def documents(self) -> dict[str, bytes]:
        return {"benchmark": write(PLAN)}


async def noop(payload: bytes) -> bytes:
    """Answer every item with its own body: what remains is the cost of the buffer and of the wire format."""
    batch = decode_batch(payload)
    if batch.describe:
        return encode_metadata({"name": "noop"})
    return encode_answers([Answer(item.id, 200, item.content_type, item.body) for item in batch.items])


class Echo:
    """A request to the HTTP server alone: its body is its answer."""

    def __init__(self, head: Head, client: Client) -> None:
        self._client, self._body = client, b""

    def piece(self, body: bytes) -> None:
        self._body += body

    def end(self, last: bytes = b"") -> None:
        self._client.reply(200, "application/json", self._body + last)

    def gone(self) -> None: ...


async def bare(port: int) -> None:
    """Echo without a buffer, until the process is ended."""
    patience = Patience(header=10.0, body=10.0, keep_alive=75.0)
    await HttpServer(Echo, patience, Room(2**30), Room(2**30), Connections(10_000)).start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    logging.basicConfig(level="WARNING")
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "bare":
        uvloop.run(bare(port))
    else:
        url = "memory://" if kind == "memory" else sys.argv[3]
        kept = 0 if kind == "unmeasured" else Settings().batches_kept
        settings = Settings(redis_url=url, port=port, leave_delay=0.0, log_level="warning", batches_kept=kept)
        uvloop.run(run(BufferService(settings, invoker=LocalInvoker({"noop": noop}), plans=OnePlan())))
