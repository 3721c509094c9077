"""A fleet as its owner describes it: devices, families of variants, profiles, demand, and what runs (docs/fleet.md).

``read_fleet`` reads FLEET.yaml. Every refusal names the entry by its path in the file, its value, and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import yaml

from sluice.batching.documents import ServiceProfile, Slo, read
from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Counts
from sluice.optimizer.fleet.problem import FleetProblem
from sluice.optimizer.fleet.throughput import MAX_BATCH, NEARLY, Capacity, Profile, Rule, alone, capacity

Placement = Mapping[str, str | None]

MOST_DEVICES = 100_000  # of a type
MOST_REQUESTS = 1e9  # requests/s of a family
_LISTED = 20  # names that a refusal lists


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
        return left // self.memory_mb_per_request if self.memory_mb_per_request else math.inf


@dataclass(frozen=True)
class Family:
    """Variants that answer the same requests, and the SLO of these."""

    name: str
    slo: Slo
    variants: tuple[Variant, ...]


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
            require(name in self.family_names, f"demand.{name}", rate, _one_of(self.family_names, "families"))
            require(0 <= rate < math.inf, f"demand.{name}", rate, "requests/s >= 0")
            require(rate <= MOST_REQUESTS, f"demand.{name}", rate, f"requests/s, at most {MOST_REQUESTS:g}")
        known = {variant.name: None for variant in self.variants}
        for name, hosted in (self.running or {}).items():
            if name not in self.types_by_device:
                raise InvalidInput(f"running.{name}", hosted, _one_of(self.types_by_device, "devices"))
            if hosted is not None and hosted not in known:
                raise InvalidInput(f"running.{name}", hosted, _one_of(known, "variants") + ", or null")

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


# --- FLEET.yaml


def read_fleet(path: str | Path) -> Fleet:
    """Read and check FLEET.yaml; the profiles it names are read from beside it.

    Raises
    ------
    InvalidInput
        Names the entry, its value and what is allowed: also a variant that no device has a profile for, and an SLO that no device
        keeps with any variant of its family.
    """
    path = Path(path)
    top = _Entry(path.name, "", _load(path)).fields("devices", "families", "demand", "running", needed=("devices", "families"))
    devices = tuple(_device(name, entry) for name, entry in top["devices"].items())
    profiles: dict[tuple[str, str], Profile] = {}
    by_name = {device.name: device for device in devices}
    families: list[Family] = []
    seen: dict[str, str] = {}
    for name, entry in top["families"].items():
        fields = entry.fields("slo", "variants", needed=("slo", "variants"))
        variants = []
        for variant, of_variant in fields["variants"].items():
            if variant in seen:
                raise InvalidInput(of_variant.where, variant, f"a name of its own in the fleet: {seen[variant]} has it")
            seen[variant] = of_variant.path
            parts = of_variant.fields("accuracy", "memory_mb", "memory_mb_per_request", "profiles", needed=("accuracy", "profiles"))
            variants.append(
                Variant(
                    variant,
                    parts["accuracy"].number("percent, 0 to 100", 0, 100),
                    *(parts[key].number("MB >= 0", 0) if key in parts else 0.0 for key in ("memory_mb", "memory_mb_per_request")),
                )
            )
            for device, profile in parts["profiles"].items():
                profile.check(device in by_name, _one_of(by_name, "devices"))
                profiles[device, variant] = _profile(profile, by_name[device], path.parent)
        families.append(Family(name, _slo(fields["slo"]), tuple(variants)))
    fleet = Fleet(devices, tuple(families), profiles)
    if "demand" in top:
        fleet = fleet.with_demand(_demand(fleet, top["demand"]))
    if "running" in top:
        fleet = fleet.with_running(_running(fleet, top["running"]))
    _refuse_impossible(fleet, top["families"])
    return fleet


def read_demand(path: str | Path, fleet: Fleet) -> dict[str, float]:
    """Read requests/s by family from a YAML or JSON file."""
    return _demand(fleet, _Entry(Path(path).name, "", _load(Path(path))))


def read_running(path: str | Path, fleet: Fleet) -> Placement:
    """Read what runs from a YAML or JSON file: as in FLEET.yaml, or a plan that `sluice fleet --out` wrote."""
    entry = _Entry(Path(path).name, "", _load(Path(path)))
    if isinstance(entry.value, dict) and "placement" in entry.value:
        entry = entry.below("placement", entry.value["placement"])
    return _running(fleet, entry)


class _Entry(NamedTuple):
    """A value of a file, with the name of the file and the path to the value in it."""

    file: str
    path: str
    value: Any

    @property
    def where(self) -> str:
        """What an error names."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def refuse(self, allowed: str) -> NoReturn:
        raise InvalidInput(self.where, self.value, allowed)

    def check(self, ok: bool, allowed: str) -> None:
        if not ok:
            self.refuse(allowed)

    def below(self, key: str | int, value: Any) -> _Entry:
        """An entry of a mapping, or of a list."""
        step = f"[{key}]" if isinstance(self.value, list) else f".{key}" if self.path else str(key)
        return _Entry(self.file, self.path + step, value)

    def items(self) -> Iterator[tuple[str, _Entry]]:
        """The entries of a mapping by their names."""
        self.check(isinstance(self.value, dict) and bool(self.value), "a mapping with at least one entry")
        for key, value in self.value.items():
            if not isinstance(key, str) or not key:
                self.below(key, key).refuse("a name; in quotes if it looks like a number, a date or a yes or no")
            yield key, self.below(key, value)

    def fields(self, *known: str, needed: Sequence[str] = ()) -> dict[str, _Entry]:
        """The entries of a mapping that has only these keys."""
        entries = dict(self.items())
        for key, entry in entries.items():
            if key not in known:
                raise InvalidInput(entry.where, entry.value, _one_of(known, "keys"))
        for key in needed:
            if key not in entries:
                self.below(key, None).refuse(f"an entry, beside {', '.join(entries)}")
        return entries

    def number(self, allowed: str, least: float = -math.inf, most: float = math.inf, above: bool = False) -> float:
        """A finite number between bounds; ``above``: the least is excluded."""
        value = self.value
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
            value = float(value)  # 1e-3, which YAML 1.1 takes for text
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.refuse(allowed)
        self.check(least <= value <= most and not (above and value == least), allowed)
        return float(value)

    def whole(self, allowed: str, least: int = 0, most: float = math.inf) -> int:
        """An integer."""
        self.check(isinstance(self.value, int) and not isinstance(self.value, bool) and self.value >= least, allowed)
        self.check(self.value <= most, f"at most {most}")
        return int(self.value)

    def text(self, allowed: str) -> str:
        """Text that is not empty."""
        self.check(isinstance(self.value, str) and bool(self.value), allowed)
        return str(self.value)


class _Loader(yaml.SafeLoader):
    """YAML in which a key occurs once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | bool | None):
                raise InvalidInput(f"line {line}", str(key), "a plain name for a key")
            if key in seen:
                raise InvalidInput(f"line {line}", key, "each name once in a mapping")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _load(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidInput("file", str(path), f"a readable file ({reason})") from None
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except InvalidInput as error:
        raise InvalidInput(f"{path.name}: {error.field}", error.value, error.allowed) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else text[:80]
        where = f"{path.name}: line {mark.line + 1}" if mark else path.name
        raise InvalidInput(where, line, f"YAML ({getattr(error, 'problem', None) or error})") from None
    except RecursionError:
        raise InvalidInput(path.name, text[:80], "YAML that is not nested so deeply") from None


def _device(name: str, entry: _Entry) -> DeviceType:
    fields = entry.fields("count", "memory_mb", "workers")
    memory_mb = fields["memory_mb"].number("MB > 0", 0, above=True) if "memory_mb" in fields else math.inf
    if "workers" not in fields:
        entry.check("count" in fields, "a mapping with a count, or with the addresses of its workers")
        return DeviceType(name, fields["count"].whole("an integer >= 0", most=MOST_DEVICES), memory_mb)
    allowed = "a list of different addresses, one a device"
    given = fields["workers"]
    given.check(isinstance(given.value, list) and bool(given.value), allowed)
    workers = tuple(given.below(i, value).text("the address of a worker") for i, value in enumerate(given.value))
    given.check(len(set(workers)) == len(workers), allowed)
    given.check(len(workers) <= MOST_DEVICES, f"at most {MOST_DEVICES}")
    if "count" in fields:
        fields["count"].check(fields["count"].value == len(workers), f"{len(workers)}, as many as workers, or no count")
    return DeviceType(name, len(workers), memory_mb, workers)


def _slo(entry: _Entry) -> Slo:
    if not isinstance(entry.value, dict):
        return Slo(entry.number("a number of seconds > 0, or a mapping with latency and percentile", 0, above=True))
    fields = entry.fields("latency", "percentile", needed=("latency",))
    latency = fields["latency"].number("a number of seconds > 0", 0, above=True)
    if "percentile" not in fields:
        return Slo(latency)
    allowed = "a number strictly between 0 and 100"
    percentile = fields["percentile"].number(allowed, 0, 100, above=True)
    fields["percentile"].check(percentile < 100, allowed)
    fields["percentile"].check(percentile >= 1, f"percent of the requests, at least 1; did you mean {100 * percentile:g}?")
    return Slo(latency, percentile)


def _profile(entry: _Entry, device: DeviceType, folder: Path) -> Profile:
    allowed = "seconds by batch size, as in {1: 0.02, 4: 0.05}; or intercept, slope and max_batch; or the file of a profile"
    value = entry.value
    if isinstance(value, str):
        return _measured(entry, entry, None, device, folder)
    entry.check(isinstance(value, dict) and bool(value), allowed)
    if "file" in value:
        fields = entry.fields("file", "memory_mb")
        memory_mb = fields["memory_mb"].whole("MB, an integer >= 1", 1) if "memory_mb" in fields else None
        return _measured(entry, fields["file"], memory_mb, device, folder)
    if not all(isinstance(key, int) and not isinstance(key, bool) for key in value):
        entry.check(all(key in ("intercept", "slope", "max_batch") for key in value), allowed)
        fields = entry.fields("intercept", "slope", "max_batch", needed=("intercept", "slope", "max_batch"))
        intercept, slope = (fields[key].number("a number of seconds >= 0", 0) for key in ("intercept", "slope"))
        entry.check(intercept + slope > 0, "an intercept or a slope > 0")
        return Profile.of_line(intercept, slope, fields["max_batch"].whole("an integer >= 1", 1, MAX_BATCH))
    for b in value:
        entry.check(b >= 1, "batch sizes >= 1")
        entry.check(b <= MAX_BATCH, f"batch sizes of at most {MAX_BATCH}")
    entry.check(1 in value, "batch size 1 among the batch sizes")
    return Profile.of_points({b: entry.below(b, s).number("a number of seconds > 0", 0, above=True) for b, s in value.items()})


def _measured(entry: _Entry, named: _Entry, memory_mb: int | None, device: DeviceType, folder: Path) -> Profile:
    file = folder / named.text("a file that `sluice profile` wrote")
    try:
        data = file.read_bytes()
    except OSError as error:
        named.refuse(f"a readable file ({error.strerror})")
    document = read(ServiceProfile, data, f"{entry.where}: {named.value}")
    sizes = document.memory_sizes or [memory_mb or 1]
    if memory_mb is None:
        memory_mb = sizes[0] if len(sizes) == 1 else int(device.memory_mb) if device.memory_mb in sizes else None
    if memory_mb not in sizes:
        entry.below("memory_mb", memory_mb).refuse("one of the profile's: " + ", ".join(map(str, sizes)))
    try:
        return Profile.of_document(document, memory_mb)
    except InvalidInput as error:
        raise InvalidInput(f"{entry.where}: {named.value}: {error.field}", error.value, error.allowed) from None


def _demand(fleet: Fleet, entry: _Entry) -> dict[str, float]:
    demand = {}
    for name, rate in entry.items():
        rate.check(name in fleet.family_names, "a rate for " + _one_of(fleet.family_names, "families"))
        demand[name] = rate.number("requests/s >= 0", 0)
        rate.check(demand[name] <= MOST_REQUESTS, f"requests/s, at most {MOST_REQUESTS:g}")
    entry.check(any(demand.values()), "a rate > 0 for at least one family")
    return demand


def _running(fleet: Fleet, entry: _Entry) -> dict[str, str | None]:
    """By device type, counts or a list in the order of its devices; or by device."""
    known = {variant.name: None for variant in fleet.variants}
    types = {device.name: device for device in fleet.devices}
    placement: dict[str, str | None] = {}
    if entry.value == {}:
        return placement

    for name, given in entry.items():
        if name not in types:
            if name not in fleet.types_by_device:
                given.refuse(_one_of([*types, *fleet.types_by_device], "device types and devices"))
            _check_hosted(given, known)
            given.check(name not in placement, "each device once; its type's entry names it, too")
            placement[name] = given.value
            continue
        devices = types[name].device_names
        allowed = f"at most {len(devices)}, the devices of the type"
        if isinstance(given.value, dict):
            counts: dict[str | None, int] = {}
            for variant, count in given.items():
                count.check(variant in known, _one_of(known, "variants"))
                counts[variant] = count.whole("an integer >= 0")
            given.check(sum(counts.values()) <= len(devices), allowed)
            listed = [variant for variant, count in counts.items() for _ in range(count)]
        else:
            given.check(isinstance(given.value, list), "how many devices run each variant, or a list of what each device runs")
            given.check(len(given.value) <= len(devices), allowed)
            listed = list(given.value)
            for i, hosted in enumerate(listed):
                _check_hosted(given.below(i, hosted), known)
        for device, hosted in zip(devices, listed, strict=False):
            given.check(device not in placement, f"each device once; {device} has an entry of its own")
            placement[device] = hosted
    return placement


def _check_hosted(entry: _Entry, known: Mapping[str, None]) -> None:
    if not (entry.value is None or (isinstance(entry.value, str) and entry.value in known)):
        entry.refuse(_one_of(known, "variants") + ", or null")


def _refuse_impossible(fleet: Fleet, families: _Entry) -> None:
    """Refuse a variant without a profile, and a family that no device can serve within its SLO."""
    for q, family in enumerate(fleet.families):
        where = families.below(family.name, None).where
        members = np.flatnonzero(fleet.family_of_variant == q)
        pairs = [(d, int(m)) for m in members for d in range(len(fleet.devices))]
        if any(fleet.capacity(d, m) for d, m in pairs):
            continue
        quickest = [
            (float(fleet.profiles[device.name, variant.name].promised(family.slo)[0]), variant.name, device.name)
            for device in fleet.devices
            for variant in family.variants
            if (device.name, variant.name) in fleet.profiles and variant.max_batch(device.memory_mb) >= 1
        ]
        if not quickest:
            raise InvalidInput(
                f"{where}.variants", [v.name for v in family.variants], "a variant that fits into the memory of a device"
            )
        seconds, variant, device = min(quickest)
        allowed = f"at least {seconds / NEARLY:.4g} s, as one request takes {seconds:.4g} s on the quickest ({variant} on {device})"
        raise InvalidInput(f"{where}.slo", family.slo.latency, allowed)


def _one_of(names: Any, what: str) -> str:
    listed = [str(name) for name in names]
    more = f", and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return f"one of the {what}: " + ", ".join(listed[:_LISTED]) + more
