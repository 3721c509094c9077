"""Workers over HTTP: a batch document by POST, its answers back; in frames where a worker says that it takes them, else in JSON."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from sluice.batching.documents import WORKER_SCHEMES
from sluice.batching.errors import FunctionFailed
from sluice.batching.urls import without_password
from sluice.buffer_service.invokers.http_client import BrokenOff, ClientError, Disconnected, HttpClient, NotConnected, Reply
from sluice.buffer_service.invokers.http_refusals import error_message, refusal
from sluice.buffer_service.invokers.port import (
    BatchAnswer,
    BatchTooLarge,
    FunctionBusy,
    FunctionCrashed,
    FunctionUnavailable,
    NoRoomForAnswer,
    Pool,
    UnknownFunction,
    UnreadableAnswer,
)
from sluice.buffer_service.invokers.worker_health import MOST_KNOWN, End, Health, Workers
from sluice.buffer_service.invokers.worker_pace import Paces
from sluice.http.room import Room
from sluice.lambda_fn import batch_frames
from sluice.lambda_fn.contract import JSON, Batch, encode_batch

UNREAD = frozenset((400, 415, 422))
"""What one answers who cannot read a document."""
MOST_FUNCTIONS = 256  # of several workers, of which something is known
WORKER_ANSWER_LIMIT = 256 * 1024 * 1024  # bytes; a worker that answers more would cost the buffer its memory

Answered = TypeVar("Answered")
Read = Callable[[str, bytes], Answered]
"""What a worker's answer is made."""

_log = logging.getLogger(__name__)


def unobserved(worker: str) -> None:
    """Nobody counts."""


class HttpInvoker:
    """Workers that take the batch document by POST (``lambda_fn/worker.py``, or anything that speaks the contract).

    Of several workers a batch goes to the one that ``worker_health.Workers`` chooses; where it cannot be connected to, to the next.
    With as many ``servers`` in the policy as there are workers, and one process of the buffer, each batch therefore finds an idle
    one. A batch that a worker failed is not given to another here: whether that is worth it only the route knows. ``ejected`` is
    told of each worker that is not asked for a while. Answers take ``room`` while they are read.
    """

    def __init__(
        self,
        timeout: float,
        ejected: Callable[[str], None] = unobserved,
        clock: Callable[[], float] = time.monotonic,
        room: Room | None = None,
    ) -> None:
        self._timeout = timeout
        self._ejected = ejected
        self._clock = clock
        self._room = room if room is not None else Room.without_end()
        self._workers = Workers()
        self._paces: dict[str, Paces] = {}  # by function
        self._http = HttpClient(timeout)
        self._framed: set[str] = set()  # workers whose last answer named frames

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        return await self._ask_one_of(function, Question(json=payload), avoid, lambda _, answer: answer)

    async def ask(self, function: str, batch: Batch, avoid: str = "") -> BatchAnswer:
        """As the port says: in frames where the worker's last answer named them."""

        def read(worker: str, payload: bytes) -> BatchAnswer:
            try:
                return BatchAnswer.read(payload, batch)
            except UnreadableAnswer as error:
                raise UnreadableAnswer(f"worker {without_password(worker)}: {error}") from None

        return await self._ask_one_of(function, Question(batch), avoid, read)

    async def _ask_one_of(self, function: str, question: Question, avoid: str, read: Read[Answered]) -> Answered:
        """What ``read`` makes of what a worker answers; one whose answer it cannot read has failed."""
        addresses = worker_addresses(function)
        if len(addresses) == 1:
            return await self._ask_alone(addresses[0], question, read)
        untried = [address for address in addresses if address != avoid] or list(addresses)
        paces = self._paces_of(function, addresses)
        while True:
            begun = self._clock()
            address = self._workers.choose(begun, untried, bool(avoid), paces)
            alone = self._workers.is_alone(address)
            untried.remove(address)
            end = End.OPEN
            try:
                came = await self._ask(address, question)
                took = self._clock() - begun  # without what reading it takes
                answer = read(address, came)
                end = End.PASSED
                if alone and question.batch is not None:
                    _learn(paces, address, len(question.batch.items), took)
            except FunctionFailed as error:
                end = _end(error)
                if isinstance(error, NoRoomForAnswer):
                    raise
                if isinstance(error, FunctionBusy):
                    paces.refused(address)
                if not _is_gone(error):
                    error.worker = address
                    raise
                if not untried:
                    raise
                continue
            finally:
                self._note(address, self._workers.ended(self._clock(), address, end))
            if avoid in addresses:
                self._note(avoid, self._workers.blame(self._clock(), avoid))
            return answer

    async def _ask_alone(self, address: str, question: Question, read: Read[Answered]) -> Answered:
        """Whatever its health: there is no other."""
        self._workers.begun(self._clock(), address)
        end = End.OPEN
        try:
            answer = read(address, await self._ask(address, question))
            end = End.PASSED
        finally:
            self._workers.ended(self._clock(), address, end)
        return answer

    async def close(self) -> None:
        await self._http.close()

    def health(self, function: str) -> Mapping[str, Health]:
        """How each of several workers is, by its address as it may be shown; one that is alone is always asked."""
        addresses, paces = worker_addresses(function), self._paces.get(function)
        now = self._clock()
        return {without_password(address): self._workers.health(now, address, paces) for address in addresses if len(addresses) > 1}

    def worker_pool(self, function: str) -> Pool | None:
        """How the workers of a function are, if it has several."""
        addresses = worker_addresses(function) if "," in function else ()
        return Pool(len(addresses), *self._workers.ejected(self._clock(), addresses)) if addresses else None

    def _paces_of(self, function: str, addresses: Sequence[str]) -> Paces:
        paces = self._paces.pop(function, None) or Paces(addresses)
        if len(self._paces) >= MOST_FUNCTIONS:
            del self._paces[next(iter(self._paces))]  # that was asked longest ago; it is learned again by the next batches
        self._paces[function] = paces
        return paces

    def _note(self, address: str, ejected: bool) -> None:
        if ejected:
            _log.warning("worker %s fails, and is not asked for a while", without_password(address))
            self._ejected(without_password(address))

    async def _ask(self, worker: str, question: Question) -> bytes:
        framed = question.batch is not None and worker in self._framed
        status, fields, body = await self._answer(worker, question, framed)
        takes_frames = self._note_format(worker, fields.get("accept", ""))
        if framed and not takes_frames and status in UNREAD:  # another has taken its place, as when an earlier version is back
            status, fields, body = await self._answer(worker, question, False)
        if status == 200:
            return body
        name = without_password(worker)
        if 300 <= status < 400:
            raise UnknownFunction(f"function: {name!r} answers {status}, it is at {fields.get('location', 'another place')}")
        raise refusal(f"worker {name}", status, error_message(body), fields.get("retry-after"))

    def _note_format(self, worker: str, accept: str) -> bool:
        """What its last answer says that a worker takes counts; whether that is frames."""
        if not batch_frames.takes_frames(accept):
            self._framed.discard(worker)
            return False
        if worker not in self._framed:
            if len(self._framed) >= MOST_KNOWN:
                self._framed.clear()  # it is learned again by the next answers
            self._framed.add(worker)
        return True

    async def _answer(self, worker: str, question: Question, framed: bool) -> Reply:
        try:
            return await self._exchange(worker, question, framed)
        except NotConnected as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # of this process, which says nothing of the worker
                raise FunctionBusy(
                    f"worker {without_password(worker)} cannot be connected to: {os.strerror(error.errno)}"
                ) from None
            raise FunctionUnavailable(f"worker {without_password(worker)} does not answer: {error}") from error
        except TimeoutError:
            raise FunctionUnavailable(f"worker {without_password(worker)} does not answer within {self._timeout:g} s") from None
        except BrokenOff as error:
            raise FunctionCrashed(f"worker {without_password(worker)} breaks off its answer: {error}") from error
        except ClientError as error:
            raise FunctionUnavailable(f"worker {without_password(worker)} does not answer: {error}") from error

    async def _exchange(self, worker: str, question: Question, framed: bool) -> Reply:
        """There and back; what breaks is sent once more.

        A connection that the worker closed while it was idle is the likeliest reason, and a new one shows whether it was. If that
        breaks too, or is not taken any more, the worker was there, and it is the batch that it does not survive.
        """
        try:
            return await self._post(worker, question, framed)
        except Disconnected:
            pass
        try:
            return await self._post(worker, question, framed, fresh=True)
        except (Disconnected, NotConnected) as error:
            raise FunctionCrashed(f"worker {without_password(worker)} breaks the connection: {error}") from error

    async def _post(self, worker: str, question: Question, framed: bool, fresh: bool = False) -> Reply:
        told, parts = (_FRAMES, question.frames) if framed else (_JSON, (question.json,))
        return await self._http.post(worker, told, parts, WORKER_ANSWER_LIMIT, self._room, fresh)


class Question:
    """What is asked, in the formats that workers take; each is made when it is first needed."""

    def __init__(self, batch: Batch | None = None, json: bytes | None = None) -> None:
        self.batch = batch
        self._json = json
        self._frames: Sequence[bytes] | None = None

    @property
    def json(self) -> bytes:
        """The document of contract.py."""
        if self._json is None:
            assert self.batch is not None
            self._json = encode_batch(self.batch)
        return self._json

    @property
    def frames(self) -> Sequence[bytes]:
        """The document of batch_frames.py, in pieces."""
        if self._frames is None:
            assert self.batch is not None
            self._frames = batch_frames.encode_batch(self.batch)
        return self._frames


_JSON = (("content-type", JSON),)
_FRAMES = (("content-type", batch_frames.MEDIA_TYPE),)


@lru_cache(maxsize=MOST_FUNCTIONS)
def worker_addresses(function: str) -> Sequence[str]:
    """The workers that a plan's ``function`` names, one or several with commas between; raises ``UnknownFunction``."""
    addresses = tuple(function.split(","))
    for address in addresses:
        shown, all_shown = without_password(address), without_password(function)
        if not address.startswith(WORKER_SCHEMES):
            allowed = "http:// or https:// addresses with commas between; a comma within one is %2C"
            raise UnknownFunction(f"function: {shown!r} in {all_shown!r} is not allowed; allowed: {allowed}")
        if addresses.count(address) > 1:
            raise UnknownFunction(f"function: {shown!r} is named twice in {all_shown!r}; allowed: each worker once")
    return addresses


def _learn(paces: Paces, address: str, size: int, seconds: float) -> None:
    if seconds > 0:  # which a clock may not see
        for slow in paces.took(address, size, seconds):
            _log.warning("worker %s is slow beside the others, and is asked after them", without_password(slow))


def _is_gone(error: FunctionFailed) -> bool:
    """Whether the worker could not be connected to, so that the batch was not sent."""
    return isinstance(error, FunctionUnavailable) and isinstance(error.__cause__, NotConnected)


def _end(error: FunctionFailed) -> End:
    """What a failure says about the health of the worker."""
    if isinstance(error, (FunctionBusy, BatchTooLarge)):
        return End.OPEN
    return End.GONE if isinstance(error, (FunctionUnavailable, UnknownFunction)) else End.FAILED
