"""The server under test, in a process of its own: the buffer with a no-op function in-process, or bare uvicorn without a buffer.

``python -m benchmarks.buffer_server bare|memory|unmeasured|redis PORT [REDIS_URL]``; ``unmeasured`` keeps no record of batches.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import uvicorn
import uvloop

from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.policy import size_or_timeout
from sluice.buffer_service.app import BufferService, server
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.routes import Receive, Send
from sluice.buffer_service.settings import Settings
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


async def bare(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Echo by uvicorn alone."""
    message = await receive()
    body = message["body"]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    logging.basicConfig(level="WARNING")
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "bare":
        uvicorn.run(bare, port=port, http="httptools", loop="uvloop", access_log=False, lifespan="off", log_level="warning")
    else:
        url = "memory://" if kind == "memory" else sys.argv[3]
        kept = 0 if kind == "unmeasured" else Settings().batches_kept
        settings = Settings(redis_url=url, port=port, leave_delay=0.0, log_level="warning", batches_kept=kept)
        uvloop.run(server(BufferService(settings, invoker=LocalInvoker({"noop": noop}), plans=OnePlan())).serve())
