"""The page docs/harmonybatch.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..claims import claimed
from ..markdown import bullets, page_of, table
from .claims import SAME, WORTH, Cell, cells, claims, errors, median, neighbours_beyond, other_than_neighbours, percent, saved
from .computation import N_REQUESTS
from .functions import BILLS, EXACT, MOST_VCPU, STEP, WHOLE, model
from .results import ALONE, BATCH, MERGED, PUBLISHED, REGROUPED, SLUICE, STRICT, WAYS, Found, Partitioned, Row
from .sets import EIGHT, FAMILY, MAIN, SELDOM, TABLE, WIDE, Family, sets

OWN = (MAIN, TABLE, EIGHT, SELDOM)
SHOWN = (MERGED, REGROUPED, PUBLISHED, BATCH, ALONE, STRICT)


def page(found: Found) -> str:
    """The page in Markdown, all numbers from the data."""
    rows = found.rows
    return page_of(
        [
            "# Several applications, one model: beside HarmonyBatch",
            *in_short(rows),
            "![cost over that of the shared queues, by requests per second](figures/harmonybatch.svg)",
            "## What is compared",
            *what_is_compared(),
            "## What was asked",
            claimed(claims(found), "asked"),
            *why(found),
            "## HarmonyBatch's own sets",
            f"""
            CNY per million requests. *Predicted* is each one's own prediction, *run* {N_REQUESTS} Poisson arrivals a queue, with
            half the 95 % interval. Queues are applications by promise: function, largest batch.""",
            *(own_set(rows, name) for name in OWN),
            "## The random family",
            f"""
            {drawn(FAMILY)}. CNY per million requests with Sluice's shared queues, run, their number, and what the others cost over
            that.""",
            *(
                part
                for bill in BILLS
                for part in (f"GPU seconds billed {'whole' if bill == WHOLE else 'exactly'}:", family(rows, bill))
            ),
        ]
    )


def in_short(rows: Sequence[Row]) -> list[str]:
    """What a reader wants to know."""
    whole, exact = (cells(rows, bill) for bill in BILLS)
    late = max(row.late for row in rows if row.way in WAYS)
    return [
        f"""
        Applications that share a network, each with a promise of its own: a queue for each makes small batches, one queue at the
        strictest promise makes all of them hurry. HarmonyBatch (Chen et al., IWQoS 2024) groups them. On its own latency model and
        its own prices, for its own sets of applications and a random family, **queues shared to the last moment, in which [each
        request keeps its own promise](classes.md), cost {spans(whole, MERGED)} less than HarmonyBatch's** where a GPU
        function is billed by whole seconds, as its published code has it, and {spans(exact, MERGED)} less where it is billed
        exactly, as its paper's formula has it.""",
        table(
            ["Sluice's shared queues cost less than, in the median (least to most)", "whole seconds", "exact"],
            [[said(way), spans(whole, way), spans(exact, way)] for way in SHOWN],
        ),
        f"""
        *Where nothing is gained.* With exact bills Sluice saves less than {percent(WORTH)} of HarmonyBatch's cost in
        {small(exact, MERGED)} of {len(exact)} sets, and of one strict queue's in {small(exact, STRICT)}: one large GPU function
        serves a batch of all so quickly that patience buys hardly anything, and what is left is to have one queue at all. With
        whole seconds that is so in {small(whole, MERGED)} and {small(whole, STRICT)} of {len(whole)}. Sharing itself, against a
        queue each that waits to the last moment, is worth less than {percent(WORTH)} in {small(whole, ALONE)} and
        {small(exact, ALONE)} sets; {none_shared(rows)}""",
        f"""
        *Who is late.* Nobody, whoever plans: the largest share of any application's requests beyond its promise is {late:g}, where
        every batch takes as long as it may at longest.""",
        """
        Made by `python -m studies.harmonybatch --compute`, which takes a minute and a half, from what it leaves in
        [harmonybatch.csv](../studies/data/harmonybatch.csv).""",
    ]


def spans(found: Sequence[Cell], way: str) -> str:
    """Median, least and most that Sluice saves against another way."""
    shares = saved(found, SLUICE, way)
    return f"{percent(median(shares))} ({percent(min(shares))} to {percent(max(shares))})"


def small(found: Sequence[Cell], way: str) -> int:
    """In how many cells Sluice saves hardly anything against another way."""
    return sum(share < WORTH for share in saved(found, SLUICE, way))


def none_shared(rows: Sequence[Row]) -> str:
    """Where the best grouping has a queue for each."""
    found = [cell[SLUICE] for cell in cells(rows) if cell[SLUICE].n_queues == cell[ALONE].n_queues]
    names = ", ".join(f"{row.applications} ({row.bill})" for row in found)
    return f"the best grouping is a queue each in {len(found)}: {names}." if found else "the best grouping shares a queue in all."


def said(way: str) -> str:
    """A way in words."""
    return {MERGED: "HarmonyBatch", PUBLISHED: "HarmonyBatch as published", BATCH: "BATCH, a queue each"}.get(way, way)


def what_is_compared() -> list[str]:
    """Model, prices, sets and ways."""
    prices, gpu, cpu = model().prices, model().gpu, model().cpu
    return [
        f"""
        *Functions.* VGG-19 on CPU functions of Alibaba Cloud, in steps of {STEP:g} vCPU up to {MOST_VCPU:g}, with batches up to
        {cpu.batch_size[1]}, and on parts of {gpu.smallest_gb} to {gpu.memory_gb[1]} GB of a GPU, in time slices, with batches up to
        {gpu.batch_size[1]}: the coefficients, ranges and prices that HarmonyBatch publishes
        ([harmonybatch-model.json](../studies/data/harmonybatch-model.json), with their source and licence). The mean of a batch's
        time is billed; the promise is about the longest. CNY: {prices.vcpu_second:g} for a vCPU-second, {prices.gb_second:g} for a
        GB-second of memory, {prices.gpu_gb_second:g} for one of the GPU's, {prices.invocation:g} for an invocation.""",
        f"""
        *Bills.* HarmonyBatch's code rounds what a GPU function takes up to whole seconds, its paper's formula (6) does not. Both
        are here: *{WHOLE}* and *{EXACT}*.""",
        "*Ways.*",
        bullets(
            f"""**{SLUICE}**: the cheapest of all groupings, as `sluice recommend --class` answers, each group before the function
            that is cheapest for it. Its table waits to the last moment for its strictest promise, and each request so much longer
            as its own is longer ([classes](classes.md)). Costs are exact for Poisson arrivals ([model](model.md), 2.9 and
            3.7).""",
            """**HarmonyBatch**: its two stages of merging, as in its Algorithm 1; each group with a batch size and a timeout for
            each application, which fold into one (5), (12); batches taken for full where the folded timeout lets them fill in the
            mean (9). vCPU are rounded up to what can be had. In its Table I it merges what the paper does, with a batch that is
            one larger than the 13 of the paper, as (9) admits.""",
            f"""**{REGROUPED}**: the groups that its merging finds, each with the table and the function that Sluice gives it.""",
            """**HarmonyBatch as published**: what its code does instead, found again group by group with the same function and
            batch size on all sets. It weighs a merged group by its share of the requests and one more, so that merging hardly ever
            seems to pay; in the paper's Table I it does not merge what the paper does. It also bounds the longest time by
            the longest promise of a group, which makes nobody late in these sets. That code bills whole seconds; with exact bills
            it is the same rules.""",
            """**BATCH**: a queue for each application, size-or-timeout, the best size, function and timeout, exactly. BATCH itself
            knows CPU functions alone.""",
            f"""**{ALONE}**: Sluice without sharing. **{STRICT}**: one table to the last moment, in which all are served as the
            strictest.""",
        ),
        f"""
        *Runs.* {N_REQUESTS} requests a queue, Poisson; a batch takes as long as it may at longest, and is billed as in the mean. A
        test has the same batches from a loop written by hand.""",
    ]


def why(kept: Found) -> list[str]:
    """The reasons."""
    rows, found = kept.rows, cells(kept.rows)
    others = other_than_neighbours(kept.partitioned)
    worst = min(found, key=lambda cell: cell[MERGED].predicted / cell[MERGED].cost)
    row, alone, ours = worst[MERGED], worst[ALONE], worst[SLUICE]
    return [
        f"""
        *Full batches.* HarmonyBatch takes a batch for full where so many come within the timeout in the mean. Some batches leave
        with fewer, and cost as much. So it predicts up to {percent(-min(errors(found, MERGED)))} too little, most for
        {row.applications} ({row.bill}): {million(row.predicted)} CNY per million where the run comes to {million(row.cost)}, a
        queue each to {million(alone.cost)}, and Sluice's queues to {million(ours.cost)}. A table that waits to the last moment
        holds a batch that is small for longer than one that is nearly full, and its cost is predicted by the law of its batch
        sizes.""",
        f"""
        *Groups and tables.* Of what is saved against HarmonyBatch {share_of_tables(rows, WHOLE)} (whole seconds) and
        {share_of_tables(rows, EXACT)} (exact) is saved by Sluice's tables for the same groups, in the mean of all sets, the rest by
        other groups.""",
        f"""
        *Neighbours.* The best groups are neighbours by promise in all of these sets but {other_sets(rows)}. So a wider family was
        asked, {drawn(WIDE)}: there the best groups are not all neighbours in {len(others)} of {len(kept.partitioned)} cells, and
        neighbours cost at most {percent(max((of.beyond for of in others), default=0.0))} more. {an_example(others)}""",
    ]


def other_sets(rows: Sequence[Row]) -> int:
    """In how many cells the best groups are not all neighbours."""
    return sum(share > SAME for share in neighbours_beyond(cells(rows)))


def an_example(others: Sequence[Partitioned]) -> str:
    """The set in which neighbours cost most beyond the best groups."""
    if not others:
        return ""
    of = others[0]
    return f"""With promises of {", ".join(of.promises.split())} s and {", ".join(of.rates.split())} requests/s ({of.bill}) the best
        groups are {of.groups.replace(";", " and")}: a rare application with much patience costs hardly anything where requests of
        a stricter one leave all the time, and the one between them is better off alone."""


def drawn(family: Family) -> str:
    """A family in words."""
    least, most = family.members
    return (
        f"{family.number} sets of {least} to {most} applications, promises evenly from {family.slos[0]:g} to {family.slos[1]:g} s, "
        f"rates from {family.rates[0]:g} to {family.rates[1]:g} requests/s evenly by their logarithm"
    )


def share_of_tables(rows: Sequence[Row], bill: str) -> str:
    """The part of all that is saved against HarmonyBatch, of its cost, that is saved with its own groups."""
    found = cells(rows, bill)
    return f"{100 * sum(saved(found, REGROUPED, MERGED)) / sum(saved(found, SLUICE, MERGED)):.0f} %"


def own_set(rows: Sequence[Row], name: str) -> str:
    """The heading of a set, and all its ways."""
    applications = "; ".join(f"{of.slo:g} s, {of.rate:g}/s" for of in sets()[name])
    lines = [
        [row.bill, said(row.way), million(row.predicted), f"{million(row.cost)} ± {1e6 * row.half:.2g}", row.queues]
        for cell in cells(rows)
        for way, row in cell.items()
        if row.applications == name and way in WAYS
    ]
    return f"### {name}: {applications}\n\n" + table(["bill", "way", "predicted", "run", "queues"], lines)


def family(rows: Sequence[Row], bill: str) -> str:
    """A line for each random set."""
    found = [cell for cell in cells(rows, bill) if cell[SLUICE].applications not in OWN]
    header = ["set", "applications", "requests/s", SLUICE, "queues", *map(said, SHOWN)]
    return table(header, lines_of(found))


def lines_of(found: Iterable[Cell]) -> list[list[str]]:
    """Cells as lines."""
    lines = []
    for cell in found:
        ours = cell[SLUICE]
        applications = sets()[ours.applications]
        ratios = [f"{cell[way].cost / ours.cost:.3f}" for way in SHOWN]
        rate = sum(of.rate for of in applications)
        name = ours.applications.removeprefix("random ")
        lines.append([name, str(len(applications)), f"{rate:.3g}", million(ours.cost), str(ours.n_queues), *ratios])
    return lines


def million(cost: float) -> str:
    """CNY per million requests."""
    return f"{1e6 * cost:.4g}"
