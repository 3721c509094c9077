"""The page docs/smdp-classes.md."""

from __future__ import annotations

from collections.abc import Sequence

from ..markdown import page_of, table
from .claims import by_load, by_ratio, most_saved
from .computation import JOULES, LARGEST, LOAD, RATIO, SECONDS, URGENT
from .results import Row, Study


def page(study: Study) -> str:
    """The page in Markdown."""
    rows = study.rows
    both, waits = most_saved(rows, 1.0), most_saved(rows, 0.0)
    busy = by_load(rows, 0.0)[-1]
    usual = next(row for row in rows if (row.load, row.ratio, row.energy) == (LOAD, RATIO, 1.0))
    return page_of(
        [
            "# Two classes before one server",
            f"""
            **A table that counts urgent and patient requests apart saves up to {percent(waits.saved)} of the weighted latency of
            one queue in order of arrival ({said(waits)}), and up to {percent(both.saved)} of latency and energy together
            ({said(both)}).** At load {LOAD:g} hardly any of that is the order: against the same table with the urgent first it
            saves about as much, since what counts is for whom the server waits and how many it takes. At load {busy.load:g}
            nearly all is the order: {percent(busy.saved)} of latency in order of arrival, {percent(busy.saved_of_first)} with
            the urgent first. Where both classes weigh the same it saves nothing.""",
            """
            Made by `python -m studies.smdp_classes --compute`, which takes some seconds, from what it leaves in
            [smdp-classes.csv](../studies/data/smdp-classes.csv) and
            [smdp-classes-table.csv](../studies/data/smdp-classes-table.csv).
            How the table is found is in [the model](model.md#4-one-server-the-smdp), 4.8; `sluice smdp --class` solves for two
            classes of your own ([one server](smdp.md)), and [a buffer follows it](classes.md#a-table-over-both).""",
            f"""
            The server is GoogLeNet on a Tesla P4, as in the [SMDP papers](smdp-figures.md): {1e3 * SECONDS[0]:g} +
            {1e3 * SECONDS[1]:g} b ms and {1e3 * JOULES[0]:g} + {1e3 * JOULES[1]:g} b mJ for a batch of b up to {LARGEST}.
            Arrivals are
            Poisson, {URGENT:.0%} of them urgent. A ms of a patient request weighs 1, of an urgent one as many as the ratio says;
            a watt weighs 1 or nothing.""",
            "## The table",
            f"""
            How many leave with so many waiting, at load {LOAD:g} and ratio {RATIO:g}, energy weighing 1 (·: the server waits). The
            urgent leave first. One more waiting never turns serving into waiting, but it may make a batch smaller: patient requests
            stay behind so that the urgent are done sooner. The mean latency is {ms(usual.urgent)} for urgent requests and
            {ms(usual.patient)} for patient ones, where one queue has {ms(usual.together)} for all.""",
            "![how many leave, by how many of each class wait](figures/smdp-classes-table.svg)",
            "## What it saves",
            "![saved of the cost, by load and by the ratio of weights](figures/smdp-classes-saved.svg)",
            saved_table("load", [(f"{row.load:g}", row, other) for row, other in pairs(by_load(rows, 0.0), by_load(rows, 1.0))]),
            saved_table(
                "ratio", [(f"{row.ratio:g}", row, other) for row, other in pairs(by_ratio(rows, 0.0), by_ratio(rows, 1.0))]
            ),
            f"""
            By load the ratio is {RATIO:g}, by ratio the load is {LOAD:g}. Costs are exact but for the end of the grid, which
            was doubled
            until that changed them by less than a part of a million.""",
        ]
    )


def pairs(waits: Sequence[Row], both: Sequence[Row]) -> list[tuple[Row, Row]]:
    """The same settings without and with the weight of energy."""
    return list(zip(waits, both, strict=True))


def saved_table(varied: str, lines: Sequence[tuple[str, Row, Row]]) -> str:
    """What is saved against one queue in order, and with the urgent first, without and with energy."""
    header = [varied, "latency alone: of the order of arrival", "of the urgent first", "with energy: of the order of arrival"]
    cells = [
        [name, percent(row.saved), percent(row.saved_of_first), percent(other.saved), percent(other.saved_of_first)]
        for name, row, other in lines
    ]
    return table([*header, "of the urgent first"], cells)


def percent(part: float) -> str:
    """A part in percent."""
    return "0 %" if abs(part) < 5e-6 else f"{100 * part:.2g} %"


def said(row: Row) -> str:
    """A setting in words."""
    return f"load {row.load:g}, ratio {row.ratio:g}"


def ms(seconds: float) -> str:
    """In ms."""
    return f"{1e3 * seconds:.2f} ms"
