"""`make studies`: every page again from what is kept and from the code, or those named, as in ``python -m studies policy_zoo``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from . import reference

STUDIES = (
    "batch_figures",
    "control",
    "cpu_or_gpu",
    "every_load",
    "fleet_live",
    "harmonybatch",
    "latency_models",
    "modulated_arrivals",
    "policy_zoo",
    "proteus",
    "recorded_cost",
    "request_sizes",
    "search_scaling",
    "smdp_classes",
    "smdp_day",
    "smdp_figures",
    "watching",
)


def main(names: Sequence[str]) -> None:
    """Write the pages of these studies; where none is named, those of all, and of reference."""
    for name in names or STUDIES:
        if name not in STUDIES:
            sys.exit(f"study: {name!r} is not allowed; allowed: {', '.join(STUDIES)}")
        importlib.import_module(f"studies.{name}.__main__").main([])
    if not names:
        reference.main()


if __name__ == "__main__":
    main(sys.argv[1:])
