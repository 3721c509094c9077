"""Write the page and its figure from what is kept; with --compute run the traces that there are first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..publishing import TRACES as EXAMPLES
from ..publishing import publish, study_parser
from . import __doc__ as description
from .computation import SHIPPED, TRACES, remade
from .drawings import LOOK, draw
from .page import page
from .results import Row, read, write


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.policy_zoo`."""
    parser = study_parser(__package__, description, "run the traces anew first")
    parser.add_argument("folder", nargs="?", type=Path, help="where the traces are that the project does not ship")
    options = parser.parse_args(arguments)
    if options.folder is not None and not options.compute:
        parser.error("a folder of traces is read with --compute alone")
    if options.compute:
        write(computed(read(), options.folder))
    publish(__package__, read(), page, draw, LOOK)


def computed(rows: Sequence[Row], folder: Path | None) -> Sequence[Row]:
    """The rows, with those of the traces that are there made anew."""
    for name, kind in TRACES.items():
        where = EXAMPLES if name == SHIPPED else folder
        if where is not None and (where / kind.file).exists():
            rows = remade(rows, name, where)
            print("ran", name)
    return rows


if __name__ == "__main__":
    main()
