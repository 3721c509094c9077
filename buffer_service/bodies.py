"""The bodies that processes ask each other for: of requests in their batches whose callers wait elsewhere.

A large body stays with the process that its caller is connected to; through the queue goes a ticket (``members.py``). Who gets a
batch with tickets of another process asks that process for the bodies, once, and gets them by mail. What may live here: who was
asked for what and what came of it. What may not: sockets, the store; what is to be sent is handed to who can.

    ask          one message to each process that has bodies of a batch; then the answers are waited for, at most ``within``
    a body       the request as its caller sent it
    gone         its caller waits there no more: nobody needs the answer
    silence      the process does not answer in time: it died, stands still, or the store lost the mail twice. From then on it is
                 waited for a ``FIRST`` part of the time only, until something is heard of it: what a dead process left in the queue
                 holds nobody up for long

After the ``FIRST`` part of the time who has not answered is asked once more, for the store may have lost the mail.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.members import Ask, Lent, encode_ask, encode_lent
from sluice.buffer_service.store import PROCESS_LENGTH
from sluice.lambda_fn.contract import Item

Send = Callable[[str, bytes], Awaitable[None]]

FIRST = 0.25  # of the time that bodies are waited for: then who has not answered is asked again, or given up
SILENT_KNOWN = 1024  # processes that did not answer, of which it is known
LENT_BYTES = 1024 * 1024  # that bodies in one message have together at most, beside the first


@dataclass(slots=True, eq=False)
class _Fetch:
    """What one batch waits for."""

    done: asyncio.Future[None]
    missing: set[str]
    found: dict[str, Item | None] = field(default_factory=dict)


class Bodies:
    """The bodies that this process asks others for."""

    def __init__(self, process: str) -> None:
        self._process = process
        self._fetches: dict[str, list[_Fetch]] = {}  # by request
        self._silent: dict[str, None] = {}  # processes, the one that fell silent last at the end
        self._asking: set[asyncio.Task[None]] = set()  # until the store has taken the message, or has not in its time

    async def fetch(self, send: Send, wanted: Mapping[str, Sequence[str]], within: float) -> dict[str, Item | None]:
        """The ``wanted`` requests, by the process that has them; ``None`` of who has gone.

        What did not come ``within`` (s) is missing.
        """
        requests = {request: process for process, theirs in wanted.items() for request in theirs}
        fetch = _Fetch(asyncio.get_running_loop().create_future(), set(requests))
        for request in requests:
            self._fetches.setdefault(request, []).append(fetch)
        try:
            if not await self._asked(send, fetch, requests, FIRST * within):
                known = {request for request in fetch.missing if requests[request] in self._silent}
                self._forget(fetch, known)
                if fetch.missing and not await self._asked(send, fetch, requests, (1 - FIRST) * within):
                    self._fell_silent({requests[request] for request in fetch.missing})
        finally:
            self._forget(fetch, set(fetch.missing))
        return fetch.found

    async def _asked(self, send: Send, fetch: _Fetch, requests: Mapping[str, str], seconds: float) -> bool:
        """Ask for what is missing; whether all of it came in so many seconds."""
        missing: defaultdict[str, list[str]] = defaultdict(list)
        for request, process in requests.items():
            if request in fetch.missing:
                missing[process].append(request)
        for process, theirs in missing.items():  # each apart: where the mailbox of one is away, the others are asked all the same
            asking = asyncio.create_task(self._ask(send, Ask(self._process, theirs), process))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)
        await asyncio.wait([fetch.done], timeout=seconds)
        return fetch.done.done()

    async def _ask(self, send: Send, ask: Ask, process: str) -> None:
        with suppress(StoreUnavailable):  # it may have taken the message all the same; else it is sent again
            await send(process, encode_ask(ask))

    def _forget(self, fetch: _Fetch, requests: set[str]) -> None:
        """These are waited for no more."""
        for request in requests:
            fetch.missing.discard(request)
            self._fetches[request].remove(fetch)
            if not self._fetches[request]:
                del self._fetches[request]

    def _fell_silent(self, processes: set[str]) -> None:
        for process in sorted(processes):
            self._silent.pop(process, None)
            self._silent[process] = None
        while len(self._silent) > SILENT_KNOWN:
            del self._silent[next(iter(self._silent))]

    def came(self, lent: Sequence[Lent]) -> None:
        """Another process sent these."""
        for body in lent:
            self._silent.pop(body.id[:PROCESS_LENGTH], None)
            for fetch in self._fetches.pop(body.id, ()):
                fetch.missing.discard(body.id)
                fetch.found[body.id] = body.item()
                if not fetch.missing and not fetch.done.done():
                    fetch.done.set_result(None)


def lend(ask: Ask, find: Callable[[str], Item | None]) -> Iterator[bytes]:
    """The messages that answer an ``ask``; each is made when the one before it is on its way."""
    lent: list[Lent] = []
    size = 0
    for request in ask.requests:
        item = find(request)
        more = 0 if item is None else len(item.body)
        if lent and size + more > LENT_BYTES:
            yield encode_lent(lent)
            lent, size = [], 0
        lent.append(Lent.of(request, item))
        size += more
    if lent:
        yield encode_lent(lent)
