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
QUICK = 1  # zlib's level: half the time of the usual one for some tenth more bytes of JSON


def accepts_gzip(accepted: bytes) -> bool:
    """Whether ``accept-encoding`` has gzip, and not with a weight of 0."""
    for coding in accepted.lower().split(b","):
        name, *parameters = (part.strip() for part in coding.split(b";"))
        if name in (b"gzip", b"x-gzip", b"*"):
            return not any(part.startswith(b"q=") and not part[2:].strip(b"0.") for part in parameters)
    return False


def unzipped(body: bytes, limit: int) -> bytes:
    """What a body in gzip is, of ``limit`` bytes at the most; no more than that is ever made of it."""
    undo = zlib.decompressobj(GZIP)
    try:
        out = undo.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidInput("body", body[:80], f"what content-encoding says it is, gzip ({error})") from None
    if len(out) > limit:
        raise PayloadTooLarge(len(out), limit)
    if not undo.eof or undo.unused_data:
        raise InvalidInput("body", body[:80], "one whole stream of gzip, as content-encoding says it is")
    return out


def zipped(body: bytes) -> bytes:
    """A body in gzip."""
    zip_ = zlib.compressobj(QUICK, wbits=GZIP)
    return zip_.compress(body) + zip_.flush()
