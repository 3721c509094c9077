"""What the buffer measured of a model's batches: the one definition of the Redis stream, for who writes it and who reads it.

What may live here: the key and the format of an entry. ``lua/advance.lua`` writes one entry for each of its calls that brought
measured batches, however many; the memory store keeps the same in ``batch_record.py``. ``stream_reader.py`` reads it.

Key    ``NAMESPACE:{model}:batch_stream``, beside the stream of arrivals; a route with a slot of its own has one of its own there.
Id     ``N-0``, where N is the number of batches recorded so far, those of this entry included: the stream is trimmed by batches,
       and a reader sees whether any were lost to it.
Entry  a field ``call``: the time of the script call by the server's clock, a little-endian double of seconds since 1970; and a
       field ``batches``: a MessagePack array of the route, the names of functions and digests, and bytes: for each batch ``ROW``,
       then its latencies, a little-endian float each.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.settings import NAMESPACE
from sluice.buffer_service.store import queue_name

FIELD, BATCHES = b"call", b"batches"
ROW = struct.Struct("<HHBBIIHffff")
"""Places of function and digest among the names, table, flags, size, failed, latencies; age (s), seconds, service, billed."""
COLD, REJECTED = 1, 2
"""Flags. Versions that know of one flag take any for that of a cold batch; in what they wrote, who was rejected has failed."""


class BatchCall(NamedTuple):
    """An entry: when a call was made (s), what it brought, and how many batches were recorded before."""

    made_at: float
    batches: tuple[MeasuredBatch, ...]
    before: int


def batch_stream_key(model: str, namespace: str = NAMESPACE, route: str = "") -> str:
    """The key of a model's stream, or of that of a route with a slot of its own."""
    return f"{namespace}:{{{queue_name(model, route)}}}:batch_stream"


def pack_batches(batches: Sequence[MeasuredBatch]) -> bytes:
    """What one call brings, of one route; ``ended_at`` counts from the call."""
    names: dict[str, int] = {}
    rows = bytearray()
    for batch in batches:
        function = names.setdefault(batch.function, len(names))
        digest = names.setdefault(batch.digest, len(names))
        n = len(batch.latencies)
        times = (-batch.ended_at, batch.seconds, batch.service, batch.billed)
        flags = COLD * batch.cold | REJECTED * batch.rejected
        rows += ROW.pack(function, digest, batch.table, flags, batch.size, batch.failed, n, *times)
        rows += struct.pack(f"<{n}f", *batch.latencies)
    return msgspec.msgpack.encode((batches[0].route, list(names), bytes(rows)))


def unpack_batches(entry_id: bytes, entry: Mapping[bytes, bytes]) -> BatchCall:
    """What the script wrote; raises ``ValueError``, or ``KeyError``, for what it did not."""
    try:
        (made_at,) = struct.unpack("<d", entry[FIELD])
        route, names, rows = msgspec.msgpack.decode(entry[BATCHES], type=tuple[str, list[str], bytes])
        batches = []
        at = 0
        while at < len(rows):
            function, digest, table, flags, size, failed, n, age, seconds, service, billed = ROW.unpack_from(rows, at)
            latencies = struct.unpack_from(f"<{n}f", rows, at + ROW.size)
            at += ROW.size + 4 * n
            batches.append(
                MeasuredBatch(
                    *(made_at - age, route, table, names[function], names[digest], size, seconds, service, billed),
                    *(bool(flags & COLD), failed, latencies, bool(flags & REJECTED)),
                )
            )
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"no entry of a batch stream: {error}") from None
    return BatchCall(made_at, tuple(batches), int(entry_id.partition(b"-")[0]) - len(batches))
