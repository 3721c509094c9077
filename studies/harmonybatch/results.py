"""What was found, as data/harmonybatch.csv keeps it, and what the published code answers (data/harmonybatch-published.csv)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..publishing import DATA
from ..rows import read_rows, write_rows

FILE = DATA / "harmonybatch.csv"
PUBLISHED_FILE = DATA / "harmonybatch-published.csv"
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


def read() -> list[Row]:
    """The rows that the last run left."""
    return read_rows(FILE, Row)


def read_published() -> list[PublishedGroup]:
    """What HarmonyBatch's code at the commit named in data/harmonybatch-model.json answered, run once by hand."""
    return read_rows(PUBLISHED_FILE, PublishedGroup)


def write(rows: Iterable[Row]) -> None:
    """The rows, eight digits."""
    write_rows(FILE, Row, rows, digits=8)
