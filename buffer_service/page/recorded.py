"""What all processes of the buffer recorded of each model lately: read from the shared streams, and only while somebody asks.

A look is made in a thread, takes a page of each model at most, and of no further model once it has ``MOST_BATCHES``; the others
come first in the next. Of requests it takes how many were recorded so far, which the newest entry tells. Where more than a page
was recorded, or nobody asked for ``FORGET`` seconds, the rest is passed over and the figures begin anew, so that they have no hole.
"""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from sluice.batching.errors import SluiceError
from sluice.buffer_service.page.history import KEPT, SAMPLE_EVERY
from sluice.buffer_service.stream_reader import NewBatches
from sluice.buffer_service.telemetry import SECONDS, Counted

LOOK_EVERY = 2.0  # s
WAIT = 1.0  # s that a document waits for a look
FORGET = 60.0  # s without a look
PAGE = 500  # entries of one stream
MOST_BATCHES = 5000  # of a look, from which on no further model is read


class Reader(Protocol):
    """What is asked of ``RecordReader``."""

    def look_for_routes(self) -> None: ...

    def batches(self) -> NewBatches: ...

    def pass_over_arrivals(self) -> int: ...

    def pass_over_batches(self) -> int: ...

    def close(self) -> None: ...


class Shared(NamedTuple):
    """What all processes recorded of a model in ``seconds``.

    ``came`` requests were accepted; ``batches`` ended, of ``requests``, of which ``failed`` did by no fault of their
    callers. Of ``answered`` ones the latency was recorded (s, buckets end at ``SECONDS``): those of the callers of the process that
    sent the batch. ``late`` of these took longer than the SLO.
    """

    seconds: float
    came: int
    batches: int
    requests: int
    failed: int
    answered: int
    late: int
    latency: Counted

    @property
    def arrival_rate(self) -> float | None:
        """Requests/s; ``None`` before any time has passed."""
        return self.came / self.seconds if self.seconds > 0 else None


_NOTHING = Shared(0.0, 0, 0, 0, 0, 0, 0, Counted((0,) * (len(SECONDS) + 1), 0.0))


class _Model:
    """A model's reader, and what it came to by each of the newest looks that are ``SAMPLE_EVERY`` apart, since it began."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.samples: deque[Shared] = deque(maxlen=KEPT)
        self.told: Shared | None = None
        self.looked_at = -math.inf
        self._came = 0
        self._total = _NOTHING

    def look(self, now: float, limit: float) -> int:
        """Read what came since the last look; how many batches that were."""
        if now - self.looked_at > FORGET:
            self._begin(now)
            return 0
        new = self.reader.batches()
        came = self.reader.pass_over_arrivals()
        if new.more or new.missed or new.began_anew or came < self._came:
            self._begin(now)
            return len(new.batches)
        self._total = _added(self._total, now - self.looked_at, came - self._came, new, limit)
        self.looked_at, self._came = now, came
        self.told = _since(self.samples[0], self._total)
        if self._total.seconds - self.samples[-1].seconds >= SAMPLE_EVERY:
            self.samples.append(self._total)
        return len(new.batches)

    def _begin(self, now: float) -> None:
        self.reader.look_for_routes()
        self.reader.pass_over_batches()
        self.looked_at, self._came, self._total, self.told = now, self.reader.pass_over_arrivals(), _NOTHING, None
        self.samples.clear()
        self.samples.append(_NOTHING)


class Recorded:
    """What all processes recorded of the models that are asked for; ``reader_for`` of ``None``: there is nowhere to look.

    ``clock`` is monotonic (s). ``trouble`` is why nothing could be read last, ``""`` where something could.
    """

    def __init__(self, reader_for: Callable[..., Reader] | None, clock: Callable[[], float]) -> None:
        self.trouble = ""
        self._reader_for = reader_for
        self._clock = clock
        self._look_at = -math.inf
        self._models: dict[str, _Model] = {}
        self._looking: asyncio.Future[None] | None = None

    async def look(self, limits: Mapping[str, float]) -> None:
        """Read on of these models, unless that was done lately; ``limits`` are the latencies of their SLOs (s).

        It is waited for ``WAIT`` seconds, and goes on thereafter.
        """
        if self._reader_for is None:
            return
        if self._looking is None and self._clock() >= self._look_at:
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._read, dict(limits)))
        if self._looking is not None:
            await asyncio.wait([self._looking], timeout=WAIT)
            if self._looking.done():
                self._looking, self._look_at = None, self._clock() + LOOK_EVERY

    def of(self, model: str) -> Shared | None:
        """What was recorded of a model, five minutes at most; ``None`` where too little was read, or nothing can be."""
        known = self._models.get(model)
        return known.told if known is not None and not self.trouble else None

    async def close(self) -> None:
        """Release connections, when what is being read is read."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        for model in self._models.values():
            model.reader.close()

    def _read(self, limits: Mapping[str, float]) -> None:
        assert self._reader_for is not None
        for gone in self._models.keys() - limits.keys():
            self._models.pop(gone).reader.close()
        for name in limits.keys() - self._models.keys():
            self._models[name] = _Model(self._reader_for(name, page=PAGE))
        read = 0
        try:
            for name, model in sorted(self._models.items(), key=lambda each: each[1].looked_at):
                if read < MOST_BATCHES:
                    read += model.look(self._clock(), limits[name])
        except SluiceError as error:
            self.trouble = str(error)
        else:
            self.trouble = ""


def _added(total: Shared, seconds: float, came: int, new: NewBatches, limit: float) -> Shared:
    counts, answered, late, in_all = list(total.latency.counts), total.answered, total.late, total.latency.sum
    for batch in new.batches:
        answered += len(batch.latencies)
        for latency in batch.latencies:
            counts[bisect_left(SECONDS, latency)] += 1
            late += latency > limit
            in_all += latency
    return Shared(
        total.seconds + seconds,
        total.came + came,
        total.batches + len(new.batches),
        total.requests + sum(batch.size for batch in new.batches),
        total.failed + sum(batch.failed for batch in new.batches),
        answered,
        late,
        Counted(tuple(counts), in_all),
    )


def _since(before: Shared, after: Shared) -> Shared:
    old, new = before.latency, after.latency
    return Shared(
        after.seconds - before.seconds,
        after.came - before.came,
        after.batches - before.batches,
        after.requests - before.requests,
        after.failed - before.failed,
        after.answered - before.answered,
        after.late - before.late,
        Counted(tuple(n - was for n, was in zip(new.counts, old.counts, strict=True)), new.sum - old.sum),
    )
