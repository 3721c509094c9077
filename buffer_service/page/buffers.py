"""Which buffers follow the plans in Redis, as the live page tells it: read from there seldom, and only while somebody asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.followers import followers
from sluice.buffer_service.presence import Heard
from sluice.buffer_service.redis_plans import Reason

LOOK_EVERY = 5.0  # s


class Company(Protocol):
    """What is asked of ``Presences``."""

    async def heard(self) -> list[Heard]: ...


class Buffers:
    """The processes in a Redis, and ``in_force``, the digests of the plans there by model, as this process knows them.

    ``company`` of ``None``: there is nowhere to look. ``clock`` is monotonic (s).
    """

    def __init__(self, company: Company | None, in_force: Callable[[], Mapping[str, str]], clock: Callable[[], float]) -> None:
        self._company, self._in_force, self._clock = company, in_force, clock
        self._look_at = -math.inf
        self._heard: Sequence[Heard] | None = None

    async def look(self) -> None:
        """Read who is there, unless that was done lately."""
        if self._company is None or self._clock() < self._look_at:
            return
        try:
            self._heard = await self._company.heard()
        except StoreUnavailable:
            self._heard = None
        self._look_at = self._clock() + LOOK_EVERY

    def tell(self, model: str, reasons: Mapping[tuple[str, str], Reason]) -> dict[str, Any] | None:
        """Who follows the plan of a model in Redis; ``None`` where there is none, or Redis does not answer.

        ``reasons`` are those of the newest plans, by model and digest, with when each was written.
        """
        digest = self._in_force().get(model)
        if digest is None or self._heard is None:
            return None
        written = reasons.get((model, digest))
        put_at = written.at if written is not None else min((each.at for each in reasons.values()), default=0.0)
        found = followers(model, digest, put_at, self._heard)
        return found.document() | {"words": found.words()}
