"""What a pipeline and its worker processes tell each other, over one Unix stream socket for each.

A frame is a header, a descriptor for each payload, and their heads one after the other. Descriptors of files travel beside the
first byte of a frame, so that they are there when the frame is; a frame carries so many of them at most.

    header      bytes of the rest, count of payloads, kind, seconds
    descriptor  number of the payload, bytes of its head, bytes of its file, flags
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from .payloads import Encoded, MemoryFile

_HEADER = struct.Struct("<QIId")
_IN_FILE, _FLAG = 1, 2
MAX_FILES = 64  # in one frame; the kernel takes 253
_ANCILLARY = socket.CMSG_SPACE(2 * MAX_FILES * array.array("i").itemsize)
READ = 64 * 1024  # bytes that are read at once, but of a frame that is known to be larger
_TRUNCATED = int(socket.MSG_CTRUNC)  # a member of an enumeration takes a microsecond to combine with a number
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # Linux has it


class Kind(IntEnum):
    """What a frame is."""

    SETUP = 0  # to a worker, once: what it runs, and how
    WORK = 1  # to a worker; flag: the output may be in a file
    PART = 5  # to a worker: as WORK, and the rest of the same batch follows
    READY = 2  # from a worker
    FAILED = 3  # from a worker: it could not start
    SKIPPED = 6  # from a worker: the places of what it was stopped before
    RETURNED = 4  # from a worker, with the seconds it took; flag: the payload is an error


class Frame(NamedTuple):
    """``payloads`` are ``(number, flag, payload)``."""

    kind: int
    seconds: float
    payloads: list[tuple[int, bool, Encoded]]


def pack(kind: int, payloads: list[tuple[int, bool, Encoded]], seconds: float = 0.0) -> tuple[bytes, list[MemoryFile]]:
    """A frame as bytes, and the files to send beside its first."""
    numbers: list[int] = []
    heads: list[bytes] = []
    files: list[MemoryFile] = []
    for number, flag, payload in payloads:
        file = payload.file
        head = payload.head
        if file is None:
            numbers += (number, len(head), 0, _FLAG if flag else 0)
        else:
            numbers += (number, len(head), file.size, _FLAG | _IN_FILE if flag else _IN_FILE)
            files.append(file)
        heads.append(head)
    descriptors = struct.pack(f"<{len(numbers)}Q", *numbers)
    body = len(descriptors) + sum(map(len, heads))
    return b"".join((_HEADER.pack(body, len(payloads), kind, seconds), descriptors, *heads)), files


def split(payloads: list[tuple[int, bool, Encoded]]) -> Iterable[list[tuple[int, bool, Encoded]]]:
    """The payloads in as few frames as their files allow."""
    if len(payloads) <= MAX_FILES:
        yield payloads
        return
    part: list[tuple[int, bool, Encoded]] = []
    files = 0
    for entry in payloads:
        if entry[2].file is not None:
            if files == MAX_FILES:
                yield part
                part, files = [], 0
            files += 1
        part.append(entry)
    yield part


class FrameSocket:
    """Frames over a socket, which may block (a worker's) or not (the pipeline's)."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._data = bytearray()
        self._buffer = bytearray(READ)  # for a new one of this size the system would have to be asked each time
        self._files: deque[int] = deque()
        self._unsent: deque[tuple[memoryview, list[MemoryFile]]] = deque()
        self._lost = False  # files that were sent to it

    def close(self) -> None:
        """Also closes what was received and nobody took."""
        while self._files:
            os.close(self._files.popleft())
        self._unsent.clear()
        self.connection.close()

    def read(self) -> bool:
        """Read once what is there; whether there may be more. Raises ``BlockingIOError`` where nothing is.

        The other end counts as gone where its files found no free descriptor here, and what came with them as not said: others
        would be taken for them.
        """
        if self._lost:
            return False
        missing = self._missing() if self._data else 0
        buffer = self._buffer if missing <= READ else bytearray(missing)
        try:
            size, ancillary, flags, _ = self.connection.recvmsg_into([buffer], _ANCILLARY, _CLOSE_ON_EXEC)
        except BlockingIOError:
            raise
        except OSError:
            return False
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors = array.array("i")
                descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
                self._files.extend(descriptors)
        if flags & _TRUNCATED:
            self._lost = True
            return False
        with memoryview(buffer) as view:
            self._data += view[:size]
        return bool(size)

    def frames(self, most: int = sys.maxsize) -> list[Frame]:
        """Those that are complete, and no more than so many of them."""
        frames: list[Frame] = []
        start, held = 0, len(self._data)
        while held - start >= _HEADER.size and len(frames) < most:
            body, count, kind, seconds = _HEADER.unpack_from(self._data, start)
            end = start + _HEADER.size + body
            if held < end:
                break
            numbers = struct.unpack_from(f"<{4 * count}Q", self._data, start + _HEADER.size)
            at = start + _HEADER.size + 32 * count
            payloads: list[tuple[int, bool, Encoded]] = []
            with memoryview(self._data) as view:
                for i in range(0, 4 * count, 4):
                    size, flags = numbers[i + 1], numbers[i + 3]
                    head = bytes(view[at : at + size])
                    at += size
                    file = MemoryFile(self._files.popleft(), numbers[i + 2]) if flags & _IN_FILE else None
                    payloads.append((numbers[i], bool(flags & _FLAG), Encoded(head, file)))
            frames.append(Frame(kind, seconds, payloads))
            start = end
        if start:
            del self._data[:start]
        return frames

    def send(self, data: bytes, files: list[MemoryFile]) -> bool:
        """Send, or keep what does not go out now; whether all went."""
        sent = 0
        if not (self._unsent or files):
            try:
                sent = self.connection.send(data)
            except OSError:  # there is no room now; or it is gone, which is seen below
                sent = 0
            if sent == len(data):
                return True
        self._unsent.append((memoryview(data)[sent:], files))
        return len(self._unsent) == 1 and self.flush()

    def flush(self) -> bool:
        """Go on sending; whether all went, or never will."""
        while self._unsent:
            view, files = self._unsent[0]
            try:
                if files:
                    rights = array.array("i", [file.fd for file in files])
                    sent = self.connection.sendmsg([view], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
                else:
                    sent = self.connection.send(view)
            except BlockingIOError:
                return False
            except OSError:
                # It is gone, or its files cannot be sent; either way it is heard of by reading.
                self._unsent.clear()
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
                return True
            if sent < len(view):
                self._unsent[0] = (view[sent:], [])
            else:
                self._unsent.popleft()
        return True

    def _missing(self) -> int:
        if len(self._data) < _HEADER.size:
            return 0
        body: int = _HEADER.unpack_from(self._data)[0]
        return min(_HEADER.size + body - len(self._data), 8 * 1024 * 1024)
