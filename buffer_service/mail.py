"""The mail of a process: answers for its callers, and bodies, which processes ask each other for (``bodies.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluice.buffer_service.callers import Callers
from sluice.buffer_service.members import Ask, Unreadable, decode_message
from sluice.lambda_fn.contract import Answer


def hand_out(
    messages: Iterable[bytes], callers: Callers, asked: Callable[[Ask], None], set_aside: Callable[[str, str], None]
) -> None:
    """Do what messages of other processes say, and wait for nothing: who receives would keep everybody from his answers meanwhile.

    One that cannot be read is ``set_aside``: of what it is, and why.
    """
    for message in messages:
        try:
            read = decode_message(message)
        except Unreadable as error:
            set_aside("message", str(error))
            continue
        if isinstance(read, Ask):
            asked(read)
            continue
        for each in read:
            if isinstance(each, Answer):
                callers.answer(each)
            else:
                callers.bodies.came((each,))
