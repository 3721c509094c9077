"""Whether a store counts as away: facts in, and what follows from them; no clock, no I/O, no task.

A call that fails opens the breaker: from then on calls are refused at once, with the reason, and trials are made in the background.
Only a trial that works closes it, since a call that was under way when the store went may end well on a server that takes no more.
The first trial comes at once, as most failures are of one connection; each after that ``TRIAL_INTERVAL`` after the last has ended.
"""

from __future__ import annotations

from sluice.batching.errors import StoreUnavailable

TRIAL_INTERVAL = 0.1  # seconds between two trials


class Breaker:
    """``away`` is why the store counts as away; ``None`` while it does not."""

    def __init__(self) -> None:
        self.away: StoreUnavailable | None = None
        self._trials = 0

    def failed(self, reason: StoreUnavailable) -> bool:
        """A call or a trial failed; whether trials must begin."""
        begins = self.away is None
        self.away = reason
        return begins

    def worked(self) -> None:
        """A trial worked."""
        self.away = None
        self._trials = 0

    def next_trial_in(self) -> float:
        """Seconds until the next trial."""
        self._trials += 1
        return 0.0 if self._trials == 1 else TRIAL_INTERVAL
