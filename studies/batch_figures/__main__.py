"""Compute, and write the page and its figures."""

from __future__ import annotations

from collections.abc import Sequence

from ..publishing import publish, study_parser
from . import __doc__ as description
from .computation import compute
from .drawings import LOOK, draw
from .page import page


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.batch_figures`."""
    study_parser(__package__, description).parse_args(arguments)
    publish(__package__, compute(), page, draw, LOOK)


if __name__ == "__main__":
    main()
