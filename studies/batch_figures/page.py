"""The page docs/batch-figures.md."""

from __future__ import annotations

from ..claims import claimed
from ..markdown import page_of, table
from .claims import claims
from .computation import (
    DEGREE,
    FLOOR,
    LARGEST,
    MEASURED_BATCH_SIZES,
    MEMORY_SIZES,
    NETWORKS,
    NOW,
    PARALLEL,
    PER_BATCH,
    PER_IMAGE,
    POISSON,
    THEN,
    VCPU,
    saving,
)
from .results import Study


def page(study: Study) -> str:
    """The page in Markdown."""
    return page_of(
        [
            "# BATCH's figure 4, and what its 100 ms bill did",
            "Made by `python -m studies.batch_figures`; a test makes it again and compares.",
            *what_is_whose(study),
            " ".join(f"![figure 4({panel})](figures/batch-figure-4{panel}.svg)" for panel in "abc"),
            claimed(claims(study)),
            """
            The shapes are the paper's. The curve of (c) owes its teeth to the rounding: a batch of 5 that takes a little
            over 1.0 s is billed 1.1 s until more memory takes it below 1.0 s. By the millisecond the same network costs
            least with the least memory, as its service time falls more slowly than its memory grows. So the memory size
            that was cheapest by BATCH's bill need not be today; the granularity is a parameter of the search. (A network
            that is short of memory at the small sizes has its own minimum, whatever the rounding; its profile shows it.)""",
            *rounding(),
            """
            The paper's savings against SageMaker and MArk rest on measurements of its own; they are not reproduced.""",
        ]
    )


def what_is_whose(study: Study) -> list[str]:
    """What is computed, what of it the paper gives, and what is ours."""
    worst, sizes, batches = 100 * study.worst, len(MEMORY_SIZES), len(MEASURED_BATCH_SIZES)
    floor, per_batch, per_image = 1000 * FLOOR, 1000 * PER_BATCH, 1000 * PER_IMAGE
    return [
        """
        Ali, Pinciroli, Yan and Smirni (BATCH, SC'20) show in their figure 4 how batch size, timeout and memory size
        bear on the service time of a request, the throughput and the cost, for ResNet-v2 on AWS Lambda. Here are the
        same settings in this project's model.""",
        """
        **Of the paper:** eq. (1) with K1 = 1.66667·10⁻⁵ USD per GB-second and K2 = 2·10⁻⁷ USD per call, durations
        rounded up to 100 ms, as AWS billed until December 2020, memory up to 3008 MB; (a) batch sizes 1 to 20, 3008 MB,
        a timeout of 1 h; (b) timeouts to 0.3 s, batch size 20, 3008 MB; (c) memory from 1.5 GB, batch size 5, a timeout
        of 1 h; service times by polynomial regression over a profile.""",
        f"""
        **Ours**, as the paper gives neither its profile nor the arrivals: an image network that takes {floor:.0f} ms
        which no memory makes shorter, and {per_batch:.0f} ms + {per_image:.0f} ms · b of
        one vCPU; {VCPU} MB bring one, and a second one shares {100 * PARALLEL:.0f} % of the work. Its profile at
        {sizes} memory sizes and {batches} batch sizes is met by a polynomial of degree {DEGREE} to {worst:.1f} %.
        Arrivals are Poisson, {POISSON.arrival_rate:.0f} requests/s; in (b) there is beside it an MMPP(2) of the same
        mean, with phases of 300 and 50 requests/s that last 1.7 and 2.5 s. Service time is the mean from arrival to
        answer, the wait for the batch included; throughput is what one environment of the function answers per second
        while it works, E[N] / E[S].""",
    ]


def rounding() -> list[str]:
    """What the steps of the bill make of the saving."""
    header = ["network", "8, 100 ms", "8, 1 ms", f"{LARGEST}, 100 ms", f"{LARGEST}, 1 ms"]
    rows = [
        [network.name, *(f"{saving(network, granularity)[b - 1]:.1f}" for b in (8, LARGEST) for granularity in (THEN, NOW))]
        for network in NETWORKS
    ]
    return [
        "## What rounding did to the saving",
        """
        Cost of requests one by one over that of the same requests in full batches, at the prices above, which are still
        those of x86 today:""",
        table(header, rows),
        "![saving against batch size](figures/batch-rounding.svg)",
        """
        In steps of 100 ms a request of 12 ms paid for 100 ms, and the others of a batch that took no more than that
        were free: the saving is the batch size, whatever the network gains by batching. By the millisecond there remain
        the request fee, paid once per batch, and what the network itself gains. A saving quoted from BATCH's year is no
        guide to today's.""",
    ]
