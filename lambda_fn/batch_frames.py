"""The batch wire format with raw bodies, version 2, beside the JSON of contract.py: between the buffer and workers over HTTP.

    magic   4 bytes, of which the first begins no JSON and no UTF-8
    size    of the head, 4 bytes, the least first
    head    MessagePack: of a batch [model, [[id, content type, bytes of the body, headers], …]],
            of answers [[[id, status, content type, bytes of the body, headers], …], measured or nil]
    bodies  one after the other, in the order of the head

Bodies are as they came: nothing is base64, nothing is looked through, and what writes them copies nothing. A worker names what it
takes in the field ``accept`` of its answers (``TAKES``; RFC 9110, 12.5.1), and answers in the format that it is asked in; who does
not name it is asked in JSON, as Lambda and SageMaker are. To describe a model is asked in JSON too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Annotated

import msgspec

from . import contract
from .contract import JSON, NOTHING_MEASURED, UNREADABLE, Answer, Batch, Item, Measured, WireError, check_sendable

MEDIA_TYPE = "application/vnd.sluice.batch+frames;version=2"
TAKES = f"{MEDIA_TYPE}, {JSON}"
"""What a worker that knows this format takes."""
MAGIC = b"\xabSB2"

_PREFIX = struct.Struct("<4sI")
_Size = Annotated[int, msgspec.Meta(ge=0)]


class _Asked(msgspec.Struct, array_like=True, frozen=True):
    id: str
    content_type: str
    size: _Size
    headers: dict[str, str] = {}


class _Answered(msgspec.Struct, array_like=True, frozen=True):
    id: str
    status: int
    content_type: str
    size: _Size
    headers: dict[str, str] = {}


class _Batch(msgspec.Struct, array_like=True, frozen=True):
    model: str
    items: list[_Asked]


class _Answers(msgspec.Struct, array_like=True, frozen=True):
    answers: list[_Answered]
    measured: msgspec.Raw = msgspec.Raw(b"\xc0")


_encode = msgspec.msgpack.Encoder().encode
_decode_batch = msgspec.msgpack.Decoder(_Batch).decode
_decode_answers = msgspec.msgpack.Decoder(_Answers).decode
_decode_measured = msgspec.msgpack.Decoder(Measured | None).decode


def is_framed(data: bytes) -> bool:
    """Whether a document is in this format."""
    return data.startswith(MAGIC)


@lru_cache(maxsize=256)
def takes_frames(accept: str) -> bool:
    """Whether a field ``accept`` names this format in this version."""
    return MEDIA_TYPE in ["".join(kind.split()).lower() for kind in accept.split(",")]


def encode_batch(batch: Batch) -> list[bytes]:
    """The document, in pieces."""
    items = batch.items
    head = _encode((batch.model, [(item.id, item.content_type, len(item.body), item.headers) for item in items]))
    return [_PREFIX.pack(MAGIC, len(head)) + head, *[item.body for item in items]]


def decode_batch(data: bytes) -> Batch:
    """The batch of a document in this format or in JSON; raises ``WireError``."""
    if not is_framed(data):
        return contract.decode_batch(data)
    heads, at = _heads(data)
    bodies = _bodies(data, at, [item.size for item in heads.items])
    return Batch(heads.model, _with_bodies(heads, bodies))


class Sealed:
    """A batch in this format as it came: what its head says is known, and its bodies are for who computes it.

    Attributes
    ----------
    head : bytes
        The document up to its bodies.
    bodies : sequence of bytes
        The rest of it, in the pieces in which it came.
    size : int
        Bytes of these.
    """

    __slots__ = ("_items", "bodies", "head", "model", "size")

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """Of a document that is framed; raises ``WireError`` as ``decode_batch`` does."""
        first, *rest = pieces
        if rest and _ends_before_bodies(first):
            first, rest = b"".join(pieces), []  # cut within its head: by a client that sends it byte by byte
        heads, at = _heads(first)
        self.model = heads.model
        self._items = heads.items
        self.head = first[:at]
        self.bodies: list[bytes | memoryview] = [memoryview(first)[at:], *rest]
        self.size = sum(map(len, self.bodies))
        _check_sizes(self.size, [item.size for item in heads.items])

    def __len__(self) -> int:
        return len(self._items)

    @property
    def ids(self) -> list[str]:
        """Those of its items."""
        return [item.id for item in self._items]


def open_sealed(head: bytes, read: Callable[[int, int], bytes]) -> list[Item]:
    """The items of a ``Sealed``; ``read`` so many bytes of its bodies, from where."""
    heads, _ = _heads(head)
    ends = accumulate([item.size for item in heads.items], initial=0)
    return _with_bodies(heads, [read(item.size, at) for item, at in zip(heads.items, ends, strict=False)])


def _ends_before_bodies(data: bytes) -> bool:
    return len(data) < _PREFIX.size or len(data) < _PREFIX.size + _PREFIX.unpack_from(data)[1]


def _heads(data: bytes) -> tuple[_Batch, int]:
    """What the head of a batch says, and where the bodies begin."""
    head, at = _head(data, "a batch")
    try:
        return _decode_batch(head), at
    except UNREADABLE as error:
        raise WireError(f"not a batch: {error}") from None


def _with_bodies(heads: _Batch, bodies: Sequence[bytes]) -> list[Item]:
    return [Item(i.id, i.content_type, body, i.headers) for i, body in zip(heads.items, bodies, strict=True)]


def encode_answers(answers: Sequence[Answer], measured: Measured = NOTHING_MEASURED) -> list[bytes]:
    """The document, in pieces, and what the function tells of itself."""
    told = _encode(measured) if measured != NOTHING_MEASURED else b"\xc0"
    head = _encode(([(a.id, a.status, a.content_type, len(a.body), a.headers) for a in answers], msgspec.Raw(told)))
    return [_PREFIX.pack(MAGIC, len(head)) + head, *[answer.body for answer in answers]]


def decode_measured_answers(data: bytes, batch: Batch) -> tuple[list[Answer], Measured]:
    """``contract.decode_measured_answers`` of a document in this format or in JSON."""
    if not is_framed(data):
        return contract.decode_measured_answers(data, batch)
    head, at = _head(data, "an answer")
    try:
        document = _decode_answers(head)
    except UNREADABLE as error:
        raise WireError(f"not an answer: {error}") from None
    contract.check_ids([answer.id for answer in document.answers], batch)
    bodies = _bodies(data, at, [answer.size for answer in document.answers])
    answers = [Answer(a.id, a.status, a.content_type, body, a.headers) for a, body in zip(document.answers, bodies, strict=True)]
    for answer in answers:
        if answer.content_type != JSON or answer.headers or not 200 <= answer.status <= 599:
            check_sendable(answer)
    try:
        measured = _decode_measured(document.measured)
    except UNREADABLE:
        measured = None
    return answers, contract.believed(measured or NOTHING_MEASURED)


def _head(data: bytes, what: str) -> tuple[memoryview, int]:
    """The head, and where the bodies begin."""
    if len(data) < _PREFIX.size:
        raise WireError(f"not {what}: it ends within its first {_PREFIX.size} bytes")
    _, size = _PREFIX.unpack_from(data)
    at = _PREFIX.size + size
    if at > len(data):
        raise WireError(f"not {what}: a head of {size} bytes, of which {len(data) - _PREFIX.size} are there")
    return memoryview(data)[_PREFIX.size : at], at


def _bodies(data: bytes, at: int, sizes: list[int]) -> list[bytes]:
    _check_sizes(len(data) - at, sizes)
    return [data[begin:end] for begin, end in pairwise(accumulate(sizes, initial=at))]


def _check_sizes(there: int, sizes: list[int]) -> None:
    if sum(sizes) != there:
        raise WireError(f"bodies: {there} bytes are there; the head tells of {sum(sizes)}")
