"""An item between two stages: its pickle, and beside it the large arrays that it holds in a file in memory.

Protocol 5 hands large buffers out of band. They are written to one anonymous file (memfd) for the payload, which is passed on
as a descriptor: who passes it copies nothing, and when the last holder is gone, however it ended, so is the file. Where there are
no such files, or too many are in use, buffers stay in band.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from typing import Any

OUT_OF_BAND = 64 * 1024  # bytes of a buffer; below, a file costs more than the copies
_ALIGNMENT = 64  # bytes


class MemoryFile:
    """A descriptor that is closed with its last holder."""

    __slots__ = ("fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    def __del__(self) -> None:
        os.close(self.fd)


class Encoded:
    """A payload as bytes: ``head``, and ``file`` where some of it is in one; ``size`` counts both."""

    __slots__ = ("file", "head", "size")

    def __init__(self, head: bytes, file: MemoryFile | None = None) -> None:
        self.head = head
        self.file = file
        self.size = len(head) if file is None else len(head) + file.size


def encode(value: object, files: bool) -> Encoded:
    """The payload of ``value``; raises what ``pickle`` does. ``files``: whether its buffers may be in one."""
    if not files:
        return Encoded(pickle.dumps(value, 5))
    if type(value) is bytes and len(value) >= OUT_OF_BAND:
        value = pickle.PickleBuffer(value)  # pickle keeps bytes in band
    buffers: list[memoryview] = []

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OUT_OF_BAND:
            return True
        buffers.append(raw)
        return False

    head = pickle.dumps(value, 5, buffer_callback=in_band)
    if not buffers:
        return Encoded(head)
    file = _write(buffers)
    if file is None:
        return Encoded(pickle.dumps(bytes(value) if isinstance(value, pickle.PickleBuffer) else value, 5))
    layout = [(buffer.nbytes, buffer.readonly) for buffer in buffers]
    return Encoded(pickle.dumps((head, layout), 5), file)


def decode(payload: Encoded) -> Any:
    """The value; raises what unpickling it does."""
    if payload.file is None:
        return pickle.loads(payload.head)
    head, layout = pickle.loads(payload.head)
    buffers: list[bytes | bytearray] = []
    offset = 0
    for size, readonly in layout:
        buffers.append(_read(payload.file.fd, size, offset, readonly))
        offset += _aligned(size)
    return pickle.loads(head, buffers=buffers)


def write(pieces: Sequence[bytes | memoryview], size: int, spare: MemoryFile | None = None) -> MemoryFile | None:
    """A file with these one after the other, ``size`` bytes: the ``spare`` one where it is given; ``None`` where there can be none.

    What was written before has its pages already, which the system would have to find and clear: that takes longer than to write.
    """
    file = spare
    try:
        if file is None:
            file = MemoryFile(os.memfd_create("sluice-payload", os.MFD_CLOEXEC), 0)
        at = 0
        for piece in pieces:
            view, done = memoryview(piece), 0
            while done < len(view):
                done += os.pwrite(file.fd, view[done:], at + done)
            at += done
    except (AttributeError, OSError):  # not Linux, a sandbox, no descriptors or no memory left
        return None
    file.size = max(file.size, size)
    return file


def read(file: MemoryFile, size: int, offset: int) -> bytes:
    """So many bytes of a file, from there on."""
    return bytes(_read(file.fd, size, offset, True))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _write(buffers: list[memoryview]) -> MemoryFile | None:
    try:
        fd = os.memfd_create("sluice-payload", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # not Linux, a sandbox, or no descriptors left
        return None
    size = sum(_aligned(buffer.nbytes) for buffer in buffers)
    file = MemoryFile(fd, size)
    try:
        os.ftruncate(fd, size)
        offset = 0
        for buffer in buffers:
            written = 0
            while written < buffer.nbytes:
                written += os.pwrite(fd, buffer[written:], offset + written)
            offset += _aligned(buffer.nbytes)
    except OSError:  # no memory for it
        return None
    return file


def _read(fd: int, size: int, offset: int, readonly: bool) -> bytes | bytearray:
    if readonly and size < 0x7FFFF000:  # what one call reads at most
        whole = os.pread(fd, size, offset)
        if len(whole) == size:
            return whole
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        read = os.preadv(fd, [view[done:]], offset + done)
        if not read:
            raise EOFError(f"payload: {done} bytes of a buffer of {size}")
        done += read
    return bytes(buffer) if readonly else buffer
