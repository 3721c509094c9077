"""The mail of a process: answers for its callers, and bodies, which processes ask each other for (``bodies.py``)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.bodies import Send, lend
from sluice.buffer_service.callers import Callers
from sluice.buffer_service.members import Ask, Unreadable, decode_message
from sluice.lambda_fn.contract import Answer

_log = logging.getLogger(__name__)


async def hand_out(messages: Iterable[bytes], send: Send, callers: Callers, set_aside: Callable[[str, str], None]) -> None:
    """Do what messages of other processes say; one that cannot be read is ``set_aside``: of what it is, and why."""
    asked = []
    for message in messages:
        try:
            read = decode_message(message)
        except Unreadable as error:
            set_aside("message", str(error))
            continue
        if isinstance(read, Ask):
            asked.append(read)
            continue
        for each in read:
            if isinstance(each, Answer):
                callers.answer(each)
            else:
                callers.bodies.came((each,))
    for ask in asked:  # after the answers, for they are at hand
        try:
            for lent in lend(ask, callers.lendable):
                await send(ask.process, lent)
        except StoreUnavailable as error:
            _log.warning("bodies of %d requests did not reach process %s: %s", len(ask.requests), ask.process, error)
