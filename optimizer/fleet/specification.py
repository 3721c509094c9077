"""A fleet as its owner describes it: devices, families of variants, profiles, demand, and what runs (docs/fleet.md).

Records; ``fleet_file.py`` reads them from FLEET.yaml.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Counts
from sluice.optimizer.fleet.problem import FleetProblem
from sluice.optimizer.fleet.throughput import HALF, NEARLY, Capacity, Profile, Rule, alone, capacity
from sluice.optimizer.fleet.yaml_entries import one_of

Placement = Mapping[str, str | None]

MOST_DEVICES = 100_000  # of a type
MOST_REQUESTS = 1e9  # requests/s of a family


@dataclass(frozen=True)
class DeviceType:
    """``count`` devices that are alike; ``memory_mb`` bounds what they host, ``workers`` are their addresses."""

    name: str
    count: int
    memory_mb: float = math.inf
    workers: tuple[str, ...] = ()

    @property
    def device_names(self) -> tuple[str, ...]:
        """The workers' addresses, or else NAME-1, NAME-2, ..."""
        return self.workers or tuple(f"{self.name}-{i}" for i in range(1, self.count + 1))


@dataclass(frozen=True)
class Variant:
    """A model that answers its family's requests with an accuracy in percent; it takes memory, and more for each of a batch."""

    name: str
    accuracy: float
    memory_mb: float = 0.0
    memory_mb_per_request: float = 0.0

    def max_batch(self, memory_mb: float) -> float:
        """The largest batch that fits into a memory; inf where nothing bounds it."""
        left = memory_mb - self.memory_mb
        if left < 0:
            return 0
        return left // self.memory_mb_per_request if self.memory_mb_per_request and left < math.inf else math.inf


@dataclass(frozen=True)
class Family:
    """Variants that answer the same requests, and the SLO of these."""

    name: str
    slo: Slo
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Unservable:
    """A variant that no device serves: a request alone takes too long, or does not fit into the memory.

    Parameters
    ----------
    variant, family : str
    promised : float
        The seconds of the SLO.
    part : float
        Of them that one request may take.
    seconds : float or None
        What one request takes on the quickest device; ``None`` where it fits into none.
    memory_mb, largest_mb : float
        What the variant needs for one request, and what the largest device with a profile of it has.
    """

    variant: str
    family: str
    promised: float
    part: float
    seconds: float | None
    memory_mb: float
    largest_mb: float


@dataclass(frozen=True, eq=False)
class Fleet:
    """Devices, families, the profiles by (device type, variant), the demand in requests/s by family, and what each device runs.

    The names of variants differ over the whole fleet. A device that ``running`` does not name, or by ``None``, runs nothing;
    ``running=None`` says that nothing is known.

    Raises
    ------
    InvalidInput
        Names that occur twice or are unknown.
    """

    devices: tuple[DeviceType, ...]
    families: tuple[Family, ...]
    profiles: Mapping[tuple[str, str], Profile]
    demand: Mapping[str, float] = field(default_factory=dict)
    running: Placement | None = None

    def __post_init__(self) -> None:
        for name, names in (
            ("devices", [device.name for device in self.devices]),
            ("workers", [name for device in self.devices for name in device.device_names]),
            ("families", [family.name for family in self.families]),
            ("variants", [variant.name for variant in self.variants]),
        ):
            for twice in [n for n, times in Counter(names).items() if times > 1]:
                raise InvalidInput(name, twice, "each name once in the fleet")
        for device in self.devices:
            require(device.count <= MOST_DEVICES, f"devices.{device.name}.count", device.count, f"at most {MOST_DEVICES}")
            if device.name in self.types_by_device:
                raise InvalidInput("devices", device.name, "a name that is no device's address or name")
        for name, rate in self.demand.items():
            require(name in self.family_names, f"demand.{name}", rate, one_of(self.family_names, "families"))
            require(0 <= rate < math.inf, f"demand.{name}", rate, "requests/s >= 0")
            require(rate <= MOST_REQUESTS, f"demand.{name}", rate, f"requests/s, at most {MOST_REQUESTS:g}")
        known = {variant.name: None for variant in self.variants}
        for name, hosted in (self.running or {}).items():
            if name not in self.types_by_device:
                raise InvalidInput(f"running.{name}", hosted, one_of(self.types_by_device, "devices"))
            if hosted is not None and hosted not in known:
                raise InvalidInput(f"running.{name}", hosted, one_of(known, "variants") + ", or null")

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """The variants, family by family: the columns of the problem."""
        return tuple(variant for family in self.families for variant in family.variants)

    @cached_property
    def family_of_variant(self) -> Counts:
        """The place of each variant's family, (n_variants,)."""
        return np.repeat(np.arange(len(self.families)), [len(family.variants) for family in self.families])

    @cached_property
    def family_names(self) -> tuple[str, ...]:
        """The families in their order."""
        return tuple(family.name for family in self.families)

    @cached_property
    def types_by_device(self) -> dict[str, int]:
        """The place of each device's type."""
        return {name: d for d, device in enumerate(self.devices) for name in device.device_names}

    def with_demand(self, demand: Mapping[str, float]) -> Fleet:
        """The same fleet under another demand, requests/s by family."""
        return replace(self, demand=dict(demand))

    def with_running(self, running: Placement | None) -> Fleet:
        """The same fleet from another placement that runs."""
        return replace(self, running=running)

    def behind(self, overhead: float | Mapping[str, float]) -> Fleet:
        """The same fleet, where every batch takes so many seconds more than its profile says; told for all, or by family."""
        family_of = {variant.name: family.name for family in self.families for variant in family.variants}
        seconds = overhead if isinstance(overhead, Mapping) else dict.fromkeys(self.family_names, overhead)
        profiles = {key: profile.behind(seconds.get(family_of[key[1]], 0.0)) for key, profile in self.profiles.items()}
        return replace(self, profiles=profiles)

    def slower(self, factors: Mapping[tuple[str, str], float]) -> Fleet:
        """The same fleet, where batches take so many times as long as their profile says; by device type and variant."""
        return replace(self, profiles={key: profile.slower(factors.get(key, 1.0)) for key, profile in self.profiles.items()})

    def capacity(self, device: int, variant: int, rule: Rule = "best", max_batch: float = math.inf) -> Capacity | None:
        """What a device of the type serves of the variant, both by their places."""
        kind, hosted = self.devices[device], self.variants[variant]
        profile = self.profiles.get((kind.name, hosted.name))
        if profile is None:
            return None
        family = int(self.family_of_variant[variant])
        slo, most = self.families[family].slo, min(max_batch, hosted.max_batch(kind.memory_mb))
        if rule == "best" and family in self._tight:
            return alone(profile, slo, most)
        return capacity(profile, slo, most, rule)

    def quickest(self, variant: int) -> tuple[float, str] | None:
        """The least that one request of a variant takes, seconds, and on which type; ``None`` where it fits into no memory."""
        hosted, slo = self.variants[variant], self.families[int(self.family_of_variant[variant])].slo
        return min(
            (
                (float(self.profiles[device.name, hosted.name].promised(slo)[0]), device.name)
                for device in self._profiled_on(hosted)
                if hosted.max_batch(device.memory_mb) >= 1
            ),
            default=None,
        )

    @cached_property
    def unservable(self) -> tuple[Unservable, ...]:
        """The variants with a profile that no type of device serves, and why."""
        found = []
        for m, variant in enumerate(self.variants):
            types = self._profiled_on(variant)
            if not types or any(self.capacity(d, m) for d in range(len(self.devices))):
                continue
            q, quickest = int(self.family_of_variant[m]), self.quickest(m)
            needed, largest = variant.memory_mb + variant.memory_mb_per_request, max(device.memory_mb for device in types)
            family, part = self.families[q], NEARLY if q in self._tight else HALF
            seconds = quickest[0] if quickest else None
            found.append(Unservable(variant.name, family.name, family.slo.latency, part, seconds, needed, largest))
        return tuple(found)

    def _profiled_on(self, variant: Variant) -> tuple[DeviceType, ...]:
        return tuple(device for device in self.devices if (device.name, variant.name) in self.profiles)

    @cached_property
    def _tight(self) -> frozenset[int]:
        """The families of which no device serves a variant in half the SLO."""
        served = set()
        for m, variant in enumerate(self.variants):
            family = int(self.family_of_variant[m])
            for device in self.devices:
                profile = self.profiles.get((device.name, variant.name))
                if profile and capacity(profile, self.families[family].slo, variant.max_batch(device.memory_mb)):
                    served.add(family)
        return frozenset(range(len(self.families))) - served

    def problem(self, rule: Rule = "best", max_batch: float = math.inf) -> FleetProblem:
        """The placement problem of this fleet under its demand, with ``throughput`` by ``rule``.

        Raises
        ------
        InvalidInput
            No demand.
        """
        shape = (len(self.devices), len(self.variants))
        throughput = np.zeros(shape)
        for d, m in np.ndindex(*shape):
            found = self.capacity(d, m, rule, max_batch)
            throughput[d, m] = found.throughput if found else 0.0
        running = None if self.running is None else self.counts(self.running)
        demand = [self.demand.get(name, 0.0) for name in self.family_names]
        require(any(demand), "demand", dict(self.demand), "a rate > 0 for at least one family")
        return FleetProblem(
            devices=np.array([device.count for device in self.devices]),
            throughput=throughput,
            accuracy=np.array([variant.accuracy for variant in self.variants]),
            family=self.family_of_variant,
            demand=np.array(demand),
            running=running,
        )

    def counts(self, placement: Placement) -> Counts:
        """How many devices of each type host each variant, (n_types, n_variants)."""
        columns = {variant.name: m for m, variant in enumerate(self.variants)}
        counts = np.zeros((len(self.devices), len(self.variants)), dtype=np.int64)
        for device, hosted in placement.items():
            if hosted is not None:
                counts[self.types_by_device[device], columns[hosted]] += 1
        return counts
