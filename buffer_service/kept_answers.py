"""Answers of kept requests, kept by the process that had their batch where the one that they wait at is no more.

An item of such a request carries where its answer is kept (``ADDRESS``), through the queue and to whatever process sends its batch;
no function sees it. What lives here: the invoker's port once more, which takes the address out of items on their way to a function,
and has the answers of other processes' items kept a while later, if nobody has by then.
"""

from __future__ import annotations

from collections.abc import Awaitable

import msgspec

from sluice.buffer_service.invokers import Invoker
from sluice.buffer_service.invokers.port import Around, BatchAnswer
from sluice.buffer_service.kept_requests import Keeper
from sluice.buffer_service.results import ADDRESS
from sluice.buffer_service.store import PROCESS_LENGTH
from sluice.lambda_fn.contract import Answer, Batch, Item


class KeepingInvoker(Around):
    """A way to functions, beside which ``keeper`` hears of the answers to requests that are kept."""

    def __init__(self, invoker: Invoker, keeper: Keeper) -> None:
        super().__init__(invoker)
        self._keeper = keeper

    def ask(self, function: str, batch: Batch, avoid: str = "") -> Awaitable[BatchAnswer]:
        """As the port has it; a batch without such an item, as most are, goes on as it is."""
        for item in batch.items:
            if ADDRESS in item.headers:
                return self._ask_and_keep(function, batch, avoid)
        return self._ask(function, batch, avoid)

    async def _ask_and_keep(self, function: str, batch: Batch, avoid: str) -> BatchAnswer:
        plain = Batch(batch.model, [_without_address(item) for item in batch.items])
        answered = await self._ask(function, plain, avoid)
        mine = self._keeper.process
        others = [item for item in batch.items if ADDRESS in item.headers and item.id[:PROCESS_LENGTH] != mine]
        if others:
            answers = {answer.id: answer for answer in answered.answers}
            for item in others:
                self._keep(item, answers)
        return answered

    def _keep(self, item: Item, answers: dict[str, Answer]) -> None:
        if (answer := answers.get(item.id)) is not None:
            named = item.headers.get("x-request-id", item.id)
            self._keeper.inherit(item.headers[ADDRESS], named, answer)


def _without_address(item: Item) -> Item:
    if ADDRESS not in item.headers:
        return item
    return msgspec.structs.replace(item, headers={name: value for name, value in item.headers.items() if name != ADDRESS})
