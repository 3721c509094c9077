"""Write the page and its figure from what is kept; with --compute run everything first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..publishing import publish, study_parser
from . import __doc__ as description
from .computation import CASES, remade
from .drawings import LOOK, draw
from .page import page
from .results import read, write


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.recorded_cost`."""
    parser = study_parser(__package__, description, "run the traces anew first, some minutes")
    parser.add_argument("folder", nargs="?", type=Path, help="where the traces are that the project does not ship")
    options = parser.parse_args(arguments)
    if options.folder and not options.compute:
        parser.error("a folder of traces is read with --compute alone")
    for case in CASES if options.compute else ():
        if case.shipped or options.folder:
            write(remade(read(), case, options.folder))
            print("ran", case.name, flush=True)
    publish(__package__, read(), page, draw, LOOK)


if __name__ == "__main__":
    main()
