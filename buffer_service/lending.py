"""Bodies that other processes asked for, on their way there: beside the loop that receives, which waits for none of them.

What may live here: who is still to be sent what. What may not: sockets, the store; it is handed what sends, and what finds a body.

    asked       to each process one message at a time, the next made when the one before has arrived (``bodies.lend``); what is
                asked for meanwhile goes behind, and what waits there already goes once
    too many    more than ``MOST_ASKED`` requests are still to be sent: what was asked for then is passed over
    too much    ``MOST_BYTES`` are on their way: the next message is made when one of them has arrived, or is given up
    away        the store does not take a message: all that this process is still to be sent is passed over

Who asked and gets nothing asks again (``bodies.py``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.bodies import Send, lend
from sluice.buffer_service.logs import Seldom
from sluice.buffer_service.members import Ask
from sluice.lambda_fn.contract import Item

MOST_ASKED = 10_000  # requests whose bodies are still to be sent, all processes together: as many as a queue holds
MOST_BYTES = 16 * 1024 * 1024  # of messages on their way, beside the last of them

_log = logging.getLogger(__name__)


class Lending:
    """What this process lends to others; ``find`` tells the request that is meant, or ``None`` of who has gone."""

    def __init__(self, send: Send, find: Callable[[str], Item | None]) -> None:
        self._send = send
        self._find = find
        self._asked: dict[str, dict[str, None]] = {}  # requests by process, those on their way not among them
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._requests = 0  # still to be sent
        self._bytes = 0  # on their way
        self._fewer = asyncio.Condition()
        self._refused = Seldom(_log.warning)

    def asked(self, ask: Ask) -> None:
        """Send what is asked for, soon."""
        waiting = self._asked.get(ask.process, {})
        new = [request for request in ask.requests if request not in waiting]
        if self._requests + len(new) > MOST_ASKED:
            what = f"bodies of {len(new)} requests are not sent to process {ask.process}"
            self._refused.say("too many", f"{what}: {self._requests} are still to be sent; allowed: {MOST_ASKED}")
            return
        if not new:
            return
        self._requests += len(new)
        self._asked[ask.process] = waiting | dict.fromkeys(new)
        if ask.process not in self._sending:
            self._sending[ask.process] = asyncio.create_task(self._send_to(ask.process))

    async def close(self) -> None:
        """Send nothing more."""
        sending = list(self._sending.values())
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    async def _send_to(self, process: str) -> None:
        """Until nothing is left that this process asked for."""
        under_way = 0
        try:
            while asked := self._asked.pop(process, None):
                under_way = len(asked)
                await self._send_all(Ask(process, list(asked)))
                self._requests -= under_way
                under_way = 0
        except Exception as error:
            left = under_way + len(self._asked.get(process, ()))
            log = _log.warning if isinstance(error, StoreUnavailable) else _log.exception  # else a defect, and this process's alone
            log("bodies of %d requests did not reach process %s: %s", left, process, error)
        finally:
            self._requests -= under_way + len(self._asked.pop(process, ()))
            del self._sending[process]

    async def _send_all(self, ask: Ask) -> None:
        messages = lend(ask, self._find)
        while True:
            async with self._fewer:
                await self._fewer.wait_for(lambda: self._bytes < MOST_BYTES)
            message = next(messages, None)
            if message is None:
                return
            self._bytes += len(message)
            try:
                await self._send(ask.process, message)
            finally:
                self._bytes -= len(message)
                async with self._fewer:
                    self._fewer.notify_all()
