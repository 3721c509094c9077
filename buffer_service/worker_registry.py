"""Which workers there are: each tells Redis of itself at every heartbeat, and who plans reads them all.

A worker's record is a field of the hash ``NAMESPACE:{workers}:registry``, named by its address: the time of its last heartbeat by
the server's clock, so that the clocks of machines need not agree, and behind a space a ``Registration`` in JSON. A worker that was
not heard of for two of its heartbeats counts as dead; who says that it leaves is forgotten at once, who does not after
``FORGOTTEN``. A server that lost its data knows all workers again after one heartbeat.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sluice.batching.documents import WORKER_SCHEMES
from sluice.batching.errors import InvalidInput, require
from sluice.buffer_service.redis_slot import Script, Slot, pairs
from sluice.buffer_service.settings import NAMESPACE

MISSED = 2
"""Heartbeats after which a silent worker counts as dead."""
FORGOTTEN = 600.0
"""Seconds after which a silent worker is forgotten."""
MAX_REGISTERED = 1024
MAX_RECORD_BYTES = 256 * 1024
"""Of a registration: a thousand models with long names."""

_BEAT = Script.named("beat.lua")


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that a worker has or could load: its state as the model repository extension calls it, and what loading took (s)."""

    state: str
    load_seconds: float | None = None


class Registration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a worker says of itself.

    ``address`` is where the buffer and the controller reach it, ``device`` the type that a fleet file gives it, ``heartbeat`` the
    seconds between two of these. One that is ``leaving`` takes no new requests.
    """

    address: str
    device: str
    heartbeat: float
    variants: dict[str, Variant] = {}
    leaving: bool = False

    def __post_init__(self) -> None:
        require(self.address.startswith(WORKER_SCHEMES), "address", self.address, "http://HOST:PORT")
        require(bool(self.device), "device", self.device, "the name of a device type")
        require(0.1 <= self.heartbeat <= 60, "heartbeat", self.heartbeat, "seconds from 0.1 to 60")


class Registered(NamedTuple):
    """A worker, and how long ago it was heard of (s)."""

    registration: Registration
    silent: float

    @property
    def alive(self) -> bool:
        """Whether it was heard of within two heartbeats, and stays."""
        return not self.registration.leaving and self.silent <= MISSED * self.registration.heartbeat


class WorkerRegistry:
    """The registry in a Redis, for the worker that writes itself down and for who reads.

    Every method raises ``StoreUnavailable`` where Redis does not answer.
    """

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        self._key = f"{namespace}:{{workers}}:registry"
        self._slot = Slot(url, self._key)

    async def beat(self, registration: Registration) -> None:
        """A heartbeat.

        Raises
        ------
        InvalidInput
            A registration beyond ``MAX_RECORD_BYTES``, or a worker beyond the first ``MAX_REGISTERED``.
        """
        record = msgspec.json.encode(registration)
        require(len(record) <= MAX_RECORD_BYTES, "variants", len(record), f"at most {MAX_RECORD_BYTES} bytes of registration")
        if not await self._slot.run(_BEAT, (self._key,), registration.address, record, FORGOTTEN, MAX_REGISTERED):
            raise InvalidInput("worker", registration.address, f"one of at most {MAX_REGISTERED} workers of this Redis")

    async def leave(self, address: str) -> None:
        """A worker is gone for good."""
        await self._slot.call(("HDEL", self._key, address))

    async def workers(self) -> dict[str, Registered]:
        """Everybody who is known, by address; a record that cannot be read is left out."""
        [found, (seconds, microseconds)] = await self._slot.call(("HGETALL", self._key), ("TIME",))
        now = int(seconds) + int(microseconds) / 1e6
        known: dict[str, Registered] = {}
        for address, record in sorted(pairs(found)):
            beat, _, told = record.partition(b" ")
            try:
                registration = msgspec.json.decode(told, type=Registration)
                known[address.decode()] = Registered(registration, max(0.0, now - float(beat)))
            except (ValueError, InvalidInput):
                continue
        return known

    async def close(self) -> None:
        """Close the connections."""
        await self._slot.close()
