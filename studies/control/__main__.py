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
    """`python -m studies.control`."""
    parser = study_parser(__package__, description, "run the loads anew first, ten minutes")
    parser.add_argument("folder", nargs="?", type=Path, help="where the traces are that the project does not ship")
    parser.add_argument("--load", action="append", metavar="NAME", help="this load alone, several times")
    options = parser.parse_args(arguments)
    if not options.compute and (options.folder or options.load):
        parser.error("a folder of traces and loads are read with --compute alone")
    if unknown := set(options.load or ()) - {case.name for case in CASES}:
        parser.error(f"--load: {unknown.pop()!r} is not allowed; allowed: {'; '.join(case.name for case in CASES)}")
    for case in CASES if options.compute else ():
        if (not options.load or case.name in options.load) and (not case.file or options.folder):
            write(remade(read(), case, options.folder))
            print("ran", case.name, flush=True)
    publish(__package__, read(), page, draw, LOOK)


if __name__ == "__main__":
    main()
