"""Bodies in gzip (RFC 1952): of requests, undone within a limit; of answers, where that is asked for and worth it.

What may live here: bytes in, bytes out. A body that may take long is not for the loop: its caller has a thread do it.
"""

from __future__ import annotations

import zlib

from sluice.batching.errors import InvalidInput, PayloadTooLarge

GZIP = 31
"""What zlib calls the format: the largest window, with gzip's header and checksum around it."""
AT_ONCE = 1024
"""Bytes in gzip that are undone on the loop: they become 1 MB at the most, which takes 2 ms."""
ZIPPED_AT_ONCE = 16 * 1024
"""Bytes that are zipped on the loop, which takes 0.3 ms."""
MOST_MEMBERS = 100
"""Streams of gzip one after the other, which are a body together: each costs some us however little is in it."""
QUICK = 1  # zlib's level: half the time of the usual one for some tenth more bytes of JSON


def accepts_gzip(accepted: bytes) -> bool:
    """Whether ``accept-encoding`` has gzip, and not with a weight of 0."""
    for coding in accepted.lower().split(b","):
        name, *parameters = (part.strip() for part in coding.split(b";"))
        if name in (b"gzip", b"x-gzip", b"*"):
            return not any(part.startswith(b"q=") and not part[2:].strip(b"0.") for part in parameters)
    return False


def unzipped(body: bytes, limit: int) -> bytes:
    """What a body in gzip is, of ``limit`` bytes at the most; no more than that is ever made of it.

    It may be several streams one after the other, as RFC 1952 (section 2.2) allows and who zips in pieces writes.
    """
    members: list[bytes] = []
    left, size = body, 0
    while left or not members:
        undo = zlib.decompressobj(GZIP)
        try:
            members.append(undo.decompress(left, limit + 1 - size))
        except zlib.error as error:
            raise InvalidInput("body", body[:80], f"what content-encoding says it is, gzip ({error})") from None
        size += len(members[-1])
        if size > limit:
            raise PayloadTooLarge(size, limit)
        if not undo.eof:
            raise InvalidInput("body", body[:80], "whole streams of gzip, as content-encoding says it is")
        if len(members) == MOST_MEMBERS and undo.unused_data:
            raise InvalidInput("body", body[:80], f"at most {MOST_MEMBERS} streams of gzip one after the other")
        left = undo.unused_data.lstrip(b"\0")  # which some pad with
    return b"".join(members)


def zipped(body: bytes) -> bytes:
    """A body in gzip."""
    zip_ = zlib.compressobj(QUICK, wbits=GZIP)
    return zip_.compress(body) + zip_.flush()
