"""What crosses a store between processes, which may be of two versions while a deployment is rolled over: members and messages.

    member      a request while it waits: 16 bytes, its id, which every store reads; then [content_type, headers, body]
    message     [answer, ...]: answers whose callers wait at the process that it is sent to

The brackets are msgpack, and its first byte tells the version: the head of an array is version 1; a later version puts its number,
2 to 127, in front, which is what a small integer is in msgpack. So a process reads what it knows, names what it does not, and takes
anything else for garbage. Who changes a format releases a version that reads the new one before one that writes it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sluice.buffer_service.store import ID_LENGTH
from sluice.lambda_fn.contract import Answer, Item, WireError, check_sendable

VERSION = 1
SHOWN = 32  # bytes of what cannot be read that go into the log


class Unreadable(ValueError):
    """Nothing of a version that is known here; the message says what it is instead."""


class _Body(NamedTuple):
    """A member behind its id."""

    content_type: str
    headers: dict[str, str]
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_answers = msgspec.msgpack.Decoder(list[Answer]).decode

# What decoding raises: for what is no msgpack or of another shape, for invalid UTF-8 in a string, for nesting without end.
_GARBAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_member(item: Item) -> bytes:
    """A member of the queue: the request's id, then the rest."""
    return item.id.encode() + _encode(_Body(item.content_type, item.headers, item.body))


def decode_member(member: bytes) -> Item:
    """The inverse of ``encode_member``; raises ``Unreadable``."""
    if not has_id(member):
        raise Unreadable(unnamed(member))
    rest = memoryview(member)[ID_LENGTH:]
    try:
        body = _decode_body(rest)
    except _GARBAGE as error:
        raise Unreadable(f"the request {member_id(member)}: {_what(bytes(rest), error)}") from None
    return Item(member_id(member), body.content_type, body.body, body.headers)


def member_id(member: bytes) -> str:
    """The id of the request that a member is; of garbage, what stands in its place."""
    return member[:ID_LENGTH].decode("latin-1")


def has_id(member: bytes) -> bool:
    """Whether a member begins with an id, so that its caller can be told; whatever its version, and what is wrong with the rest."""
    return len(member) >= ID_LENGTH and member[:ID_LENGTH].isalnum()


def unnamed(member: bytes) -> str:
    """What is said of a member that has no id."""
    return f"a member without an id: {_shown(member)}"


def encode_answers(answers: list[Answer]) -> bytes:
    """A message from one process to another: answers whose callers wait there."""
    return _encode(answers)


def decode_answers(message: bytes) -> list[Answer]:
    """The inverse of ``encode_answers``; raises ``Unreadable``, also where an answer does not fit into an HTTP response."""
    try:
        answers = _decode_answers(message)
        for answer in answers:
            check_sendable(answer)
    except _GARBAGE as error:
        raise Unreadable(_what(message, error)) from None
    except WireError as error:
        raise Unreadable(str(error)) from None
    return answers


def _what(data: bytes, error: Exception) -> str:
    """What data is that is not of a known version."""
    if data and VERSION < data[0] < 0x80:
        return f"version {data[0]} is not known here; known: {VERSION}"
    return f"{_shown(data)} cannot be read ({error})"


def _shown(data: bytes) -> str:
    """Data in a line of the log."""
    return f"{len(data)} bytes, {data[:SHOWN]!r}{'…' * (len(data) > SHOWN)}"
