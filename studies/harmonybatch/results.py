"""What was found, as data/harmonybatch.csv and -partitions.csv keep it, and what the published code answers (-published.csv)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..publishing import DATA
from ..rows import read_rows, write_rows

FILE = DATA / "harmonybatch.csv"
PUBLISHED_FILE = DATA / "harmonybatch-published.csv"
PARTITIONS_FILE = DATA / "harmonybatch-partitions.csv"
DIGITS = 8
SLUICE, ALONE, STRICT = "Sluice", "a queue each, last moment", "one strict queue"
MERGED, PUBLISHED, BATCH = "HarmonyBatch", "HarmonyBatch as published", "BATCH"
REGROUPED = "HarmonyBatch's groups, Sluice's queues"
ANY = "any partition"
WAYS = (SLUICE, ALONE, STRICT, MERGED, REGROUPED, PUBLISHED, BATCH)


@dataclass(frozen=True)
class Row:
    """A way to serve a set of applications; CNY per request.

    ``half`` is half the 95 % interval of the simulated ``cost``, ``late`` the largest share of an application's requests beyond its
    promise, both nan where nothing was run. ``queues`` says each queue's applications by their place, and its function and largest
    batch.
    """

    applications: str
    bill: str
    way: str
    predicted: float
    cost: float
    half: float
    late: float
    queues: str

    @property
    def cell(self) -> tuple[str, str]:
        """What rows to be compared have in common."""
        return self.applications, self.bill

    @property
    def n_queues(self) -> int:
        """How many queues there are."""
        return len(self.queues.split("; "))


@dataclass(frozen=True)
class PublishedGroup:
    """A group that HarmonyBatch's own code answered: how many ``members``, by promise from where the group before ended.

    ``vcpu`` and ``gpu_gb`` of its function, the latter ``None`` on a CPU; ``timeout`` (s) of its first member; CNY per request.
    """

    applications: str
    members: int
    vcpu: float
    gpu_gb: int | None
    batch_size: int
    timeout: float
    cost: float


@dataclass(frozen=True)
class Partitioned:
    """The best grouping of a set into neighbours by promise beside the best of all partitions; CNY per request, predicted.

    ``promises`` and ``rates`` are those of the applications, the strictest first; ``groups`` are those of the best partition, by
    their places.
    """

    promises: str
    rates: str
    bill: str
    neighbours: float
    any_groups: float
    groups: str

    @property
    def beyond(self) -> float:
        """What the neighbours cost more, part of the cost."""
        return self.neighbours / self.any_groups - 1


class Found(NamedTuple):
    """All that is kept; ``published`` is what HarmonyBatch's code, at the commit that its model names, answered, run by hand."""

    rows: list[Row]
    partitioned: list[Partitioned]
    published: list[PublishedGroup]


def read() -> Found:
    """What the last run left."""
    return Found(read_rows(FILE, Row), read_rows(PARTITIONS_FILE, Partitioned), read_rows(PUBLISHED_FILE, PublishedGroup))


def write(rows: Iterable[Row], partitioned: Iterable[Partitioned]) -> None:
    """What a run found."""
    write_rows(FILE, Row, rows, DIGITS)
    write_rows(PARTITIONS_FILE, Partitioned, partitioned, DIGITS)
