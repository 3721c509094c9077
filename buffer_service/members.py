"""What crosses a store between processes, which may be of two versions while a deployment is rolled over: members and messages.

    member      a request while it waits: 16 bytes, its id, which every store reads; then [content_type, headers, body], and as a
                fourth the name of its class where it has one; version 2 has the request's size in front of the bracket, a double of
                9 bytes; version 3 its slack, which every store reads, and then its size, nan where that was not told
    ticket      a member whose body stays with the process that its caller waits at, where who needs it asks for it (``bodies.py``):
                version 4, its slack and its size as in version 3, then [bytes of the body], and the name of its class
    message     [answer, ...]: answers whose callers wait at the process that it is sent to; version 2 is [process, [id, ...]]: who
                asks for the bodies of these; version 3 [[id, content_type, headers, body], ...]: these, or [id] of who has gone

The brackets are msgpack, and its first byte tells the version: the head of an array is version 1; a later version puts its number,
2 to 127, in front, which is what a small integer is in msgpack. So a process reads what it knows, names what it does not, and takes
anything else for garbage. Who changes a format releases a version that reads the new one before one that writes it. Version 2 is
written where a plan tells sizes alone, version 3 for a request of a class with a slack or with a deadline alone; a class is named
in a member where the plan has classes alone. A process that
cannot read it refuses a plan with sizes or classes: such a plan comes after all processes, and so do callers who tell deadlines.
Tickets are written where all processes that were heard of lately read them: names of versions that do not are hexadecimal, and
those of versions that do begin with another letter (``store.lends``).
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from sluice.batching.policy import MAX_SLACK
from sluice.buffer_service.store import ID_LENGTH, PROCESS_LENGTH
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.lambda_fn.contract import Answer, Item, WireError, check_sendable

SIZED_VERSION, SLACKED_VERSION, MEMBERS, MESSAGES = 2, 3, 4, 3
"""The version of a member with a size and no slack, of one with a slack; the latest version of each."""
ASK_VERSION = 2
"""The version of a message that asks for bodies."""
SIZED = struct.Struct(f">{ID_LENGTH}xBBd")
"""Behind the id of a member that has a size: the version, the byte of msgpack for a double, the size."""
SLACKED = struct.Struct(f">{ID_LENGTH}xBBdBd")
"""Behind the id of a member that has a slack: the version, and the two numbers, each behind the byte of msgpack for a double."""
DOUBLE = 0xCB
SHOWN = 32  # bytes of what cannot be read that go into the log


class Unreadable(ValueError):
    """Nothing of a version that is known here; the message says what it is instead."""


class _Body(NamedTuple):
    """A member behind its id."""

    content_type: str
    headers: dict[str, str]
    body: bytes
    name: str = ""


class _Left(NamedTuple):
    """A ticket behind its numbers."""

    length: int
    name: str = ""


class Ask(NamedTuple):
    """A ``process`` has these requests in a batch, and asks for their bodies."""

    process: str
    requests: list[str]


class Lent(NamedTuple):
    """A request as its caller sent it; without a body he has gone."""

    id: str
    content_type: str = ""
    headers: dict[str, str] = {}
    body: bytes | None = None

    @classmethod
    def of(cls, request_id: str, item: Item | None) -> Lent:
        """The request of an id."""
        return cls(request_id) if item is None else cls(request_id, item.content_type, item.headers, item.body)

    def item(self) -> Item | None:
        """The request, if somebody waits for its answer."""
        return None if self.body is None else Item(self.id, self.content_type, self.body, self.headers)


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_left = msgspec.msgpack.Decoder(_Left).decode
_decode_answers = msgspec.msgpack.Decoder(list[Answer]).decode
_decode_ask = msgspec.msgpack.Decoder(Ask).decode
_decode_lent = msgspec.msgpack.Decoder(list[Lent]).decode

# What decoding raises: for what is no msgpack or of another shape, for invalid UTF-8 in a string, for nesting without end.
_GARBAGE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def encode_member(item: Item, told: Told = NOTHING_TOLD) -> bytes:
    """A member of the queue: the request's id, its slack and its size where it has one, then the rest, and its class."""
    if told is NOTHING_TOLD:  # as most are
        return item.id.encode() + _encode((item.content_type, item.headers, item.body))
    head = b""
    if told.slack:
        head = _numbers(SLACKED_VERSION, told)
    elif told.size is not None:
        head = SIZED.pack(SIZED_VERSION, DOUBLE, told.size)[ID_LENGTH:]
    body = (item.content_type, item.headers, item.body)
    return item.id.encode() + head + _encode((*body, told.name) if told.name else body)


def _numbers(version: int, told: Told) -> bytes:
    return SLACKED.pack(version, DOUBLE, told.slack, DOUBLE, math.nan if told.size is None else told.size)[ID_LENGTH:]


def encode_ticket(item: Item, told: Told = NOTHING_TOLD) -> bytes:
    """A member of the queue whose body stays here."""
    left = (len(item.body), told.name) if told.name else (len(item.body),)
    return item.id.encode() + _numbers(MEMBERS, told) + _encode(left)


def is_ticket(member: bytes) -> bool:
    """Whether the body of a member is where its caller waits."""
    return len(member) > ID_LENGTH and member[ID_LENGTH] == MEMBERS and _is(member, MEMBERS, SLACKED) and has_id(member)


def ticket_length(member: bytes) -> int:
    """Bytes of the body that a ticket stands for; raises ``Unreadable``."""
    rest = _behind_head(member)
    try:
        return _decode_left(rest).length
    except _GARBAGE as error:
        raise Unreadable(f"the request {member_id(member)}: {_what(bytes(rest), error, MEMBERS)}") from None


def decode_member(member: bytes) -> Item:
    """The inverse of ``encode_member``; raises ``Unreadable``, also of a ticket."""
    if not has_id(member):
        raise Unreadable(unnamed(member))
    rest = _behind_head(member)
    try:
        body = _decode_body(rest)
    except _GARBAGE as error:
        raise Unreadable(f"the request {member_id(member)}: {_what(bytes(rest), error, MEMBERS)}") from None
    return Item(member_id(member), body.content_type, body.body, body.headers)


def _behind_head(member: bytes) -> memoryview:
    """What stands behind the numbers of a member."""
    head = SLACKED.size if _has_slack(member) else SIZED.size if _is(member, SIZED_VERSION, SIZED) else ID_LENGTH
    return memoryview(member)[head:]


def _has_slack(member: bytes) -> bool:
    """Whether a member has the two numbers of a slack and a size."""
    return _is(member, SLACKED_VERSION, SLACKED) or _is(member, MEMBERS, SLACKED)


def _is(member: bytes, version: int, head: struct.Struct) -> bool:
    """Whether a member is of this version, which has such a head."""
    return len(member) >= head.size and member[ID_LENGTH] == version and member[ID_LENGTH + 1] == DOUBLE


def member_size(member: bytes) -> float | None:
    """The size of the request that a member is; ``None`` where it was not told, and of garbage."""
    if _is(member, SIZED_VERSION, SIZED):
        size: float = SIZED.unpack_from(member)[2]
        return size
    if _has_slack(member) and not math.isnan(size := SLACKED.unpack_from(member)[4]):
        return size
    return None


def member_slack(member: bytes) -> float:
    """The slack of the request that a member is, in seconds; 0 where it has none, of garbage, and where that is no slack."""
    if len(member) <= ID_LENGTH or member[ID_LENGTH] not in (SLACKED_VERSION, MEMBERS) or not _has_slack(member):
        return 0.0  # the first look is for every member
    slack: float = SLACKED.unpack_from(member)[2]
    return slack if abs(slack) <= MAX_SLACK else 0.0


def member_told(member: bytes) -> Told:
    """What the request that a member is told of itself, as far as it is written there; garbage told nothing."""
    try:
        name = (_decode_left if is_ticket(member) else _decode_body)(_behind_head(member)).name
    except _GARBAGE:
        return NOTHING_TOLD
    return Told(member_size(member), member_slack(member), name)


def member_sizes(members: Sequence[bytes]) -> array[float]:
    """The size of each, ``nan`` where it was not told; empty where it was of none."""
    sizes = [member_size(member) for member in members]
    if sizes.count(None) == len(sizes):
        return array("d")
    return array("d", [math.nan if size is None else size for size in sizes])


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


def encode_ask(ask: Ask) -> bytes:
    """A message from one process to another: who asks for bodies, and of which requests."""
    return bytes((ASK_VERSION,)) + _encode(ask)


def encode_lent(lent: Sequence[Lent]) -> bytes:
    """A message from one process to another: the bodies that it asked for."""
    return bytes((MESSAGES,)) + _encode(lent)


def decode_message(message: bytes) -> list[Answer] | Ask | list[Lent]:
    """What another process sent; raises ``Unreadable``, also where an answer does not fit into an HTTP response."""
    try:
        if message[:1] == bytes((ASK_VERSION,)):
            return _checked(_decode_ask(memoryview(message)[1:]))
        if message[:1] == bytes((MESSAGES,)):
            return _decode_lent(memoryview(message)[1:])
        answers = _decode_answers(message)
        for answer in answers:
            check_sendable(answer)
    except _GARBAGE as error:
        raise Unreadable(_what(message, error, MESSAGES)) from None
    except WireError as error:
        raise Unreadable(str(error)) from None
    return answers


def _checked(ask: Ask) -> Ask:
    if len(ask.process) != PROCESS_LENGTH or not ask.process.isalnum():
        raise Unreadable(f"{ask.process[:SHOWN]!r} asks for bodies, which is the name of no process")
    return ask


def _what(data: bytes, error: Exception, latest: int) -> str:
    """What data is that is of none of the versions up to the latest known."""
    if data and latest < data[0] < 0x80:
        return f"version {data[0]} is not known here; known: {' to '.join(map(str, sorted({1, latest})))}"
    return f"{_shown(data)} cannot be read ({error})"


def _shown(data: bytes) -> str:
    """Data in a line of the log."""
    return f"{len(data)} bytes, {data[:SHOWN]!r}{'…' * (len(data) > SHOWN)}"
