"""Tables and figures of the SMDP papers by this project's solvers: writes docs/smdp-figures.md, its figures and its data.

    python studies/smdp_figures.py

Xu, Sun, Zhou, Niu, SMDP-Based Dynamic Batching for Efficient Inference on GPU-Based Platforms, ICC 2023, here *ICC*;
Xu, Zhou, Niu, SMDP-Based Dynamic Batching for Improving Responsiveness and Energy Efficiency of Batch Services, here *journal*.
What stands in ``PAPER_...`` is printed there. What the papers do not print is ours: the page says what.

The data of each figure stays in studies/smdp-*.csv, that of the tables in smdp-tables.json; the page and the figures are made
from them. Milliseconds, W and mJ in the data and on the page, as in the papers; the rates that go into the solvers are per second.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib
from smdp.computation import compute
from smdp.drawings import STYLE, draw
from smdp.page import page
from smdp.results import read, write

DOCS = Path(__file__).parents[1] / "docs"


def main() -> None:
    """Compute, and write the page and its figures from what the files hold."""
    write(compute())
    render()


def render() -> None:
    """Write the page and its figures from the data."""
    study = read()
    (DOCS / "figures").mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        for name, figure in draw(study).items():
            figure.savefig(DOCS / "figures" / name, metadata={"Date": None})
    (DOCS / "smdp-figures.md").write_text(page(study), encoding="utf-8")


if __name__ == "__main__":
    main()
