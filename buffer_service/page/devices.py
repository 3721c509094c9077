"""The workers that wrote themselves down, as the live page tells of them: read from Redis seldom, and only while somebody asks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.settings import without_password
from sluice.buffer_service.worker_registry import Registered

LOOK_EVERY = 5.0  # s
MOST_DEVICES = 64  # workers that are told of one by one, those that are not well first
MOST_VARIANTS = 16  # of a worker, and of all workers of a type
MOST_LETTERS = 200  # of a name


class Registry(Protocol):
    """What is asked of ``WorkerRegistry``."""

    async def workers(self) -> dict[str, Registered]: ...

    async def close(self) -> None: ...


class Devices:
    """The workers in a Redis; ``registry`` of ``None``: there is nowhere to look.

    ``clock`` is monotonic (s). ``trouble`` is why nothing could be read last, ``""`` where something could.
    """

    def __init__(self, registry: Registry | None, clock: Callable[[], float]) -> None:
        self.trouble = ""
        self._registry = registry
        self._clock = clock
        self._look_at = -math.inf
        self._workers: list[Registered] = []

    async def look(self) -> None:
        """Read who is there, unless that was done lately."""
        if self._registry is None or self._clock() < self._look_at:
            return
        try:
            self._workers, self.trouble = list((await self._registry.workers()).values()), ""
        except StoreUnavailable as error:
            self.trouble = str(error)
        self._look_at = self._clock() + LOOK_EVERY

    def tell(self) -> dict[str, Any] | None:
        """The types with what their workers have loaded, and the workers; ``None`` where nobody is known."""
        if not self._workers:
            return None
        types = sorted({worker.registration.device for worker in self._workers})
        ill_first = sorted(self._workers, key=lambda worker: (worker.alive, worker.registration.address))
        return {
            "trouble": self.trouble or None,
            "types": [self._tell_type(device) for device in types[:MOST_DEVICES]],
            "types_left_out": max(0, len(types) - MOST_DEVICES),
            "workers": [_tell_worker(worker) for worker in ill_first[:MOST_DEVICES]],
            "workers_left_out": max(0, len(ill_first) - MOST_DEVICES),
        }

    async def close(self) -> None:
        """Close the connections."""
        if self._registry is not None:
            await self._registry.close()

    def _tell_type(self, device: str) -> dict[str, Any]:
        workers = [worker for worker in self._workers if worker.registration.device == device]
        alive = [worker for worker in workers if worker.alive]
        loaded = Counter(name for worker in alive for name in _in_state(worker, "READY"))
        told = sorted(loaded.items(), key=lambda each: (-each[1], each[0]))
        return {
            "device": device[:MOST_LETTERS],
            "workers": len(workers),
            "alive": len(alive),
            "loaded": dict(told[:MOST_VARIANTS]),
            "loaded_left_out": max(0, len(told) - MOST_VARIANTS),
        }


def _tell_worker(worker: Registered) -> dict[str, Any]:
    registration = worker.registration
    loaded, loading = _in_state(worker, "READY"), _in_state(worker, "LOADING")
    took = [variant.load_seconds for variant in registration.variants.values() if variant.load_seconds is not None]
    return {
        "address": without_password(registration.address)[:MOST_LETTERS],
        "device": registration.device[:MOST_LETTERS],
        "alive": worker.alive,
        "leaving": registration.leaving,
        "silent": worker.silent,
        "loaded": loaded[:MOST_VARIANTS],
        "loading": loading[:MOST_VARIANTS],
        "variants": len(registration.variants),
        "slowest_load": max(took, default=None),
    }


def _in_state(worker: Registered, state: str) -> list[str]:
    """Its variants in a state, as the model repository extension calls it."""
    return sorted(name[:MOST_LETTERS] for name, variant in worker.registration.variants.items() if variant.state == state)
