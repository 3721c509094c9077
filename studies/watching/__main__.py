"""Write the page and its figure from what is kept; with --compute run everything first."""

from __future__ import annotations

from collections.abc import Sequence

from ..publishing import EXCERPT, publish, study_parser
from . import __doc__ as description
from .computation import compute
from .drawings import LOOK, draw
from .page import page
from .results import read, write


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.watching`."""
    parser = study_parser(__package__, description, "run everything anew first, some minutes")
    parser.add_argument(
        "--traces", nargs="*", default=[str(EXCERPT)], help="files of traces that are made steady, and run as they came"
    )
    options = parser.parse_args(arguments)
    if options.compute:
        write(compute(options.traces))
    publish(__package__, read(), page, draw, LOOK)


if __name__ == "__main__":
    main()
