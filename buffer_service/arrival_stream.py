"""The arrivals of a model, as its buffer saw them: the one definition of the Redis stream, for who writes it and who reads it.

What may live here: the key, the format of an entry, and the reader. ``lua/advance.lua`` writes one entry for each of its calls that
accepted arrivals, however many, and one of those that left without the queue; the memory store keeps the same records.

Key    ``NAMESPACE:{model}:arrival_stream``, in the slot of the model's other keys; all its routes write there, and a request that
       moves from one to another is recorded once. A route that has a slot of its own (``SLUICE_SPREAD_ROUTES``) has a stream
       of its own there, ``NAMESPACE:{model:route}:arrival_stream``, and its name is in the set ``NAMESPACE:{model}:routes``.
Id     ``N-0``, where N is the number of arrivals recorded so far, those of this entry included: the stream is trimmed by arrivals,
       not by entries, and a reader sees whether anything came before the oldest entry.
Entry  a field ``call``: the time of the script call by the server's clock, a little-endian double of seconds since 1970; then for
       each accepted arrival its age at that call, a little-endian float of seconds. Where the size of any was told there is a field
       ``sizes``: the size of each, a little-endian float, ``nan`` of those that were not told.

An arrival's time is the time of the call less its age, which the buffer process measured from the moment it had the whole request
until it sent the call. The server's clock alone dates the arrivals, so the clocks of several processes need not agree; the ages
undo that one call carries all that came since the last, which would look like a burst. What remains is the way to the server: each
time is late by about half a round trip. The queue's own arrival times, from which the policy counts how long to hold, are those of
the call.

An arrival counts once it is accepted: what was refused with 429 or 503 is not in the stream. Time in which nothing could be
recorded (the buffer or Redis was away) looks like time without arrivals; a controller sees it by other signs
(``controller/model_control.py``).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast
from urllib.parse import parse_qsl, urlencode

import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, MovedError, RedisError, ResponseError
from redis.retry import Retry

from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.batching.urls import without_password
from sluice.buffer_service.arrival_record import Arrivals, Call, arrivals
from sluice.buffer_service.redis_servers import url_at
from sluice.buffer_service.settings import NAMESPACE
from sluice.buffer_service.store import queue_name

FIELD, SIZES = b"call", b"sizes"
PAGE = 2000  # entries one read takes: some milliseconds of the server's time
TIMEOUT = 10.0  # seconds a connection, or one read, may take


def stream_key(model: str, namespace: str = NAMESPACE, route: str = "") -> str:
    """The key of a model's stream, or of that of a route with a slot of its own."""
    return f"{namespace}:{{{queue_name(model, route)}}}:arrival_stream"


def refused_key(model: str, namespace: str = NAMESPACE, route: str = "") -> str:
    """The key of how many requests of a model were refused, or of those of a route with a slot of its own."""
    return f"{namespace}:{{{queue_name(model, route)}}}:refused"


def routes_key(model: str, namespace: str = NAMESPACE) -> str:
    """The key of the set of a model's routes that have a stream of their own."""
    return f"{namespace}:{{{model}}}:routes"


def processes_key(model: str, namespace: str = NAMESPACE, route: str = "") -> str:
    """The key of the processes that serve a model, or its route with a slot of its own, by when each was heard of last."""
    return f"{namespace}:{{{queue_name(model, route)}}}:processes"


def pack_floats(ages: Sequence[float], sizes: Sequence[float] = ()) -> bytes:
    """The ages of a call's arrivals, and behind them their sizes where any was told, as the script puts them into an entry."""
    return struct.pack(f"<{len(ages) + len(sizes)}f", *ages, *sizes)


def unpack_call(entry_id: bytes, entry: Mapping[bytes, bytes]) -> Call:
    """What the script wrote; sizes that are not one for each arrival were not told."""
    call, sizes = entry[FIELD], entry.get(SIZES, b"")
    n = (len(call) - 8) // 4
    values = struct.unpack(f"<d{n}f", call)
    told = struct.unpack(f"<{n}f", sizes) if len(sizes) == 4 * n else ()
    return Call(values[0], values[1:], int(entry_id.partition(b"-")[0]) - n, told)


def read_arrivals(url: str, model: str, namespace: str = NAMESPACE) -> array[float]:
    """The times of ``read_requests``."""
    return read_requests(url, model, namespace).times


def read_requests(url: str, model: str, namespace: str = NAMESPACE) -> Arrivals:
    """The arrivals of a model that a Redis has seen, without a gap up to now.

    Read from the newest backwards, in pages: what is trimmed meanwhile is missing at the old end alone.

    Parameters
    ----------
    url
        ``redis://``, ``rediss://`` or ``unix://``, of any node where it is a cluster, as ``SLUICE_REDIS_URL`` has it.
    model
        The model's name.
    namespace
        What the buffer's keys begin with, as ``SLUICE_NAMESPACE`` has it.

    Returns
    -------
    times : array of doubles, shape (n,)
        Seconds since 1970, ascending; ``numpy.asarray`` takes it without a copy.
    sizes : array of doubles, shape (n,) or (0,)
        The size of each request, ``nan`` where it was not told; empty where none was.

    Raises
    ------
    InvalidInput
        The URL is none, or is not let in, or no arrivals are recorded of the model.
    StoreUnavailable
        Redis does not answer, or refuses.
    """
    try:
        keys = [stream_key(model, namespace, route) for route in ["", *_routes(url, routes_key(model, namespace))]]
        found = arrivals(*(_newest_first(url, key) for key in keys))
    except ResponseError as error:
        raise StoreUnavailable(f"Redis refused: {error}") from error
    except AuthenticationError as error:
        raise InvalidInput("url", without_password(url), f"user and password as this Redis has them ({error})") from None
    except (RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis does not answer: {error or type(error).__name__}") from error
    except (ValueError, TypeError) as error:  # redis-py's words for a scheme, a port, a parameter that it does not know
        raise InvalidInput("url", without_password(url), f"redis://, rediss:// or unix:// ({error})") from None
    if not found.times:
        allowed = f"a model whose requests a buffer took with this Redis; no arrivals seen yet for model {model!r}"
        raise InvalidInput("model", model, allowed)
    return found


class RecordAddress(NamedTuple):
    """Where the record of a model's arrivals is."""

    url: str
    model: str
    namespace: str


def split_url(url: str) -> RecordAddress:
    """The parts of ``redis://HOST/0?model=NAME&namespace=NAME``; raises ``InvalidInput`` unless it names one model.

    The namespace may be left out where the buffer was not told one.
    """
    server, _, query = url.partition("?")
    parameters = parse_qsl(query, keep_blank_values=True)
    models, namespaces = ([value for name, value in parameters if name == named] for named in ("model", "namespace"))
    if len(models) != 1 or len(namespaces) > 1 or not all(models + namespaces):
        raise InvalidInput("url", without_password(url), "one that names one model, as redis://HOST:6379/0?model=NAME does")
    others = urlencode([(name, value) for name, value in parameters if name not in ("model", "namespace")])
    return RecordAddress(server + ("?" + others if others else ""), models[0], (namespaces or [NAMESPACE])[0])


def _open(url: str) -> redis.Redis:
    retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=retry)


def _routes(url: str, key: str) -> list[str]:
    with _open(url) as client:
        try:
            return sorted(name.decode() for name in cast("set[bytes]", client.smembers(key)))
        except MovedError as there:
            return _routes(url_at(url, there.host, there.port), key)


def _newest_first(url: str, key: str) -> Iterator[Call]:
    with _open(url) as client:
        newest = "+"
        while True:
            try:
                page = client.xrevrange(key, max=newest, count=PAGE)
            except MovedError as there:  # a cluster, whose other node has the key
                yield from _newest_first(url_at(url, there.host, there.port), key)
                return
            entries = cast("list[tuple[bytes, dict[bytes, bytes]]]", page)
            for entry_id, fields in entries:
                yield unpack_call(entry_id, fields)
            if len(entries) < PAGE:
                return
            newest = f"({entry_id.decode()}"
