"""The published formats of Proteus's artefact: profiles, variants, traces, deadlines; read from a folder, never kept.

    profile.csv                              Model, Accel, batchsize, 50th_pct (ms for the whole batch) and more
    model_variants/FAMILY                    variant,accuracy a line (percent of the family's best)
    traces/EXPERIMENT/SLO/FAMILY.txt[.gz]    arrival,class,deadline a line, ms
    deadlines_ms.json                        a family's deadline under each setting, ms

Of two rows for one setting the last counts. A variant that has no row for a device cannot run there; one that has none at all is
left out, and named. Between the profiled batch sizes the time is interpolated; below the least it is that of the least, as a batch
can be padded.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.fleet.specification import DeviceType, Family, Fleet, Variant
from sluice.optimizer.fleet.throughput import Profile
from sluice.optimizer.service.times import ServiceTimes

ACCELERATORS = {"onnxruntime_cpu": "CPU", "onnxruntime_gpu_ampere": "AMPERE", "onnxruntime_gpu_pascal": "PASCAL"}
DEVICES = {"CPU": 20, "AMPERE": 10, "PASCAL": 10}  # of the paper
SUFFIXES = (".txt", ".txt.gz")

Profiles = Mapping[tuple[str, str], Mapping[int, float]]  # seconds by batch size, by (device, variant)


@dataclass(frozen=True)
class Demand:
    """A trace: when the requests of each family arrive, and by when each family's are to be answered; seconds."""

    arrivals: Mapping[str, Array]
    deadlines: Mapping[str, float]

    @property
    def duration(self) -> float:
        """Seconds to the last arrival."""
        return max((float(times[-1]) for times in self.arrivals.values() if len(times)), default=0.0)

    @property
    def n_requests(self) -> int:
        """Requests of all families."""
        return sum(len(times) for times in self.arrivals.values())


def read_profiles(path: Path) -> Profiles:
    """Median seconds by batch size, by (device, variant), of the devices that are known here."""
    profiles: dict[tuple[str, str], dict[int, float]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        columns = ("Model", "Accel", "batchsize", "50th_pct")
        for column in columns:
            require(column in (rows.fieldnames or ()), path.name, ", ".join(rows.fieldnames or ()), f"a column {column}")
        for row in rows:
            if row["Accel"] in ACCELERATORS:
                entry = f"{path.name}, line {rows.line_num}: {row['Model']} on {row['Accel']}"
                size, median = number(row["batchsize"], entry), number(row["50th_pct"], entry)
                require(size >= 1 and size == int(size), entry, row["batchsize"], "a whole batch size >= 1")
                require(0 < median < np.inf, entry, row["50th_pct"], "milliseconds > 0")
                profiles.setdefault((ACCELERATORS[row["Accel"]], row["Model"]), {})[int(size)] = median / 1000
    require(bool(profiles), path.name, "no row", f"rows of one of {', '.join(ACCELERATORS)}")
    return profiles


def number(text: str, entry: str) -> float:
    """A number of a file."""
    try:
        return float(text)
    except (TypeError, ValueError):
        raise InvalidInput(entry, text, "a number") from None


def read_variants(path: Path) -> dict[str, float]:
    """Accuracy (percent) of a family's variants."""
    accuracies = {}
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            variant, comma, accuracy = line.rpartition(",")
            entry = f"model_variants/{path.name}, line {i}"
            require(bool(comma), entry, line, "variant,accuracy")
            accuracies[variant.strip()] = number(accuracy, entry)
            require(0 <= accuracies[variant.strip()] <= 100, entry, line, "an accuracy of 0 to 100 %")
    require(bool(accuracies), f"model_variants/{path.name}", "no line", "variant,accuracy a line")
    return accuracies


def read_trace(path: Path) -> tuple[Array, float]:
    """Arrival times, s, and the deadline of the requests, s; of several deadlines the first."""
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        text = file.read().replace(",", " ").split()
    try:
        rows = np.array(text, dtype=np.float64).reshape(-1, 3)
    except ValueError:
        raise InvalidInput(str(path.name), f"{len(text)} fields", "three numbers a line: arrival,class,deadline in ms") from None
    require(len(rows) > 0, path.name, "no line", "a request a line")
    times = rows[:, 0] / 1000
    require(bool((np.diff(times) >= 0).all() and times[0] >= 0), path.name, "times", "ascending, from 0 on")
    return times, float(rows[0, 2]) / 1000


def read_deadlines(folder: Path) -> dict[str, dict[str, float]]:
    """Deadlines of the families under each setting, s; none where the folder has no such file."""
    path = folder / "deadlines_ms.json"
    if not path.exists():
        return {}
    settings = json.loads(path.read_text(encoding="utf-8"))
    return {name: {family: ms / 1000 for family, ms in deadlines.items()} for name, deadlines in settings.items()}


def read_demand(folder: Path, experiment: str, slo: str = "300") -> Demand:
    """All families of an experiment."""
    place = folder / "traces" / experiment / slo
    require(
        place.is_dir(), "traces", f"{experiment}/{slo}", f"one of {', '.join(experiments(folder)) or 'none: there are no traces'}"
    )
    arrivals, deadlines = {}, {}
    for path in sorted(place.iterdir()):
        family = next((path.name.removesuffix(suffix) for suffix in SUFFIXES if path.name.endswith(suffix)), None)
        if family is not None:
            arrivals[family], deadlines[family] = read_trace(path)
    require(bool(arrivals), f"traces/{experiment}/{slo}", "no file", f"FAMILY{' or FAMILY'.join(SUFFIXES)}")
    return Demand(arrivals, deadlines)


def experiments(folder: Path) -> list[str]:
    """The traces of a folder, as EXPERIMENT/SLO."""
    return sorted("/".join(path.parts[-2:]) for path in (folder / "traces").glob("*/*") if path.is_dir())


def published_fleet(
    folder: Path,
    deadlines: Mapping[str, float],
    devices: Mapping[str, int] = DEVICES,
    batch_sizes: Sequence[int] | None = None,
) -> Fleet:
    """The fleet that serves these families, each within its deadline (s).

    Parameters
    ----------
    devices : mapping
        Devices of each type.
    batch_sizes : sequence of int, optional
        The profiled sizes that are used, by default all.

    Raises
    ------
    InvalidInput
        A family without variants, or without a profile of any; a device that is not known. Names the entry.
    """
    for device in devices:
        require(device in ACCELERATORS.values(), "devices", device, f"one of {', '.join(ACCELERATORS.values())}")
    profiles = read_profiles(folder / "profile.csv")
    known = sorted(path.name for path in (folder / "model_variants").glob("*") if path.is_file())
    families: list[Family] = []
    used: dict[tuple[str, str], Profile] = {}
    for family, deadline in deadlines.items():
        require(family in known, "family", family, f"one with a file in model_variants: {', '.join(known)}")
        accuracies = read_variants(folder / "model_variants" / family)
        of_family = {
            (device, variant): profile_of(profiles[device, variant], batch_sizes)
            for device in devices
            for variant in accuracies
            if (device, variant) in profiles
        }
        profiled = [variant for variant in accuracies if any(name == variant for _, name in of_family)]
        require(bool(profiled), f"family {family}", ", ".join(accuracies), "a variant with a row in profile.csv")
        used |= of_family
        families.append(Family(family, Slo(deadline), tuple(Variant(name, accuracies[name]) for name in profiled)))
    types = tuple(DeviceType(name, count) for name, count in devices.items())
    return Fleet(types, tuple(families), used, dict.fromkeys(deadlines, 1.0))


def unprofiled(folder: Path, families: Iterable[str]) -> list[str]:
    """The variants of these families that no device was profiled with."""
    profiled = {variant for _, variant in read_profiles(folder / "profile.csv")}
    return [f"{family}: {v}" for family in families for v in read_variants(folder / "model_variants" / family) if v not in profiled]


def profile_of(seconds: Mapping[int, float], batch_sizes: Sequence[int] | None = None) -> Profile:
    """The service times of one variant on one device, from the profiled batch sizes."""
    measured = sorted(size for size in seconds if batch_sizes is None or size in batch_sizes)
    require(bool(measured), "batch_sizes", batch_sizes, f"one of those profiled: {sorted(seconds)}")
    sizes = np.arange(1, measured[-1] + 1)
    times = np.interp(sizes, measured, [seconds[size] for size in measured])
    return Profile(ServiceTimes(1, times[:, None], np.zeros(len(times)), times), tuple(measured))
