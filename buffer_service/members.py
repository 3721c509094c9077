"""What a request is while it waits in a queue: its id, which every store reads, and the rest, which none does."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from sluice.buffer_service.store import ID_LENGTH
from sluice.lambda_fn.contract import Answer, Item


class _Body(NamedTuple):
    """A member behind its id."""

    content_type: str
    headers: dict[str, str]
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_answers = msgspec.msgpack.Decoder(list[Answer]).decode


def encode_member(item: Item) -> bytes:
    """A member of the queue: the request's id, then the rest."""
    return item.id.encode() + _encode(_Body(item.content_type, item.headers, item.body))


def decode_member(member: bytes) -> Item:
    """The inverse of ``encode_member``."""
    body = _decode_body(memoryview(member)[ID_LENGTH:])
    return Item(member[:ID_LENGTH].decode(), body.content_type, body.body, body.headers)


def member_id(member: bytes) -> str:
    """The id of the request that a member is."""
    return member[:ID_LENGTH].decode()


def encode_answers(answers: list[Answer]) -> bytes:
    """A message from one process to another: answers whose callers wait there."""
    return _encode(answers)


def decode_answers(message: bytes) -> list[Answer]:
    """The inverse of ``encode_answers``."""
    return _decode_answers(message)
