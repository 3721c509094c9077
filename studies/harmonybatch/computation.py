"""Every way to serve every set of applications, predicted and run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np

from .functions import BILLS
from .merging import Application, HarmonyBatch
from .queues import Queue, mean_cost, merged, size_or_timeout
from .results import ALONE, ANY, BATCH, MERGED, PUBLISHED, REGROUPED, SLUICE, STRICT, Partitioned, Row
from .running import run
from .sets import WIDE, sets
from .sharing import Sharing, together

N_REQUESTS = 100_000  # of each queue
MOST_PARTITIONED = 6  # applications, of which there are 203 partitions


def compute() -> list[Row]:
    """Everything."""
    return [row for bill in BILLS for name in sets() for row in rows_of(name, bill)]


def partitioned() -> Iterator[Partitioned]:
    """Neighbours beside all partitions, for the sets of the wide family."""
    for applications in WIDE.draw():
        for bill in BILLS:
            yield partitioned_set(applications, bill)


def partitioned_set(applications: Sequence[Application], bill: str) -> Partitioned:
    """The same of one set."""
    sharing = Sharing(applications, bill)
    best = sharing.any_groups()
    groups = "; ".join(", ".join(str(applications.index(of) + 1) for of in queue.applications) for queue in best)
    promises, rates = (" ".join(f"{value:g}" for value in values) for values in zip(*applications, strict=True))
    return Partitioned(promises, rates, bill, mean_cost(sharing.neighbours()), mean_cost(best), groups)


def rows_of(name: str, bill: str, n_requests: int = N_REQUESTS) -> Iterator[Row]:
    """All ways of one set."""
    applications = sets()[name]
    for way, queues in ways(applications, bill).items():
        ran = run(queues, n_requests, np.random.default_rng(crc32(name.encode())))
        yield Row(name, bill, way, mean_cost(queues), ran.cost, ran.half, ran.late, said(queues, applications))
    if len(applications) <= MOST_PARTITIONED:
        queues = Sharing(applications, bill).any_groups()
        yield Row(name, bill, ANY, mean_cost(queues), np.nan, np.nan, np.nan, said(queues, applications))


def ways(applications: Sequence[Application], bill: str) -> dict[str, list[Queue]]:
    """The queues of each way."""
    sharing = Sharing(applications, bill)
    groups = HarmonyBatch(bill).plan(applications)
    return {
        SLUICE: sharing.neighbours(),
        ALONE: [sharing.together((k,)) for k in range(len(applications))],
        STRICT: [strict(applications, bill)],
        MERGED: [merged(group) for group in groups],
        REGROUPED: [together(group.applications, bill) for group in groups],
        PUBLISHED: [merged(group) for group in HarmonyBatch(bill, published=True).plan(applications)],
        BATCH: [size_or_timeout(of, bill) for of in applications],
    }


def strict(applications: Sequence[Application], bill: str) -> Queue:
    """One queue, in which everybody hurries like the strictest."""
    tightest = min(of.slo for of in applications)
    queue = together([Application(tightest, sum(of.rate for of in applications))], bill)
    return replace(queue, applications=tuple(applications), slacks=(0.0,) * len(applications))


def said(queues: Sequence[Queue], applications: Sequence[Application]) -> str:
    """``1, 2: GPU 2 GB, 14``: the applications of each queue by promise, its function, its largest batch."""
    place = {id(of): k for k, of in enumerate(applications, 1)}
    return "; ".join(
        f"{', '.join(str(place[id(of)]) for of in queue.applications)}: {queue.function.name}, {queue.policy.max_batch_size}"
        for queue in queues
    )
