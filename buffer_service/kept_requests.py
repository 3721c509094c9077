"""Requests whose answers are kept (``results.py``): fetched later (``Prefer: respond-async``, RFC 7240), or given again to who asks
again with the same ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header).

    begun      an entry is kept, and the request goes on as any other; before, and if it is refused at once, nothing is kept
    accepted   who prefers so is told 202 and where its answer will be; whoever else waits as ever
    ended      its answer, or error, is kept; then who waits has it

What may live here: when an entry is made, what it holds, and what is said of one. A request that has a key is computed on when its
client goes, for he will ask again. An entry is read by who asked alone: by the name of his API key, or the subject of his token.
An error of the buffer, or of a function by a status of 500 or more, is not the answer of a key: the next request computes again.
Whatever is said of an entry, in ``x-request-id`` it has the id of the request that was served, and not of who fetches or repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from sluice.batching.errors import (
    AnotherRequest,
    InvalidInput,
    ResultGone,
    ResultsFull,
    StillWaiting,
    StoreUnavailable,
    UnknownResult,
    require,
)
from sluice.buffer_service.results import DONE, REFUSED, TOKEN, WAITING, Bounds, Entry, Full, Results
from sluice.buffer_service.store import Store
from sluice.http.connection import Fields
from sluice.http.server import Client, Request
from sluice.lambda_fn.contract import JSON, PROBLEM, Answer, problem

PREFER, KEY = WISHED_BY = b"prefer", b"idempotency-key"
STATE, REPLAYED = b"sluice-result", b"idempotent-replayed"
INHERITED_AFTER = 2.0  # seconds that the process of a request has to keep its answer, before the one that had its batch does
MARGIN = 5.0  # seconds beyond those that callers wait, after which an entry that waits is lost
AGAIN = 0.5  # seconds between two tries to keep an answer while the store is away
TRIES = 20
KEY_LENGTH = 255
SHOWN = 40  # characters of what is no key, in the answer that says so
REQUEST_ID = b"x-request-id"
_NOT_THE_FUNCTIONS = (b"sluice-", REQUEST_ID, b"traceparent", b"tracestate", REPLAYED)
_ID = re.compile("[rk][0-9a-f]{32}")

_log = logging.getLogger(__name__)


class Wish(NamedTuple):
    """What the head of a request says of how its answer is kept."""

    later: bool = False  # 202 is preferred
    key: bytes | None = None

    @classmethod
    def of(cls, fields: Fields) -> Wish | None:
        """``None`` where it says nothing."""
        later, key = False, None
        for name, value in fields:
            if name == PREFER:
                later = later or any(_token(each) == b"respond-async" for each in value.split(b","))
            elif name == KEY:
                require(key is None, "idempotency-key", _shown(value), "given once")
                key = value
        return cls(later, key) if later or key is not None else None


class Asked(NamedTuple):
    """Who asks, which request it is, and what its answer was as soon as there is one; ``fields`` have its id from the beginning.

    ``fingerprint`` has ``TOKEN`` bytes for each part of the request by which two are told apart.
    """

    asker: str
    fingerprint: bytes
    status: int = 0
    content_type: str = ""
    fields: Fields = ()
    body: bytes = b""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Asked).decode


class Keeper:
    """What a process keeps: the entries of each model within ``bounds``, and the work of keeping them that is under way."""

    def __init__(self, bounds: Bounds, store: Callable[[], Store]) -> None:
        self.bounds = bounds
        self._store = store
        self._results: dict[str, Results] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._inherited = 0  # bytes of answers that are held until it is known whether somebody else keeps them
        self.accepted: dict[tuple[str, str], KeptRequest] = {}
        """Those that wait here while their clients do not, by model and id."""

    @property
    def process(self) -> str:
        """The name of this one."""
        return self._store().process

    def of(self, model: str) -> Results:
        """The entries of a model."""
        if model not in self._results:
            self._results[model] = self._store().results(model, self.bounds)
        return self._results[model]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done; ``close`` waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """What was answered is kept."""
        self._closing.set()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def tell(self, model: str, entry_id: str, asker: str, client: Client) -> None:
        """What is kept of a request; raises ``UnknownResult``."""
        entry, asked = await self._entry(model, entry_id, asker)
        state = _state(entry, asked)
        if state == "waiting":
            _tell_place(client, model, entry_id, state, asked)
        else:
            _reply(client, state, _lost(asked) if entry.state == WAITING else asked)

    def inherit(self, place: str, named: str, answer: Answer) -> None:
        """Keep the answer to a request of another process, of this id and at this ``address``, unless that one does so.

        Of more bytes than are kept of a model nothing is held: what died with them counts as lost.
        """
        if self._inherited + len(answer.body) <= self.bounds.bytes:
            self._inherited += len(answer.body)
            self.spawn(self._inherit(place, named, answer))

    async def _inherit(self, place: str, named: str, answer: Answer) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), INHERITED_AFTER)
            await self._keep_inherited(place, named, answer)
        finally:
            self._inherited -= len(answer.body)

    async def _keep_inherited(self, place: str, named: str, answer: Answer) -> None:
        model, entry_id, token = place.split("/")
        try:
            entry = await self.of(model).read(entry_id)
            asked = _asked(entry) if entry is not None and entry.state == WAITING else None
            if asked is None:
                return
            given = ((name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items())
            fields = tuple(field for field in given if not field[0].startswith(_NOT_THE_FUNCTIONS))
            fields = (*fields, (REQUEST_ID, named.encode()))
            answered = asked._replace(status=answer.status, content_type=answer.content_type, fields=fields, body=answer.body)
            await _keep(self.of(model), entry_id, bytes.fromhex(token), answered)
        except StoreUnavailable as error:
            _log.warning("%s: an answer is not kept: %s", model, error)

    async def remove(self, model: str, entry_id: str, asker: str) -> None:
        """Nobody wants the answer any more; where it waits here, nothing is computed for it. Raises ``UnknownResult``."""
        await self._entry(model, entry_id, asker)
        if (request := self.accepted.pop((model, entry_id), None)) is not None:
            request.give_up()
        await self.of(model).remove(entry_id)

    async def _entry(self, model: str, entry_id: str, asker: str) -> tuple[Entry, Asked]:
        if _ID.fullmatch(entry_id) is None:
            raise UnknownResult(entry_id[:SHOWN])
        entry = await self.of(model).read(entry_id)
        asked = _asked(entry) if entry is not None else None
        if entry is None or asked is None or asked.asker != asker:
            raise ResultGone(entry_id)
        return entry, asked


class KeptRequest:
    """A request whose answer is kept, and, to the inference that ``make`` makes of it, the client that waits for that.

    ``said`` is what tells it, beside its body, from another of its key, by name. ``fail`` answers with an error.
    """

    def __init__(
        self,
        client: Client,
        keeper: Keeper,
        model: str,
        asker: str,
        wish: Wish,
        said: Mapping[str, object],
        request_id: bytes,
        make: Callable[[KeptRequest], Request],
        fail: Callable[[Client, Exception], None],
    ) -> None:
        if not keeper.bounds.kept:
            raise InvalidInput("idempotency-key", _shown(wish.key or b""), "none: nothing is kept here (SLUICE_RESULTS_KEPT=0)")
        self._client = client
        self._keeper = keeper
        self._results = keeper.of(model)
        self._model = model
        self._asker = asker
        self._wish = wish
        self._id = _entry_id(asker, wish.key)
        self._token = secrets.token_bytes(TOKEN)
        self._said = said
        self._body = hashlib.sha256()
        self._request_id = request_id
        self._fail = fail
        self._begun = self._submitting = self._refused = self._gone = False
        self._inner = make(self)

    @property
    def address(self) -> str:
        """Where its answer is kept, and the token that this takes."""
        return f"{self._model}/{self._id}/{self._token.hex()}"

    # -- what its client says

    def piece(self, body: bytes) -> None:
        """Some of its body has come."""
        self._body.update(body)
        self._inner.piece(body)

    def end(self, last: bytes = b"") -> None:
        """It is complete."""
        if last:
            self.piece(last)
        if not self._refused:
            self._keeper.spawn(self._begin())

    def gone(self) -> None:
        """Its client has gone."""
        self._gone = True
        if not self._begun:
            self._inner.gone()

    def give_up(self) -> None:
        """It was accepted, and nobody wants its answer any more."""
        self._inner.gone()

    async def _begin(self) -> None:
        if self._gone:
            return
        asked = self._asked()
        try:
            there = await self._begin_entry(asked)
        except Exception as error:
            self._inner.gone()
            if not self._gone:
                self._fail(self._client, error)
            return
        if self._gone:  # meanwhile
            if there is None:
                await self._forget()
            return
        if there is not None:
            self._inner.gone()
            self._repeat(there, asked)
            return
        self._begun = self._submitting = True
        if self._wish.later:
            self._keeper.accepted[self._model, self._id] = self
        self._inner.end()
        self._submitting = False
        if self._refused:
            await self._forget()
        elif self._wish.later:
            self._tell_accepted("waiting", asked)

    def _asked(self) -> Asked:
        parts = [self._body, *(hashlib.sha256(repr(part).encode()) for part in self._said.values())]
        return Asked(self._asker, b"".join(part.digest()[:TOKEN] for part in parts), fields=((REQUEST_ID, self._request_id),))

    def _tell_accepted(self, state: str, asked: Asked) -> None:
        _tell_place(self._client, self._model, self._id, state, asked, ((b"preference-applied", b"respond-async"),))

    async def _begin_entry(self, asked: Asked) -> Entry | None:
        try:
            return await self._results.begin(self._id, self._token, _encode(asked))
        except Full:
            raise ResultsFull(self._model, self._keeper.bounds.kept, self._keeper.bounds.bytes) from None

    def _repeat(self, entry: Entry, again: Asked) -> None:
        """There is an entry of the same key."""
        asked = _asked(entry)
        if asked is None or asked.fingerprint != again.fingerprint:
            self._fail(self._client, AnotherRequest(_shown(self._wish.key or b""), self._others(asked, again)))
        elif self._wish.later:
            self._tell_accepted(_state(entry, asked), asked)
        elif entry.state == WAITING:
            self._fail(self._client, StillWaiting(_shown(self._wish.key or b"")))
        else:
            _reply(self._client, "", asked, ((REPLAYED, b"true"),))

    def _others(self, asked: Asked | None, again: Asked) -> list[str]:
        """The parts in which two requests differ; none where it is not known of the first."""
        if asked is None or len(asked.fingerprint) != len(again.fingerprint):
            return []
        places = range(0, len(again.fingerprint), TOKEN)
        same = [asked.fingerprint[place : place + TOKEN] == again.fingerprint[place : place + TOKEN] for place in places]
        return [name for name, is_same in zip(("body", *self._said), same, strict=True) if not is_same]

    async def _forget(self) -> None:
        self._keeper.accepted.pop((self._model, self._id), None)
        try:
            await self._results.remove(self._id, self._token)
        except StoreUnavailable as error:
            _log.warning("%s: an entry is left until it counts as lost: %s", self._model, error)

    # -- what its inference says

    def go_ahead(self) -> None:
        """The body is wanted."""
        self._client.go_ahead()

    def reply(self, status: int, content_type: str, body: bytes, fields: Fields = (), close: bool = False) -> None:
        """It is answered, or refused."""
        if not self._begun or self._submitting:
            self._refused = True
            if not self._gone:
                self._client.reply(status, content_type, body, fields, close)
            return
        fields = (*(field for field in fields if field[0] != REQUEST_ID), (REQUEST_ID, self._request_id))
        answered = self._asked()._replace(status=status, content_type=content_type, fields=fields, body=bytes(body))
        self._keeper.spawn(self._finish(answered))

    async def _finish(self, answered: Asked) -> None:
        self._keeper.accepted.pop((self._model, self._id), None)
        waits = not (self._wish.later or self._gone)
        for attempt in range(1 if waits else TRIES):
            try:
                await _keep(self._results, self._id, self._token, answered)
                break
            except StoreUnavailable as error:
                _log.warning("%s: an answer is not kept: %s", self._model, error)
                if attempt + 1 < TRIES and not waits:
                    await asyncio.sleep(AGAIN)
        if not (self._wish.later or self._gone):
            self._client.reply(answered.status, answered.content_type, answered.body, answered.fields)


async def _keep(results: Results, entry_id: str, token: bytes, answered: Asked) -> None:
    """The answer, or that there is no room for it."""
    again = answered.status >= HTTPStatus.INTERNAL_SERVER_ERROR or answered.status == HTTPStatus.TOO_MANY_REQUESTS
    try:
        await results.finish(entry_id, token, REFUSED if again else DONE, _encode(answered))
    except Full:
        detail = f"the answer has {len(answered.body)} bytes, for which there is no room among the results that are kept"
        told = _failed(answered, HTTPStatus.INSUFFICIENT_STORAGE, detail)
        try:
            await results.finish(entry_id, token, REFUSED, _encode(told))
        except Full:
            await results.remove(entry_id, token)


def location(model: str, entry_id: str) -> str:
    """Where an answer is fetched."""
    return f"/v2/models/{model}/results/{entry_id}"


def check_key(key: bytes) -> None:
    """Raise ``InvalidInput`` for what is no key."""
    if not 1 <= len(_key(key)) <= KEY_LENGTH or not all(0x20 < byte < 0x7F for byte in _key(key)):
        allowed = f"1 to {KEY_LENGTH} visible characters of ASCII, in quotation marks or without"
        raise InvalidInput("idempotency-key", _shown(key), allowed)


def _token(preference: bytes) -> bytes:
    name, _, value = preference.partition(b";")[0].strip().lower().partition(b"=")
    return name.strip() if value.strip() in (b"", b'""') else b""  # an empty value is none (RFC 7240, section 2)


def _key(key: bytes) -> bytes:
    """As a string of structured fields (RFC 8941) has it, or as it is."""
    return key[1:-1] if len(key) >= 2 and key[:1] == key[-1:] == b'"' else key


def _entry_id(asker: str, key: bytes | None) -> str:
    """One of its own, or for all requests of a key of who asks the same."""
    if key is None:
        return "r" + secrets.token_hex(16)
    return "k" + hashlib.sha256(f"{asker}\0".encode() + _key(key)).hexdigest()[:32]


def _shown(key: bytes) -> str:
    return _key(key)[:SHOWN].decode("latin-1")


def _state(entry: Entry, asked: Asked) -> str:
    """Of a result, as its client is told."""
    if entry.state == WAITING:
        return "failed" if entry.lost else "waiting"
    return "done" if asked.status < HTTPStatus.BAD_REQUEST else "failed"


def _tell_place(client: Client, model: str, entry_id: str, state: str, asked: Asked, more: Fields = ()) -> None:
    place = location(model, entry_id)
    later: Fields = ((b"retry-after", b"1"),) if state == "waiting" else ()
    fields: Fields = ((b"location", place.encode()), *later, (STATE, state.encode()), *more, *_named(asked))
    document = msgspec.json.encode({"id": entry_id, "state": state, "location": place})
    client.reply(HTTPStatus.ACCEPTED, JSON, document, fields)


def _reply(client: Client, state: str, asked: Asked, more: Fields = ()) -> None:
    fields = asked.fields + more + (((STATE, state.encode()),) if state else ())
    client.reply(asked.status, asked.content_type, asked.body, fields)


def _asked(entry: Entry) -> Asked | None:
    """What a record holds; ``None`` of what cannot be read here."""
    try:
        return _decode(entry.record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _lost(asked: Asked) -> Asked:
    detail = "the process that had the request told of no answer in time: it may have ended"
    return _failed(asked, HTTPStatus.GATEWAY_TIMEOUT, detail)


def _failed(asked: Asked, status: HTTPStatus, detail: str) -> Asked:
    return asked._replace(status=status, content_type=PROBLEM, fields=_named(asked), body=problem(status, status.phrase, detail))


def _named(asked: Asked) -> Fields:
    """The id of the request that is, or was, served."""
    return tuple(field for field in asked.fields if field[0] == REQUEST_ID)
