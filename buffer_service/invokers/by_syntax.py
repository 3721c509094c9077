"""Which way leads to a function: chosen by what a plan's ``function`` looks like."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from sluice.batching.documents import SAGEMAKER_SCHEME, WORKER_SCHEMES
from sluice.buffer_service.invokers.http_workers import HttpInvoker, unobserved, worker_addresses
from sluice.buffer_service.invokers.port import BatchAnswer, FunctionUnavailable, Invoker, Pool, ask_in_json
from sluice.buffer_service.invokers.worker_health import Health
from sluice.http.room import Room
from sluice.lambda_fn.contract import Batch


def named_functions(function: str) -> Sequence[str]:
    """Each function that a plan's ``function`` names: every worker, or the one Lambda function or endpoint."""
    return worker_addresses(function) if function.startswith(WORKER_SCHEMES) else [function]


class InvokerBySyntax:
    """Chooses by what ``function`` looks like; each way is opened when it is first needed.

    ``ejected`` is told of each worker that is not asked for a while. Answers take ``room`` while they are read.
    """

    def __init__(self, timeout: float, ejected: Callable[[str], None] = unobserved, room: Room | None = None) -> None:
        self._timeout = timeout
        self._room = room
        self._aws: dict[bool, Invoker] = {}  # by whether it is SageMaker's, or Lambda's
        self._opening = asyncio.Lock()
        self._http = HttpInvoker(timeout, ejected, room=room)

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        if function.startswith(WORKER_SCHEMES):
            return await self._http.invoke(function, payload, avoid)
        sagemaker = function.startswith(SAGEMAKER_SCHEME)
        if sagemaker not in self._aws:
            await self._open(sagemaker, function)
        return await self._aws[sagemaker].invoke(function, payload)

    async def ask(self, function: str, batch: Batch, avoid: str = "") -> BatchAnswer:
        """As the port says: workers may be asked in frames, platforms in JSON."""
        if function.startswith(WORKER_SCHEMES):
            return await self._http.ask(function, batch, avoid)
        return await ask_in_json(self, function, batch)

    def health(self, function: str) -> Mapping[str, Health]:
        """``HttpInvoker.health`` of workers; of a function of a platform there is nothing to tell."""
        return self._http.health(function) if function.startswith(WORKER_SCHEMES) else {}

    def worker_pool(self, function: str) -> Pool | None:
        """``HttpInvoker.worker_pool`` of workers."""
        return self._http.worker_pool(function) if function.startswith(WORKER_SCHEMES) else None

    async def close(self) -> None:
        invokers: Iterable[Invoker] = (self._http, *self._aws.values())
        for invoker in invokers:
            await invoker.close()

    async def _open(self, sagemaker: bool, function: str) -> None:
        """In a thread: making a client takes a tenth of a second, finding credentials perhaps more, and others are being served."""
        async with self._opening:
            if sagemaker not in self._aws:
                self._aws[sagemaker] = await asyncio.to_thread(_of_aws, function, self._timeout, self._room)


def _of_aws(function: str, timeout: float, room: Room | None) -> Invoker:
    """The way to a function of AWS: with botocore, 8 MB that a buffer before workers goes without.

    Raises ``FunctionUnavailable`` where region, endpoint or credentials are not as they must be.
    """
    from botocore.exceptions import BotoCoreError

    from sluice.buffer_service.invokers.aws_lambda import LambdaInvoker
    from sluice.buffer_service.invokers.sagemaker import SageMakerInvoker

    way = SageMakerInvoker if function.startswith(SAGEMAKER_SCHEME) else LambdaInvoker
    try:
        return way(timeout, room=room)
    except (BotoCoreError, ValueError) as error:
        raise FunctionUnavailable(f"{function!r} cannot be invoked: {error}") from error
