"""The port to functions, and what an invoker raises, by what helps.

    FunctionUnavailable    no answer came, and no item is to blame: another worker may answer; splitting the batch would not help
    FunctionBusy           refused for now, and not computed: the same again later
    NoRoomForAnswer        computed, but what came of it could not be held: the same again later, and nobody else would help
    UnknownFunction        the plan is wrong
    BatchTooLarge          a smaller batch may pass
    UnreadableAnswer       it answered, but not this batch: another worker may, and so may it a smaller one
    FunctionCrashed        the connection broke under the batch: a smaller one may pass, for one item may have killed the worker
    FunctionFailed         the function ran and failed: a smaller batch may pass, for one item may be the culprit

A function is invoked at least once: after a lost connection or a 5xx of Lambda it may have run, and is asked again all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from sluice.batching.errors import FunctionFailed
from sluice.lambda_fn.batch_frames import decode_measured_answers
from sluice.lambda_fn.contract import Answer, Batch, Measured, WireError, encode_batch


class FunctionUnavailable(FunctionFailed):
    """The function cannot be reached, does not answer in time, or what stands before it says so."""


class FunctionBusy(FunctionUnavailable):
    """The function is throttled, or has too much to do; ``retry_after`` (s) is what it asked for, if it did."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NoRoomForAnswer(FunctionBusy):
    """The process holds as many bytes of answers as it may."""


class UnknownFunction(FunctionFailed):
    """There is no function of that name."""


class BatchTooLarge(FunctionFailed):
    """The payload, or the answer, is larger than the platform carries."""


class UnreadableAnswer(FunctionFailed):
    """What came is no answer to the batch, whatever its status says."""


class FunctionCrashed(FunctionFailed):
    """The connection broke while the function had the batch, and not because it had been idle."""


class BatchAnswer(NamedTuple):
    """The answers to a batch in its order, what its function measured of itself, and the bytes that all came in."""

    answers: list[Answer]
    measured: Measured
    size: int

    @classmethod
    def read(cls, payload: bytes, batch: Batch) -> BatchAnswer:
        """What came for a batch, in JSON or in frames; raises ``UnreadableAnswer``."""
        try:
            return cls(*decode_measured_answers(payload, batch), len(payload))
        except WireError as error:
            raise UnreadableAnswer(str(error)) from None


Ask = Callable[[str, Batch, str], Awaitable[BatchAnswer]]
"""``BatchInvoker.ask``."""


class Invoker(Protocol):
    """A way to a function."""

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        """The function's answer to ``payload``.

        Where a ``FunctionFailed`` names the ``worker`` that failed, others could be asked: the same with that one to ``avoid``.
        """

    async def close(self) -> None:
        """Release connections."""


class BatchInvoker(Invoker, Protocol):
    """A way that knows which format of a batch its functions take.

    A batch is asked for, and its answers are taken, in a ``Prompt``: what needs a task is to be in one of its own.
    """

    async def ask(self, function: str, batch: Batch, avoid: str = "") -> BatchAnswer:
        """``invoke`` with a batch, in the format that the function takes."""


class Pool(NamedTuple):
    """How many workers a function has; in how many seconds each of those that are ejected is tried, and their batches."""

    workers: int
    tried_in: Sequence[float] = ()
    held: int = 0


def pooling(invoker: Invoker) -> Callable[[str], Pool | None]:
    """What ``invoker`` tells of the workers of a function; ``None`` where it does not choose among several."""
    own: Callable[[str], Pool | None] | None = getattr(invoker, "worker_pool", None)
    return own if own is not None else lambda function: None


def asking(invoker: Invoker) -> Ask:
    """How ``invoker`` is asked for the answers to a batch: in JSON, where it does not choose."""

    own: Ask | None = getattr(invoker, "ask", None)
    return own if own is not None else partial(ask_in_json, invoker)


async def ask_in_json(invoker: Invoker, function: str, batch: Batch, avoid: str = "") -> BatchAnswer:
    """The answers to a batch, in JSON; in a task, which a ``Prompt`` may wait for."""
    invoked = asyncio.get_running_loop().create_task(invoker.invoke(function, encode_batch(batch), avoid))
    return BatchAnswer.read(await invoked, batch)


class Around:
    """A way that is ``invoker``'s but for what a subclass does about batches."""

    def __init__(self, invoker: Invoker) -> None:
        self._invoker = invoker
        self._ask = asking(invoker)
        self.worker_pool = pooling(invoker)

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        """What is asked beside batches, as what a function serves."""
        return await self._invoker.invoke(function, payload, avoid)

    async def close(self) -> None:
        await self._invoker.close()
