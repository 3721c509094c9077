"""How much longer batches of a fleet take than their profiles say, as the buffers see it: encoding, HTTP, waiting for a core.

A queue's table gives up whoever could not be in time by the profile, and serves the others to the last moment. Where every batch
takes a few milliseconds more, those are all late, and took the time of others. So what is planned with is that quantile of what
batches took beyond the mean of their profile which the family's SLO promises: most batches take less, and a device that is ready
early costs little. No clock is read here, and nobody is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.fleet.specification import Family, Fleet

KEPT = 256  # batches of a family
FEWEST = 32  # from which it is told
OTHER = 1.25  # ratio from which it counts as another,
LEAST = 0.002  # and by no less (s)
MOST = 0.25  # of the SLO


class OverheadWatch:
    """What batches of each family take beyond their profiles.

    Parameters
    ----------
    fleet : Fleet
        Its profiles are what batches are compared with.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._mean = {(variant, device): profile.service.mean_response for (device, variant), profile in fleet.profiles.items()}
        self._beyond: dict[str, deque[float]] = {name: deque(maxlen=KEPT) for name in fleet.family_names}
        self.seconds: Mapping[str, float] = dict.fromkeys(fleet.family_names, 0.0)
        """What is planned with, by family."""

    def see(self, family: str, batches: Sequence[MeasuredBatch]) -> None:
        """Batches of a family that ended; those tell of which nothing failed, by routes that are a variant on a device type."""
        for batch in batches:
            variant, _, device = batch.route.rpartition(".")
            expected = self._mean.get((variant, device))
            if expected is not None and not batch.failed and 1 <= batch.size <= len(expected):
                self._beyond[family].append(batch.seconds - float(expected[batch.size - 1]))

    def settle(self) -> bool:
        """Plan with what was measured, where that is another for some family; whether it is."""
        found = {family.name: self._measured(family) for family in self._fleet.families}
        another = {
            name: seconds
            for name, seconds in found.items()
            if abs(seconds - self.seconds[name]) > max(LEAST, (OTHER - 1) * self.seconds[name])
        }
        self.seconds = {**self.seconds, **another}
        return bool(another)

    def _measured(self, family: Family) -> float:
        beyond = self._beyond[family.name]
        if len(beyond) < FEWEST:
            return self.seconds[family.name]
        promised = float(np.quantile(list(beyond), family.slo.quantile, method="inverted_cdf"))
        return min(max(0.0, promised), MOST * family.slo.latency)
