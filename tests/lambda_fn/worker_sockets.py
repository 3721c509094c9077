"""A worker in this process, models that misbehave, and connections to say what no client library would."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from sluice.batching.policy import Policy, greedy
from sluice.lambda_fn.contract import Answer, Item
from sluice.lambda_fn.models.base import Model
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.worker.computer import ComputerThread, Load
from sluice.lambda_fn.worker.energy import Energy
from sluice.lambda_fn.worker.http_server import HttpLimits
from sluice.lambda_fn.worker.link import Link, Source
from sluice.lambda_fn.worker.program import HttpWorker, listen
from sluice.lambda_fn.worker.served_model import ServedModel, Serving


class Gated(Sleeper):
    """Answers when the gate is open; ``sizes`` of the batches it was asked for, ``most`` of them at once."""

    def __init__(self, name: str = "echo") -> None:
        super().__init__(name)
        self.entered, self.gate = threading.Semaphore(0), threading.Event()
        self.running = self.most = 0
        self.sizes: list[int] = []

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        self.sizes.append(len(items))
        self.running += 1
        self.most = max(self.most, self.running)
        self.entered.release()
        self.gate.wait(20)
        self.running -= 1
        return super().answer(items)


class Scripted(Sleeper):
    """Does with a batch what it is told."""

    def __init__(self, does: Callable[[Sequence[Item]], Any], name: str = "echo") -> None:
        super().__init__(name)
        self._does = does

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        return self._does(items)  # type: ignore[no-any-return]


def served(model: Model, policy: Policy | None = None, **serving: Any) -> ServedModel:
    """A model, ready to be loaded."""
    return ServedModel(model.name, in_thread(lambda: model), Serving(policy or greedy(32), **serving))


def in_thread(load: Load, energy: Energy | None = None) -> Source:
    """A model that a thread of this process computes, behind the same sockets as one in a process of its own."""
    return Source(Link(lambda: ComputerThread([load], energy)), 0)


@asynccontextmanager
async def running(*models: ServedModel, **limits: Any) -> AsyncIterator[tuple[HttpWorker, str]]:
    """A worker with these models, and its URL."""
    worker = HttpWorker(models, HttpLimits(**limits))
    listener = listen("127.0.0.1", 0)
    await worker.start(listener)
    try:
        yield worker, "http://{}:{}".format(*listener.getsockname())
    finally:
        await worker.stop(grace=0.2)


class Raw:
    """A connection that sends bytes and reads answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, url: str) -> Raw:
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        async with asyncio.timeout(60):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:-2])}
            body = await self.reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body

    async def ended(self) -> bool:
        """Whether the other side has closed the connection, and said nothing more."""
        async with asyncio.timeout(60):
            try:
                return await self.reader.read() == b""
            except ConnectionResetError:
                return True

    def close(self) -> None:
        self.writer.close()


def detail(body: bytes) -> str:
    """What a problem document says."""
    document = msgspec.json.decode(body)
    assert document["detail"] == document["error"]
    return str(document["detail"])
