"""How many requests came in each five minutes of two days, kept over a restart of who counts them (docs/control.md).

A count is known where the record was read without a hole from the beginning of its time to the end. The time in which reading
began is known in part, and so is one with a hole: neither says at which rate requests came.

As bytes: the version, an octet; the number of the last time that is over, a little-endian 64-bit integer of ``BUCKET`` seconds
since 1970; then the counts up to that one, the oldest first, each a little-endian 32-bit integer, ``UNKNOWN`` where nobody knows.
"""

from __future__ import annotations

import struct

import numpy as np

from sluice.optimizer.arrays import Array

BUCKET = 300.0  # s, of the counts
DAY = 86_400.0  # s
DAYS = 2
MOST_BUCKETS = int(DAYS * DAY / BUCKET)
VERSION = 1
UNKNOWN = 2**32 - 1
_HEAD = struct.Struct("<Bq")


class DayCounts:
    """Counts of requests by ``BUCKET`` seconds since 1970."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}  # ascending
        self._in_part: set[int] = set()
        self._kept_until = self._latest = -1  # the last of those that were counted before, and of all
        self._began = False

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def until(self) -> int:
        """The last time that is over; -1 before the first is."""
        return max(self._latest - 1, self._kept_until)

    def see(self, times: Array) -> None:
        """Take in arrivals, s, ascending, none before those of earlier calls; what was counted before is not counted again."""
        for bucket, n in _by_bucket(times):
            if bucket > self._kept_until:
                if not self._began:
                    self._in_part.add(bucket)  # reading begins in it
                self._counts[bucket] = self._counts.get(bucket, 0) + n
                self._latest = max(self._latest, bucket)
            self._began = True
        self._forget()

    def hole(self, since: float, until: float) -> None:
        """Of what came from ``since`` to ``until`` (s) something is not known."""
        last = int(until // BUCKET)
        first = max(int(max(since, 0.0) // BUCKET), last - MOST_BUCKETS, self._kept_until + 1)
        self._in_part.update(range(first, last + 1))

    def ratio_to_come(self, now: float, ahead: float) -> float:
        """The rate of the ``ahead`` seconds after this time yesterday over that of those before it, by the counts that are known.

        1 where fewer than half of either are known.
        """
        then, n = int((now - DAY) // BUCKET), max(1, round(ahead / BUCKET))
        before, after = (
            [self._counts[bucket] for bucket in some if bucket in self._counts and bucket not in self._in_part]
            for some in (range(then - n + 1, then + 1), range(then + 1, then + n + 1))
        )
        if 2 * min(len(before), len(after)) < n:
            return 1.0
        return sum(after) / len(after) / max(sum(before) / len(before), 1 / n)

    def packed(self) -> bytes:
        """Those of the times that are over; ``b""`` before the first is."""
        if self.until < 0:
            return b""
        whole = [bucket for bucket in self._counts if bucket <= self.until and bucket not in self._in_part]
        first = max(min(whole, default=self.until), self.until - MOST_BUCKETS + 1)
        known = dict.fromkeys(range(first, self.until + 1), UNKNOWN)
        known |= {bucket: min(self._counts[bucket], UNKNOWN - 1) for bucket in whole if bucket >= first}
        return _HEAD.pack(VERSION, self.until) + struct.pack(f"<{len(known)}I", *known.values())

    def restore(self, packed: bytes) -> None:
        """What was counted before, by whoever did, before any arrival is seen here; bytes of another version are left alone."""
        n = (len(packed) - _HEAD.size) // 4
        if n < 1 or n > MOST_BUCKETS or len(packed) != _HEAD.size + 4 * n or packed[0] != VERSION:
            return
        _, until = _HEAD.unpack_from(packed)
        counts = struct.unpack_from(f"<{n}I", packed, _HEAD.size)
        self._counts = {until - n + 1 + i: count for i, count in enumerate(counts) if count != UNKNOWN}
        self._kept_until = self._latest = until

    def _forget(self) -> None:
        oldest = self._latest - MOST_BUCKETS
        while self._counts and (first := next(iter(self._counts))) <= oldest:
            del self._counts[first]
        self._in_part = {bucket for bucket in self._in_part if bucket > oldest}


def _by_bucket(times: Array) -> list[tuple[int, int]]:
    """The numbers of the times in which some came, ascending, and how many; ``times`` are ascending (s)."""
    if len(times) and (first := times[0] // BUCKET) == times[-1] // BUCKET:  # as at most looks
        return [(int(first), len(times))]
    buckets, counts = np.unique((times // BUCKET).astype(np.int64), return_counts=True)
    return list(zip(buckets.tolist(), counts.tolist(), strict=True))
