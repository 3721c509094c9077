"""What the page says of classes in one queue."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..markdown import table
from .class_comparison import ClassRow
from .computation import N_REQUESTS, QUANTILES


def classes_in_one_queue(rows: Sequence[ClassRow]) -> list[str]:
    """The section."""
    settings = list(dict.fromkeys((row.setting, row.batch_size, row.mean_batch_size) for row in rows))
    z, batch_z = np.array([row.z for row in rows]), np.array([row.batch_z for row in rows])
    at_95 = max((row for row in rows if row.quantile == 0.95), key=lambda row: abs(row.error))
    size = max(rows, key=lambda row: abs(row.batch_error))
    return [
        "## Classes in one queue",
        f"""
        Where [classes](classes.md) with slacks share a table, (2.12)–(2.18) of the model predict the quantiles
        {", ".join(f"{100 * q:g}" for q in QUANTILES)} % of each class and the mean batch size. {len(settings)} settings,
        some drawn at random as above, are each held against {N_REQUESTS / 1e6:g} million requests of all classes together,
        by a simulator that follows the rule request by request and shares no code with the models either
        ([latency-classes.csv](../studies/data/latency-classes.csv)). {sum(row.agrees for row in rows)} of {len(rows)} quantiles
        agree, by the measure above, with the mean batch size of their setting. The largest deviation of a 95th percentile is
        {abs(at_95.error):.2f} %, where the simulation's standard error is {100 * at_95.standard_error / at_95.simulated:.2f} %
        ({at_95.setting}), that of a mean batch size {abs(size.batch_error):.3f} %, {abs(size.batch_z):.1f} standard errors;
        the largest standard scores are {np.abs(z).max():.1f} and {np.abs(batch_z).max():.1f}, the root mean square of those
        of the quantiles is {np.sqrt(np.mean(z**2)):.2f}.""",
        table(
            ["classes", "B", "E[N]", "its error, %", "largest error, %", "that of the simulation, %", "largest abs z", "agrees"],
            [_line([row for row in rows if (row.setting, row.batch_size, row.mean_batch_size) == key]) for key in settings],
        ),
        "The last columns are over the classes of a setting and the quantiles; the error of the simulation is its standard error.",
    ]


def _line(rows: Sequence[ClassRow]) -> list[str]:
    first, worst = rows[0], max(rows, key=lambda row: abs(row.error))
    named = f"{first.setting} ({len({row.of_class for row in rows})})"
    shown = [f"{abs(first.batch_error):.3f}", f"{abs(worst.error):.3f}", f"{100 * worst.standard_error / worst.simulated:.3f}"]
    agree = "yes" if all(row.agrees for row in rows) else "**no**"
    return [named, str(first.batch_size), f"{first.mean_batch_size:.1f}", *shown, f"{max(abs(row.z) for row in rows):.1f}", agree]
