"""Workers over HTTP: a batch document by POST, its answers back."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import aiohttp

from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.invokers.http_client import error_message, open_client, read_answer, refusal
from sluice.buffer_service.invokers.port import (
    BatchTooLarge,
    FunctionBusy,
    FunctionCrashed,
    FunctionUnavailable,
    NoRoomForAnswer,
    UnknownFunction,
)
from sluice.buffer_service.invokers.worker_health import End, Health, Workers
from sluice.buffer_service.room import Room
from sluice.buffer_service.settings import without_password

WORKER_ANSWER_LIMIT = 256 * 1024 * 1024  # bytes; a worker that answers more would cost the buffer its memory

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
        self._http: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        addresses = worker_addresses(function)
        if len(addresses) == 1:
            return await self._ask(function, payload)
        untried = [address for address in addresses if address != avoid] or list(addresses)
        while True:
            address = self._workers.choose(self._clock(), untried, bool(avoid))
            untried.remove(address)
            end = End.OPEN
            try:
                answer = await self._ask(address, payload)
                end = End.PASSED
            except FunctionFailed as error:
                end = _end(error)
                if isinstance(error, NoRoomForAnswer):
                    raise
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

    async def close(self) -> None:
        for client in (self._http, self._fresh):
            if client is not None:
                await client.close()

    def health(self, function: str) -> Mapping[str, Health]:
        """How each of several workers is, by its address as it may be shown; one that is alone is always asked."""
        addresses = worker_addresses(function)
        now = self._clock()
        return {without_password(address): self._workers.health(now, address) for address in addresses if len(addresses) > 1}

    def _note(self, address: str, ejected: bool) -> None:
        if ejected:
            _log.warning("worker %s fails, and is not asked for a while", without_password(address))
            self._ejected(without_password(address))

    async def _ask(self, worker: str, payload: bytes) -> bytes:
        status, headers, body = await self._answer(worker, payload)
        name = without_password(worker)
        if 300 <= status < 400:
            raise UnknownFunction(f"function: {name!r} answers {status}, it is at {headers.get('Location', 'another place')}")
        if status != 200:
            raise refusal(f"worker {name}", status, error_message(body), headers.get("Retry-After"))
        return body

    async def _answer(self, worker: str, payload: bytes) -> tuple[int, Mapping[str, str], bytes]:
        name = without_password(worker)
        try:
            return await self._exchange(worker, payload)
        except aiohttp.ClientConnectorError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # of this process, which says nothing of the worker
                raise FunctionBusy(f"worker {name} cannot be connected to: {error.strerror}") from None
            raise FunctionUnavailable(f"worker {name} does not answer: {error or type(error).__name__}") from error
        except aiohttp.ConnectionTimeoutError as error:
            raise FunctionUnavailable(f"worker {name} does not answer: {error or type(error).__name__}") from error
        except TimeoutError:
            raise FunctionUnavailable(f"worker {name} does not answer within {self._timeout:g} s") from None
        except aiohttp.ClientPayloadError as error:
            raise FunctionCrashed(f"worker {name} breaks off its answer: {error or type(error).__name__}") from error
        except aiohttp.ClientError as error:
            raise FunctionUnavailable(f"worker {name} does not answer: {error or type(error).__name__}") from error

    async def _exchange(self, worker: str, payload: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """There and back; what breaks is sent once more.

        A connection that the worker closed while it was idle is the likeliest reason, and a new one shows whether it was. If that
        breaks too, or is not taken any more, the worker was there, and it is the batch that it does not survive.
        """
        if self._http is None:
            self._http = open_client(self._timeout)
        try:
            return await self._post(self._http, worker, payload)
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if self._fresh is None:
                self._fresh = open_client(self._timeout, fresh=True)
        try:
            return await self._post(self._fresh, worker, payload)
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ConnectionTimeoutError) as error:
            raise FunctionCrashed(
                f"worker {without_password(worker)} breaks the connection: {error or type(error).__name__}"
            ) from error

    async def _post(self, http: aiohttp.ClientSession, url: str, payload: bytes) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Content-Type": "application/json"}
        async with http.post(url, data=payload, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers, await read_answer(response, WORKER_ANSWER_LIMIT, self._room)


@lru_cache(maxsize=256)
def worker_addresses(function: str) -> Sequence[str]:
    """The workers that a plan's ``function`` names, one or several with commas between; raises ``UnknownFunction``."""
    addresses = tuple(function.split(","))
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            allowed = "http:// or https:// addresses with commas between; a comma within one is %2C"
            raise UnknownFunction(f"function: {address!r} in {function!r} is not allowed; allowed: {allowed}")
        if addresses.count(address) > 1:
            raise UnknownFunction(f"function: {address!r} is named twice in {function!r}; allowed: each worker once")
    return addresses


def _is_gone(error: FunctionFailed) -> bool:
    """Whether the worker could not be connected to, so that the batch was not sent."""
    return isinstance(error.__cause__, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))


def _end(error: FunctionFailed) -> End:
    """What a failure says about the health of the worker."""
    if isinstance(error, (FunctionBusy, BatchTooLarge)):
        return End.OPEN
    return End.GONE if isinstance(error, (FunctionUnavailable, UnknownFunction)) else End.FAILED
