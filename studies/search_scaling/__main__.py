"""Write the page and its figure from what is kept; with --compute measure first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from ..publishing import publish, study_parser
from . import __doc__ as description
from .computation import compute
from .drawings import LOOK, draw
from .page import page
from .results import read, write

ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m studies.search_scaling`."""
    if study_parser(__package__, description, "measure anew first, in a process that has one core").parse_args(arguments).compute:
        if not ONE_CORE.items() <= os.environ.items():  # numpy reads them as it is imported
            again = [sys.executable, "-m", __package__, "--compute"]
            raise SystemExit(subprocess.run(again, env={**os.environ, **ONE_CORE}, check=False).returncode)
        write(compute())
    publish(__package__, read(), page, draw, LOOK)


if __name__ == "__main__":
    main()
