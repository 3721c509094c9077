"""Write the page and its figure from what is kept; with --compute run the live fleet and its simulation first."""

from __future__ import annotations

from collections.abc import Sequence

from ..publishing import publish, study_parser
from . import __doc__ as description
from .computation import compute
from .drawings import LOOK, draw
from .page import page
from .results import read, write


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.fleet_live`."""
    if study_parser(__package__, description, "run everything anew first, seven minutes").parse_args(arguments).compute:
        write(compute())
    publish(__package__, read(), page, draw, LOOK)


if __name__ == "__main__":
    main()
