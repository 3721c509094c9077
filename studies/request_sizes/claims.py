"""What is asked of the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..claims import Claim
from .computation import OWN, POISSON
from .results import ALONE, BATCHED, CLASSES, ONE_QUEUE, SEEING, SHUFFLED, Row

Cell = dict[str, Row]
CLOSE = 0.05  # of a measured p95 or cost
SAME = 0.002  # of a cost: chance


def cells(rows: Iterable[Row], arrivals: str = "") -> list[Cell]:
    """The ways of each cell by name; of some arrivals alone where they are named."""
    found: dict[tuple[str, str, float, float], Cell] = {}
    for row in rows:
        if arrivals in ("", row.arrivals):
            found.setdefault(row.cell, {})[row.way] = row
    return list(found.values())


def claims(rows: Sequence[Row]) -> list[Claim]:
    """All of them."""
    return [*predictions(rows), *costs(rows)]


def predictions(rows: Sequence[Row]) -> list[Claim]:
    """How near the predictions are, with sizes that no plan has seen."""
    drawn = [row for row in rows if row.arrivals == POISSON and row.way in (ALONE, ONE_QUEUE, BATCHED, CLASSES)]
    p95 = max((abs(row.p95_error) for row in drawn), default=0.0)
    cost = max((abs(row.cost_error) for row in drawn), default=0.0)
    classes = [row for row in drawn if row.way == CLASSES]
    own = [cell for cell in cells(rows, OWN) if SHUFFLED in cell]
    order = max((abs(cell[CLASSES].p95 / cell[SHUFFLED].p95 - 1) for cell in own), default=0.0)
    fit = max((abs(cell[CLASSES].p95_error) for cell in own), default=0.0)
    return [
        Claim(
            "p95 is predicted within 5 % on the held-out half of the sizes (Poisson arrivals)",
            p95 <= CLOSE,
            f"at most {100 * p95:.2g} % off in {len(drawn)} runs, with classes {100 * worst_p95(classes):.2g} %",
        ),
        Claim("so is the cost", cost <= CLOSE, f"at most {100 * cost:.2g} % off"),
        Claim(
            "the order of the sizes in the trace costs the prediction nothing",
            order <= CLOSE,
            f"p95 moves by at most {100 * order:.2g} % when the sizes are shuffled, on the trace's own arrivals",
        ),
        Claim(
            "on the trace's own arrivals, fitted to the first half, p95 is within 5 % as well",
            fit <= CLOSE,
            f"at most {100 * fit:.2g} % off in {len(own)} runs",
        ),
    ]


def worst_p95(rows: Iterable[Row]) -> float:
    """The largest error of a predicted p95."""
    return max((abs(row.p95_error) for row in rows), default=0.0)


def costs(rows: Sequence[Row]) -> list[Claim]:
    """What is cheaper."""
    found = [cell for cell in cells(rows) if ONE_QUEUE in cell]
    saved = [1 - cell[CLASSES].cost / cell[ONE_QUEUE].cost for cell in found]
    several = [cell for cell in found if len(cell[CLASSES].ends.split()) > 1]
    seeing = [1 - cell[SEEING].cost / cell[CLASSES].cost for cell in several]
    kept = sum(cell[CLASSES].late <= 0.05 for cell in cells(rows, POISSON))
    cheaper = sum(share > SAME for share in saved)
    batched = [cell for cell in found if cell[ONE_QUEUE].mean_batch > 1.005]
    blind = [1 - cell[CLASSES].cost / cell[BATCHED].cost for cell in found if BATCHED in cell]
    return [
        Claim(
            "size classes cost less than batching without regard to size",
            bool(blind) and min(blind) > SAME,
            f"in {sum(share > SAME for share in blind)} of {len(blind)} cells, by {100 * min(blind, default=0.0):.2g} to "
            f"{100 * max(blind, default=0.0):.2g} %",
        ),
        Claim(
            "they cost less than the best one queue, which need not batch",
            None if 0 < cheaper < len(found) else cheaper == len(found),
            f"in {cheaper} of {len(found)} cells, by {100 * min(saved):.2g} to {100 * max(saved):.2g} %, "
            f"{100 * sum(saved) / len(saved):.2g} % in the mean",
        ),
        Claim(
            "without regard to size batching pays by itself",
            None if 0 < len(batched) < len(found) else len(batched) == len(found),
            f"the best one queue batches at all in {len(batched)} of {len(found)} cells: padding eats what a batch saves",
        ),
        Claim(
            "a table that sees classes is cheaper than classes",
            None if 0 < sum(share > SAME for share in seeing) < len(seeing) else bool(seeing) and min(seeing) > SAME,
            f"in {sum(share > SAME for share in seeing)} of {len(seeing)} cells with several classes, "
            f"by {100 * min(seeing, default=0.0):.2g} to {100 * max(seeing, default=0.0):.2g} %",
        ),
        Claim(
            "the SLO is kept over all requests",
            kept == len(cells(rows, POISSON)),
            f"by the classes in {kept} of {len(cells(rows, POISSON))} cells of Poisson arrivals",
        ),
    ]
