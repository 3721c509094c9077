"""Write the page and its figures from what is kept; with --compute simulate first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..publishing import publish, study_parser
from . import __doc__ as description
from .claims import agrees
from .class_comparison import compute_classes, read_classes, write_classes
from .computation import N_BLOCKS, N_REQUESTS, compute
from .drawings import LOOK, draw
from .page import page
from .results import Row, read, write


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.latency_models`."""
    parser = study_parser(__package__, description, "simulate every setting anew first")
    parser.add_argument("--compute-classes", action="store_true", help="simulate the settings with classes alone anew first")
    parser.add_argument("--requests", type=int, help=f"a multiple of {N_BLOCKS}: a quick look, which writes nothing")
    options = parser.parse_args(arguments)
    if options.compute or options.requests:
        found = list(compute(options.requests or N_REQUESTS))
        report(found)
        if options.requests:
            return
        write(found)
    if options.compute or options.compute_classes:
        write_classes(compute_classes(N_REQUESTS))
    publish(__package__, read(), lambda rows: page(rows, read_classes()), draw, LOOK)


def report(rows: Sequence[Row]) -> None:
    """Say how the exact law did."""
    z = np.array([row.z for row in rows])
    largest, rms = np.abs(z).max(), np.sqrt(np.mean(z**2))
    print(f"{len(rows)} quantiles; standard scores of exact: largest {largest:.2f}, root mean square {rms:.2f}")
    for row in rows:
        if not agrees(row):
            print("disagrees:", row)


if __name__ == "__main__":
    main()
