"""Write the page and its figure from what is kept; with --compute run everything first."""

from __future__ import annotations

from collections.abc import Sequence

from ..publishing import publish, study_parser
from . import __doc__ as description
from .computation import compute
from .drawings import LOOK, draw
from .page import page
from .results import read, write


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.every_load`."""
    parser = study_parser(__package__, description)
    parser.add_argument("--compute", action="store_true", help="run everything anew first, some seconds")
    if parser.parse_args(arguments).compute:
        write(compute())
    rows = read()
    publish("every-load", page(rows), lambda: draw(rows), LOOK)


if __name__ == "__main__":
    main()
