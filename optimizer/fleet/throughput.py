"""What one device serves of a variant under an SLO (docs/model.md, section 5).

A batch may take half the SLO: who just missed one is then in time with the next (Nexus, Shen et al., SOSP'19). Of the batch sizes
that keep this and fit into memory, P[d, m] is b / l(b) requests/s for

    largest   the largest measured b, as Proteus has it (Ahmad et al., ASPLOS'24, section 4)
    best      the b with the most requests/s, also between the measured sizes: where l jumps, a larger batch can be the slower

A family that no device serves in half its SLO is not given up: requests then go one by one (``alone``), to devices that are busy
half of the time at most, so that most find an idle one.

Promises are checked against the percentile of the SLO where a profile has quantiles; requests/s are of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import numpy as np

from sluice.batching.documents import ServiceProfile, Slo
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import ServiceTimes, service_times

Rule = Literal["best", "largest"]
RULES: tuple[Rule, ...] = get_args(Rule)
MAX_BATCH = 100_000
HALF = 0.5  # part of the SLO that a batch may take
NEARLY = 0.95  # part of the SLO that a request alone may take where no device needs half of it at most


@dataclass(frozen=True, eq=False)
class Profile:
    """Service times of a variant on a device type.

    Parameters
    ----------
    service : ServiceTimes
        Of batches of 1, 2, ...
    measured : tuple of int
        The batch sizes that were measured, ascending; between them ``service`` is interpolated.
    """

    service: ServiceTimes
    measured: tuple[int, ...]

    @classmethod
    def of_points(cls, seconds: Mapping[int, float]) -> Profile:
        """Of seconds by batch size, 1 among them; linear in between, and as they are: also where they fall."""
        require(1 in seconds, "batch sizes", sorted(seconds), "batch size 1 among them")
        measured = sorted(seconds)
        require(measured[0] >= 1 and measured[-1] <= MAX_BATCH, "batch sizes", measured, f"1 to {MAX_BATCH}")
        for b in measured:
            require(0 < seconds[b] < math.inf, f"seconds of batch size {b}", seconds[b], "a number of seconds > 0")
        sizes = np.arange(1, measured[-1] + 1)
        return cls(_fixed(np.interp(sizes, measured, [seconds[b] for b in measured])), tuple(measured))

    @classmethod
    def of_line(cls, intercept: float, slope: float, max_batch: int) -> Profile:
        """Of l(b) = intercept + slope b seconds for batches up to ``max_batch``."""
        require(1 <= max_batch <= MAX_BATCH, "max_batch", max_batch, f"1 to {MAX_BATCH}")
        sizes = range(1, max_batch + 1)
        require(
            intercept >= 0 and slope >= 0 and intercept + slope > 0,
            "intercept, slope",
            (intercept, slope),
            "seconds >= 0, not both 0",
        )
        return cls(_fixed(np.array([intercept + slope * b for b in sizes])), tuple(sizes))

    @classmethod
    def of_document(cls, profile: ServiceProfile, memory_mb: int) -> Profile:
        """Of what ``sluice profile`` measured at a memory size."""
        for size in [point.batch_size for point in profile.points] + [profile.max_batch_size or 1]:
            require(size <= MAX_BATCH, "batch size", size, f"at most {MAX_BATCH}")
        service = service_times(profile, memory_mb)
        sizes = (
            [point.batch_size for point in profile.points_at(memory_mb)] if profile.points else range(1, service.max_batch_size + 1)
        )
        return cls(service, tuple(b for b in sizes if b <= service.max_batch_size))

    def behind(self, overhead: float) -> Profile:
        """The same, every batch taking so many seconds more, none of them on the device."""
        return replace(self, service=replace(self.service, overhead=self.service.overhead + overhead)) if overhead else self

    def slower(self, factor: float) -> Profile:
        """The same, every batch taking so many times as long on the device."""
        if factor == 1:
            return self
        service = self.service
        seconds, billed = factor * service.seconds, factor * service.billed_duration
        return replace(self, service=replace(service, seconds=seconds, billed_duration=billed))

    def promised(self, slo: Slo) -> Array:
        """Seconds from dispatch to answer that the SLO's percentile of batches of 1, 2, ... keeps, (max_batch_size,)."""
        return self.service.quantile(slo.quantile)


class Capacity(NamedTuple):
    """What one device serves: requests/s, in batches of ``batch_size``."""

    batch_size: int
    throughput: float


def capacity(profile: Profile, slo: Slo, max_batch: float = math.inf, rule: Rule = "best") -> Capacity | None:
    """The most requests/s in batches that take at most half the SLO; ``None`` where not even one request alone does.

    Parameters
    ----------
    max_batch : float
        The largest batch that fits into memory, or that is wanted.
    rule : {"best", "largest"}
    """
    require(rule in RULES, "rule", rule, ", ".join(RULES))
    sizes = np.array(profile.measured) if rule == "largest" else np.arange(1, profile.service.max_batch_size + 1)
    sizes = sizes[(profile.promised(slo)[sizes - 1] <= HALF * slo.latency * (1 + 1e-12)) & (sizes <= max_batch)]
    if not len(sizes):
        return None
    rates = sizes / profile.service.mean_response[sizes - 1]
    chosen = len(sizes) - 1 if rule == "largest" else int(rates.argmax())
    return Capacity(int(sizes[chosen]), float(rates[chosen]))


def alone(profile: Profile, slo: Slo, max_batch: float = math.inf) -> Capacity | None:
    """Requests/s one by one, half of what the device could do; ``None`` where a request takes more than ``NEARLY`` of the SLO."""
    if max_batch < 1 or profile.promised(slo)[0] > NEARLY * slo.latency:
        return None
    return Capacity(1, 0.5 / float(profile.service.mean_response[0]))


def _fixed(seconds: Array) -> ServiceTimes:
    """Service times that are always the same, of no memory size."""
    return ServiceTimes(1, seconds[:, None], np.zeros(len(seconds)), seconds)
