"""FLEET.yaml (docs/fleet.md): the file of a fleet, of its demand, and of what runs.

Every refusal names the entry by its path in the file, its value, and what is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sluice.batching.documents import ServiceProfile, Slo, read
from sluice.batching.errors import InvalidInput
from sluice.batching.urls import is_http, without_password
from sluice.optimizer.fleet.specification import MOST_DEVICES, MOST_REQUESTS, DeviceType, Family, Fleet, Placement, Variant
from sluice.optimizer.fleet.throughput import MAX_BATCH, NEARLY, Profile
from sluice.optimizer.fleet.yaml_entries import Entry, load, one_of

FAR = 10.0
"""Times an SLO that a request alone takes, from which on a number without a unit was probably meant in milliseconds."""
TIME = "a number of seconds >= 0"


def read_fleet(path: str | Path) -> Fleet:
    """Read and check FLEET.yaml; the profiles it names are read from beside it.

    Raises
    ------
    InvalidInput
        Names the entry, its value and what is allowed: also a variant that no device has a profile for, and an SLO that no device
        keeps with any variant of its family.
    """
    path = Path(path)
    top = load(path, "FLEET.yaml").fields("devices", "families", "demand", "running", needed=("devices", "families"))
    devices = {name: _device(name, entry) for name, entry in top["devices"].items()}
    variants = _Variants(devices, path.parent)
    families = tuple(variants.family(name, entry) for name, entry in top["families"].items())
    fleet = Fleet(tuple(devices.values()), families, variants.profiles)
    if "demand" in top:
        fleet = fleet.with_demand(_demand(fleet, top["demand"]))
    if "running" in top:
        fleet = fleet.with_running(_running(fleet, top["running"]))
    _refuse_impossible(fleet, top["families"])
    return fleet


def read_demand(path: str | Path, fleet: Fleet) -> dict[str, float]:
    """Read requests/s by family from a YAML or JSON file."""
    return _demand(fleet, load(Path(path), "demand"))


def read_running(path: str | Path, fleet: Fleet) -> Placement:
    """Read what runs from a YAML or JSON file: as in FLEET.yaml, or a plan that `sluice fleet --out` wrote."""
    entry = load(Path(path), "running")
    if isinstance(entry.value, dict) and "placement" in entry.value:
        entry = entry.below("placement", entry.value["placement"])
    return _running(fleet, entry)


def _device(name: str, entry: Entry) -> DeviceType:
    fields = entry.fields("count", "memory_mb", "workers")
    memory_mb = fields["memory_mb"].number("MB > 0", 0, above=True) if "memory_mb" in fields else math.inf
    if "workers" not in fields:
        entry.check("count" in fields, "a mapping with a count, or with the addresses of its workers")
        return DeviceType(name, fields["count"].whole("an integer >= 0", most=MOST_DEVICES), memory_mb)
    allowed = "a list of different addresses, one a device"
    given = fields["workers"]
    given.check(isinstance(given.value, list) and bool(given.value), allowed)
    workers = tuple(_worker(given.below(i, value)) for i, value in enumerate(given.value))
    given.check(len({address.rstrip("/") for address in workers}) == len(workers), allowed)
    given.check(len(workers) <= MOST_DEVICES, f"at most {MOST_DEVICES}")
    if "count" in fields:
        fields["count"].check(fields["count"].value == len(workers), f"{len(workers)}, as many as workers, or no count")
    return DeviceType(name, len(workers), memory_mb, workers)


def _worker(entry: Entry) -> str:
    address, allowed = entry.text("the address of a worker"), "http://HOST:PORT"
    asked = f"; did you mean http://{address}?" if is_http(f"http://{address}") and "://" not in address else ""
    if not is_http(address) or "," in address:
        raise InvalidInput(entry.where, without_password(address), allowed + asked)
    return address


@dataclass
class _Variants:
    """The variants as they are read, family by family: where each stands, and the profiles by (device type, variant)."""

    devices: Mapping[str, DeviceType]
    folder: Path
    paths: dict[str, str] = field(default_factory=dict)
    profiles: dict[tuple[str, str], Profile] = field(default_factory=dict)

    def family(self, name: str, entry: Entry) -> Family:
        fields = entry.fields("slo", "variants", needed=("slo", "variants"))
        slo = _slo(fields["slo"])
        variants = tuple(self._variant(*named, slo) for named in fields["variants"].items())
        return Family(name, slo, variants)

    def _variant(self, name: str, entry: Entry, slo: Slo) -> Variant:
        if name in self.paths:
            raise InvalidInput(entry.where, name, f"a name of its own in the fleet: {self.paths[name]} has it")
        self.paths[name] = entry.path
        parts = entry.fields("accuracy", "memory_mb", "memory_mb_per_request", "profiles", needed=("accuracy", "profiles"))
        memory = (parts[key].number("MB >= 0", 0) if key in parts else 0.0 for key in ("memory_mb", "memory_mb_per_request"))
        accuracy = parts["accuracy"].number("percent, 0 to 100", 0, 100)
        parts["accuracy"].check(not 0 < accuracy <= 1, f"percent, 0 to 100; did you mean {100 * accuracy:g}?")
        variant = Variant(name, accuracy, *memory)
        for device, profile in parts["profiles"].items():
            profile.check(device in self.devices, one_of(self.devices, "devices"))
            self.profiles[device, name] = _profile(profile, self.devices[device], self.folder, FAR * slo.latency)
        return variant


def _slo(entry: Entry) -> Slo:
    if not isinstance(entry.value, dict):
        return Slo(entry.duration("a number of seconds > 0, or a mapping with latency and percentile"))
    fields = entry.fields("latency", "percentile", needed=("latency",))
    latency = fields["latency"].duration("a number of seconds > 0")
    if "percentile" not in fields:
        return Slo(latency)
    allowed = "a number strictly between 0 and 100"
    percentile = fields["percentile"].number(allowed, 0, 100, above=True)
    fields["percentile"].check(percentile < 100, allowed)
    fields["percentile"].check(percentile >= 1, f"percent of the requests, at least 1; did you mean {100 * percentile:g}?")
    return Slo(latency, percentile)


def _profile(entry: Entry, device: DeviceType, folder: Path, far: float) -> Profile:
    """Of what ``entry`` says; of times without a unit of ``far`` seconds or more for a request it is asked."""
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
        intercept, slope = (fields[key].duration(TIME, above=False, asked_from=math.inf) for key in ("intercept", "slope"))
        longer, beside = ("intercept", slope) if intercept >= slope else ("slope", intercept)
        fields[longer].duration(TIME, above=False, asked_from=far - beside)
        entry.check(intercept + slope > 0, "an intercept or a slope > 0")
        return Profile.of_line(intercept, slope, fields["max_batch"].whole("an integer >= 1", 1, MAX_BATCH))
    for b in value:
        entry.check(b >= 1, "batch sizes >= 1")
        entry.check(b <= MAX_BATCH, f"batch sizes of at most {MAX_BATCH}")
    entry.check(1 in value, "batch size 1 among the batch sizes")
    points = {b: entry.below(b, s).duration("a number of seconds > 0", asked_from=far * b) for b, s in value.items()}
    return Profile.of_points(points)


def _measured(entry: Entry, named: Entry, memory_mb: int | None, device: DeviceType, folder: Path) -> Profile:
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


def _demand(fleet: Fleet, entry: Entry) -> dict[str, float]:
    demand = {}
    for name, rate in entry.items():
        rate.check(name in fleet.family_names, "a rate for " + one_of(fleet.family_names, "families"))
        demand[name] = rate.number("requests/s >= 0", 0)
        rate.check(demand[name] <= MOST_REQUESTS, f"requests/s, at most {MOST_REQUESTS:g}")
    entry.check(any(demand.values()), "a rate > 0 for at least one family")
    return demand


def _running(fleet: Fleet, entry: Entry) -> dict[str, str | None]:
    """By device type, counts or a list in the order of its devices; or by device."""
    types = {device.name: device.device_names for device in fleet.devices}
    placement: dict[str, str | None] = {}
    for name, given in entry.items() if entry.value != {} else ():
        if name in types:
            hosted = _of_type(fleet, given, len(types[name]))
            placed = dict(zip(types[name], hosted, strict=False))
            twice = next((device for device in placed if device in placement), None)
            given.check(twice is None, f"each device once; {twice} has an entry of its own")
        else:
            given.check(name in fleet.types_by_device, one_of([*types, *fleet.types_by_device], "device types and devices"))
            placed = {name: _hosted(fleet, given)}
            given.check(name not in placement, "each device once; its type's entry names it, too")
        placement |= placed
    return placement


def _of_type(fleet: Fleet, given: Entry, count: int) -> list[str | None]:
    """What the devices of a type run, in their order: told as how many run each variant, or as a list."""
    allowed = f"at most {count}, the devices of the type"
    if isinstance(given.value, dict):
        counts = {variant: _count(fleet, variant, number) for variant, number in given.items()}
        given.check(sum(counts.values()) <= count, allowed)
        return [variant for variant, number in counts.items() for _ in range(number)]
    given.check(isinstance(given.value, list), "how many devices run each variant, or a list of what each device runs")
    given.check(len(given.value) <= count, allowed)
    return [_hosted(fleet, given.below(i, hosted)) for i, hosted in enumerate(given.value)]


def _count(fleet: Fleet, variant: str, number: Entry) -> int:
    names = [known.name for known in fleet.variants]
    number.check(variant in names, one_of(names, "variants"))
    return number.whole("an integer >= 0")


def _hosted(fleet: Fleet, entry: Entry) -> str | None:
    """A variant, or nothing."""
    names = [known.name for known in fleet.variants]
    entry.check(
        entry.value is None or (isinstance(entry.value, str) and entry.value in names), one_of(names, "variants") + ", or null"
    )
    return None if entry.value is None else str(entry.value)


def _refuse_impossible(fleet: Fleet, families: Entry) -> None:
    """Refuse a variant without a profile, and a family that no device can serve within its SLO."""
    for q, family in enumerate(fleet.families):
        where = families.below(family.name, None).where
        members = np.flatnonzero(fleet.family_of_variant == q)
        pairs = [(d, int(m)) for m in members for d in range(len(fleet.devices))]
        if any(fleet.capacity(d, m) for d, m in pairs):
            continue
        found = [(fleet.quickest(int(m)), fleet.variants[m].name) for m in members]
        quickest = [(alone[0], variant, alone[1]) for alone, variant in found if alone]
        if not quickest:
            raise InvalidInput(
                f"{where}.variants", [v.name for v in family.variants], "a variant that fits into the memory of a device"
            )
        seconds, variant, device = min(quickest)
        allowed = f"at least {seconds / NEARLY:.4g} s, as one request takes {seconds:.4g} s on the quickest ({variant} on {device})"
        raise InvalidInput(f"{where}.slo", family.slo.latency, allowed)
