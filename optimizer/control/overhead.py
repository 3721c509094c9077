"""How much longer batches of a fleet take than their profiles say: by a factor on a device, and beyond that on the way to it.

A variant on a device type is planned with as many times its profile as the last batches took, ``SLOWER`` at the least: by the slope
of what they took over what the profile says, where batches of several sizes tell that from what each takes on the way, else where
that would be more than is planned with on the way at the most. What is left is encoding, HTTP, waiting for a core.

A queue's table gives up whoever could not be in time by the profile, and serves the others to the last moment. Where every batch
takes a few milliseconds more, those are all late, and took the time of others. So what is planned with is that quantile of what
batches took beyond the mean of their profile which the family's SLO promises: most batches take less, and a device that is ready
early costs little.

The live controller and the simulated day tell it of batches. No clock is read here, and nobody is asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.arrays import Array
from sluice.optimizer.fleet.specification import Family, Fleet

KEPT = 256  # batches of a family
FEWEST = 32  # from which it is told
OTHER = 1.25  # ratio from which it counts as another,
LEAST = 0.002  # and by no less (s)
MOST = 0.25  # of the SLO
LATEST = 64  # batches of a variant on a device type
SLOWER, MOST_SLOWER = 1.25, 10.0
TOLD = 0.1  # of a slope, its standard error up to which it is one
OTHER_FACTOR = 0.1  # of a factor, by which another is another
FORGOTTEN = 3600.0  # s without a batch, after which a factor is: who was slow may be another by now


class _Took(NamedTuple):
    """A batch: seconds that it took, and those of its profile, on the device and on the way."""

    seconds: float
    device: float
    way: float


class OverheadWatch:
    """What batches take beyond their profiles.

    Parameters
    ----------
    fleet : Fleet
        Its profiles are what batches are compared with.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._known = fleet
        self._expected = {
            (device, variant): (profile.service.mean_response, profile.service.overhead)
            for (device, variant), profile in fleet.profiles.items()
        }
        self._took: dict[str, deque[tuple[tuple[str, str], _Took]]] = {name: deque(maxlen=KEPT) for name in fleet.family_names}
        self._latest: dict[tuple[str, str], deque[_Took]] = {key: deque(maxlen=LATEST) for key in fleet.profiles}
        self._new: set[tuple[str, str]] = set()
        self._seen_at: dict[tuple[str, str], float] = {}
        self._latency = {each.name: family.slo.latency for family in fleet.families for each in family.variants}
        self.seconds: Mapping[str, float] = dict.fromkeys(fleet.family_names, 0.0)
        """What is planned with on the way, by family."""
        self.factors: Mapping[tuple[str, str], float] = {}
        """What a device takes times what its profile says, by device type and variant, where it is slower."""

    @property
    def fleet(self) -> Fleet:
        """The fleet as it was measured."""
        return self._known.slower(self.factors).behind(self.seconds)

    @property
    def words(self) -> str:
        """A sentence."""
        slower = [f"{factor:.3g} times as long for {variant} on {device}" for (device, variant), factor in self.factors.items()]
        longer = [f"{1e3 * more:.3g} ms of {family}" for family, more in self.seconds.items() if more]
        told = [", ".join(slower)] * bool(slower) + [f"longer than their profiles say: {', '.join(longer)}"] * bool(longer)
        return f"batches take {'; and '.join(told) or 'what their profiles say'}"

    def see(self, family: str, batches: Sequence[MeasuredBatch]) -> None:
        """Batches of a family that ended; those tell of which all was served, by routes that are a variant on a device type."""
        for batch in batches:
            variant, _, device = batch.route.rpartition(".")
            mean, way = self._expected.get((device, variant), ((), ()))
            if batch.served and 1 <= batch.size <= len(mean):
                beside = float(way[batch.size - 1])
                took = _Took(batch.seconds, float(mean[batch.size - 1]) - beside, beside)
                self._took[family].append(((device, variant), took))
                self._latest[device, variant].append(took)
                self._new.add((device, variant))

    def settle(self, now: float) -> bool:
        """Plan with what was measured until then (s), where that is another for some family or device type; whether it is."""
        self._seen_at |= dict.fromkeys(self._new, now)
        self._new.clear()
        factors = {key: self._factor(key, now) for key in self._seen_at}
        slower = any(abs(factor - self.factors.get(key, 1.0)) > OTHER_FACTOR * factor for key, factor in factors.items())
        if slower:
            self.factors = {key: factor for key, factor in factors.items() if factor > 1}
        found = {family.name: self._measured(family) for family in self._known.families}
        another = {
            name: seconds
            for name, seconds in found.items()
            if abs(seconds - self.seconds[name]) > max(LEAST, (OTHER - 1) * self.seconds[name])
        }
        self.seconds = {**self.seconds, **another}
        return slower or bool(another)

    def _factor(self, key: tuple[str, str], now: float) -> float:
        latest = self._latest[key]
        if now >= self._seen_at[key] + FORGOTTEN:
            latest.clear()
            return 1.0
        if len(latest) < FEWEST:
            return self.factors.get(key, 1.0)
        seconds, device, way = np.array(latest).T
        took = seconds - way
        factor = _slope(device, took)
        if factor is None:
            beyond = float((took - device).mean())
            factor = float(took.mean() / device.mean()) if beyond > MOST * self._latency[key[1]] else 1.0
        return min(factor, MOST_SLOWER) if factor >= SLOWER else 1.0

    def _measured(self, family: Family) -> float:
        took = self._took[family.name]
        if len(took) < FEWEST:
            return self.seconds[family.name]
        beyond = [each.seconds - each.way - self.factors.get(key, 1.0) * each.device for key, each in took]
        promised = float(np.quantile(beyond, family.slo.quantile, method="inverted_cdf"))
        return min(max(0.0, promised), MOST * family.slo.latency)


def _slope(expected: Array, took: Array) -> float | None:
    """By how much what batches took grows with what was expected; ``None`` where they do not tell."""
    centred = expected - expected.mean()
    spread = float(centred @ centred)
    if spread < 1e-12:
        return None
    slope = float(centred @ took) / spread
    left = took - took.mean() - slope * centred
    error = (float(left @ left) / (len(took) - 2) / spread) ** 0.5
    return slope if error <= TOLD * abs(slope) else None
