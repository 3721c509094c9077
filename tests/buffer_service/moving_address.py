"""An address that stays while what is behind it changes, as the name of a primary does; and load on a buffer that is timed."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any


class MovingAddress:
    """A TCP proxy to ``target``; connections that are open stay where they are. ``silent``: bytes go nowhere, connections stay."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.silent = False
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._open |= {writer, onward}
        await asyncio.gather(self._pass(reader, onward), self._pass(there, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not self.silent:
                    writer.write(data)
        writer.close()
        self._open.discard(writer)

    def cut(self) -> None:
        """Every connection that is open breaks."""
        for writer in list(self._open):
            writer.transport.abort()


@contextlib.asynccontextmanager
async def moving_address(target: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[MovingAddress]:
    """Serve it, with TLS in front of it where that is given."""
    address = MovingAddress(target)
    server = await asyncio.start_server(address.connect, "127.0.0.1", 0, ssl=tls)
    address.port = server.sockets[0].getsockname()[1]
    try:
        yield address
    finally:
        server.close()
        address.cut()


class Load:
    """Requests to a buffer at a steady rate: when each came (s since the first), what it was answered, and after how long (s)."""

    def __init__(self, buffer: Any, gap: float = 0.005, path: str = "/models/m") -> None:
        self._buffer, self._gap, self._path = buffer, gap, path
        self._asking: set[asyncio.Task[None]] = set()
        self.answers: list[tuple[float, int, float]] = []
        self.began = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    @property
    def statuses(self) -> Counter[int]:
        return Counter(status for _, status, _ in self.answers)

    async def run(self) -> None:
        """Ask until cancelled, then wait for what is under way."""
        try:
            for i in range(10**6):
                task = asyncio.create_task(self._ask(i))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
                await asyncio.sleep(self._gap)
        finally:
            while self._asking:
                await asyncio.wait(self._asking)

    async def _ask(self, i: int) -> None:
        came = self.now
        status, _, body = await self._buffer.post(self._path, b"%d" % i)
        assert status != 200 or body == b"%d" % i
        self.answers.append((came, status, self.now - came))

    async def served_again(self, since: float) -> None:
        """Wait until a request that came after ``since`` is answered 200."""
        await self._answered(200, since, 1)

    async def refused(self, since: float, count: int = 20) -> None:
        """Wait until so many requests that came after ``since`` are answered 503."""
        await self._answered(503, since, count)

    async def _answered(self, status: int, since: float, count: int) -> None:
        async with asyncio.timeout(60):
            while sum(said == status and came >= since for came, said, _ in self.answers) < count:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def load(buffer: Any, gap: float = 0.005, path: str = "/models/m") -> AsyncIterator[Load]:
    """Load on a buffer while the block runs; all is answered when it has ended."""
    asked = Load(buffer, gap, path)
    asking = asyncio.create_task(asked.run())
    try:
        await asyncio.sleep(0.1)
        yield asked
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
