"""What is asked of the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from ..claims import Claim
from .results import ALONE, ANY, BATCH, MERGED, REGROUPED, SLUICE, STRICT, WAYS, Found, Partitioned, PublishedGroup, Row

Cell = dict[str, Row]
"""The rows of one set and bill by way."""

CLOSE = 0.01  # of a cost, predicted beside run
WORTH = 0.01  # of a cost: what is no cheaper than that is as cheap
SAME = 1e-6  # of a predicted cost
PEERS = (MERGED, BATCH, ALONE, STRICT)


def cells(rows: Iterable[Row], bill: str = "") -> list[Cell]:
    """The ways of each set, of one bill where it is named."""
    found: dict[tuple[str, str], Cell] = {}
    for row in rows:
        if bill in ("", row.bill):
            found.setdefault(row.cell, {})[row.way] = row
    return list(found.values())


def saved(found: Iterable[Cell], way: str, than: str) -> list[float]:
    """What one way saves against another, run; part of the other's cost."""
    return [1 - cell[way].cost / cell[than].cost for cell in found]


def errors(found: Iterable[Cell], way: str) -> list[float]:
    """Predicted cost over that of the run, less 1."""
    return [cell[way].predicted / cell[way].cost - 1 for cell in found]


def beyond_any(found: Iterable[Cell]) -> list[float]:
    """What the best grouping into neighbours costs beyond the best of all partitions, where these were tried."""
    return [cell[SLUICE].predicted / cell[ANY].predicted - 1 for cell in found if ANY in cell]


def merges(published: Sequence[PublishedGroup]) -> tuple[int, int]:
    """Of how many sets the published code merges applications at all, and how many there are."""
    of_set = [list(some) for _, some in groupby(published, key=lambda group: group.applications)]
    return sum(any(group.members > 1 for group in some) for some in of_set), len(of_set)


def other_than_neighbours(partitioned: Iterable[Partitioned]) -> list[Partitioned]:
    """The sets of the wide family whose best groups are not all neighbours, those where it matters most first."""
    return sorted((of for of in partitioned if of.beyond > SAME), key=lambda of: -of.beyond)


def claims(kept: Found) -> list[Claim]:
    """All of them."""
    rows, found = kept.rows, cells(kept.rows)
    cheaper = {way: saved(found, SLUICE, way) for way in PEERS}
    wrong, taken_full, beyond = errors(found, SLUICE), errors(found, MERGED), beyond_any(found)
    late = max(row.late for row in rows if row.way in WAYS)
    wide = [of.beyond for of in kept.partitioned]
    regrouped = [cell[REGROUPED].predicted / cell[SLUICE].predicted - 1 for cell in found]
    dearer = [cell for cell in found if cell[MERGED].cost > cell[ALONE].cost * (1 + WORTH)]
    merging, n_sets = merges(kept.published)
    return [
        Claim("every request is in time, in every way", late == 0, f"largest share of an application's that is late: {late:g}"),
        *(
            Claim(
                f"the shared queues cost no more than {way}",
                min(cheaper[way]) > -CLOSE,
                f"{percent(min(cheaper[way]))} to {percent(max(cheaper[way]))} less, {percent(median(cheaper[way]))} in the median",
            )
            for way in PEERS
        ),
        Claim(
            "what they cost is predicted within 1 %",
            max(map(abs, wrong)) <= CLOSE,
            f"{percent(min(wrong))} to {percent(max(wrong))} off",
        ),
        Claim(
            "batches are as full as HarmonyBatch takes them for",
            min(taken_full) >= -CLOSE,
            f"a request costs up to {percent(max(1 / (1 + error) - 1 for error in taken_full))} more than it predicts",
        ),
        Claim(
            "sharing as HarmonyBatch does never costs more than a queue each that waits to the last moment",
            not dearer,
            f"it does in {len(dearer)} of {len(found)} cells, by up to "
            f"{percent(max((cell[MERGED].cost / cell[ALONE].cost - 1 for cell in dearer), default=0.0))}",
        ),
        Claim(
            "HarmonyBatch's groups are the best ones",
            None if 0 < sum(share <= SAME for share in regrouped) < len(found) else max(regrouped) <= SAME,
            f"in {sum(share <= SAME for share in regrouped)} of {len(found)} cells; with Sluice's queues they cost up to "
            f"{percent(max(regrouped))} more, {percent(median(regrouped))} in the median",
        ),
        Claim(
            "HarmonyBatch's published code merges as its paper says",
            merging == n_sets,
            f"it merges anything in {merging} of {n_sets} sets",
        ),
        Claim(
            "the best grouping into neighbours by promise is the best of all partitions",
            None if 0 < sum(share <= SAME for share in [*beyond, *wide]) < len(beyond) + len(wide) else max(*beyond, *wide) <= SAME,
            f"in {sum(share <= SAME for share in beyond)} of {len(beyond)} cells; in a wider family in "
            f"{sum(share <= SAME for share in wide)} of {len(wide)}, at most {percent(max(wide))} dearer",
        ),
    ]


def percent(share: float) -> str:
    """Two digits, without a sign where it is nothing."""
    return f"{100 * share:.2g} %" if abs(share) >= 5e-5 else "0 %"


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    ordered, half = sorted(values), len(values) // 2
    return (ordered[half] + ordered[-half - 1]) / 2
