"""One controller of several leads: it alone plans, until it ends or is not heard of for the time of its lease.

Who leads renews its lease three times within it; whoever cannot gives up before another may have it. What a controller writes
after that all the same is not taken (``buffer_service/redis_plans.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable

from sluice.batching.errors import SluiceError
from sluice.buffer_service.redis_plans import RedisPlans

LEASE = 3.0
"""Seconds."""
RENEWALS = 3

_log = logging.getLogger(__name__)


def controller_name() -> str:
    """One that no other controller has, and that tells an operator where it runs."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


async def lead(plans: RedisPlans, name: str, work: Callable[[], Awaitable[None]], lease: float = LEASE) -> None:
    """Whenever this name leads, run ``work``, and cancel it when that is over; until it is cancelled itself, or the work ends."""
    clock = asyncio.get_running_loop().time
    working: asyncio.Task[None] | None = None
    until, trouble = clock(), ""
    try:
        while True:
            asked = clock()
            try:
                if await plans.lead(name, lease):
                    until = asked + lease
                    if working is None:
                        _log.info("%s leads", name)
                        working = asyncio.ensure_future(work())
                else:
                    until = asked
                trouble = ""
            except SluiceError as error:
                if str(error) != trouble:
                    _log.warning("%s (--redis-url, SLUICE_REDIS_URL); until it does, nothing is decided", error)
                trouble = str(error)
            if working is not None and clock() >= until - lease / RENEWALS / 2:
                _log.warning("%s leads no more", name)
                await _cancelled(working)
                working = None
            if working is None:
                await asyncio.sleep(lease / RENEWALS)
                continue
            await asyncio.wait([working], timeout=lease / RENEWALS)
            if working.done():
                working.result()
                return
    finally:
        if working is not None:
            await _cancelled(working)
        try:
            async with asyncio.timeout(1.0):
                await plans.resign(name)
        except (SluiceError, TimeoutError):
            pass  # it ends by itself


async def _cancelled(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a defect of the controller: %r", error, exc_info=error)
