"""The page docs/request-sizes.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from sluice.optimizer.billing.prices import default_prices
from sluice.optimizer.recommend.size_classes import MOST_BOUNDARIES, MOST_CLASSES, WORTH

from ..claims import claimed
from ..markdown import page_of, table
from .claims import Cell, cells, claims
from .computation import LATENCIES, LONGEST, N_REQUESTS, OWN, POISSON, RATES, SPEED, halves, hour, lengths, trace
from .results import ALONE, BATCHED, CLASSES, ONE_QUEUE, PERCENTILE, SEEING, Row, profile


def page(rows: Sequence[Row]) -> str:
    """The page, all numbers from the data."""
    return page_of(
        [
            "# Requests of different size",
            *what_is_compared(),
            "## What comes of it",
            claimed(claims(rows), "asked"),
            "![cost beside one queue, by cell](figures/request-sizes-cost.svg)",
            *why(),
            "## All figures",
            """
            USD per million requests, p95 in ms: predicted from the first half of the sizes, then run with the second. *Ends*
            are the largest sizes of the classes; the class table has those classes. One queue that is *one by one* does not
            batch at all.""",
            figures(cells(rows, POISSON)),
            "## On the trace's own arrivals",
            f"""
            The arrivals of the second half as they were recorded, {SPEED:g} times as fast, with their own sizes in their own
            order; the plan is for a process that `sluice fit` chose for the first half. These {len(trace()) // 2}
            requests are few, and they come in bursts: what is off here is off by the fit and by chance.""",
            figures(cells(rows, OWN)),
        ]
    )


def what_is_compared() -> list[str]:
    """Sizes, network and ways, in words."""
    tokens = hour()
    of_next = float(np.corrcoef(tokens[:-1], tokens[1:])[0, 1])
    _, of_gap = trace().size_correlations() or (0.0, 0.0)
    past, ahead = halves(lengths(f"cut at {LONGEST}"))
    points = profile().points
    measured = ", ".join(f"{size:g}" for size in profile().sizes)
    return [
        """
        Made by `python -m studies.request_sizes --compute` from the [profile](../studies/data/request-sizes-profile.json) and
        the data that it leaves in [request-sizes.csv](../studies/data/request-sizes.csv); a test makes this page again from the
        data, and part of the data from the models. [How sizes are served](sizes.md) has a page of its own; the mathematics is
        in [section 9 of the model](model.md).""",
        "## What is compared",
        f"""
        *Sizes.* The context tokens of the {len(hour())} requests that came to a code LLM in an hour ([their
        lengths](../sluice/local/traces/README.md), CC-BY 4.0), of which an encoder takes {LONGEST} at most. They are fitted to it
        in two ways: *cut at {LONGEST}*, as a tokenizer truncates ({100 * float((past == LONGEST).mean()):.0f} % are cut), and
        *a sixteenth* of the tokens, rounded up, which keeps the tail. The first half of the requests is what a plan knows; the
        second, which it has not seen, is what is run (mean {past.mean():.0f} and {ahead.mean():.0f} tokens where they are cut).
        Sizes of consecutive requests have a correlation of {of_next:.3f}; a size and the gap before it, in the quarter of an
        hour whose times are shipped, one of {of_gap:.3f}.""",
        f"""
        *Network.* A transformer encoder of 6 layers, width 384, that pads a batch to its longest request, on one core:
        {len(points)} settings, batches of 1 to {max(point.batch_size for point in points)} of {measured} tokens, measured on
        {str(profile().measured_at)[:10]} with {min(point.service_time.n for point in points)} runs each. The times, of `python
        -m studies.request_sizes.measurement`, are processor seconds of the one thread that computes, on a two-core Intel Xeon
        that other work shared; the billed duration is rounded up to a millisecond, and nothing is added for the way to the
        function. Prices: {default_prices().region}, read {default_prices().read_on}, {profile().memory_sizes[0]} MB.""",
        "![the profile and the mixes](figures/request-sizes-profile.svg)",
        f"""
        *Ways*, for {spoken(RATES)} requests/s and {PERCENTILE:g} % within {spoken(LATENCIES)} s: {ALONE}; {ONE_QUEUE}, the best
        setting without regard to size, which may be no batching; {BATCHED}, which waits to the last moment, whatever comes;
        {CLASSES}, at most {MOST_CLASSES} of them between {MOST_BOUNDARIES} candidate boundaries at most, each with a queue, a
        table and the SLO of its own, and fewer where more save less than {100 * WORTH:g} %; and {SEEING}: the same classes in
        one queue, where a batch of larger requests that leaves with room takes smaller ones along, as many as its oldest can
        wait for. Poisson arrivals, {N_REQUESTS} a run; each batch takes as long as its own largest member has it.""",
    ]


def why() -> list[str]:
    """The reasons."""
    return [
        """
        A batch of this network saves what is read once, weights and calls, and the fee; computing costs by the token, padding
        included, and of long requests a batch saves nothing. So a queue without regard to size pays for the largest of its
        members n times, and the more it batches the more it pays. A class keeps the padding small and batches where that pays,
        among short requests, for which it uses the time that the SLO leaves; long ones go alone. Where most requests are cut to
        the same length, classes are worth nothing. A table that sees classes gives smaller requests places that are padded to
        the larger size, which costs more than a place in a batch of their own, and it empties their queues before these are
        full.""",
    ]


def figures(found: Iterable[Cell]) -> str:
    """Every cell in a line."""
    head = [
        "mix",
        "requests/s",
        "SLO, s",
        ALONE,
        ONE_QUEUE,
        BATCHED,
        "p95, predicted",
        "run",
        CLASSES,
        "ends",
        "p95, predicted",
        "run",
        SEEING,
    ]
    return table(head, (_line(cell) for cell in found))


def _line(cell: Cell) -> list[str]:
    of = cell[CLASSES]
    one, alone = cell.get(ONE_QUEUE), cell.get(ALONE)
    queue = "-" if one is None else _cost(one) + (" one by one" if one.mean_batch < 1.005 else "")
    batched = ["-", "-", "-"] if BATCHED not in cell else [_cost(cell[BATCHED]), *_p95(cell[BATCHED])]
    ends = of.ends.replace(" ", ", ")
    seeing = _cost(cell[SEEING])
    return [
        of.mix,
        f"{of.rate:g}",
        f"{of.slo:g}",
        "-" if alone is None else _cost(alone),
        queue,
        *batched,
        _cost(of),
        ends,
        *_p95(of),
        seeing,
    ]


def _cost(row: Row) -> str:
    return f"{row.cost:.4g}"


def _p95(row: Row) -> list[str]:
    return [f"{1e3 * row.predicted_p95:.4g}", f"{1e3 * row.p95:.4g}"]


def spoken(numbers: Sequence[float]) -> str:
    """``0.1, 0.2 and 0.5``."""
    *others, last = (f"{number:g}" for number in numbers)
    return f"{', '.join(others)} and {last}"
