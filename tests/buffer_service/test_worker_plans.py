"""A plan for several workers: every one of them is asked what it serves before the plan is followed."""

from __future__ import annotations

import pytest

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.invokers import LocalInvoker, UnknownFunction
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.settings import Settings
from sluice.lambda_fn.contract import encode_metadata
from tests.buffer_service.conftest import NO_BATCHING, Plans, plan

WORKERS = "http://a:1,http://b:1"


def service(served: dict[str, str]) -> BufferService:
    """A buffer whose workers serve these models, by address."""

    def answers(model: str):
        async def describe(payload: bytes) -> bytes:
            return encode_metadata({"name": model})

        return describe

    invoker = LocalInvoker({address: answers(model) for address, model in served.items()})
    return BufferService(Settings(port=0), MemoryStore(MemoryBackend(), "tttttttt"), invoker, Plans())


async def test_a_worker_that_serves_another_model_is_named():
    with pytest.raises(InvalidInput, match=r"model: 'm' is not allowed; allowed: the model that http://b:1 serves, 'other'"):
        await service({"http://a:1": "m", "http://b:1": "other"})._check_functions(plan(NO_BATCHING, function=WORKERS))


async def test_a_worker_that_does_not_exist_is_named():
    with pytest.raises(UnknownFunction, match="'http://b:1' does not exist"):
        await service({"http://a:1": "m"})._check_functions(plan(NO_BATCHING, function=WORKERS))


async def test_workers_that_all_serve_the_model_are_accepted():
    await service({"http://a:1": "m", "http://b:1": "m"})._check_functions(plan(NO_BATCHING, function=WORKERS))
