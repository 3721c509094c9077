"""Environments of a function that are started when a plan comes into force, before requests ask for them.

Else the first requests wait for INIT, burst by burst until there are as many environments as bursts take, and of them more are late
than a percentile allows. So many pings as the plan says leave at the same moment, each of which holds its environment for a while:
no two of them get the same. Of all processes the first that follows the plan does it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sluice.batching.documents import START_HOLD
from sluice.batching.errors import FunctionFailed, StoreUnavailable
from sluice.buffer_service.invokers.port import Invoker
from sluice.lambda_fn.contract import Batch, encode_batch

READY_WITHIN = 10.0  # seconds for which a route that is new at a process is not ready, as its environments start
AGAIN = 1.0  # seconds after which a store is asked once more that does not say who is the first,
ASKED = 60  # times at most
_log = logging.getLogger(__name__)


async def start_environments(
    function: str, number: int, model: str, invoker: Invoker, is_first: Callable[[], Awaitable[bool]]
) -> None:
    """Ping so many at once, if this process is the first; what fails is logged, and harms nobody."""
    for _ in range(ASKED):
        try:
            if not await is_first():
                return
            break
        except StoreUnavailable:
            await asyncio.sleep(AGAIN)
    else:
        return
    ping = encode_batch(Batch(model, [], ping=True, hold=START_HOLD))
    found = await asyncio.gather(*(invoker.invoke(function, ping) for _ in range(number)), return_exceptions=True)
    failures = [each for each in found if isinstance(each, BaseException)]
    for defect in (each for each in failures if not isinstance(each, FunctionFailed)):
        raise defect
    if failures:
        _log.warning("%s: %d of %d environments of %s were not started: %s", model, len(failures), number, function, failures[0])
    else:
        _log.info("%s: %d environments of %s are there", model, number, function)
