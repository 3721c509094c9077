"""How large a request is, as its plan says that it is told. What may live here: reading a size, no queue and no route.

    header    a JSON number in the header of that name
    bytes     the length of the body
    json      what is found at a path of the body's JSON (of the Open Inference Protocol's binary form, the JSON in front): a number
              is the size, of a string its characters are, of a list its entries; a part of the path is a key of an object, or a
              position in a list. So ``inputs.0.shape.1`` is the second dimension of the first tensor.

What is not there, is ``null``, or lies in a body that is no JSON is not told. Anything else must be a number from 0 to ``LARGEST``.
Of the JSON nothing is built but the parts on the path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from sluice.batching.documents import RequestSize
from sluice.batching.errors import InvalidInput
from sluice.lambda_fn.contract import INFERENCE_HEADER, UNREADABLE

LARGEST = 1e18  # of a size: the record of arrivals has floats of 4 bytes
ALLOWED = f"a number from 0 to {LARGEST:g}"

Headers = Iterable[tuple[bytes, bytes]]
Reader = Callable[[Headers, Mapping[str, str], bytes], float | None]
"""Of the headers as they came, those that an item carries, and the body: the size; raises ``InvalidInput`` where it is none."""

_number = msgspec.json.Decoder(float).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_leaf = msgspec.json.Decoder(float | str | list[msgspec.Raw] | None).decode
_NOTHING = msgspec.Raw(b"null")


def size_reader(told: RequestSize) -> Reader:
    """What reads the size of a request that is told so."""
    if told.by == "bytes":
        return lambda _headers, _carried, body: float(len(body))
    if told.by == "header":
        name = told.name.encode()
        return lambda headers, _carried, _body: _of_header(name, headers)
    path = [(key, _member(key)) for key in told.name.split(".")]
    return lambda _headers, carried, body: _of_json(told.name, path, carried, body)


def _of_header(name: bytes, headers: Headers) -> float | None:
    for key, value in headers:
        if key == name:
            try:
                size = _number(value)
            except UNREADABLE:
                raise _wrong(name.decode(), value.decode("latin-1")) from None
            return _checked(name.decode(), size)
    return None


def _of_json(name: str, path: list[tuple[str, Callable[[bytes], Any]]], carried: Mapping[str, str], body: bytes) -> float | None:
    value: Any = body
    if INFERENCE_HEADER in carried:
        end = carried[INFERENCE_HEADER]
        value = body[: int(end)] if end.isdecimal() and len(end) < 10 else b""
    for key, member in path:
        value = _at(value, key, member)
    try:
        found = _leaf(value)
    except UNREADABLE:
        raise _wrong(name, bytes(value)[:80].decode("utf-8", "replace"), ", a string or a list") from None
    if isinstance(found, float):
        return _checked(name, found)
    return None if found is None else float(len(found))


def _at(value: Any, key: str, member: Callable[[bytes], Any]) -> Any:
    """What an object has under a key, or a list at a position."""
    if key.isdecimal():
        try:
            entries = _list(value)
            return entries[int(key)] if int(key) < len(entries) else _NOTHING
        except UNREADABLE:
            pass  # an object, which may have such a key
    try:
        return member(value).found
    except UNREADABLE:
        return _NOTHING


def _member(key: str) -> Callable[[bytes], Any]:
    """Decodes an object so far that the value under one key is ``found``."""
    kind = msgspec.defstruct("Member", [("found", msgspec.Raw, _NOTHING)], rename={"found": key})
    return msgspec.json.Decoder(kind).decode


def _checked(name: str, size: float) -> float:
    if not 0 <= size <= LARGEST:
        raise _wrong(name, size)
    return size


def _wrong(name: str, value: Any, others: str = "") -> InvalidInput:
    return InvalidInput(f"size of the request ({name})", value, ALLOWED + others)
