"""A tuner that takes no notice of what it is told: what it decides, and when, others say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sluice.batching.documents import Plan


class DeafTuner:
    """All that control tells a tuner, and asks of its counts."""

    def arrived(self, times: Any) -> None: ...

    def missed(self, since: float, until: float) -> None: ...

    def batches(self, batches: Sequence[Any]) -> None: ...

    def given(self, plan: Plan) -> None: ...

    def remember(self, counts: bytes) -> None: ...

    @property
    def counted_until(self) -> int:
        return -1

    def counted(self) -> bytes:
        return b""
