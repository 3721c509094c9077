"""A worker that tells the registry of itself for as long as it serves: at every heartbeat, and at once when something changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from sluice.batching.errors import SluiceError
from sluice.buffer_service.worker_registry import Registration, Variant, WorkerRegistry
from sluice.lambda_fn.worker.repository import STATES, Repository

LOOK = 0.1
"""Seconds between two looks at whether something changed."""
FAREWELL = 2.0
"""Seconds that a worker which ends spends on saying so."""

_log = logging.getLogger(__name__)


def registered_at(
    url: str, namespace: str, device: str, heartbeat: float, advertised: str = ""
) -> Callable[[Repository, str], Coroutine[None, None, None]]:
    """What a worker runs beside serving, given its models and the URL it listens at, until that is cancelled.

    Parameters
    ----------
    url, namespace
        The Redis, and what its keys begin with, as the buffer has them.
    device
        The type of the machine, as the fleet file names it.
    heartbeat
        Seconds.
    advertised
        The URL that others reach the worker at, where that is another.

    Raises
    ------
    InvalidInput
        What a ``Registration`` may not be.
    """
    Registration(address=advertised or "http://", device=device, heartbeat=heartbeat)  # an error names the option at the start

    async def tell(repository: Repository, listening: str) -> None:
        registry = WorkerRegistry(url, namespace)
        address = advertised or listening
        clock = asyncio.get_running_loop().time
        told, due, trouble = None, clock(), ""
        try:
            while True:
                says = _says(repository, address, device, heartbeat)
                if says != told or clock() >= due:
                    due = clock() + heartbeat
                    try:
                        await registry.beat(says)
                        told, trouble = says, ""
                    except SluiceError as error:
                        if str(error) != trouble:
                            _log.warning("this worker is not registered: %s", error)
                        told, trouble = says, str(error)
                await asyncio.sleep(LOOK)
        finally:
            try:
                async with asyncio.timeout(FAREWELL):
                    await registry.leave(address)
            except (SluiceError, TimeoutError):
                pass  # it is forgotten by itself
            await registry.close()

    return tell


def _says(repository: Repository, address: str, device: str, heartbeat: float) -> Registration:
    variants = {model.name: Variant(STATES[model.life], model.load_seconds) for model in repository.models.values()}
    return Registration(
        address=address,
        device=device,
        heartbeat=heartbeat,
        variants=variants,
        leaving=bool(repository.draining or repository.dead()),
    )
