"""What an answer over HTTP means that is not the one asked for: what it says, what helps, when one may come again."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec

from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.invokers.port import BatchTooLarge, FunctionBusy, FunctionUnavailable, UnknownFunction

LATEST = 3600.0  # seconds that a function may ask to be left alone
MESSAGE_LENGTH = 500  # characters of a function's error that go on into answers and logs


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
        except (ValueError, OverflowError):
            return None
        seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, seconds), LATEST) if math.isfinite(seconds) else None
