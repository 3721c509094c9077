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
from sluice.lambda_fn.contract import UNREADABLE, json_part

LARGEST = 1e18  # of a size: the record of arrivals has floats of 4 bytes
ALLOWED = f"a number from 0 to {LARGEST:g}"
LENGTHS = ", a string or a list"
SHOWN = 80  # bytes of a header that is no number, in the answer that says so

Headers = Iterable[tuple[bytes, bytes]]
Reader = Callable[[Headers, Mapping[str, str], bytes], float | None]
"""Of the headers as they came, those that an item carries, and the body: the size; raises ``InvalidInput`` where it is none."""

_number = msgspec.json.Decoder(float).decode


class _Object(msgspec.Struct):
    """Any object."""


_LEAF = float | str | bool | list[msgspec.Raw] | _Object | None


def size_reader(told: RequestSize) -> Reader:
    """What reads the size of a request that is told so."""
    if told.by == "bytes":
        return lambda _headers, _carried, body: float(len(body))
    if told.by == "header":
        name = told.name.encode()
        return lambda headers, _carried, _body: _of_header(name, headers)
    keys = told.name.split(".")
    decode = msgspec.json.Decoder(_type_of(keys)).decode
    return lambda _headers, carried, body: _of_json(told.name, keys, decode, carried, body)


def _of_header(name: bytes, headers: Headers) -> float | None:
    for key, value in headers:
        if key == name:
            try:
                size = _number(value)
            except UNREADABLE:
                raise _wrong(name.decode(), value[:SHOWN].decode("latin-1")) from None
            return _checked(name.decode(), size)
    return None


def _type_of(keys: list[str]) -> Any:
    """A type that takes any JSON, and of that keeps what lies on the path."""
    if not keys:
        return _LEAF
    inner = _type_of(keys[1:])
    member = msgspec.defstruct("Member", [("found", inner, None)], rename={"found": keys[0]})
    entries = list[inner] if keys[0].isdecimal() else list[msgspec.Raw]  # type: ignore[valid-type]
    return float | str | bool | entries | member | None


def _of_json(name: str, keys: list[str], decode: Callable[[bytes], Any], carried: Mapping[str, str], body: bytes) -> float | None:
    try:
        value = decode(json_part(carried, body))
    except msgspec.ValidationError as error:  # a number beyond all floats
        raise _wrong(name, str(error), LENGTHS) from None
    except UNREADABLE:
        return None
    for key in keys:
        value = _at(value, key)
    if isinstance(value, (bool, _Object)):
        raise _wrong(name, value if isinstance(value, bool) else "an object", LENGTHS)
    if isinstance(value, float):
        return _checked(name, value)
    return None if value is None else float(len(value))


def _at(value: Any, key: str) -> Any:
    """What an object has under a key, or a list at a position."""
    if isinstance(value, list):
        return value[int(key)] if key.isdecimal() and int(key) < len(value) else None
    return getattr(value, "found", None)


def _checked(name: str, size: float) -> float:
    if not 0 <= size <= LARGEST:
        raise _wrong(name, size)
    return size


def _wrong(name: str, value: Any, others: str = "") -> InvalidInput:
    return InvalidInput(f"size of the request ({name})", value, ALLOWED + others)
