"""What all ways over HTTP share: the client, how an answer is read, what an error says and means, when one may come again."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec

from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.invokers.port import BatchTooLarge, FunctionBusy, FunctionUnavailable, NoRoomForAnswer, UnknownFunction
from sluice.buffer_service.room import Room

CONNECT_TIMEOUT = 5.0  # seconds; who has not taken a connection by then is gone
LATEST = 3600.0  # seconds that a function may ask to be left alone
MESSAGE_LENGTH = 500  # characters of a function's error that go on into answers and logs


def open_client(timeout: float, fresh: bool = False) -> aiohttp.ClientSession:
    """As many connections as batches are under way, or a ``fresh`` one for each.

    Answers are not compressed, not even when something on the way would.
    """
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, CONNECT_TIMEOUT)),
        connector=aiohttp.TCPConnector(limit=0, force_close=fresh),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


async def read_answer(response: aiohttp.ClientResponse, limit: int, room: Room) -> bytes:
    """The body, which takes its part of ``room`` while it is read.

    Raises ``BatchTooLarge`` before it takes more memory than ``limit`` bytes, or than the whole room, and ``NoRoomForAnswer`` where
    others have left too little of it.
    """
    chunks: list[bytes] = []
    most = min(limit, room.limit)
    with room.share() as share:
        async for chunk in response.content.iter_any():
            size = share.size + len(chunk)
            if size > most:
                raise BatchTooLarge(f"an answer of more than {most} bytes")
            if not share.fits(size):
                raise NoRoomForAnswer(f"no room for an answer: those that this process has hold {room.taken} of {room.limit} bytes")
            share.resize(size)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def error_message(body: bytes) -> str:
    """What an error body says, in one line."""
    text = body[:MESSAGE_LENGTH].decode("utf-8", "replace")
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # not JSON, or not UTF-8
        document = None
    if isinstance(document, dict):
        known = ("errorMessage", "message", "Message", "detail", "errorType")
        text = next((str(document[key]) for key in known if document.get(key)), text)
    line = " ".join(text[: 2 * MESSAGE_LENGTH].split())
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"


def refusal(worker: str, status: int, message: str, again: str | None = None) -> FunctionFailed:
    """What a worker means by a status other than 200; ``again`` is its Retry-After field."""
    text = f"{worker}: HTTP {status} {message}"
    if status == 404:
        return UnknownFunction(f"function: {text}")
    if status == 413:
        return BatchTooLarge(text)
    if status == 429 or (status == 503 and again is not None):
        return FunctionBusy(text, retry_after(again))
    if status in (401, 403, 405, 408, 502, 503, 504):
        return FunctionUnavailable(text)
    return FunctionFailed(text)


def retry_after(field: str | None) -> float | None:
    """Seconds that a Retry-After field names, as a number or as a date (RFC 9110, 10.2.3); ``None`` where it says neither."""
    if field is None:
        return None
    try:
        seconds = float(field)
    except ValueError:
        try:
            date = parsedate_to_datetime(field)
        except ValueError:
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), LATEST) if math.isfinite(seconds) else None
