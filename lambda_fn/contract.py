"""The batch wire format between the buffer and a function; batch_frames.py has the one with raw bodies, for workers over HTTP.

A batch is one JSON document. Every request in it carries its own body, untouched: JSON bodies are embedded raw, anything else is
base64. Every response carries its own status, so that one bad item fails alone. The order of the responses is that of the requests.

    {"version": 1, "model": "mlp", "requests": [
        {"id": "r1", "content_type": "application/json", "body": <JSON>},
        {"id": "r2", "content_type": "application/octet-stream", "body_base64": "…",
         "headers": {"inference-header-content-length": "123"}}]}

    {"version": 1, "responses": [
        {"id": "r1", "status": 200, "content_type": "application/json", "body": <JSON>},
        {"id": "r2", "status": 400, "content_type": "application/problem+json", "body": {…}}],
     "measured": {"service": 0.031, "cold": true}}

``measured`` is what the function tells of itself, each field if it can: the seconds that it took for the batch (``service``), those
that are billed (``billed``), and whether its environment was new (``cold``). A buffer that does not know it passes over it.

``{"version": 1, "model": "mlp", "describe": true}`` asks what the model takes; the answer's ``metadata`` is the model metadata of
the Open Inference Protocol v2. ``{"version": 1, "model": "mlp", "ping": true}`` asks for nothing and is answered with no responses,
whatever the model is: it keeps an environment from being given up, and with ``"hold": 0.05`` it is answered after so many seconds
(at most 1), so that others which come meanwhile start environments of their own. This module stands alone: the function is packaged
from this folder.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

VERSION = 1
PAYLOAD_LIMIT = 6 * 1024 * 1024
"""Bytes that a synchronous invocation of AWS Lambda carries, each way (AWS Lambda quotas)."""
INFERENCE_HEADER = "inference-header-content-length"
"""Where the JSON ends in a body of the Open Inference Protocol's binary tensor extension; in lower case, as an item carries it."""
MOST_DIGITS = 20
"""Of a number of bytes; Python reads no more than 4300."""
ONE_BY_ONE = "one_by_one"
"""The parameter of a model's metadata that says why it computes a batch one by one; not there where it computes it together."""
INPUT = "input"
"""The parameter of a model's metadata that says what one request is, where that is not tensors alone."""
MAX_MEASURED = 86_400.0
"""Seconds that a function may tell of itself for one batch; what is beyond is not believed."""
JSON, BINARY = "application/json", "application/octet-stream"
PROBLEM = "application/problem+json"
SERVICE_TIME, MEMORY = "sluice-service-time", "sluice-memory-mb"
"""Headers in which a worker tells of a batch how long it took, s, and of itself what it may use."""


class WireError(ValueError):
    """A document that is not of this format; the message names what is wrong with it."""


class Item(msgspec.Struct, frozen=True):
    """One request as its caller sent it."""

    id: str
    content_type: str
    body: bytes
    headers: dict[str, str] = {}


class Answer(msgspec.Struct, frozen=True):
    """One response for its caller."""

    id: str
    status: int
    content_type: str
    body: bytes
    headers: dict[str, str] = {}


class Measured(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a function tells of itself: its own time for a batch and what is billed of it (s), whether its environment was new.

    Times are ``None`` where it does not tell them.
    """

    service: float | None = None
    billed: float | None = None
    cold: bool = False


NOTHING_MEASURED = Measured()


class Batch(msgspec.Struct, frozen=True):
    """What a function is asked: answers to ``items``, to describe its model, or nothing (``ping``), for ``hold`` seconds."""

    model: str
    items: list[Item]
    describe: bool = False
    ping: bool = False
    hold: float = 0.0


NO_BODY = msgspec.Raw(b"")


class _Wire(msgspec.Struct, omit_defaults=True):
    id: str
    content_type: str = JSON
    body: msgspec.Raw = NO_BODY
    body_base64: str | None = None
    headers: dict[str, str] = {}


class _WireResponse(_Wire, omit_defaults=True, kw_only=True):
    status: int


class _Request(msgspec.Struct, omit_defaults=True):
    version: int
    model: str
    requests: list[_Wire] = []
    describe: bool = False
    ping: bool = False
    hold: float = 0.0


class _Response(msgspec.Struct, omit_defaults=True):
    version: int
    responses: list[_WireResponse] = []
    metadata: dict[str, Any] | None = None
    measured: msgspec.Raw = NO_BODY


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises: for what is no JSON or of another shape, for invalid UTF-8 in a string, for nesting without end."""

MAX_HOLD = 1.0  # seconds that a ping may take
MAX_NESTING = 256
MAX_DIGITS = 4000
_WITHIN = b"[" * MAX_NESTING  # room of the stack that is left to whoever reads the batch from deeper within it
_CLOSING = bytes.maketrans(b"[", b"]")
_RUN = MAX_DIGITS // 2  # a number of so many digits has such a run of them at a multiple of it

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_FRAMING = {"connection", "content-length", "keep-alive", "transfer-encoding", "upgrade"}

_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_request = msgspec.json.Decoder(_Request).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_measured = msgspec.json.Decoder(Measured).decode


def json_part(headers: Mapping[str, str], body: bytes) -> bytes:
    """The JSON of a body: of the Open Inference Protocol's binary form what stands in front, and nothing where that is not told."""
    if INFERENCE_HEADER not in headers:
        return body
    return body[: json_end(headers[INFERENCE_HEADER], len(body)) or 0]


def json_end(told: str, size: int) -> int | None:
    """Where the JSON of a body of ``size`` bytes ends, as ``INFERENCE_HEADER`` has it; ``None`` where it cannot end there."""
    is_number = told.isascii() and told.isdecimal() and len(told) <= MOST_DIGITS
    return int(told) if is_number and int(told) <= size else None


def problem(status: int, title: str, detail: str) -> bytes:
    """The body of an error answer: problem details (RFC 9457), and ``error`` as the Open Inference Protocol has it.

    What UTF-8 cannot hold of ``detail``, as the name of a file may be, is escaped.
    """
    detail = detail.encode(errors="backslashreplace").decode()
    return _encode({"type": "about:blank", "title": title, "status": status, "detail": detail, "error": detail})


def failed(item_id: str, status: int, title: str, detail: str) -> Answer:
    """The answer of an item that failed."""
    return Answer(item_id, status, PROBLEM, problem(status, title, detail))


def encode_batch(batch: Batch) -> bytes:
    """The document a function is invoked with. JSON bodies must be JSON: see ``check_json``."""
    return _encode(_Request(VERSION, batch.model, [_wire(item) for item in batch.items], batch.describe, batch.ping, batch.hold))


def decode_batch(data: bytes) -> Batch:
    """The inverse of ``encode_batch``; raises ``WireError``."""
    try:
        request = _decode_request(data)
    except UNREADABLE as error:
        raise WireError(f"not a batch: {error}") from None
    if request.version != VERSION:
        raise WireError(f"version: {request.version} is not allowed; allowed: {VERSION}")
    if not 0 <= request.hold <= MAX_HOLD:
        raise WireError(f"hold: {request.hold} is not allowed; allowed: seconds from 0 to {MAX_HOLD:g}")
    items = [Item(w.id, w.content_type, _body(w), w.headers) for w in request.requests]
    return Batch(request.model, items, request.describe, request.ping, request.hold)


def decode_event(event: Any) -> Batch:
    """``decode_batch`` of a document that Lambda's Python runtime has parsed already; raises ``WireError``.

    Writing it again costs a quarter of what that runtime's parser took (8 requests of 1024 numbers: 0.4 of 1.6 ms), and every
    model then sees one kind of body.
    """
    return decode_batch(_encode(event))


def encode_answers(answers: list[Answer], measured: Measured = NOTHING_MEASURED) -> bytes:
    """The document a function answers with, and what it tells of itself."""
    told = msgspec.Raw(_encode(measured)) if measured != NOTHING_MEASURED else NO_BODY
    return _encode(_Response(VERSION, [_wire_response(answer) for answer in answers], measured=told))


def decode_answers(data: bytes, batch: Batch) -> list[Answer]:
    """The answers to ``batch``, in its order; raises ``WireError`` where they are not exactly those."""
    return decode_measured_answers(data, batch)[0]


def decode_measured_answers(data: bytes, batch: Batch) -> tuple[list[Answer], Measured]:
    """``decode_answers``, and what the function tells of itself: nothing where that is not of this format, or no time can be so."""
    response = _decode_answer_document(data)
    check_ids([w.id for w in response.responses], batch)
    answers = [Answer(w.id, w.status, w.content_type, _body(w), w.headers) for w in response.responses]
    for answer in answers:
        check_sendable(answer)
    return answers, _measured(response.measured)


def encode_metadata(metadata: dict[str, Any]) -> bytes:
    """The answer to ``describe``."""
    return _encode(_Response(VERSION, metadata=metadata))


def decode_metadata(data: bytes) -> dict[str, Any]:
    """The inverse of ``encode_metadata``; raises ``WireError``."""
    metadata = _decode_answer_document(data).metadata
    if metadata is None:
        raise WireError("metadata: null is not allowed; allowed: the model metadata")
    return metadata


def for_runtime(document: bytes) -> object:
    """An encoded document as the Python runtime that called the handler takes it.

    ``awslambdaric``, which is Lambda's own, passes bytes through and is spared its slow encoder (8 answers of 1000 numbers:
    3.6 ms); other hosts of a handler want plain data.
    """
    return document if "awslambdaric" in sys.modules else msgspec.json.decode(document)


def is_json(content_type: str) -> bool:
    """Whether bodies of this type are embedded raw."""
    if content_type == JSON:
        return True  # as most are
    essence = content_type.partition(";")[0].strip().lower()
    return essence == JSON or essence.endswith("+json")


def check_json(body: bytes) -> None:
    """Raise ``WireError`` unless the body is one JSON document in UTF-8: anything else would break, or break out of, its batch.

    So would what Python does not read though it is JSON, as Lambda's runtime reads the batch with ``json.loads``: an integer of
    thousands of digits, or brackets within brackets to the end of its stack. ``MAX_NESTING`` of them are always taken.
    """
    try:
        _decode_raw(body)
        if len(body) > 4 * MAX_NESTING and (_opens_often(body, b"[") or _opens_often(body, b"{")):
            _decode_raw(b"".join((_WITHIN, body, _WITHIN.translate(_CLOSING))))
        if not body.isascii():
            body.decode()
        if len(body) > MAX_DIGITS and any(body[at : at + _RUN].isdigit() for at in range(0, len(body) - _RUN, _RUN)):
            json.loads(body)
    except UNREADABLE as error:
        raise WireError(f"not one JSON document: {error}") from None
    except ValueError as error:
        raise WireError(f"not one JSON document that Python reads: {error}") from None


def _opens_often(body: bytes, bracket: bytes) -> bool:
    """Whether there are more than ``MAX_NESTING`` of them; to count all takes longer than to decode."""
    at = -1
    for _ in range(MAX_NESTING + 1):
        at = body.find(bracket, at + 1)
        if at < 0:
            return False
    return True


def check_sendable(answer: Answer) -> None:
    """A function may be anything that speaks this format: what it answers must fit into an HTTP response."""
    if not (isinstance(answer.status, int) and 200 <= answer.status <= 599):
        raise WireError(f"status of {answer.id!r}: {answer.status!r} is not allowed; allowed: 200 to 599")
    if answer.content_type == JSON and not answer.headers:
        return  # as most are
    for name, value in (("content-type", answer.content_type), *answer.headers.items()):
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _FRAMING or not _HEADER_VALUE.fullmatch(value):
            raise WireError(
                f"headers of {answer.id!r}: {name!r}: {value!r} is not allowed; allowed: a field of one line, not framing"
            )


def check_ids(ids: list[str], batch: Batch) -> None:
    """Raise ``WireError`` unless answers with these ids are exactly those to ``batch``, in its order."""
    if ids != [item.id for item in batch.items]:
        raise WireError(f"responses: {len(ids)} answers do not match the {len(batch.items)} requests, in number or order of ids")


def believed(measured: Measured) -> Measured:
    """What a function tells of itself: nothing where no time can be so."""
    times = (measured.service, measured.billed)
    return measured if all(time is None or 0 <= time < MAX_MEASURED for time in times) else NOTHING_MEASURED


def _decode_answer_document(data: bytes) -> _Response:
    try:
        response = _decode_response(data)
    except UNREADABLE as error:
        raise WireError(f"not an answer: {error}") from None
    if response.version != VERSION:
        raise WireError(f"version: {response.version} is not allowed; allowed: {VERSION}")
    return response


def _measured(told: msgspec.Raw) -> Measured:
    """Nobody's answer hangs on what a function tells of itself."""
    document = bytes(told)
    if not document:
        return NOTHING_MEASURED
    try:
        return believed(_decode_measured(document))
    except UNREADABLE:
        return NOTHING_MEASURED


def _wire(item: Item) -> _Wire:
    if is_json(item.content_type):
        return _Wire(item.id, item.content_type, body=msgspec.Raw(item.body), headers=item.headers)
    return _Wire(item.id, item.content_type, body_base64=base64.b64encode(item.body).decode(), headers=item.headers)


def _wire_response(answer: Answer) -> _WireResponse:
    if is_json(answer.content_type):
        return _WireResponse(answer.id, answer.content_type, msgspec.Raw(answer.body), None, answer.headers, status=answer.status)
    encoded = base64.b64encode(answer.body).decode()
    return _WireResponse(answer.id, answer.content_type, NO_BODY, encoded, answer.headers, status=answer.status)


def _body(wire: _Wire) -> bytes:
    if wire.body_base64 is None:
        return bytes(wire.body)
    try:
        return base64.b64decode(wire.body_base64, validate=True)
    except ValueError as error:
        raise WireError(f"body_base64 of {wire.id!r}: {error}") from None
