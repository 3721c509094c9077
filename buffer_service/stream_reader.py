"""Reads what the buffer recorded of a model while it goes on: the arrivals and the measured batches since the last look, in pages.

What may live here: the positions in the streams of one model, and how one is gone on from. ``arrival_stream.py`` and
``batch_stream.py`` have the formats; ``arrival_stream.read_requests`` reads all that is kept at once.

A page is bounded, however much came. The entry that was read last is looked at again, so that it is seen whether what follows
goes on from there: what was trimmed before it was read is counted as ``missed``; where the stream began anew, as it does when Redis
lost its data, reading begins anew with it. Where the clock of the store was set back, times go on as if none had passed in between,
so that what a reader is told never goes back; of a clock set forward nothing can be seen but time without arrivals.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import MovedError, RedisError, ResponseError
from redis.retry import Retry

from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.batching.measured import MeasuredBatch
from sluice.batching.urls import without_password
from sluice.buffer_service.arrival_record import Arrivals, Call
from sluice.buffer_service.arrival_stream import processes_key, routes_key, stream_key, unpack_call
from sluice.buffer_service.batch_stream import BatchCall, batch_stream_key, unpack_batches
from sluice.buffer_service.redis_servers import url_at
from sluice.buffer_service.settings import NAMESPACE

PAGE = 2000  # entries of one stream that one read takes at most
TOGETHER = 16  # models that are read with one question
LAST = 2**64 - 1  # of what follows the hyphen in an id
TIMEOUT = 5.0  # seconds a connection, or one read, may take
REDIRECTIONS = 5  # from server to server of a cluster that one read follows


class Recorded(Protocol):
    """An entry of either stream: when its call was made (s), and how many records came before it."""

    @property
    def made_at(self) -> float: ...

    @property
    def before(self) -> int: ...


Entry = TypeVar("Entry", bound=Recorded)
Unpack = Callable[[bytes, Mapping[bytes, bytes]], Entry]
Entries = Sequence[tuple[bytes, Mapping[bytes, bytes]]]


class Position(NamedTuple):
    """How far a stream was read: the number in the id of the last entry, when that was made, by how much the clock was set back."""

    number: int = 0
    made_at: float = -math.inf
    set_back: float = 0.0


class Page(NamedTuple, Generic[Entry]):
    """The next entries of a stream, each with what is to be added to its times (s).

    ``missed`` records were trimmed before they were read, and ``unreadable`` entries passed over; ``began_anew`` says that the
    stream is another one than before; ``more`` that there may be more.
    """

    entries: list[tuple[Entry, float]]
    position: Position
    missed: int = 0
    unreadable: int = 0
    began_anew: bool = False
    more: bool = False


def next_page(found: Entries, newest: int, position: Position, most: int, unpack: Unpack[Entry]) -> Page[Entry]:
    """What follows a position in a stream whose first entries from that one on are ``found``, ``most`` at most.

    ``newest`` is the number of the stream's newest entry, 0 where it has none. Where the stream began anew the page is empty, and
    its position the beginning.
    """
    anew: Page[Entry] = Page([], Position(0, position.made_at, position.set_back), began_anew=True, more=newest > 0)
    if newest < position.number:
        return anew
    entries: list[tuple[Entry, float]] = []
    missed = unreadable = 0
    number, made_at, set_back = position
    for entry_id, fields in found:
        its_number = int(entry_id.partition(b"-")[0])
        try:
            entry = unpack(entry_id, fields)
        except (ValueError, KeyError, struct.error):
            unreadable += 1
            number = max(number, its_number)
            continue
        if its_number == position.number and entry.made_at == position.made_at:
            continue
        if entry.before < position.number:  # another life, which is longer already
            return anew
        if entry.before > number and position.number:
            missed += entry.before - number
        if entry.made_at < made_at:
            set_back += made_at - entry.made_at
        number, made_at = its_number, entry.made_at
        entries.append((entry, set_back))
    return Page(entries, Position(number, made_at, set_back), missed, unreadable, False, len(found) >= most)


class NewArrivals(NamedTuple):
    """Arrivals since the last look, ascending; ``missed`` were trimmed before they were read; ``more`` wait to be read."""

    arrivals: Arrivals
    missed: int
    began_anew: bool
    set_back: float
    more: bool


class NewBatches(NamedTuple):
    """Measured batches since the last look, by the time when they ended; as ``NewArrivals``."""

    batches: list[MeasuredBatch]
    missed: int
    began_anew: bool
    set_back: float
    more: bool


class _Stream(NamedTuple):
    """One of the two that a route has: its key by model, namespace and route, and how an entry is read."""

    key: Callable[[str, str, str], str]
    unpack: Unpack[Any]


_STREAMS = _Stream(stream_key, unpack_call), _Stream(batch_stream_key, unpack_batches)


class RecordReader:
    """Reads both streams of a model, those of its spread routes too, from the oldest record that is kept.

    ``positions`` are by key. ``page`` bounds the entries of a stream that a look takes.
    ``now`` (s) is when it looked last, by the clock of what it reads. Every method raises ``StoreUnavailable`` where Redis does not
    answer, and can be called again.
    """

    def __init__(self, url: str, model: str, namespace: str = NAMESPACE, page: int = PAGE) -> None:
        self.positions: dict[str, Position] = {}
        self.now = -math.inf
        self._url = url
        self._model, self._namespace = model, namespace
        self._page = page
        self._clients: dict[str, redis.Redis] = {}  # by key: of a cluster each may be elsewhere
        self._routes = [""]

    def look_for_routes(self) -> None:
        """Learn of routes that have streams of their own; to be called now and then."""
        found = self._ask(routes_key(self._model, self._namespace), lambda client, key: client.smembers(key))
        self._routes = ["", *sorted(name.decode() for name in cast("set[bytes]", found))]

    def look(self) -> tuple[NewArrivals, NewBatches]:
        """What came since the last look, with one question for each route."""
        both = [self._next(route, _STREAMS) for route in self._routes]
        return _arrivals_of([arrivals for arrivals, _ in both]), _batches_of([batches for _, batches in both])

    def arrivals(self) -> NewArrivals:
        """The requests that came since the last look."""
        return _arrivals_of([page for route in self._routes for page in self._next(route, _STREAMS[:1])])

    def batches(self) -> NewBatches:
        """The batches that ended since the last look."""
        return _batches_of([page for route in self._routes for page in self._next(route, _STREAMS[1:])])

    def pass_over_arrivals(self) -> int:
        """Read on behind the newest request; how many were recorded so far."""
        return self._pass_over(_STREAMS[0])

    def pass_over_batches(self) -> int:
        """Read on behind the newest batch; how many were recorded so far."""
        return self._pass_over(_STREAMS[1])

    def buffers(self) -> dict[str, float]:
        """The processes that serve the model, and when each was heard of last (s), by the clock that dates what is read."""
        found: dict[str, float] = {}
        for route in self._routes:
            key = processes_key(self._model, self._namespace, route)
            for name, heard in self._ask(key, lambda client, key: client.zrange(key, 0, -1, withscores=True)):
                found[name.decode(errors="replace")] = max(float(heard), found.get(name.decode(errors="replace"), -math.inf))
        return found

    def read_to(self) -> dict[str, int]:
        """The number of the entry that was read last, by key of a stream."""
        keys = (key for route in self._routes for key in (stream.key(self._model, self._namespace, route) for stream in _STREAMS))
        return {key: self.positions.get(key, Position()).number for key in keys}

    def nothing_until(self, now: float) -> None:
        """Nothing was recorded until then, s by the store's clock."""
        self.now = max(self.now, now + max((position.set_back for position in self.positions.values()), default=0.0))

    def close(self) -> None:
        """Release connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _next(self, route: str, streams: Sequence[_Stream]) -> list[tuple[Page[Any], float]]:
        """A page of each of these streams of a route, and by how much the clock was set back in it."""
        keys = [stream.key(self._model, self._namespace, route) for stream in streams]  # all in one slot
        positions = [self.positions.get(key, Position()) for key in keys]

        def read(client: redis.Redis, _: str) -> list[Any]:
            pipeline = client.pipeline(transaction=True)  # so that nothing comes between
            for key, position in zip(keys, positions, strict=True):
                pipeline.xrange(key, min=f"{position.number}-0", count=self._page)
                pipeline.xrevrange(key, count=1)
            pipeline.time()
            return pipeline.execute()

        *found, (seconds, microseconds) = self._ask(keys[0], read)
        newest = [int(last[0][0].partition(b"-")[0]) if last else 0 for last in found[1::2]]
        now = seconds + microseconds / 1e6
        return [self._turn(*each, now) for each in zip(keys, streams, found[::2], newest, strict=True)]

    def take(self, found: Mapping[str, Entries], now: float) -> tuple[NewArrivals, NewBatches]:
        """What ``look`` finds, of entries that somebody else has read at that time (s): of each stream, by its key, those from the
        one on that was read last, ``PAGE`` at most.
        """
        pages = []
        for route in self._routes:
            for stream in _STREAMS:
                entries = found.get(key := stream.key(self._model, self._namespace, route), ())
                newest = int(entries[-1][0].partition(b"-")[0]) if entries else 0
                pages.append(self._turn(key, stream, entries, newest, now))
        return _arrivals_of(pages[::2]), _batches_of(pages[1::2])

    def _turn(self, key: str, stream: _Stream, found: Entries, newest: int, now: float) -> tuple[Page[Any], float]:
        position = self.positions.get(key, Position())
        page = next_page(found, newest, position, self._page, stream.unpack)
        self.positions[key] = page.position
        self.now = max(self.now, now + page.position.set_back)
        return page, page.position.set_back - position.set_back

    def _pass_over(self, stream: _Stream) -> int:
        recorded = 0
        for route in self._routes:
            key = stream.key(self._model, self._namespace, route)
            newest = self._ask(key, lambda client, key: client.xrevrange(key, count=1))
            page = next_page(newest, 0, Position(), 1, stream.unpack)
            self.positions[key] = page.position
            recorded += page.position.number
        return recorded

    def _ask(self, key: str, question: Callable[[redis.Redis, str], Any]) -> Any:
        """What the server that has a key answers."""
        try:
            for _ in range(REDIRECTIONS):
                if key not in self._clients:
                    self._clients[key] = _open(self._url)
                try:
                    return question(self._clients[key], key)
                except MovedError as there:
                    self._clients.pop(key).close()
                    self._clients[key] = _open(url_at(self._url, there.host, there.port))
            raise StoreUnavailable(f"Redis sends from server to server for the key {key}")
        except (RedisError, OSError) as error:
            if (client := self._clients.pop(key, None)) is not None:
                client.close()
            if isinstance(error, ResponseError):
                raise StoreUnavailable(f"Redis refused: {error}") from error
            raise StoreUnavailable(f"Redis does not answer: {error or type(error).__name__}") from error
        except (ValueError, TypeError) as error:  # redis-py's words for a scheme, a port, a parameter that it does not know
            raise InvalidInput("url", without_password(self._url), f"redis://, rediss:// or unix:// ({error})") from None


def _arrivals_of(pages: Sequence[tuple[Page[Call], float]]) -> NewArrivals:
    calls = [(call, call.made_at + later) for page, _ in pages for call, later in page.entries]
    times, sizes = [made_at - age for call, made_at in calls for age in call.ages], list[float]()
    if any(call.sizes for call, _ in calls):
        told = (size for call, _ in calls for size in call.sizes or [math.nan] * len(call.ages))
        times, sizes = map(list, zip(*sorted(zip(times, told, strict=True)), strict=True))
    else:
        times.sort()
    return NewArrivals(Arrivals(array("d", times), array("d", sizes)), *_of_all(pages))


def _batches_of(pages: Sequence[tuple[Page[BatchCall], float]]) -> NewBatches:
    found: list[MeasuredBatch] = []
    for page, _ in pages:
        for call, later in page.entries:
            found += [batch._replace(ended_at=batch.ended_at + later) for batch in call.batches] if later else call.batches
    found.sort(key=lambda batch: batch.ended_at)
    return NewBatches(found, *_of_all(pages))


def _of_all(pages: Sequence[tuple[Page[Any], float]]) -> tuple[int, bool, float, bool]:
    """What was missed, whether a stream began anew, by how much the clock was set back, whether there may be more."""
    missed = sum(page.missed for page, _ in pages)
    set_back = max((back for _, back in pages), default=0.0)
    return missed, any(page.began_anew for page, _ in pages), max(0.0, set_back), any(page.more for page, _ in pages)


class News:
    """What several models have that was not read yet, in few round trips however many they are.

    Of a cluster, whose streams lie on several servers, it does not tell, and each model is to be read by itself.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: redis.Redis | None = None
        self._spread = False

    def of(self, readers: Mapping[str, RecordReader]) -> set[str]:
        """The models that have records which were not read, by the names of their readers; of a cluster all.

        The others are told that nothing was recorded until now. A stream that began anew is not seen until it is longer than what
        was read of it: each is to be read now and then all the same.

        Raises
        ------
        StoreUnavailable
            Redis does not answer.
        """
        read_to = {key: (name, number) for name, reader in readers.items() for key, number in reader.read_to().items()}
        answer = self._ask(1, {key: f"{number}-0" for key, (_, number) in read_to.items()})
        if answer is None:
            return set(readers)
        found, now = answer
        grown = {read_to[key][0] for key in found}
        for name in readers.keys() - grown:
            readers[name].nothing_until(now)
        return grown

    def read(self, readers: Mapping[str, RecordReader]) -> dict[str, tuple[NewArrivals, NewBatches]]:
        """What ``look`` of each reader would find, ``TOGETHER`` of them with one question; of a cluster nothing.

        Raises
        ------
        StoreUnavailable
            Redis does not answer.
        """
        taken: dict[str, tuple[NewArrivals, NewBatches]] = {}
        names = list(readers)
        for some in (names[first : first + TOGETHER] for first in range(0, len(names), TOGETHER)):
            read_to = {key: number for name in some for key, number in readers[name].read_to().items()}
            # Behind the number before the last that was read, whatever follows the hyphen: that one is seen again.
            answer = self._ask(PAGE, {key: f"{max(number - 1, 0)}-{LAST}" if number else "0" for key, number in read_to.items()})
            if answer is None:
                break
            taken |= {name: readers[name].take(*answer) for name in some}
        return taken

    def _ask(self, count: int, after: Mapping[str, str]) -> tuple[dict[str, Entries], float] | None:
        """Of each stream that has some the first entries behind an id, by its key, and the time (s); of a cluster nothing."""
        if self._spread or not after:
            return None
        if self._client is None:
            self._client = _open(self._url)
            self._client.set_response_callback("XREAD", lambda found, **_: found)  # which takes longer than to read it
        pipeline = self._client.pipeline(transaction=False)
        cast(Any, pipeline).execute_command("XREAD", "COUNT", count, "STREAMS", *after, *after.values())
        pipeline.time()
        try:
            found, (seconds, microseconds) = pipeline.execute()
        except ResponseError:  # of a cluster: they are not all in one slot, or elsewhere
            self._spread = True
            return None
        except (RedisError, OSError) as error:
            self.close()
            raise StoreUnavailable(f"Redis does not answer: {error or type(error).__name__}") from error
        streams = found.items() if isinstance(found, dict) else found or ()  # by the version of the protocol
        return {key.decode(): _entries(entries) for key, entries in streams}, seconds + microseconds / 1e6

    def close(self) -> None:
        """Release the connection."""
        if self._client is not None:
            self._client.close()
        self._client = None


def _entries(found: Sequence[tuple[bytes, Sequence[bytes]]]) -> Entries:
    """Entries with their fields by name, of such with names and values in turn."""
    return [(entry_id, dict(zip(told[::2], told[1::2], strict=True))) for entry_id, told in found]


def _open(url: str) -> redis.Redis:
    return redis.Redis.from_url(url, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT, retry=Retry(NoBackoff(), 0))
